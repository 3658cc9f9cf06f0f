"""One call of a model by the Observer or the Reflector: instructions and quoted data in, text out."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from diarist.chunks import ModelFinish, TextDelta, Usage
from diarist.exceptions import BadRequestError
from diarist.memory.observational.repetition import MIN_LENGTH, is_degenerate
from diarist.messages import Prompt, PromptMessage, TextPart
from diarist.models.base import Model, ModelRequest, ModelSettings
from diarist.tokens import default_counter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from diarist.chunks import Chunk

MAX_OUTPUT_TOKENS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer.

    Attributes:
        usage: What it cost; counted by ``default_counter()`` when the answer was broken off, since then
            the provider does not say.
        looping: The model fell into a loop; it was broken off there if it went on for long.
        warnings: What had to be done to get the answer.
    """

    text: str
    usage: Usage
    model: str
    looping: bool = False
    calls: int = 1
    warnings: tuple[str, ...] = ()


class Caller:
    """Calls one model, and remembers when it refuses our settings.

    A provider may answer with a bad request to a temperature or to more output tokens than the model
    has. Then the call is made once more without these two, and so are all later ones.
    """

    def __init__(self, model: Model, settings: ModelSettings) -> None:
        self.model = model
        self._settings = settings

    async def ask(self, instructions: str, data: str) -> Reply:
        """Raises ModelError when the call fails, or fails again without the two settings."""
        prompt = Prompt(
            messages=[
                PromptMessage(role="system", parts=[TextPart(text=instructions)]),
                PromptMessage(role="user", parts=[TextPart(text=data)]),
            ]
        )
        try:
            return await self._read(ModelRequest(prompt=prompt, settings=self._settings))
        except BadRequestError as error:
            plain = replace(self._settings, temperature=None, max_output_tokens=None)
            if plain == self._settings:
                raise
            reply = await self._read(ModelRequest(prompt=prompt, settings=plain))
            self._settings = plain
            warning = f"repeated without temperature and max_output_tokens, since: {error}"
            return replace(reply, calls=2, warnings=(warning, *reply.warnings))

    async def _read(self, request: ModelRequest) -> Reply:
        text, checked, broken_off = "", 0, False
        usage: Usage | None = None
        warnings: tuple[str, ...] = ()
        # Closing the iterator is what cancels a call; every model's stream is an async generator.
        stream = cast("AsyncGenerator[Chunk]", self.model.stream(request))
        async with aclosing(stream):
            async for chunk in stream:
                if isinstance(chunk, ModelFinish):
                    usage = chunk.payload.usage
                    if chunk.payload.reason == "length":
                        warnings = ("the model stopped at its output limit",)
                elif isinstance(chunk, TextDelta):
                    text += chunk.payload.text
                    if len(text) - checked >= MIN_LENGTH:
                        checked = len(text)
                        broken_off = is_degenerate(text[-2 * MIN_LENGTH :])
                if broken_off:  # it would go on until it is cut off, and all of that is paid for
                    break
        usage = usage or _counted(request, text)
        if broken_off and "\n" in text:
            text = text[: text.rindex("\n")]  # the last line was cut in the middle
        return Reply(
            text=text,
            usage=usage,
            model=self.model.id,
            looping=broken_off or is_degenerate(text),
            warnings=warnings,
        )


def _counted(request: ModelRequest, text: str) -> Usage:
    count = default_counter().count
    return Usage(input_tokens=count(request.text), output_tokens=count(text))
