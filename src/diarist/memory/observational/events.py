"""The ``data-om-*`` events, which memory sends to clients and stores in the event log of each diary.

Keys are in camelCase, as on the wire. Events are not stored in messages.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, cast

from diarist.chunks import DataChunk, wire
from diarist.exceptions import ConflictError, StorageError, message_of
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.decide import Action, Limits, Sizes, choose_chunks
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.edits import row_stones
from diarist.memory.observational.log.log_store import LogStore, was_forgotten
from diarist.memory.observational.log.transitions import Operation
from diarist.messages import Json
from diarist.storage.base import Storage
from diarist.storage.records import Event, Observation, ObservationLog, RowRef, Source

logger = logging.getLogger("diarist")

Emit = Callable[[DataChunk], None]
"""Receives events, besides the event log of the diary."""

Question = Callable[[], Awaitable[bool]]
"""A check against the storage."""

STATUS = "data-om-status"
OBSERVATION_START = "data-om-observation-start"
OBSERVATION_END = "data-om-observation-end"
OBSERVATION_FAILED = "data-om-observation-failed"
BUFFERING_START = "data-om-buffering-start"
BUFFERING_END = "data-om-buffering-end"
BUFFERING_FAILED = "data-om-buffering-failed"
ACTIVATION = "data-om-activation"
THREAD_UPDATE = "data-om-thread-update"

Trigger = Literal["threshold", "idle", "provider_change", "overflow", "manual"]
"""Why buffered notes were activated."""

_WORDS = ("observations", "currentTask", "suggestedResponse", "threadTitle", "oldTitle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One observation or reflection, with the fields that its events share.

    Attributes:
        tokens: Size of the input: messages, or entries for a reflection.
        run_id: The live run that the input messages belong to. If it is discarded, its text must not be kept.
        buffered: It runs ahead of time, in the background.
    """

    id: str
    operation: Operation
    thread_id: str
    record_id: str
    tokens: int
    started_at: datetime
    run_id: str | None = None
    buffered: bool = False


def record_id(log: ObservationLog) -> str:
    """Return key and generation of a log, such as ``thread:trip#2``."""
    return f"{log.key}#{log.generation}"


def status(sizes: Sizes, log: ObservationLog, limits: Limits, *, thread_id: str, step_number: int) -> DataChunk:
    """Return the status event before a model call: sizes of messages, notes and buffered results."""
    return _chunk(
        STATUS,
        {
            "windows": {
                "active": {
                    "messages": {"tokens": sizes.message_tokens, "threshold": limits.message_tokens},
                    "observations": {"tokens": sizes.observation_tokens, "threshold": limits.observation_tokens},
                },
                "buffered": {
                    "observations": _buffered_observations(sizes, limits),
                    "reflection": _buffered_reflection(sizes),
                },
            },
            "recordId": record_id(log),
            "threadId": thread_id,
            "stepNumber": step_number,
            "generationCount": log.generation,
        },
    )


def _buffered_observations(sizes: Sizes, limits: Limits) -> dict[str, Json]:
    removed = choose_chunks(sizes.chunks, max(sizes.message_tokens, limits.message_tokens), limits)
    return {
        "chunks": len(sizes.chunks) + len(sizes.held_chunks),
        "messageTokens": sum(sizes.chunks) + sum(sizes.held_chunks),
        "projectedMessageRemoval": sum(sizes.chunks[:removed]),
        "observationTokens": sizes.buffered_tokens,
        "status": _state(sizes.observing, bool(sizes.chunks or sizes.held_chunks)),
    }


def _buffered_reflection(sizes: Sizes) -> dict[str, Json]:
    return {
        "inputObservationTokens": sizes.reflection_input_tokens,
        "observationTokens": sizes.reflection_tokens,
        "status": _state(sizes.reflecting, sizes.reflection_waits),
    }


def _state(running: bool, complete: bool) -> str:
    return "running" if running else "complete" if complete else "idle"


def cycle_start(cycle: Cycle, limits: Limits, scope: str, *, thread_ids: Sequence[str]) -> DataChunk:
    return _chunk(
        BUFFERING_START if cycle.buffered else OBSERVATION_START,
        {
            **_head(cycle),
            "startedAt": cycle.started_at.isoformat(),
            "tokensToBuffer" if cycle.buffered else "tokensToObserve": cycle.tokens,
            "threadIds": list(thread_ids),
            "config": _config(limits, scope),
        },
    )


