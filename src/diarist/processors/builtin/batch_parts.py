"""Fewer, larger pieces of text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from diarist.chunks import Chunk, TextDelta
from diarist.processors.base import DROP, Processor, ProcessOutputStreamArgs, StreamHookResult
from diarist.processors.builtin.options import positive


@dataclass(slots=True)
class _Batch:
    """Deltas joined so far; ``first`` carries their id."""

    first: TextDelta | None = None
    text: str = ""
    parts: int = 0
    since: float = 0.0


class BatchParts(Processor[Any, _Batch]):
    """Joins neighbouring text deltas, for clients that pay for every message. Put it last in ``output_processors``.

    A batch is sent when it is full, when a text comes ``max_wait`` after its first, and before any other chunk, so
    that order and text stay as they were; the end of a text is such a chunk, and so nothing is left over.

    Args:
        size: Text deltas per batch. Default 5.
        max_wait: Seconds after which a batch is sent though it is not full. Default None: only ``size`` counts. It is
            measured by the event loop's clock when the next text comes: there is no timer, so a model that pauses
            keeps its last words back until it goes on.
        clock: Seconds; for tests. Default: the event loop's.

    Raises:
        ConfigError: A size or max_wait that is not positive.

    Example::

        Agent(model="openai/gpt-5-mini", output_processors=[BatchParts(10, max_wait=0.2)])
    """

    process_data_parts = True
    edits_in_place = False

    def __init__(
        self, size: int = 5, *, max_wait: float | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        positive("BatchParts", "size", size)
        if max_wait is not None:
            positive("BatchParts", "max_wait", max_wait)
        self._size = size
        self._max_wait = max_wait
        self._clock = clock or _loop_time

    def create_state(self) -> _Batch:
        return _Batch()

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any, _Batch]) -> StreamHookResult:
        """Collect a text, or let a batch go."""
        part, batch = args.part, args.state
        if not isinstance(part, TextDelta):
            return part if batch.first is None else [_taken(batch), part]
        out: list[Chunk] = []
        if batch.first is None or batch.first.payload.id != part.payload.id:
            out = [_taken(batch)] if batch.first else []
            batch.first, batch.since = part, self._clock() if self._max_wait else 0.0
        batch.text += part.payload.text
        batch.parts += 1
        if batch.parts >= self._size or (self._max_wait and self._clock() - batch.since >= self._max_wait):
            out.append(_taken(batch))
        return out or DROP


def _taken(batch: _Batch) -> Chunk:
    assert batch.first is not None, "only a batch that has begun is taken"
    out = replace(batch.first, payload=replace(batch.first.payload, text=batch.text))
    batch.first, batch.text, batch.parts = None, "", 0
    return out


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
