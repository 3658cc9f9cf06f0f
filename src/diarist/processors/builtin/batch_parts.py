"""Join text deltas into fewer, larger ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from diarist.checks import positive
from diarist.chunks import Chunk, TextDelta
from diarist.processors.base import DROP, Processor, ProcessOutputStreamArgs, StreamHookResult


@dataclass(slots=True)
class _Batch:
    """The deltas of the current batch, and the time of the first. ``attempt`` identifies their attempt at the step."""

    deltas: list[TextDelta] = field(default_factory=list[TextDelta])
    since: float = 0.0
    attempt: object = None

    def take(self) -> list[Chunk]:
        """Return the deltas as one, and begin the next batch."""
        if not self.deltas:
            return []
        first, text = self.deltas[0], "".join(delta.payload.text for delta in self.deltas)
        self.deltas = []
        return [replace(first, payload=replace(first.payload, text=text))]


@dataclass(kw_only=True, eq=False, repr=False)
class BatchParts(Processor[Any, _Batch]):
    """Joins adjacent text deltas, for clients with a cost per message. Put it last in ``output_processors``.

    A batch is sent when it is full, when a delta arrives ``max_wait`` after the first, or before any other chunk, such
    as the end of the text. Text and order stay the same.

    Args:
        size: Text deltas per batch. Default 5.
        max_wait: Seconds after which an incomplete batch is sent. Default None: no limit. The time is checked only when
            the next delta arrives, so while a model pauses, its last words are held back.
        clock: Returns seconds; for tests. Default: the event loop's clock.

    Example::

        Agent(model="openai/gpt-5-mini", output_processors=[BatchParts(10, max_wait=0.2)])
    """

    process_data_parts = True
    edits_in_place = False

    size: int = field(default=5, kw_only=False)
    max_wait: float | None = None
    clock: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        positive("BatchParts", "size", self.size)
        if self.max_wait is not None:
            positive("BatchParts", "max_wait", self.max_wait)
        self._clock = self.clock or (lambda: asyncio.get_running_loop().time())

    def create_state(self) -> _Batch:
        return _Batch()

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any, _Batch]) -> StreamHookResult:
        """Collect deltas, and send full batches."""
        part, batch = args.part, args.state
        if batch.attempt is not args.stream_parts:  # each attempt has its own list; drop the rest of a failed one
            batch.attempt, batch.deltas = args.stream_parts, []
        if not isinstance(part, TextDelta):
            return [*batch.take(), part]
        is_next = bool(batch.deltas) and batch.deltas[0].payload.id == part.payload.id
        out = [] if is_next else batch.take()
        if not is_next and self.max_wait:
            batch.since = self._clock()
        batch.deltas.append(part)
        if len(batch.deltas) >= self.size or (self.max_wait and self._clock() - batch.since >= self.max_wait):
            out += batch.take()
        return out or DROP