def cycle_end(cycle: Cycle, entry: Observation, *, at: datetime, shortfall: str = "") -> DataChunk:
    """Return the end event of a cycle, with the usage of all its model calls. ``shortfall``: the notes' defects."""
    tokens = entry.message_tokens if cycle.operation == "observation" else cycle.tokens
    data: dict[str, Json] = {
        **_head(cycle),
        "completedAt": at.isoformat(),
        "durationMs": _milliseconds(cycle, at),
        "tokensBuffered" if cycle.buffered else "tokensObserved": tokens,
        "bufferedTokens" if cycle.buffered else "observationTokens": entry.tokens,
        "observations": entry.text,
        "usage": wire(entry.usage),
    }
    if entry.current_task:
        data["currentTask"] = entry.current_task
    if entry.suggested_response:
        data["suggestedResponse"] = entry.suggested_response
    if shortfall:
        data["shortfall"] = shortfall
    return _chunk(BUFFERING_END if cycle.buffered else OBSERVATION_END, data)


def cycle_failed(cycle: Cycle, error: str, *, at: datetime, attempt: int, will_retry: bool) -> DataChunk:
    """Return the failed event of a cycle.

    Args:
        attempt: Number of consecutive failures.
        will_retry: Memory retries by itself later.
    """
    return _chunk(
        BUFFERING_FAILED if cycle.buffered else OBSERVATION_FAILED,
        {
            **_head(cycle),
            "failedAt": at.isoformat(),
            "durationMs": _milliseconds(cycle, at),
            "tokensAttempted": cycle.tokens,
            "error": error,
            "attempt": attempt,
            "willRetry": will_retry,
        },
    )


def activation(
    cycle: Cycle,
    log: ObservationLog,
    limits: Limits,
    entries: Sequence[Observation],
    *,
    at: datetime,
    triggered_by: Trigger,
) -> DataChunk:
    """Return the event for an activation of buffered entries.

    Args:
        cycle: Its ``tokens`` are the size of the messages or entries that left the window.
        log: The log after the activation.
        entries: The activated entries.
    """
    return _chunk(
        ACTIVATION,
        {
            **_head(cycle),
            "activatedAt": at.isoformat(),
            "chunksActivated": len(entries),
            "tokensActivated": cycle.tokens,
            "observationTokens": log.tokens,
            "messagesActivated": sum(entry.message_count for entry in entries),
            "generationCount": log.generation,
            "observations": "\n".join(entry.text for entry in entries),
            "triggeredBy": triggered_by,
            "config": _config(limits, log.scope),
        },
    )


def thread_update(cycle: Cycle, *, old_title: str, new_title: str, at: datetime) -> DataChunk:
    """Return the event for a new thread title from the Observer."""
    return _chunk(
        THREAD_UPDATE,
        {
            "cycleId": cycle.id,
            "threadId": cycle.thread_id,
            "oldTitle": old_title,
            "threadTitle": new_title,
            "timestamp": at.isoformat(),
        },
    )


def without_words(part: DataChunk, *, error: str = "") -> dict[str, Json]:
    """Return the data of an event without conversation text. ``error`` replaces the error text."""
    data = {name: value for name, value in part.data.items() if name not in _WORDS}
    return {**data, "error": error} if "error" in data else data


