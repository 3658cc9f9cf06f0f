"""The diary of a thread, and the cycle around one call of the Observer or Reflector: start event, call, save, end
event; the time that a run waits for such calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TypeVar

from diarist.chunks import DataChunk, wire
from diarist.concurrency import finish_within
from diarist.encoding import writable
from diarist.exceptions import (
    ConflictError,
    ModelTimeoutError,
    NotFoundError,
    RoleError,
    RunLostError,
    StorageError,
    message_of,
)
from diarist.memory.generated_titles import is_generated, mark_of, without_mark
from diarist.memory.observational import events
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.decide import Action, Limits, Sizes
from diarist.memory.observational.events import Cycle, Emit, Trigger
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.edits import row_stones, tombstones_of
from diarist.memory.observational.log.log_store import LogStore, was_forgotten
from diarist.memory.observational.log.removal import finish_removals
from diarist.memory.observational.log.transitions import Operation
from diarist.memory.observational.roles.base import ObserverRole, ReflectorRole, RoleAnswer
from diarist.memory.rows import seq_of
from diarist.messages import Json, Message
from diarist.storage.base import Storage
from diarist.storage.records import COUNTS, Observation, ObservationLog, RowRef, Source
from diarist.tokens import TokenCounter
from diarist.tracing import span

logger = logging.getLogger("diarist")

Answer = TypeVar("Answer", bound=RoleAnswer)

_SHORTEST_WAIT = 0.001
"""In seconds. Shorter waits are below the resolution of the clock, and would repeat forever."""


class OutOfTimeError(ModelTimeoutError):
    """A call of a role was cancelled because it took too long."""


class NotSmallerError(RoleError):
    """The Reflector's text is hardly smaller than the entries it should replace."""


class Patience:
    """The time that a run may still wait for memory, in seconds, for all waits together.

    Args:
        on_wait: Receives the event loop's time until which the run waits for something other than the storage.

    Attributes:
        lost: No further waits are allowed, since something failed.
    """

    def __init__(self, seconds: float, on_wait: Callable[[float], object] | None = None) -> None:
        self._seconds, self._since, self.lost = seconds, None, False
        self._on_wait: Callable[[float], object] = on_wait or (lambda until: None)

    @property
    def left(self) -> float:
        """Seconds left; 0 if they are used up or lost."""
        spent = 0 if self._since is None else asyncio.get_running_loop().time() - self._since
        left = self._seconds - spent
        return 0 if self.lost or left < _SHORTEST_WAIT else left

    @contextmanager
    def spend(self) -> Generator[None]:
        """Subtract the time that the block takes. Before and after it, the storage has its full time to answer."""
        self._since = asyncio.get_running_loop().time()
        self.pause(0)
        try:
            yield
        except asyncio.CancelledError:  # the work may go on in the background
            self.lose()
            raise
        finally:
            self.pause(0)
            self._seconds, self._since = self.left, None

    def pause(self, seconds: float) -> None:
        """Tell ``on_wait`` that the run waits this long at most from now; 0: that it waits for the storage only. Does
        nothing if the run does not wait, but the work goes on."""
        if self._since is not None:
            self._on_wait(asyncio.get_running_loop().time() + seconds)

    def lose(self) -> None:
        """Allow no further waits."""
        self.lost = True


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The result of a cycle that did not fail.

    Attributes:
        log: The saved diary.
        entry: Its new entry.
        shortfall: Description of missing notes, without quotations.
        refused: As for ``Observed``.
    """

    log: ObservationLog
    entry: Observation
    shortfall: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows for one call of the Observer.

    Attributes:
        run_id: The live run that all rows belong to; None if they belong to no live run.
    """

    rows: Sequence[Message]
    sources: tuple[Source, ...]
    run_id: str | None

    @property
    def ends(self) -> list[RowRef]:
        """The first and the last row of each thread."""
        refs = [RowRef(row.thread_id or "", seq_of(row), row.id) for row in self.rows]
        first = {ref.thread_id: ref for ref in reversed(refs)}
        return [*first.values(), *{ref.thread_id: ref for ref in refs}.values()]


