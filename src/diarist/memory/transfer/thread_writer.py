"""Writes a new thread with its messages and diary page by page; it becomes visible all at once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from diarist.concurrency import acquire_or_undo
from diarist.counting import count_messages
from diarist.exceptions import ConflictError, RunLostError, StorageError, ThreadBusyError
from diarist.memory.observational.log.log_store import begun
from diarist.memory.observational.log.removal import finish_earlier_removals
from diarist.memory.run_lifecycle import RUN_TTL, end_run, open_run
from diarist.memory.transfer.format import DiaryLogs, ThreadItem, WorkingText
from diarist.messages import Message, new_id
from diarist.storage.base import Storage
from diarist.storage.records import Forgotten, ObservationLog, Run, Thread, WorkingMemory, WorkingMemoryUpdate
from diarist.tokens import TokenCounter

PAGE = 500
"""Number of messages to read or write at once."""


class ThreadWriter:
    """Fills a thread that is not visible yet. Created by ``written``.

    Attributes:
        run: The run that owns all data until the end. It is guarded and writes only responses, so if this process dies,
            its rows and its diary entries are dropped.
        logs: The thread's diary so far: its earlier generations, then the current one. It is saved at the end.
    """

    def __init__(self, storage: Storage, counter: TokenCounter, run: Run) -> None:
        self.run = run
        self.logs: list[ObservationLog] = []
        self._storage, self._counter = storage, counter
        self._alive_at = time.monotonic()
        self._page: list[Message] = []
        self._forgotten: list[Forgotten] = []

    async def add(self, item: ThreadItem) -> None:
        """Add the next item. Raises ConflictError if two messages have the same id."""
        match item:
            case Message():
                self._page.append(item)
                if len(self._page) == PAGE:
                    await self._flush()
            case Forgotten():
                self._forgotten.append(item)
            case WorkingText():
                await self.put_working_memory(item.text)
            case DiaryLogs():
                self.logs += item.logs

    async def _flush(self) -> None:
        """Store the messages added so far."""
        if not self._page:
            return
        page, self._page = self._page, []
        await count_messages(page, self._counter)
        await self._storage.append_messages(self.run, page)
        if time.monotonic() - self._alive_at > RUN_TTL / 4:
            await self._storage.heartbeat(self.run, ttl=RUN_TTL)
            self._alive_at = time.monotonic()

    async def put_working_memory(self, text: str, *, key: str = "") -> None:
        """Store a working memory, by default the thread's own. It takes effect once the thread exists."""
        update = WorkingMemoryUpdate(run_id=self.run.id, text=text)
        key = key or f"thread:{self.run.thread_id}"
        await self._storage.save_working_memory(WorkingMemory(key=key, updates=(update,)))

    async def finish(self) -> ObservationLog | None:
        """Store the rest; return the diary as it was saved, with entries that belong to the run."""
        await self._flush()
        await self._storage.note_forgotten(self.run.thread_id, self._forgotten)
        head: ObservationLog | None = None
        for version, log in enumerate(begun(*self.logs)):
            if version == len(self.logs) - 1:
                log = replace(log, entries=tuple(replace(entry, run_id=self.run.id) for entry in log.entries))
            head = await self._storage.save_log(log, expected_version=version)
        return head


@asynccontextmanager
async def written(storage: Storage, counter: TokenCounter, thread: Thread) -> AsyncGenerator[ThreadWriter]:
    """Create a thread: it becomes visible when the block ends, and leaves nothing behind if the block raises.

    Raises ConflictError if a thread of this id exists; ThreadBusyError while another process creates one, and for a
    minute after such a process was killed.
    """
    run = await _begin(storage, thread)
    writer = ThreadWriter(storage, counter, run)
    async with _or_undone(storage, run):
        await finish_earlier_removals(storage, thread)
        yield writer
        head = await writer.finish()

    async def commit() -> None:
        async with _or_undone(storage, run):
            await end_run(storage, run, "committed")
            if head is not None:
                entries = tuple(replace(entry, run_id=None) for entry in head.entries)
                await storage.save_log(replace(head, entries=entries), expected_version=head.version)

    await acquire_or_undo(commit(), partial(_undo, storage, run), ttl=RUN_TTL)


@asynccontextmanager
async def _or_undone(storage: Storage, run: Run) -> AsyncGenerator[None]:
    """Undo the run if the block raises; a failure to undo it does not hide the first error."""
    try:
        yield
    except BaseException:
        with suppress(StorageError):
            await _undo(storage, run)
        raise


async def _undo(storage: Storage, run: Run) -> None:
    """Discard the run. If it is committed already, delete the thread.

    If another process has ended the run, the thread belongs to that process.
    """
    try:
        await end_run(storage, run, "discarded")
    except RunLostError:
        ended = await storage.get_run(run.id)
        if ended is not None and (ended.token, ended.state) == (run.token, "committed"):
            await storage.delete_thread(run.thread_id)


async def _begin(storage: Storage, thread: Thread) -> Run:
    """Begin the run that creates the thread.

    A process that was killed here leaves an invisible thread. A new run of that thread ends the old run, deletes its
    rows, and makes the thread visible and empty. So the thread is then deleted and created again.
    """
    refusal = f"thread {thread.id!r} already exists in {storage.location}"
    if await storage.get_thread(thread.id) is not None:
        raise ConflictError(refusal)
    run = await _open(storage, thread)
    async with _or_undone(storage, run):
        if await storage.get_thread(thread.id) is None:
            return run
        if await storage.list_messages(thread.id, limit=1):  # another process has created the thread
            raise ConflictError(refusal)
        await storage.delete_thread(thread.id)
    return await _open(storage, thread)


async def _open(storage: Storage, thread: Thread) -> Run:
    try:
        return await open_run(storage, new_id("run"), thread, wait=0, guarded=True)
    except ThreadBusyError as error:
        raise ThreadBusyError(
            f"thread {thread.id!r} is being created by another call; if the process of that call was killed, try again "
            f"in {RUN_TTL:g} seconds"
        ) from error
