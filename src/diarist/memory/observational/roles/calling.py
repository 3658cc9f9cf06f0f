"""One question to a model by the Observer or the Reflector: instructions and quoted data in, text out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from typing import TYPE_CHECKING, cast

from diarist.chunks import ModelFinish, TextDelta, Usage
from diarist.exceptions import BadRequestError, ContentFilterError, ModelAPIError, ModelError
from diarist.memory.observational.roles.repetition import MIN_LENGTH, is_degenerate
from diarist.messages import FilePart, Prompt, PromptMessage, PromptPart, TextPart
from diarist.models.base import Model, ModelRequest, ModelSettings
from diarist.models.entry import ModelEntry, entries_of
from diarist.tokens import TokenCounter, default_counter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from diarist.chunks import Chunk

MAX_OUTPUT_TOKENS = 100_000

RoleModel = Model | Sequence[ModelEntry] | Callable[[int], Sequence[ModelEntry]]
"""A model; models that are tried one after the other; or these, chosen by the tokens of the question."""

_FITS, _SAYS_SOMETHING = 0.75, 200

_CANNOT = (500, 501)
"""What servers of models without eyes answer to an image, where they do not call it a bad request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer.

    Attributes:
        usage: What it cost; counted by ``default_counter()`` when the answer was broken off, since then
            the provider does not say.
        looping: The model fell into a loop; it was broken off there if it went on for long.
        cut: The model stopped at its output limit, so the end is missing.
        calls: Number of calls that it took, failed ones included.
        warnings: What had to be done to get the answer.
    """

    text: str
    usage: Usage
    model: str
    looping: bool = False
    cut: bool = False
    calls: int = 1
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a model is asked: instructions, quoted data, and files by the number that they have in the data."""

    instructions: str
    data: str
    files: Sequence[tuple[int, FilePart]] = ()

    def prompt(self, *, with_files: bool) -> Prompt:
        parts: list[PromptPart] = [TextPart(text=self.data)]
        for number, file in self.files if with_files else ():
            parts += [TextPart(text=f"Attachment {number}:"), file]
        return Prompt(
            messages=[
                PromptMessage(role="system", parts=[TextPart(text=self.instructions)]),
                PromptMessage(role="user", parts=parts),
            ]
        )


@dataclass(slots=True)
class _Tries:
    """What was tried so far for one question."""

    calls: int = 0
    warnings: list[str] = field(default_factory=list[str])

    def finish(self, reply: Reply) -> Reply:
        return replace(reply, calls=self.calls, warnings=(*self.warnings, *reply.warnings))


def room_after(cut_tokens: int) -> float:
    """Tokens to ask for where an answer was cut off with so many: less than fitted.

    No limit (infinite) where it had hardly any: then the model's thoughts took the room.
    """
    return _FITS * cut_tokens if cut_tokens >= _SAYS_SOMETHING else inf


class Caller:
    """Asks a model, and the next one where it fails for good; remembers which refuse our settings.

    A failure that may pass is tried again as ``ModelEntry`` says, or as the model's ``default_retries`` do. A
    provider may answer with a bad request to a temperature, to more output tokens than the model has, or to
    files. Then the call is made again without them, with a warning; settings that were refused are left out of
    all later calls.
    """

    def __init__(self, model: RoleModel, settings: ModelSettings, counter: TokenCounter | None = None) -> None:
        self._choose = model if callable(model) else None
        self._entries: Sequence[ModelEntry] = [] if callable(model) else entries_of(model)
        self._settings = settings
        self._counter = counter or default_counter()
        self._accepted: dict[Model, ModelSettings] = {}

    async def ask(self, question: Question) -> Reply:
        """Raises the ModelError of the last model when all have failed."""
        entries = self._choose(self._size(question)) if self._choose is not None else self._entries
        *others, last = entries
        tries = _Tries()
        for entry in others:
            try:
                return await self._ask_patiently(entry, question, tries)
            except ModelError as error:
                tries.warnings.append(f"{entry.model.id} failed ({error}), the next model was asked")
        return await self._ask_patiently(last, question, tries)

    def _size(self, question: Question) -> int:
        """In tokens."""
        return self._counter.count(question.instructions) + self._counter.count(question.data)

    async def _ask_patiently(self, entry: ModelEntry, question: Question, tries: _Tries) -> Reply:
        retries = 0
        while True:
            try:
                return tries.finish(await self._ask_once(entry.model, question, tries))
            except ModelError as error:
                delay = entry.delay(error, retries)
                if delay is None:
                    raise
                tries.warnings.append(f"{entry.model.id} failed ({error}), it was asked again")
            retries += 1
            await asyncio.sleep(delay)

    async def _ask_once(self, model: Model, question: Question, tries: _Tries) -> Reply:
        """One call, or a few in a row with less and less of what the model refuses."""
        given = self._accepted.get(model, self._settings)
        refusals: list[ModelAPIError] = []
        for settings, files in _variants(given, with_files=bool(question.files)):
            tries.calls += 1
            try:
                reply = await _read(model, ModelRequest(prompt=question.prompt(with_files=files), settings=settings))
            except ModelAPIError as error:
                if not _refuses(error, files):
                    raise
                refusals.append(error)
                continue
            self._accepted[model] = settings
            left_out = ["temperature and max_output_tokens"] if settings != given else []
            left_out += ["attachments"] if question.files and not files else []
            if left_out:
                tries.warnings.append(f"repeated without {' and without '.join(left_out)}, since: {refusals[0]}")
            return reply
        raise refusals[-1]


def _variants(settings: ModelSettings, *, with_files: bool) -> Iterator[tuple[ModelSettings, bool]]:
    """Settings and whether files are sent: as asked for, then with less and less of what a model may refuse."""
    plain = replace(settings, temperature=None, max_output_tokens=None)
    all_settings = [settings] if settings == plain else [settings, plain]
    return product(all_settings, [True, False] if with_files else [False])


def _refuses(error: ModelAPIError, with_files: bool) -> bool:
    return isinstance(error, BadRequestError) or (with_files and error.status in _CANNOT)


async def _read(model: Model, request: ModelRequest) -> Reply:
    text, checked, broken_off = "", 0, False
    usage: Usage | None = None
    cut = False
    # Closing the iterator is what cancels a call; every model's stream is an async generator.
    stream = cast("AsyncGenerator[Chunk]", model.stream(request))
    async with aclosing(stream):
        async for chunk in stream:
            if isinstance(chunk, ModelFinish):
                usage = chunk.payload.usage
                cut = chunk.payload.reason == "length"
                if chunk.payload.reason == "content-filter":  # what it said before ends anywhere
                    raise ContentFilterError(f"{model.id} withheld the rest of its answer")
            elif isinstance(chunk, TextDelta):
                text += chunk.payload.text
                if len(text) - checked >= MIN_LENGTH:
                    checked = len(text)
                    broken_off = is_degenerate(text[-2 * MIN_LENGTH :])
            if broken_off:  # it would go on until it is cut off, and all of that is paid for
                break
    usage = usage or _counted(request, text)
    if (broken_off or cut) and text.count("\n") > 1:
        text = text[: text.rindex("\n")]  # the last line was cut in the middle
    return Reply(
        text=text,
        usage=usage,
        model=model.id,
        looping=broken_off or is_degenerate(text),
        cut=cut,
        warnings=("the model stopped at its output limit",) if cut else (),
    )


def _counted(request: ModelRequest, text: str) -> Usage:
    count = default_counter().count
    return Usage(input_tokens=count(request.text), output_tokens=count(text))
