"""A new thread with all its messages and its diary, written page by page and visible all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from diarist.concurrency import at_work, obtained
from diarist.counting import ensure_counted
from diarist.exceptions import ConflictError, RunLostError, StorageError
from diarist.memory.ending import RUN_TTL, end_run
from diarist.memory.observational.log.log_store import begun
from diarist.memory.observational.log.removal import finish_earlier_removals
from diarist.messages import Message, new_id
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, Run, Thread, WorkingMemory, WorkingMemoryUpdate
from diarist.tokens import TokenCounter

PAGE = 500
"""Messages that are read or written in one go."""


class ThreadWriter:
    """Fills a thread that nobody sees yet. ``written`` makes one.

    Attributes:
        run: The run that all of it belongs to until the end. It is guarded and writes responses: should this process
            die, its rows go with it, and entries of the diary that name it as well.
    """

    def __init__(self, storage: Storage, counter: TokenCounter, run: Run) -> None:
        self.run = run
        self._storage, self._counter = storage, counter
        self._alive_at = time.monotonic()
        self._logs: list[ObservationLog] = []

    async def append(self, messages: Sequence[Message]) -> None:
        """Add messages at the end. Raises ConflictError where two have one id."""
        if not messages:
            return
        ensure_counted(messages, self._counter)
        await self._storage.append_messages(self.run, messages)
        if time.monotonic() - self._alive_at > RUN_TTL / 4:
            await self._storage.heartbeat(self.run, ttl=RUN_TTL)
            self._alive_at = time.monotonic()

    async def put_log(self, logs: Sequence[ObservationLog]) -> None:
        """Save the diary of the thread: its earlier generations, then the present one."""
        for version, log in enumerate(begun(*logs)):
            head = replace(log, entries=tuple(replace(entry, run_id=self.run.id) for entry in log.entries))
            self._logs.append(
                await self._storage.save_log(head if version == len(logs) - 1 else log, expected_version=version)
            )

    async def put_working_memory(self, text: str) -> None:
        """Give the thread a working memory of its own, which counts once the thread is there."""
        update = WorkingMemoryUpdate(run_id=self.run.id, text=text)
        key = f"thread:{self.run.thread_id}"
        await self._storage.save_working_memory(WorkingMemory(key=key, updates=(update,)))

    async def close(self) -> None:
        """The thread is there now; the entries of its diary are nobody's any more."""
        if self._logs:
            head = self._logs[-1]
            entries = tuple(replace(entry, run_id=None) for entry in head.entries)
            await self._storage.save_log(replace(head, entries=entries), expected_version=head.version)


@asynccontextmanager
async def written(storage: Storage, counter: TokenCounter, thread: Thread) -> AsyncGenerator[ThreadWriter]:
    """Make a thread: it is there when the block ends, and nothing of it where the block raises.

    Raises ConflictError if there is a thread of this id, ThreadBusyError while somebody else makes one: for a minute
    also where he was killed.
    """
    run = await _begin(storage, thread)
    writer = ThreadWriter(storage, counter, run)
    async with _or_discarded(storage, run):
        await finish_earlier_removals(storage, thread, counter)
        yield writer
    await obtained(_finish(storage, run, writer), lambda _: storage.delete_thread(thread.id))


async def _finish(storage: Storage, run: Run, writer: ThreadWriter) -> None:
    async with _or_discarded(storage, run):
        await end_run(storage, run, "committed")
    try:
        await writer.close()
    except StorageError:
        await storage.delete_thread(run.thread_id)
        raise


@asynccontextmanager
async def _or_discarded(storage: Storage, run: Run) -> AsyncGenerator[None]:
    """Discard the run where the block raises; what went wrong first is what is told."""
    me = asyncio.current_task()
    try:
        yield
    except BaseException:
        if at_work(me):
            with suppress(StorageError):
                await _discard(storage, run)
        raise


async def _discard(storage: Storage, run: Run) -> None:
    """Leave nothing of the run. Where the reply to its commit was lost, it may be committed: then the thread is there,
    and is removed. Where somebody else has ended the run, the thread is not this call's any more."""
    try:
        await end_run(storage, run, "discarded")
    except RunLostError:
        ended = await storage.get_run(run.id)
        if ended is not None and (ended.token, ended.state) == (run.token, "committed"):
            await storage.delete_thread(run.thread_id)


async def _begin(storage: Storage, thread: Thread) -> Run:
    """Begin the run that creates the thread.

    A process that was killed at this leaves a thread that nobody sees. To begin a run of it ends that one, with its
    rows, and lets the thread be seen, empty: it is removed then, and made anew.
    """
    refusal = f"there is a thread {thread.id!r} already in {storage.location}"
    if await storage.get_thread(thread.id) is not None:
        raise ConflictError(refusal)
    run = await _open(storage, thread)
    async with _or_discarded(storage, run):
        if await storage.get_thread(thread.id) is None:
            return run
        if await storage.list_messages(thread.id, limit=1):  # somebody was faster
            raise ConflictError(refusal)
        await storage.delete_thread(thread.id)
    return await _open(storage, thread)


async def _open(storage: Storage, thread: Thread) -> Run:
    beginning = storage.begin_run(new_id("run"), thread, ttl=RUN_TTL, guarded=True)
    return await obtained(beginning, lambda run: end_run(storage, run, "discarded"))
