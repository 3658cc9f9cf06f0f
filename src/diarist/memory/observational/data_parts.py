"""The ``data-om-*`` parts: what memory tells a client while it works. Keys are in camelCase, as on the wire.

All are transient: they are streamed and kept in the log's event log, not in messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from diarist.chunks import DataChunk, wire
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.transitions import Operation
from diarist.memory.observational.window import Window
from diarist.messages import Json
from diarist.storage.records import Observation, ObservationLog

STATUS = "data-om-status"
OBSERVATION_START = "data-om-observation-start"
OBSERVATION_END = "data-om-observation-end"
OBSERVATION_FAILED = "data-om-observation-failed"

_WORDS = ("observations", "currentTask", "suggestedResponse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One piece of work of the Observer or Reflector, as its three parts name it.

    Attributes:
        tokens: Tokens of the messages (or, for a reflection, of the entries) that go in.
        run_id: The live run whose own messages go in. Should it be discarded, no word of them may be left.
    """

    id: str
    operation: Operation
    thread_id: str
    record_id: str
    tokens: int
    started_at: datetime
    run_id: str | None = None


def record_id(log: ObservationLog) -> str:
    """Key and generation of a log, such as ``thread:trip#2``."""
    return f"{log.key}#{log.generation}"


def status(
    window: Window, log: ObservationLog, config: ObservationalMemoryConfig, *, thread_id: str, step_number: int
) -> DataChunk:
    """The sizes of both windows before a model call. Nothing is ever buffered, so that part says idle."""
    return _chunk(
        STATUS,
        {
            "windows": {
                "active": {
                    "messages": {"tokens": window.message_tokens, "threshold": config.observation.message_tokens},
                    "observations": {
                        "tokens": window.observation_tokens,
                        "threshold": config.reflection.observation_tokens,
                    },
                },
                "buffered": {
                    "observations": {
                        "chunks": 0,
                        "messageTokens": 0,
                        "projectedMessageRemoval": 0,
                        "observationTokens": 0,
                        "status": "idle",
                    },
                    "reflection": {"inputObservationTokens": 0, "observationTokens": 0, "status": "idle"},
                },
            },
            "recordId": record_id(log),
            "threadId": thread_id,
            "stepNumber": step_number,
            "generationCount": log.generation,
        },
    )


def observation_start(cycle: Cycle, config: ObservationalMemoryConfig, *, thread_ids: Sequence[str]) -> DataChunk:
    return _chunk(
        OBSERVATION_START,
        {
            **_head(cycle),
            "startedAt": cycle.started_at.isoformat(),
            "tokensToObserve": cycle.tokens,
            "threadIds": list(thread_ids),
            "config": {
                "messageTokens": config.observation.message_tokens,
                "observationTokens": config.reflection.observation_tokens,
                "scope": config.scope,
            },
        },
    )


def observation_end(cycle: Cycle, entry: Observation, *, at: datetime) -> DataChunk:
    """``usage`` is what the cycle cost, all model calls together."""
    data: dict[str, Json] = {
        **_head(cycle),
        "completedAt": at.isoformat(),
        "durationMs": _milliseconds(cycle, at),
        "tokensObserved": cycle.tokens,
        "observationTokens": entry.tokens,
        "observations": entry.text,
        "usage": wire(entry.usage),
    }
    if entry.current_task:
        data["currentTask"] = entry.current_task
    if entry.suggested_response:
        data["suggestedResponse"] = entry.suggested_response
    return _chunk(OBSERVATION_END, data)


def observation_failed(cycle: Cycle, error: str, *, at: datetime, attempt: int, will_retry: bool) -> DataChunk:
    """``attempt`` counts the failures in a row; ``will_retry``: memory tries again by itself, later."""
    return _chunk(
        OBSERVATION_FAILED,
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


def without_words(part: DataChunk, *, error: str = "") -> dict[str, Json]:
    """A part's data with nothing in it that says what was said; ``error`` takes the place of an error text."""
    data = {name: value for name, value in part.data.items() if name not in _WORDS}
    return {**data, "error": error} if "error" in data else data


def _head(cycle: Cycle) -> dict[str, Json]:
    return {
        "cycleId": cycle.id,
        "operationType": cycle.operation,
        "recordId": cycle.record_id,
        "threadId": cycle.thread_id,
    }


def _milliseconds(cycle: Cycle, at: datetime) -> int:
    return round((at - cycle.started_at).total_seconds() * 1000)


def _chunk(type: str, data: dict[str, Json]) -> DataChunk:
    return DataChunk(type=type, data=data, transient=True)