class Events:
    """Sends the memory events of one thread, for one run or for a manual call.

    Args:
        logs: The diaries of the storage.
        manual: The work was requested by a user, so memory does not retry it by itself.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        logs: LogStore,
        config: ObservationalMemoryConfig,
        limits: Limits,
        clock: Callable[[], datetime],
        thread_id: str,
        resource_id: str,
        emit: Emit,
        manual: bool,
    ) -> None:
        self._logs = logs
        self._storage = storage
        self._config = config
        self._limits = limits
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
        """Return a cycle that begins now; arguments as in ``Cycle``."""
        return Cycle(
            id=id,
            operation=operation,
            thread_id=self._thread_id,
            record_id=record_id(log),
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
        intact: Question | None = None,
        rows: Sequence[RowRef] = (),
        refused: Sequence[Source] = (),
    ) -> None:
        """Send the failed event of a cycle, and count the failure in the log if ``counts``.

        An error may quote the messages, so only its class is kept if some of them are gone.

        Args:
            log: The log at the start of the cycle.
            intact: Checks that all input is still stored and unchanged; None if there was no input.
            rows: First and last rows of the input.
            refused: Sources that the Observer refused.
        """
        whole = intact is None or await answer(intact)
        at, message, kind = self._clock(), _describe(error), type(error).__name__
        logger.warning("%s of thread %s failed: %s", cycle.operation, self._thread_id, message)
        attempt = transitions.failures_of(log, cycle.operation).count + 1
        part = cycle_failed(cycle, message, at=at, attempt=attempt, will_retry=not self._manual)
        if cycle.run_id is not None or not whole or row_stones(log):  # some rows are being removed
            message = kind
        if whole or await answer(self._is_visible):
            event = await self.send(part, log.key, error=message)
            if event is not None and not isinstance(error, StorageError):  # storage errors quote nothing
                await self._unless_forgotten(log, event, without_words(part, error=kind), intact)
        else:  # the thread was deleted with its events
            self._tell(part)
        if not counts or not whole:
            return

        def count(now: ObservationLog) -> ObservationLog:
            if log.version and not now.version:  # the log was deleted; a failure must not create it again
                return now
            forgotten = was_forgotten(log, now)
            told, left = (kind, ()) if forgotten else (message, refused)
            return transitions.record_failure(now, cycle.operation, at=at, error=told, refused=left)

        async def still_there() -> None:  # an unsaved log cannot show that it was deleted
            if not log.version and intact is not None and not await intact():
                raise ConflictError("the messages were removed in the meantime")

        needed = () if log.version else rows
        try:
            await self._logs.update(self._thread_id, self._resource_id, count, check=still_there, rows=needed)
        except StorageError as failure:
            logger.warning("cannot count the failure of thread %s: %s", self._thread_id, failure)

    async def _unless_forgotten(
        self, told: ObservationLog, event: Event, data: Mapping[str, Json], intact: Question | None
    ) -> None:
        """Reduce a stored event to ``data`` if something was forgotten since ``told`` was read.

        The removal may have cleaned the event log before this event was appended.
        """

        async def forgotten() -> bool:
            log = await self._logs.read(self._thread_id, self._resource_id)
            return was_forgotten(told, log) or (intact is not None and not await intact())

        if event.data == data or not await answer(forgotten):
            return
        try:
            await self._storage.rewrite_event(told.key, event.seq, data)
        except StorageError as failure:
            logger.warning("cannot rewrite event %s of %s: %s", event.seq, told.key, failure)

    async def activated(
        self,
        log: ObservationLog,
        entries: Sequence[Observation],
        operation: Operation,
        tokens: int,
        triggered_by: Trigger,
    ) -> None:
        """Send the event for an activation of buffered entries or of a buffered reflection."""
        ids = [entry.cycle_id for entry in entries]
        cycle = self.cycle(transitions.cycle_id(log.key, operation, (), ids), operation, log, tokens)
        part = activation(cycle, log, self._limits, entries, at=self._clock(), triggered_by=triggered_by)
        await self.send(part, log.key)

    async def report(self, log: ObservationLog, error: Exception, tokens: int) -> None:
        """Send a failed event without a start event, for an error outside a cycle. Not counted."""
        cycle = self.cycle("", "observation", log, tokens)
        await self.fail(cycle, log, error, counts=False)

    async def stop_waiting(self, operation: Operation, log: ObservationLog, tokens: int, *, since: datetime) -> None:
        """Send a failed event without a start event, since a run stopped waiting for other work. Not counted.

        Args:
            tokens: Size of the input of that work.
        """
        cycle = replace(self.cycle("", operation, log, tokens), started_at=since)
        error = TimeoutError(
            f"the run did not wait longer than the {self._config.observe_timeout:g} s of observe_timeout; "
            f"the {operation} goes on in the background"
        )
        await self.fail(cycle, log, error, counts=False)

    async def send(self, part: DataChunk, key: str, *, error: str = "") -> Event | None:
        """Emit an event and append it to the diary's event log; storage errors are only logged.

        Conversation text is left out of the event log, so that it cannot outlive a removal; the entry with the same
        ``cycleId`` has it.

        Args:
            error: The error text for the event log.
        """
        self._tell(part)
        try:
            return await self._storage.append_event(key, part.type, without_words(part, error=error))
        except StorageError as failure:
            logger.warning("cannot append %s to the event log of %s: %s", part.type, key, failure)
            return None

    def decided(self, operation: Operation, action: Action, sizes: Sizes) -> None:
        """Pass a decision and its sizes to ``on_debug_event``."""
        if self._config.on_debug_event is not None:
            event = {
                "operationType": operation,
                "action": action.value,
                "threadId": self._thread_id,
                "window": wire(sizes),
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
        except Exception as error:  # a turn does not fail because of a debug callback
            logger.warning("on_debug_event raised for %s: %s", type, _describe(error))

    async def _is_visible(self) -> bool:
        return await self._storage.get_thread(self._thread_id) is not None


async def answer(question: Question) -> bool:
    """Return the result of a check; True if it fails with StorageError."""
    try:
        return await question()
    except StorageError:
        return True


def _describe(error: Exception) -> str:
    return message_of(error) or type(error).__name__


def _config(limits: Limits, scope: str) -> dict[str, Json]:
    return {
        "messageTokens": limits.message_tokens,
        "observationTokens": limits.observation_tokens,
        "scope": scope,
    }


def _head(cycle: Cycle) -> dict[str, Json]:
    return {
        "cycleId": cycle.id,
        "operationType": cycle.operation,
        "recordId": cycle.record_id,
        "threadId": cycle.thread_id,
    }


def _milliseconds(cycle: Cycle, at: datetime) -> int:
    return max(0, round((at - cycle.started_at).total_seconds() * 1000))


def _chunk(type: str, data: dict[str, Json]) -> DataChunk:
    return DataChunk(type=type, data=data, transient=True)
