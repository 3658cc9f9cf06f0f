"""Measures each prompt of a turn against the whole history, and against the previous prompt."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from diarist.chunks import Chunk
from diarist.counting import count_parts
from diarist.messages import Message
from diarist.models.base import Model, ModelRequest
from diarist.prompting import common_prefix
from diarist.tokens import TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call: tokens sent, and the number of them that repeat the beginning of the previous call."""

    sent: int
    repeated: int


class MeteredModel(Model):
    """Wraps a model and measures every prompt.

    Attributes:
        calls: Measurements of all calls, in order.
        prompt: The last call's prompt, as text.
    """

    def __init__(self, model: Model, counter: TokenCounter) -> None:
        self.provider, self.name = model.provider, model.name
        self.cache_breakpoints = model.cache_breakpoints
        self.calls: list[Call] = []
        self._model = model
        self._counter = counter
        self.prompt = ""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        text = request.text
        prefix = common_prefix(text, self.prompt)
        self.calls.append(Call(sent=self._counter.count(text), repeated=self._counter.count(prefix)))
        self.prompt = text
        async with aclosing(cast(AsyncGenerator[Chunk], self._model.stream(request))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        await self._model.close()


class History:
    """Counts the tokens of all messages so far, which every call would send without memory."""

    def __init__(self, counter: TokenCounter, before: Sequence[Message] = ()) -> None:
        self._counter = counter
        self.tokens = 0
        self.add(before)

    def add(self, messages: Sequence[Message]) -> None:
        self.tokens += sum(sum(message.part_tokens or count_parts(message, self._counter)) for message in messages)