def raise_if_away(result: CycleResult | Exception) -> None:
    """Raise the error of a storage that is not available, so that a queue tries the job again later."""
    if isinstance(result, StorageError) and not isinstance(result, ConflictError | NotFoundError | RunLostError):
        raise result


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadDiary:
    """The diary of a thread (or of its resource), with the roles that write it. Sends the events of this work.

    Attributes:
        config: The configuration of observational memory.
        emit: Receives each event; the event log of the diary gets it too.
        manual: The work was requested by a user, so memory does not retry it by itself.
        patience: Of the run that waits for the work; None: no run waits.
    """

    thread_id: str
    resource_id: str
    storage: Storage
    logs: LogStore
    observer: ObserverRole
    reflector: ReflectorRole
    config: ObservationalMemoryConfig
    limits: Limits
    counter: TokenCounter
    clock: Callable[[], datetime]
    emit: Emit | None
    manual: bool
    patience: Patience | None

    @property
    def was_left(self) -> bool:
        """Return True if a run waited for the work and waits no longer: the work goes on in the background."""
        return self.config.buffers and self.patience is not None and not self.patience.left

    async def read(self) -> ObservationLog:
        """Return the diary as it is stored."""
        return await self.logs.read(self.thread_id, self.resource_id)

    async def update(
        self,
        change: Callable[[ObservationLog], ObservationLog],
        *,
        read: Callable[[], Awaitable[ObservationLog]] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
        rows: Sequence[RowRef] = (),
    ) -> ObservationLog:
        """Save a change of the diary; arguments as for ``LogStore.update``. By default it is read with ``read``."""
        return await self.logs.update(read or self.read, change, prepare=prepare, rows=rows)

    # -- the end of runs

    async def settle(self, log: ObservationLog, run_id: str | None) -> ObservationLog:
        """Finish the work that a crash interrupted: removals, and the entries of other runs that have ended.

        Returns the diary as it is stored afterwards; the same ``log`` object if there is nothing to do.
        """
        if row_stones(log):
            log = await finish_removals(self.storage, log)
        others = {entry.run_id for entry in log.entries if entry.run_id not in (None, run_id)}
        if not others:
            return log
        for other in sorted(filter(None, others)):
            try:
                await self.end_run(other)
            except StorageError as error:  # the run's rows stay raw until a later call succeeds
                logger.warning("the notes of run %s of thread %s stay temporary: %s", other, self.thread_id, error)
        return await self.read()

    async def end_run(self, run_id: str) -> None:
        """If a run has ended, make its notes permanent or drop them. Raises StorageError."""
        run = await self.storage.get_run(run_id)
        if run is None or run.state == "discarded":
            await self.drop_run(run_id)
        elif run.state in COUNTS:
            await self.close_run(run_id)

    async def drop_run(self, run_id: str, *, in_flight: bool = True, seqs: Collection[int] = ()) -> None:
        """Drop the notes of a run that is discarded. Call it BEFORE its rows are removed.

        Leaves a tombstone, with which the log rejects late results of the run. If a crash interrupts the removal, the
        next ``open`` of the thread finds the tombstone and finishes it.

        Args:
            in_flight: Background work may still read the run's rows. Otherwise a thread without a diary needs no
                tombstone.
            seqs: Numbers of its rows. Notes that another process made of them, because the run had expired, are
                removed as well.
        """
        log = await self.read()
        if log.version or in_flight:
            if seqs and await self.storage.get_run(run_id) is None:
                seqs = ()  # its thread was deleted: another one of the same id may have rows of these numbers
            rows = tombstones_of(self.thread_id, seqs)
            log = await self.update(
                lambda log: transitions.drop_run(log, run_id, self.thread_id, rows),
                prepare=lambda: self.logs.clean_history(log.key, lambda entry: entry.run_id == run_id),
            )
            await finish_removals(self.storage, log)

    async def close_run(self, run_id: str) -> None:
        """Make the notes of a run permanent. Call it AFTER the run has ended.

        Removes entries with rows that were rewritten or removed at the end of the run; those rows become raw again.
        If this call is missed, the next ``settle`` does it.
        """
        log = await self.read()
        own = [entry for entry in log.entries if entry.run_id == run_id]
        if not own:
            return
        sources = [source for entry in own for source in entry.sources]
        ids, stale = {entry.id for entry in own}, set[str]()

        async def read() -> ObservationLog:
            nonlocal stale
            now, changed = await self.logs.read_with_changes(self.thread_id, self.resource_id, sources, run_id)
            stale = {entry.id for entry in own if not set(entry.sources).isdisjoint(changed)}
            return now

        async def clean() -> None:
            if stale:
                await self.logs.clean_history(log.key, lambda entry: entry.id in stale)

        await self.update(lambda log: transitions.close_entries(log, ids, stale=stale), read=read, prepare=clean)

    # -- cycles

    def cycle(
        self, id: str, operation: Operation, log: ObservationLog, tokens: int, *, buffered: bool = False
    ) -> Cycle:
        """Return a cycle that begins now; arguments as in ``Cycle``."""
        return Cycle(
            id=id,
            operation=operation,
            thread_id=self.thread_id,
            log=log,
            tokens=tokens,
            started_at=self.clock(),
            buffered=buffered,
        )

    async def run_cycle(
        self,
        cycle: Cycle,
        work: Callable[[], Awaitable[CycleResult]],
        batch: Batch | None = None,
    ) -> CycleResult | Exception:
        """Run a cycle and send its events. Errors are returned, not raised.

        Args:
            batch: The rows of an observation. A failure is counted only while they are stored.
        """
        thread_ids = sorted({source.thread_id for source in batch.sources}) if batch else [self.thread_id]
        await self.send(events.cycle_start(cycle, self.limits, thread_ids=thread_ids), cycle.log.key)
        try:
            result = await work()
        except Exception as error:  # a turn does not fail because of a role
            failed_at = self.clock()
            is_deleted = await self._is_thread_deleted(None if batch is None else batch.run_id)
            await self._tell_failure(cycle, error, at=failed_at, stored=not is_deleted)
            if not isinstance(error, ConflictError | NotSmallerError):
                await self._count_failure(cycle, error, batch, at=failed_at)
            return error
        event = events.cycle_end(cycle, result.entry, at=self.clock(), shortfall=result.shortfall)
        await self.send(event, cycle.log.key)
        return result

    async def _is_thread_deleted(self, run_id: str | None) -> bool:
        """Return True if the thread was deleted; False if the storage cannot say. A thread that the live run ``run_id``
        created is not visible yet."""
        try:
            run = None if run_id is None else await self.storage.get_run(run_id)
            if run is not None and run.state != "discarded":
                return False
            return await self.storage.get_thread(self.thread_id) is None
        except StorageError:
            return False

    async def call_role(self, role: Awaitable[Answer], cycle: Cycle, timeout: float | None) -> Answer:
        """Await a role's call; no lock and no transaction is open during it.

        Raises OutOfTimeError, and any error of the role.
        """
        limit = (
            f"within the {self.config.background_timeout:g} s of background_timeout"
            if cycle.buffered or self.config.buffers
            else f"within the {self.config.observe_timeout:g} s that a run waits"
        )
        try:
            with span(f"memory {cycle.operation}", **{"diarist.cycle_id": cycle.id, "diarist.tokens": cycle.tokens}):
                if self.patience is not None:
                    self.patience.pause(self.patience.left)
                answer = await finish_within(timeout, role, OutOfTimeError(f"no {cycle.operation} {limit}"))
        finally:
            if self.patience is not None:
                self.patience.pause(0)
        for warning in answer.warnings:
            logger.warning("%s of thread %s: %s", cycle.operation, self.thread_id, warning)
        texts = {item.name: getattr(answer, item.name) for item in fields(answer)}
        return replace(answer, **{name: writable(text) for name, text in texts.items() if isinstance(text, str)})

    async def _tell_failure(self, cycle: Cycle, error: Exception, *, at: datetime, stored: bool = True) -> None:
        """Send a failed event. ``stored``: append it to the event log too; False if that was deleted with its
        thread."""
        message = message_of(error) or type(error).__name__
        logger.warning("%s of thread %s failed: %s", cycle.operation, self.thread_id, message)
        attempt = transitions.failures_of(cycle.log, cycle.operation).count + 1
        event = events.cycle_failed(cycle, message, at=at, attempt=attempt, will_retry=not self.manual)
        if stored:
            await self.send(event, cycle.log.key, error=_kind(error))
        else:
            self.tell(event)

    async def _count_failure(self, cycle: Cycle, error: Exception, batch: Batch | None, *, at: datetime) -> None:
        def count(now: ObservationLog) -> ObservationLog:
            if cycle.log.version and not now.version:  # the log was deleted; a failure must not create it again
                return now
            return transitions.record_failure(now, cycle.operation, at=at, error=_kind(error))

        try:  # a log that was never saved cannot show that its thread was deleted; missing rows show it
            await self.update(count, rows=batch.ends if batch and not cycle.log.version else ())
        except StorageError as failure:
            logger.warning("cannot count the failure of thread %s: %s", self.thread_id, failure)

    # -- events

    async def activated(
        self,
        log: ObservationLog,
        entries: Sequence[Observation],
        operation: Operation,
        tokens: int,
        triggered_by: Trigger,
    ) -> None:
        """Send the event for an activation of buffered entries or of a buffered reflection."""
        id = transitions.cycle_id(log.key, operation, (), [entry.cycle_id for entry in entries])
        cycle = self.cycle(id, operation, log, tokens)
        event = events.activation(cycle, self.limits, entries, at=self.clock(), triggered_by=triggered_by)
        await self.send(event, log.key)

    async def report(self, log: ObservationLog, error: Exception, tokens: int) -> None:
        """Send a failed event without a start event, for an error outside a cycle. Not counted."""
        await self._tell_failure(self.cycle("", "observation", log, tokens), error, at=self.clock())

    async def stop_waiting(
        self, operation: Operation, log: ObservationLog, tokens: int, *, since: datetime, limit: str
    ) -> None:
        """Report that a run stopped waiting for other work: a failed event without a start event. Not counted.

        Args:
            tokens: Size of the input of that work.
            limit: How long the run waited, for the message.
        """
        error = OutOfTimeError(f"the run did not wait longer than {limit}; the {operation} goes on in the background")
        cycle = replace(self.cycle("", operation, log, tokens), started_at=since)
        await self._tell_failure(cycle, error, at=self.clock())

    async def send(self, event: DataChunk, key: str, *, error: str = "") -> None:
        """Emit an event and append it to the diary's event log; storage errors are only logged.

        Conversation text is left out of the event log, so that it cannot outlive a removal; the entry with the same
        ``cycleId`` has it.

        Args:
            error: The kind of error, which the event log has instead of its text.
        """
        self.tell(event)
        try:
            await self.storage.append_event(key, event.type, events.without_words(event, error=error))
        except StorageError as failure:
            logger.warning("cannot append %s to the event log of %s: %s", event.type, key, failure)

    def tell(self, event: DataChunk) -> None:
        """Emit an event without storing it."""
        if self.emit is not None:
            self.emit(event)
        self._debug(event.type, event.data)

    def decided(self, operation: Operation, action: Action, sizes: Sizes) -> None:
        """Pass a decision and its sizes to ``on_debug_event``."""
        if self.config.on_debug_event is not None:
            event: dict[str, Json] = {
                "operationType": operation,
                "action": action.value,
                "threadId": self.thread_id,
                "window": wire(sizes),
            }
            self._debug("decision", event)

    def _debug(self, type: str, data: Mapping[str, Json]) -> None:
        if self.config.on_debug_event is None:
            return
        try:
            self.config.on_debug_event({"type": type, **data})
        except Exception as error:  # a turn does not fail because of a debug callback
            logger.warning("on_debug_event raised for %s: %s", type, message_of(error) or error.__class__.__name__)

    # -- the thread's title

    async def rename_thread(self, log: ObservationLog) -> None:
        """Set the thread's title to the one in the diary's hints, unless a person named the thread. Raises
        StorageError."""
        title = (log.hints.thread_title or "").replace("\0", "")  # of a custom role, or an earlier version
        thread = await self.storage.get_thread(self.thread_id) if title else None
        if not title or thread is None or thread.title == title or not (thread.title == "" or is_generated(thread)):
            return
        try:
            await self.storage.update_thread(
                self.thread_id, title=title, metadata=mark_of(title), expected_title=thread.title
            )
            if was_forgotten(log, await self.read()):  # the title may come from forgotten text
                await self.storage.update_thread(
                    self.thread_id, title="", metadata=without_mark(), expected_title=title
                )
                return
        except (ConflictError, NotFoundError):  # the thread was renamed or deleted in the meantime
            return
        cycle_id = log.entries[-1].cycle_id
        event = events.thread_update(cycle_id, self.thread_id, old_title=thread.title, new_title=title, at=self.clock())
        await self.send(event, log.key)


def _kind(error: Exception) -> str:
    """Return the name of an error's class, since its text may quote messages. OutOfTimeError quotes none: return its
    text."""
    return str(error) if isinstance(error, OutOfTimeError) else type(error).__name__
