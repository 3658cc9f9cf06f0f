"""The engine of observational memory.

It knows messages with stable ids and places, a storage, an Observer, a Reflector and a clock, and nothing of
our agent: adapters fit it to a loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from diarist.chunks import DataChunk
from diarist.exceptions import StorageError
from diarist.memory.observational import transitions
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.coverage import visible_log
from diarist.memory.observational.cycles import Cycles, Emit, rows_unchanged
from diarist.memory.observational.log_store import LogStore
from diarist.memory.observational.roles import ObserverRole, ReflectorRole
from diarist.memory.observational.thread_memory import Progress, ThreadMemory
from diarist.messages import utc_now
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter, default_counter

logger = logging.getLogger("diarist")


class Engine:
    """Observational memory over a storage. Holds no state of its own; share it as you like.

    Args:
        clock: Returns an aware datetime; used for entries, events and back-off.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        observer: ObserverRole,
        reflector: ReflectorRole,
        config: ObservationalMemoryConfig | None = None,
        counter: TokenCounter | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.config = config or ObservationalMemoryConfig()
        self._storage = storage
        self._observer = observer
        self._reflector = reflector
        self._counter = counter or default_counter()
        self._clock = clock
        self._logs = LogStore(storage)

    async def open(
        self, thread_id: str, resource_id: str, run_id: str | None, *, emit: Emit | None = None
    ) -> ThreadMemory:
        """The memory of a thread for one run, with its log and its raw rows.

        Finishes first what a crash cut short: entries of runs that have ended are closed or taken out, rows
        of a discarded run that are still there are removed.

        Args:
            run_id: The run that asks; it sees its own rows. None for a call outside any run.
            emit: Gets each data part, beside the event log of the key.

        Raises:
            StorageError: The log or the messages cannot be read.
        """
        return await self._open(thread_id, resource_id, run_id, emit, manual=False)

    async def _open(
        self, thread_id: str, resource_id: str, run_id: str | None, emit: Emit | None, *, manual: bool
    ) -> ThreadMemory:
        log = await self._settle(thread_id, resource_id, run_id)
        memory = ThreadMemory(
            storage=self._storage,
            cycles=Cycles(
                storage=self._storage,
                observer=self._observer,
                reflector=self._reflector,
                config=self.config,
                counter=self._counter,
                clock=self._clock,
                thread_id=thread_id,
                resource_id=resource_id,
                emit=emit or _ignore,
                manual=manual,
            ),
            config=self.config,
            counter=self._counter,
            clock=self._clock,
            thread_id=thread_id,
            run_id=run_id,
            log=log,
        )
        await memory.load()
        await self._finish_discards(memory, thread_id, log)
        return memory

    async def observe_all(
        self,
        thread_id: str,
        resource_id: str,
        *,
        progress: Progress | None = None,
        emit: Emit | None = None,
        leave_tokens: int = 0,
    ) -> None:
        """Observe all rows of a thread that may be observed, batch by batch; reflect whenever that is due.

        Each batch is saved by itself: what was done stays when a later one fails. Thresholds, back-off and
        ``observe_timeout`` do not apply.

        Args:
            progress: Called with (tokens done, tokens in all) before each batch and at the end.
            leave_tokens: At least so many tokens of the newest messages stay raw.

        Raises:
            ModelError, RoleError: The Observer or the Reflector failed.
            ThreadBusyError: Somebody else is observing the thread.
            StorageError: The storage failed.
        """
        memory = await self._open(thread_id, resource_id, None, emit, manual=True)
        await memory.observe_all(progress, leave_tokens)

    async def log(self, thread_id: str) -> ObservationLog:
        """The thread's log as it is stored, without entries of live runs; empty (version 0) if there is none."""
        return visible_log(await self._logs.read(thread_id), None)

    async def drop_run(self, thread_id: str, resource_id: str, run_id: str) -> None:
        """Forget what was noted of a run that is discarded. Best called BEFORE its rows are removed.

        Leaves a tombstone: no late result of the run can come in, and a removal that a crash cuts short is
        finished when the thread is opened next. A thread that has no log needs none, since all work is
        awaited within its run.
        """
        log = await self._logs.read(thread_id)
        if log.version:
            await self._logs.update(thread_id, resource_id, lambda log: transitions.drop_run(log, run_id, thread_id))

    async def close_run(self, thread_id: str, resource_id: str, run_id: str) -> None:
        """Make what was noted of a run part of the log for good. Call it AFTER the run has ended.

        Entries whose rows were rewritten or removed at the end of the run are taken out, and those rows are
        raw again. If this call is missed, the next ``open`` makes up for it.
        """
        log = await self._logs.read(thread_id)
        own = [entry for entry in log.entries if entry.run_id == run_id]
        if not own:
            return
        stale = [entry.id for entry in own if not await rows_unchanged(self._storage, entry)]
        await self._logs.update(thread_id, resource_id, lambda log: transitions.close_run(log, run_id, stale=stale))

    async def _settle(self, thread_id: str, resource_id: str, run_id: str | None) -> ObservationLog:
        """The log, after entries of other runs that have ended since were closed or taken out."""
        log = await self._logs.read(thread_id, resource_id)
        others = {entry.run_id for entry in log.entries if entry.run_id not in (None, run_id)}
        if not others:
            return log
        for other in sorted(filter(None, others)):
            try:
                await self._end_run(thread_id, resource_id, other)
            except StorageError as error:  # its rows are raw until somebody can save the log
                logger.warning("cannot close the notes of run %s of thread %s: %s", other, thread_id, error)
        return await self._logs.read(thread_id, resource_id)

    async def _end_run(self, thread_id: str, resource_id: str, run_id: str) -> None:
        run = await self._storage.get_run(run_id)
        if run is None or run.state == "discarded":
            await self.drop_run(thread_id, resource_id, run_id)
        elif run.state in ("committed", "interrupted"):
            await self.close_run(thread_id, resource_id, run_id)

    async def _finish_discards(self, memory: ThreadMemory, thread_id: str, log: ObservationLog) -> None:
        """Remove rows of runs that were marked as discarded before a crash kept their rows alive."""
        gone = {stone.run_id for stone in log.tombstones if stone.run_id is not None}
        rows = [row for row in memory.rows if row.run_id in gone]
        if rows:
            await self._storage.delete_messages(thread_id, [row.id for row in rows])
            await memory.load()


def _ignore(part: DataChunk) -> None:
    """Nobody listens; the event log has it."""
