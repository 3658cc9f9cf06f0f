"""The ``data-om-*`` parts: what memory tells a client while it works. Keys are in camelCase, as on the wire.

All are transient: they are streamed and kept in the log's event log, not in messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from diarist.chunks import DataChunk, wire
from diarist.memory.observational.decide import choose_chunks
from diarist.memory.observational.limits import Limits
from diarist.memory.observational.log.transitions import Operation
from diarist.memory.observational.window import Window
from diarist.messages import Json
from diarist.storage.records import Observation, ObservationLog

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
    """One piece of work of the Observer or Reflector, as its parts name it.

    Attributes:
        tokens: Tokens of the messages (or, for a reflection, of the entries) that go in.
        run_id: The live run whose own messages go in. Should it be discarded, no word of them may be left.
        buffered: It is done ahead of time, in the background.
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
    """Key and generation of a log, such as ``thread:trip#2``."""
    return f"{log.key}#{log.generation}"


def status(window: Window, log: ObservationLog, limits: Limits, *, thread_id: str, step_number: int) -> DataChunk:
    """The sizes of both windows before a model call, and what waits to be activated."""
    return _chunk(
        STATUS,
        {
            "windows": {
                "active": {
                    "messages": {"tokens": window.message_tokens, "threshold": limits.message_tokens},
                    "observations": {"tokens": window.observation_tokens, "threshold": limits.observation_tokens},
                },
                "buffered": {
                    "observations": _buffered_observations(window, limits),
                    "reflection": _buffered_reflection(window),
                },
            },
            "recordId": record_id(log),
            "threadId": thread_id,
            "stepNumber": step_number,
            "generationCount": log.generation,
        },
    )


def _buffered_observations(window: Window, limits: Limits) -> dict[str, Json]:
    removed = choose_chunks(window.chunks, max(window.message_tokens, limits.message_tokens), limits)
    return {
        "chunks": len(window.chunks) + len(window.held_chunks),
        "messageTokens": sum(window.chunks) + sum(window.held_chunks),
        "projectedMessageRemoval": sum(window.chunks[:removed]),
        "observationTokens": window.buffered_tokens,
        "status": _state(window.observing, bool(window.chunks or window.held_chunks)),
    }


def _buffered_reflection(window: Window) -> dict[str, Json]:
    return {
        "inputObservationTokens": window.reflection_input_tokens,
        "observationTokens": window.reflection_tokens,
        "status": _state(window.reflecting, window.reflection_waits),
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


def cycle_end(cycle: Cycle, entry: Observation, *, at: datetime) -> DataChunk:
    """``usage`` is what the cycle cost, all model calls together."""
    data: dict[str, Json] = {
        **_head(cycle),
        "completedAt": at.isoformat(),
        "durationMs": _milliseconds(cycle, at),
        "tokensBuffered" if cycle.buffered else "tokensObserved": cycle.tokens,
        "bufferedTokens" if cycle.buffered else "observationTokens": entry.tokens,
        "observations": entry.text,
        "usage": wire(entry.usage),
    }
    if entry.current_task:
        data["currentTask"] = entry.current_task
    if entry.suggested_response:
        data["suggestedResponse"] = entry.suggested_response
    return _chunk(BUFFERING_END if cycle.buffered else OBSERVATION_END, data)


def cycle_failed(cycle: Cycle, error: str, *, at: datetime, attempt: int, will_retry: bool) -> DataChunk:
    """``attempt`` counts the failures in a row; ``will_retry``: memory tries again by itself, later."""
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
    """What was buffered stands in the prompt now.

    Args:
        cycle: ``tokens`` are those that left the window: of messages, or of entries that a reflection replaces.
        log: As it is after the activation.
        entries: What was activated.
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
    """The thread has another title, which the Observer found."""
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
    """A part's data with nothing in it that says what was said; ``error`` takes the place of an error text."""
    data = {name: value for name, value in part.data.items() if name not in _WORDS}
    return {**data, "error": error} if "error" in data else data


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
