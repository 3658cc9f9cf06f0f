"""The engine of observational memory.

It knows messages with stable ids and places, a storage, an Observer, a Reflector and a clock, and nothing of
our agent: adapters fit it to a loop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime

from diarist.chunks import DataChunk
from diarist.exceptions import StorageError
from diarist.memory.observational.announcing import Emit
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.cycles import Cycles
from diarist.memory.observational.limits import limits_of
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.coverage import seq_of, visible_log
from diarist.memory.observational.log.edits import tombstones_of
from diarist.memory.observational.log.intact import stale_entries
from diarist.memory.observational.log.log_store import OTHER_THREADS, LogStore
from diarist.memory.observational.log.removal import finish_removals
from diarist.memory.observational.overrides import effective_config
from diarist.memory.observational.prompt.sent_block import keep_date, may_quote_forgotten
from diarist.memory.observational.roles.base import ObserverRole, ReflectorRole
from diarist.memory.observational.rows import RawRows
from diarist.memory.observational.thread_memory import ThreadMemory
from diarist.memory.observational.work.background import Background
from diarist.memory.observational.work.jobs import (
    Job,
    ThreadJobs,
    buffer_observations,
    buffer_reflection,
)
from diarist.memory.observational.work.observe_all import Progress, observe_all
from diarist.memory.observational.work.observe_threads import ResourceObserver
from diarist.memory.observational.work.other_threads import buffer_other_threads
from diarist.messages import Message, utc_now
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog, Tombstone
from diarist.tokens import TokenCounter, default_counter

logger = logging.getLogger("diarist")


class Engine:
    """Observational memory over a storage. Keeps nothing but its background work; share it as you like.

    Args:
        clock: Returns an aware datetime; used for entries, events and back-off.
        background: Where background work runs; one of its own by default.
        submit: Hands a background job to somebody else, who calls ``work`` with it; by default it is done here.
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
        background: Background | None = None,
        submit: Callable[[Job], Awaitable[None]] | None = None,
    ) -> None:
        self.config = config or ObservationalMemoryConfig()
        self.background = background or Background()
        self._storage = storage
        self._observer = observer
        self._reflector = reflector
        self._counter = counter or default_counter()
        self._clock = clock
        self._submit = submit
        self._logs = LogStore(storage, self.config.scope)

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

    async def look(self, thread_id: str, resource_id: str) -> ThreadMemory:
        """The memory of a thread as it is, for one who only reads: nothing is finished, and nothing is written.

        Raises StorageError.
        """
        log = await self._logs.read(thread_id, resource_id)
        memory = self._memory(thread_id, resource_id, None, log, _ignore, manual=False)
        await memory.load()
        gone = [stone for stone in log.tombstones if stone.thread_id == thread_id]
        memory.rows.remove([row for row in memory.rows.all if any(_names(stone, row) for stone in gone)])
        return memory

    async def _open(
        self, thread_id: str, resource_id: str, run_id: str | None, emit: Emit | None, *, manual: bool
    ) -> ThreadMemory:
        found, rows = await self._logs.read_with_rows(thread_id, resource_id, run_id)
        log = await self._settle(thread_id, resource_id, run_id, found)
        memory = self._memory(thread_id, resource_id, run_id, log, emit or _ignore, manual=manual)
        await memory.load(rows if log is found else None)
        await self._finish_discards(memory, thread_id, log)
        await self._finish_forgetting(memory, thread_id, log)
        return memory

    def _memory(
        self, thread_id: str, resource_id: str, run_id: str | None, log: ObservationLog, emit: Emit, *, manual: bool
    ) -> ThreadMemory:
        config = effective_config(self.config, log.overrides)
        return ThreadMemory(
            rows=RawRows(self._storage, self._counter, thread_id=thread_id, run_id=run_id),
            cycles=self._cycles(config, thread_id, resource_id, emit, manual=manual),
            jobs=ThreadJobs(
                self.background,
                self._logs,
                self._submit or (lambda job: self.work(job, emit=emit)),
                thread_id=thread_id,
                resource_id=resource_id,
            ),
            config=config,
            counter=self._counter,
            clock=self._clock,
            thread_id=thread_id,
            run_id=run_id,
            log=log,
        )

    def _cycles(
        self, config: ObservationalMemoryConfig, thread_id: str, resource_id: str, emit: Emit, *, manual: bool = False
    ) -> Cycles:
        return Cycles(
            storage=self._storage,
            observer=self._observer,
            reflector=self._reflector,
            config=config,
            counter=self._counter,
            clock=self._clock,
            thread_id=thread_id,
            resource_id=resource_id,
            emit=emit,
            manual=manual,
        )

    async def work(self, job: Job, *, emit: Emit | None = None) -> bool:
        """Do a background job: observe or reflect what is due, and let the result wait in the log.

        What the Observer or the Reflector does wrong is told in events and counted. Raises StorageError.

        Returns:
            False where nothing was done, since somebody else is at it, or died at it less than a minute ago.
        """
        whose = OTHER_THREADS if job.others else job.thread_id
        async with self._logs.claim(whose, job.resource_id, job.operation) as mine:
            if mine:
                await self._do(job, emit or _ignore)
        return mine

    async def _do(self, job: Job, emit: Emit) -> None:
        log = await self._logs.read(job.thread_id, job.resource_id)
        config = effective_config(self.config, log.overrides)
        cycles = self._cycles(config, job.thread_id, job.resource_id, emit)
        limits, timeout = limits_of(config), config.background_timeout
        if job.others:
            await buffer_other_threads(
                cycles,
                self._storage,
                log,
                but=job.thread_id,
                least=limits.buffer_tokens or limits.message_tokens,
                limit=config.observation.max_tokens_per_batch,
                counter=self._counter,
            )
        elif job.operation == "reflection":
            await buffer_reflection(log, cycles, limits, timeout=timeout)
        else:
            await buffer_observations(job, log, cycles, self._storage, limits, self._counter, timeout=timeout)

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
            ConflictError: The same messages were changed while each of three calls was at them.
            StorageError: The storage failed.
        """
        memory = await self._open(thread_id, resource_id, None, emit, manual=True)
        await observe_all(memory, self._settle, progress, leave_tokens)

    async def observe_resource(
        self, resource_id: str, *, progress: Progress | None = None, emit: Emit | None = None
    ) -> None:
        """Observe all rows that may be observed of all threads of a resource; its threads share one log.

        What waits in the log is activated first. Then threads are observed in the order of what they say, several
        to a call of ``max_tokens_per_batch`` and several calls at a time; reflects whenever that is due. What is
        observed by somebody else is left alone; what was changed meanwhile is read anew.

        Args:
            progress: Called with (tokens done, tokens in all) before each round of calls and at the end.

        Raises:
            ModelError, RoleError: The Observer or the Reflector failed; what was done besides is kept.
            ThreadBusyError: Somebody else is observing the resource, or some of its threads.
            ConflictError: As for ``observe_all``.
            StorageError: The storage failed.
        """
        thread_id = await self._any_thread(resource_id)
        if not thread_id:
            return
        memory = await self._open(thread_id, resource_id, None, emit, manual=True)
        await ResourceObserver(
            memory,
            lambda thread_id: self._cycles(memory.config, thread_id, resource_id, emit or _ignore, manual=True),
            self._settle,
            self._storage,
            self._counter,
            limit=memory.config.observation.max_tokens_per_batch,
            progress=progress,
        ).run()

    async def reflecting(self, thread_id: str, resource_id: str, *, emit: Emit | None = None) -> Cycles:
        """What condenses a log because somebody asked for it. Finishes first what a crash cut short, as ``open`` does.

        Args:
            thread_id: The thread that events name; empty for any one of the resource.

        Raises StorageError.
        """
        log = await self._settle(thread_id, resource_id, None)
        thread_id = thread_id or await self._any_thread(resource_id)
        config = effective_config(self.config, log.overrides)
        return self._cycles(config, thread_id, resource_id, emit or _ignore, manual=True)

    async def _any_thread(self, resource_id: str) -> str:
        """A thread of the resource; empty where it has none."""
        page = await self._storage.list_threads(resource_id=resource_id, limit=1)
        return page.items[0].id if page.items else ""

    async def report(self, thread_id: str, resource_id: str, error: Exception, *, emit: Emit | None = None) -> None:
        """Say in an event that a thread's memory cannot be opened."""
        key = self._logs.key(thread_id, resource_id)
        log = ObservationLog(key=key, scope=self.config.scope, resource_id=resource_id)
        await self._cycles(self.config, thread_id, resource_id, emit or _ignore).report(log, error, 0)

    async def log(self, thread_id: str, resource_id: str) -> ObservationLog:
        """The log as it is stored, without entries of live runs; empty (version 0) if there is none."""
        return visible_log(await self._logs.read(thread_id, resource_id), None)

    async def drop_run(
        self, thread_id: str, resource_id: str, run_id: str, *, in_flight: bool = True, seqs: Collection[int] = ()
    ) -> None:
        """Forget what was noted of a run that is discarded. Call it BEFORE its rows are removed.

        Leaves a tombstone: no late result of the run can come in, and a removal that a crash cuts short is
        finished when the thread is opened next.

        Args:
            in_flight: Some background work may still be at the run's rows. Otherwise a thread without a log
                needs no tombstone.
            seqs: Places of its rows: should somebody have taken the run for dead and noted them, that goes, too.
        """
        log = await self._logs.read(thread_id, resource_id)
        if log.version or in_flight:
            rows = tombstones_of(thread_id, seqs)
            log = await self._logs.update(
                thread_id,
                resource_id,
                lambda log: transitions.drop_run(log, run_id, thread_id, rows),
                check=lambda: self._logs.clean_history(log.key, lambda entry: entry.run_id == run_id),
            )
            await finish_removals(self._storage, log, self._counter)

    async def close_run(self, thread_id: str, resource_id: str, run_id: str) -> None:
        """Make what was noted of a run part of the log for good. Call it AFTER the run has ended.

        Entries whose rows were rewritten or removed at the end of the run are taken out, and those rows are
        raw again. If this call is missed, the next ``open`` makes up for it.
        """
        log = await self._logs.read(thread_id, resource_id)
        own = [entry for entry in log.entries if entry.run_id == run_id]
        if not own:
            return
        ids = {entry.id for entry in own}
        stale = await stale_entries(self._storage, own, run_id)

        async def clean() -> None:
            if stale:
                await self._logs.clean_history(log.key, lambda entry: entry.id in stale)

        await self._logs.update(
            thread_id, resource_id, lambda log: transitions.close_entries(log, ids, stale=stale), check=clean
        )

    async def _settle(
        self, thread_id: str, resource_id: str, run_id: str | None, log: ObservationLog | None = None
    ) -> ObservationLog:
        """The log, after entries of other runs that have ended since were closed or taken out; the very ``log`` that
        was read where there is nothing to do."""
        log = log or await self._logs.read(thread_id, resource_id)
        log = await finish_removals(self._storage, log, self._counter)
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
        rows = [row for row in memory.rows.all if row.run_id in gone]
        if rows:
            await self._storage.delete_messages(thread_id, [row.id for row in rows])
            await memory.load()

    async def _finish_forgetting(self, memory: ThreadMemory, thread_id: str, log: ObservationLog) -> None:
        """Cut what was sent along with rows whose run was live when something was forgotten."""
        late = [
            row
            for row in memory.rows.all
            if row.sent and row.run_id != memory.run_id and may_quote_forgotten(row.sent, log)
        ]
        if late:
            for row in late:
                row.sent = row.sent and keep_date(row.sent, self._counter)
            await self._storage.rewrite_sent(thread_id, {row.id: row.sent for row in late})
            memory.add(late)


def _names(stone: Tombstone, row: Message) -> bool:
    if stone.run_id is not None:
        return stone.run_id == row.run_id
    return stone.first_seq <= seq_of(row) <= stone.last_seq


def _ignore(part: DataChunk) -> None:
    """Nobody listens; the event log has it."""
