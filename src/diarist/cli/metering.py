"""Counts what each role of memory calls and uses, calls that failed included."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from diarist.chunks import Chunk, ModelFinish, TextDelta, Usage
from diarist.models.base import Model, ModelRequest
from diarist.tokens import default_counter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@dataclass(slots=True)
class Work:
    """What one role has done.

    Attributes:
        calls: Model calls, or pieces of work where no model is used.
        finished: Pieces of work whose result is in the diary.
    """

    calls: int = 0
    finished: int = 0
    usage: Usage = field(default_factory=Usage)


class MeteredModel(Model):
    """A model whose calls and tokens are added up in ``work``."""

    def __init__(self, model: Model, work: Work) -> None:
        self.provider = model.provider
        self.name = model.name
        self.cache_breakpoints = model.cache_breakpoints
        self._model = model
        self._work = work

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self._work.calls += 1
        # Models are async generators; closing this one must close theirs, which cancels the call.
        chunks = cast("AsyncGenerator[Chunk]", self._model.stream(request))
        said, finished = "", False
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if isinstance(chunk, ModelFinish):
                        self._work.usage += chunk.payload.usage
                        finished = True
                    elif isinstance(chunk, TextDelta):
                        said += chunk.payload.text
                    yield chunk
        finally:
            if said and not finished:  # broken off, as a looping answer is: the provider does not say what it took
                count = default_counter().count
                self._work.usage += Usage(input_tokens=count(request.text), output_tokens=count(said))

    async def close(self) -> None:
        await self._model.close()
