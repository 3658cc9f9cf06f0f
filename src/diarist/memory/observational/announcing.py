"""What a piece of work tells: data parts to a client, the same to the event log of the key, failures to the log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import cast

from diarist.chunks import DataChunk, wire
from diarist.exceptions import ConflictError, NotFoundError, StorageError, message_of
from diarist.memory.observational import data_parts
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.data_parts import Cycle
from diarist.memory.observational.decide import Action
from diarist.memory.observational.limits import limits_of
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.edits import row_stones
from diarist.memory.observational.log.log_store import LogStore, was_forgotten
from diarist.memory.observational.log.transitions import Operation
from diarist.memory.observational.window import Window
from diarist.memory.title_marks import is_generated, mark_of, without_mark
from diarist.messages import Json
from diarist.storage.base import Storage
from diarist.storage.records import Event, Observation, ObservationLog, RowRef, Source

logger = logging.getLogger("diarist")

Emit = Callable[[DataChunk], None]
"""Where data parts go, besides the event log of the key."""

Question = Callable[[], Awaitable[bool]]
"""Something to ask a storage."""


async def _nothing_went_in() -> bool:
    return True


class Announcer:
    """Tells what is done on one thread, for one run or for a manual call.

    Args:
        manual: Somebody asked for it: memory does not try again by itself.

    Attributes:
        logs: The logs of the storage.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        config: ObservationalMemoryConfig,
        clock: Callable[[], datetime],
        thread_id: str,
        resource_id: str,
        emit: Emit,
        manual: bool,
    ) -> None:
        self.logs = LogStore(storage, config.scope)
        self._storage = storage
        self._config = config
        self._limits = limits_of(config)
        self._clock = clock
        self._thread_id = thread_id
        self._resource_id = resource_id
        self._emit = emit
        self._manual = manual

    def cycle(
        self,
        id: str,
        operation: Operation,
        log: ObservationLog,
        tokens: int,
        *,
        run_id: str | None = None,
        buffered: bool = False,
    ) -> Cycle:
        """A piece of work that begins now. ``tokens`` go in; the rest as in ``Cycle``."""
        return Cycle(
            id=id,
            operation=operation,
            thread_id=self._thread_id,
            record_id=data_parts.record_id(log),
            tokens=tokens,
            started_at=self._clock(),
            run_id=run_id,
            buffered=buffered,
        )

    async def fail(
        self,
        cycle: Cycle,
        log: ObservationLog,
        error: Exception,
        *,
        counts: bool,
        intact: Question = _nothing_went_in,
        rows: Sequence[RowRef] = (),
        refused: Sequence[Source] = (),
    ) -> None:
        """Say that a cycle failed, and count it in the log where ``counts``.

        An error may quote what a role was told: where some of that is gone, only the class of the error is kept.

        Args:
            log: As it was when the cycle began.
            intact: Asks whether what went in is there as it was; by default nothing went in.
            rows: The ends of what went in.
            refused: What the Observer refused for good.
        """
        whole = await answer(intact)
        at, message, kind = self._clock(), _describe(error), type(error).__name__
        logger.warning("%s of thread %s failed: %s", cycle.operation, self._thread_id, message)
        attempt = transitions.failures_of(log, cycle.operation).count + 1
        part = data_parts.cycle_failed(cycle, message, at=at, attempt=attempt, will_retry=not self._manual)
        if cycle.run_id is not None or not whole or row_stones(log):  # which are just being removed
            message = kind
        if whole or await answer(self._is_visible):
            event = await self.send(part, log.key, error=message)
            if event is not None and not isinstance(error, StorageError):  # which quotes nothing
                await self._unless_forgotten(log, event, data_parts.without_words(part, error=kind), intact)
        else:  # the thread was deleted: it has no events any more
            self._tell(part)
        if not counts or not whole:
            return

        def count(now: ObservationLog) -> ObservationLog:
            if log.version and not now.version:  # it was removed, and is not begun anew for this
                return now
            forgotten = was_forgotten(log, now)
            told, left = (kind, ()) if forgotten else (message, refused)
            return transitions.record_failure(now, cycle.operation, at=at, error=told, refused=left)

        async def still_there() -> None:  # a log that was never saved cannot tell that it was removed
            if not log.version and not await intact():
                raise ConflictError("the messages were removed meanwhile")

        needed = () if log.version else rows
        try:
            await self.logs.update(self._thread_id, self._resource_id, count, check=still_there, rows=needed)
        except StorageError as failure:
            logger.warning("cannot count the failure of thread %s: %s", self._thread_id, failure)

    async def _unless_forgotten(
        self, told: ObservationLog, event: Event, data: Mapping[str, Json], intact: Question
    ) -> None:
        """Let an event say no more than ``data`` if something was forgotten since ``told`` was read: whoever did that
        may have looked through the events before this one was there."""

        async def forgotten() -> bool:
            return await self._was_forgotten(told) or not await intact()

        if event.data == data or not await answer(forgotten):
            return
        try:
            await self._storage.rewrite_event(told.key, event.seq, data)
        except StorageError as failure:
            logger.warning("cannot rewrite event %s of %s: %s", event.seq, told.key, failure)

    async def _was_forgotten(self, told: ObservationLog) -> bool:
        return was_forgotten(told, await self.logs.read(self._thread_id, self._resource_id))

    async def activated(
        self,
        log: ObservationLog,
        entries: Sequence[Observation],
        operation: Operation,
        tokens: int,
        triggered_by: data_parts.Trigger,
    ) -> None:
        """Say that buffered entries, or a reflection that waited, stand in the prompt now."""
        ids = [entry.cycle_id for entry in entries]
        cycle = self.cycle(transitions.cycle_id(log.key, operation, (), ids), operation, log, tokens)
        part = data_parts.activation(cycle, log, self._limits, entries, at=self._clock(), triggered_by=triggered_by)
        await self.send(part, log.key)

    async def rename_thread(self, log: ObservationLog, title: str) -> None:
        """Give the thread this title, and say so, unless it has it already, or one that somebody gave it himself.

        Raises StorageError.
        """
        thread = await self._storage.get_thread(self._thread_id)
        if thread is None or thread.title == title or not (thread.title == "" or is_generated(thread)):
            return
        try:
            await self._storage.update_thread(
                self._thread_id, title=title, metadata=mark_of(title), expected_title=thread.title
            )
            if await self._was_forgotten(log):  # by somebody who may have looked at the title before
                await self._storage.update_thread(
                    self._thread_id, title="", metadata=without_mark(), expected_title=title
                )
                return
        except (ConflictError, NotFoundError):  # it was named meanwhile, or it is gone
            return
        cycle = self.cycle(log.entries[-1].cycle_id, "observation", log, 0)
        part = data_parts.thread_update(cycle, old_title=thread.title, new_title=title, at=self._clock())
        await self.send(part, log.key)

    async def report(self, log: ObservationLog, error: Exception, tokens: int) -> None:
        """Say that memory could not even begin: a failed part without a start."""
        cycle = self.cycle("", "observation", log, tokens)
        await self.fail(cycle, log, error, counts=False)

    async def stop_waiting(self, operation: Operation, log: ObservationLog, tokens: int, *, since: datetime) -> None:
        """Say that a run waits no longer for work that somebody else does: a failed part without a start, not counted.

        Args:
            tokens: As for ``cycle``: what the run would have had worked on.
        """
        cycle = replace(self.cycle("", operation, log, tokens), started_at=since)
        error = TimeoutError(
            f"the run did not wait longer than the {self._config.observe_timeout:g} s of observe_timeout; "
            f"the {operation} goes on in the background"
        )
        await self.fail(cycle, log, error, counts=False)

    async def send(self, part: DataChunk, key: str, *, error: str = "") -> Event | None:
        """Emit a part and append it to the key's event log; that log may fail without harm to the turn.

        The event log gets no word that the part quotes: what is forgotten while it is written would outlive it there.
        The entry of the same ``cycleId`` has the words. ``error``: the text of a failure, for the event log.
        """
        self._tell(part)
        try:
            return await self._storage.append_event(key, part.type, data_parts.without_words(part, error=error))
        except StorageError as failure:
            logger.warning("cannot append %s to the event log of %s: %s", part.type, key, failure)
            return None

    def decided(self, operation: Operation, action: Action, window: Window) -> None:
        """Tell ``on_debug_event`` what was decided, and of which sizes."""
        if self._config.on_debug_event is not None:
            event = {
                "operationType": operation,
                "action": action.value,
                "threadId": self._thread_id,
                "window": wire(window),
            }
            self._debug("decision", event)

    def _tell(self, part: DataChunk) -> None:
        self._emit(part)
        self._debug(part.type, cast(Mapping[str, Json], part.data))

    def _debug(self, type: str, data: Mapping[str, Json]) -> None:
        if self._config.on_debug_event is None:
            return
        try:
            self._config.on_debug_event({"type": type, **data})
        except Exception as error:  # whatever a callback raises: no turn fails for it
            logger.warning("on_debug_event raised for %s: %s", type, _describe(error))

    async def _is_visible(self) -> bool:
        return await self._storage.get_thread(self._thread_id) is not None


async def answer(question: Question) -> bool:
    """What a storage says; yes, where it cannot say."""
    try:
        return await question()
    except StorageError:
        return True


def _describe(error: Exception) -> str:
    return message_of(error) or type(error).__name__
