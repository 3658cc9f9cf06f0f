"""The ``data-om-*`` events, which memory sends to clients and stores in the event log of each diary.

Keys are in camelCase, as on the wire. Events are not stored in messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from diarist.chunks import DataChunk, wire
from diarist.memory.observational.decide import Limits, Sizes, choose_chunks
from diarist.memory.observational.log.transitions import Operation
from diarist.messages import Json
from diarist.storage.records import Observation, ObservationLog

Emit = Callable[[DataChunk], None]
"""Function that receives events; the event log of the diary gets them too."""

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
"""Causes for moving buffered entries into the prompt."""

_WORDS = ("observations", "currentTask", "suggestedResponse", "threadTitle", "oldTitle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One observation or reflection, with the fields that its events share.

    Attributes:
        log: The diary when the cycle started.
        tokens: Tokens of the input: of messages for an observation, of entries for a reflection.
        buffered: True if the cycle runs in the background, ahead of need, and stores its result to be activated later.
    """

    id: str
    operation: Operation
    thread_id: str
    log: ObservationLog
    tokens: int
    started_at: datetime
    buffered: bool = False

    def event(self, type: str, data: dict[str, Json]) -> DataChunk:
        """Return an event with the ids of this cycle."""
        head: dict[str, Json] = {"cycleId": self.id, "operationType": self.operation}
        head |= {"recordId": record_id(self.log), "threadId": self.thread_id}
        return DataChunk(type=type, data={**head, **data}, transient=True)

    def milliseconds(self, at: datetime) -> int:
        """Return the time since the start."""
        return max(0, round((at - self.started_at).total_seconds() * 1000))


def record_id(log: ObservationLog) -> str:
    """Return key and generation of a log, such as ``thread:trip#2``."""
    return f"{log.key}#{log.generation}"


def status(sizes: Sizes, log: ObservationLog, limits: Limits, *, thread_id: str, step_number: int) -> DataChunk:
    """Return the status event before a model call: sizes of messages, diary and buffered results."""
    chunks = (*sizes.chunks, *sizes.held_chunks)
    removed = choose_chunks(sizes.chunks, max(sizes.message_tokens, limits.message_tokens), limits)
    data: dict[str, Json] = {
        "windows": {
            "active": {
                "messages": {"tokens": sizes.message_tokens, "threshold": limits.message_tokens},
                "observations": {"tokens": sizes.observation_tokens, "threshold": limits.observation_tokens},
            },
            "buffered": {
                "observations": {
                    "chunks": len(chunks),
                    "messageTokens": sum(chunks),
                    "projectedMessageRemoval": sum(sizes.chunks[:removed]),
                    "observationTokens": sizes.buffered_tokens,
                    "status": "running" if sizes.observing else "complete" if chunks else "idle",
                },
                "reflection": {
                    "inputObservationTokens": sizes.reflection_input_tokens,
                    "observationTokens": sizes.reflection_tokens,
                    "status": "running" if sizes.reflecting else "complete" if sizes.reflection_waits else "idle",
                },
            },
        },
        "recordId": record_id(log),
        "threadId": thread_id,
        "stepNumber": step_number,
        "generationCount": log.generation,
    }
    return DataChunk(type=STATUS, data=data, transient=True)


def cycle_start(cycle: Cycle, limits: Limits, *, thread_ids: Sequence[str]) -> DataChunk:
    data: dict[str, Json] = {
        "startedAt": cycle.started_at.isoformat(),
        "tokensToBuffer" if cycle.buffered else "tokensToObserve": cycle.tokens,
        "threadIds": list(thread_ids),
        "config": _config(limits, cycle.log),
    }
    return cycle.event(BUFFERING_START if cycle.buffered else OBSERVATION_START, data)


def cycle_end(cycle: Cycle, entry: Observation, *, at: datetime, shortfall: str = "") -> DataChunk:
    """Return the event for the end of a cycle, with the usage of all its model calls.

    ``shortfall``: a description of missing notes, if there are any.
    """
    tokens = entry.message_tokens if cycle.operation == "observation" else cycle.tokens
    data: dict[str, Json] = {
        "completedAt": at.isoformat(),
        "durationMs": cycle.milliseconds(at),
        "tokensBuffered" if cycle.buffered else "tokensObserved": tokens,
        "bufferedTokens" if cycle.buffered else "observationTokens": entry.tokens,
        "observations": entry.text,
        "usage": wire(entry.usage),
    }
    more = {"currentTask": entry.current_task, "suggestedResponse": entry.suggested_response, "shortfall": shortfall}
    data |= {name: value for name, value in more.items() if value}
    return cycle.event(BUFFERING_END if cycle.buffered else OBSERVATION_END, data)


def cycle_failed(cycle: Cycle, error: str, *, at: datetime, attempt: int, will_retry: bool) -> DataChunk:
    """Return the event for the failure of a cycle. ``attempt``: the number of consecutive failures."""
    data: dict[str, Json] = {
        "failedAt": at.isoformat(),
        "durationMs": cycle.milliseconds(at),
        "tokensAttempted": cycle.tokens,
        "error": error,
        "attempt": attempt,
        "willRetry": will_retry,
    }
    return cycle.event(BUFFERING_FAILED if cycle.buffered else OBSERVATION_FAILED, data)


def activation(
    cycle: Cycle, limits: Limits, entries: Sequence[Observation], *, at: datetime, triggered_by: Trigger
) -> DataChunk:
    """Return the event for an activation of buffered entries.

    Args:
        cycle: ``cycle.log`` is the diary after the activation. ``cycle.tokens`` counts the tokens of the messages or
            entries that left the window.
        entries: The activated entries.
    """
    data: dict[str, Json] = {
        "activatedAt": at.isoformat(),
        "chunksActivated": len(entries),
        "tokensActivated": cycle.tokens,
        "observationTokens": cycle.log.tokens,
        "messagesActivated": sum(entry.message_count for entry in entries),
        "generationCount": cycle.log.generation,
        "observations": "\n".join(entry.text for entry in entries),
        "triggeredBy": triggered_by,
        "config": _config(limits, cycle.log),
    }
    return cycle.event(ACTIVATION, data)


def thread_update(cycle_id: str, thread_id: str, *, old_title: str, new_title: str, at: datetime) -> DataChunk:
    """Return the event for a new thread title from the Observer."""
    data: dict[str, Json] = {
        "cycleId": cycle_id,
        "threadId": thread_id,
        "oldTitle": old_title,
        "threadTitle": new_title,
        "timestamp": at.isoformat(),
    }
    return DataChunk(type=THREAD_UPDATE, data=data, transient=True)


def without_words(event: DataChunk, *, error: str = "") -> dict[str, Json]:
    """Return the data of an event without conversation text. ``error`` replaces the error message, which may quote
    text."""
    data = {name: value for name, value in event.data.items() if name not in _WORDS}
    return {**data, "error": error} if "error" in data else data


def _config(limits: Limits, log: ObservationLog) -> dict[str, Json]:
    tokens = {"messageTokens": limits.message_tokens, "observationTokens": limits.observation_tokens}
    return {**tokens, "scope": log.scope}
