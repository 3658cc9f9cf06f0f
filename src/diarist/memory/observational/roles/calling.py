"""One model call of the Observer or the Reflector: instructions and quoted data in, text out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

from diarist.chunks import ModelFinish, TextDelta, Usage
from diarist.exceptions import BadRequestError, ContentFilterError, ModelAPIError, ModelError
from diarist.memory.observational.roles.answer_checks import (
    LEAST_SOURCE,
    MIN_LENGTH,
    is_copy,
    is_degenerate,
    take_citations,
)
from diarist.memory.observational.roles.parsing import parse_notes
from diarist.messages import FilePart, Prompt, PromptMessage, PromptPart, TextPart
from diarist.models.base import Model, ModelRequest, ModelSettings, open_stream
from diarist.models.fallbacks import ModelEntry, entries_of
from diarist.tokens import TokenCounter, default_counter

MAX_OUTPUT_TOKENS = 100_000

RoleModel = Model | Sequence[ModelEntry] | Callable[[int], Sequence[ModelEntry]]
"""A model, a list of models to try one after the other, or a function from input tokens to such a list."""

_FITS = 0.75
"""Share of the tokens of a cut answer to ask for next time."""
_SAYS_SOMETHING = 200
"""Tokens. A cut answer with fewer has hardly any text."""
_NEARLY_ALL = 0.7
"""Longer answers, as a share of the messages, have nearly ended: stopping them saves nothing."""
_CANNOT = (500, 501)
"""Status codes with which some servers refuse images, instead of 400."""


@dataclass(slots=True)
class Spent:
    """Tokens and number of all calls together, failed ones included, and warnings, such as about retries and
    fallbacks."""

    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    warnings: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """An answer.

    Attributes:
        looping: The model repeated itself; a long loop is stopped.
        cut: The end is missing: the model reached its output limit, or was stopped in a loop or a copy.
        copied: The model was stopped, since it copied its source.
    """

    text: str
    model: str
    looping: bool = False
    cut: bool = False
    copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePrompt:
    """A prompt in parts: instructions, quoted data, and files by their number in the data.

    Attributes:
        source: Text of messages. An answer that copies them is stopped once it is half as long as they are.
    """

    instructions: str
    data: str
    files: Sequence[tuple[int, FilePart]] = ()
    source: str = ""

    def render(self, *, with_files: bool) -> Prompt:
        parts: list[PromptPart] = [TextPart(text=self.data)]
        for number, file in self.files if with_files else ():
            parts += [TextPart(text=f"Attachment {number}:"), file]
        system = PromptMessage(role="system", parts=[TextPart(text=self.instructions)])
        return Prompt(messages=[system, PromptMessage(role="user", parts=parts)])


def room_after(cut_tokens: int) -> float:
    """Return the number of tokens to ask for after an answer was cut off at ``cut_tokens``.

    Infinite if the answer had hardly any text: then the model's reasoning used the output limit.
    """
    return _FITS * cut_tokens if cut_tokens >= _SAYS_SOMETHING else inf


class Caller:
    """Calls a model, and the next one if it fails. Remembers the settings that each model refused.

    Transient failures are retried as ``ModelEntry`` or the model's ``default_retries`` say. If a provider rejects the
    temperature, the output limit or the files (a bad request), the call is repeated without them, with a warning. Later
    calls leave out the refused settings.
    """

    def __init__(self, model: RoleModel, settings: ModelSettings, counter: TokenCounter | None = None) -> None:
        self._choose = model if callable(model) else None
        self._entries: Sequence[ModelEntry] = [] if callable(model) else entries_of(model)
        self._settings = settings
        self._counter = counter or default_counter()
        self._accepted: dict[Model, ModelSettings] = {}

    async def ask(self, prompt: RolePrompt, spent: Spent | None = None) -> ModelReply:
        """Return the first answer, and add its cost to ``spent``. Raise the ModelError of the last model if all
        fail."""
        spent = spent or Spent()
        entries = self._entries
        if self._choose is not None:
            entries = self._choose(self._counter.count(prompt.instructions) + self._counter.count(prompt.data))
        place = retries = 0
        while True:
            entry = entries[place]
            try:
                return await self._ask_once(entry.model, prompt, spent)
            except ModelError as error:
                delay = entry.delay(error, retries)
                if delay is None and place + 1 == len(entries):
                    raise
                then = "the next model was asked" if delay is None else "it was asked again"
                spent.warnings.append(f"{entry.model.id} failed ({error}), {then}")
            if delay is None:
                place, retries = place + 1, 0
            else:
                retries += 1
                await asyncio.sleep(delay)

    async def _ask_once(self, model: Model, prompt: RolePrompt, spent: Spent) -> ModelReply:
        """Make one call. If the model refuses settings or files, repeat it without them."""
        given = self._accepted.get(model, self._settings)
        plain = replace(given, temperature=None, max_output_tokens=None)
        refusals: list[ModelAPIError] = []
        all_settings = [given] if given == plain else [given, plain]
        for settings, files in product(all_settings, [True, False] if prompt.files else [False]):
            spent.calls += 1
            try:
                request = ModelRequest(prompt=prompt.render(with_files=files), settings=settings)
                reply = await _read(model, request, spent, prompt.source)
            except ModelAPIError as error:
                if not (isinstance(error, BadRequestError) or (files and error.status in _CANNOT)):
                    raise
                refusals.append(error)
                continue
            self._accepted[model] = settings
            left_out = ["temperature and max_output_tokens"] if settings != given else []
            left_out += ["attachments"] if prompt.files and not files else []
            if left_out:
                spent.warnings.append(f"repeated without {' and without '.join(left_out)}, since: {refusals[0]}")
            return reply
        raise refusals[-1]


async def _read(model: Model, request: ModelRequest, spent: Spent, source: str) -> ModelReply:
    """Read one answer, and stop it early if it is a loop or copies ``source``."""
    text = ""
    checked = 0  # length of the text that was checked for loops
    is_compared = len(source) < LEAST_SOURCE  # compare once with the source, if it is long enough
    is_looping = is_copied = is_at_limit = False
    usage: Usage | None = None
    async with open_stream(model, request) as stream:
        async for chunk in stream:
            if isinstance(chunk, ModelFinish):
                usage = chunk.payload.usage
                is_at_limit = chunk.payload.reason == "length"
                if chunk.payload.reason == "content-filter":  # the text so far may end anywhere
                    raise ContentFilterError(f"{model.id} withheld the rest of its answer")
            elif isinstance(chunk, TextDelta):
                text += chunk.payload.text
                if len(text) - checked >= MIN_LENGTH:
                    checked = len(text)
                    is_looping = is_degenerate(text[-2 * MIN_LENGTH :])
                if not is_compared and len(text) > len(source) / 2:
                    is_compared = True
                    notes, _ = take_citations(parse_notes(text, cut=True).text)
                    is_copied = len(text) < _NEARLY_ALL * len(source) and is_copy(notes, source)
            if is_looping or is_copied:  # a loop would go on to the output limit; all of the answer is billed
                break
    if usage is None:  # the provider sends no usage for a stopped stream
        count = default_counter().count
        usage = Usage(input_tokens=count(request.text), output_tokens=count(text))
    spent.usage += usage
    if is_at_limit:
        spent.warnings.append("the model stopped at its output limit")
    return ModelReply(
        text=text,
        model=model.id,
        looping=is_looping or is_degenerate(text),
        cut=is_at_limit or is_looping or is_copied,
        copied=is_copied,
    )
