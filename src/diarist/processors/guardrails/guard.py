"""Base classes of guardrails that judge texts. They decide when texts are judged, hold output until then, and handle
findings."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar, cast

from diarist.checks import check_by_type, whole
from diarist.chunks import Chunk, DataChunk, ReasoningDelta, ReasoningEnd, TextDelta, TextEnd
from diarist.concurrency import inner_cancel_as_error
from diarist.exceptions import ConfigError, ProcessorAbort
from diarist.messages import Json, Message, Part, TextPart, ToolPart, as_text
from diarist.processors.base import (
    DROP,
    ProcessInputArgs,
    Processor,
    ProcessorArgs,
    ProcessOutputStreamArgs,
    StreamHookResult,
)
from diarist.processors.builtin.redaction import changed_end, provider_identity
from diarist.processors.guardrails.classifier import AsksModel
from diarist.prompting import join_results

T = TypeVar("T")

logger = logging.getLogger("diarist")

Where = Literal["input", "output", "tool-result"]

MOST_TEXTS = 20
"""Texts of one value for which a model is called one by one; of a value with more texts, none is rewritten."""

_EDITING = frozenset({"filter", "rewrite", "redact", "translate"})


@dataclass(kw_only=True, eq=False, repr=False)
class Guard(Processor[Any], ABC):
    """A guardrail; its fields are its options. Options of type bool, str and Literal are checked by their type.

    The bases: ``InputGuard`` judges whole messages, ``StreamGuard`` also spans of the output, and ``RedactingGuard``
    (in ``redacting_guard``) replaces single matches.

    Attributes:
        data_type: Type of the data chunk that ``warn`` sends.
        helper: The model or function that judges, searches or translates texts; None if there is none. A model that the
            guard created is closed with it.
    """

    data_type: ClassVar[str]
    last_message_only = False
    strategy: Any
    helper: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_by_type(self)

    async def close(self) -> None:
        if isinstance(self.helper, AsksModel):
            await self.helper.close()

    async def attempt(self, work: Awaitable[T], otherwise: T) -> T:
        """Await a classifier. If it fails, block the text; with ``on_error="continue"``, return ``otherwise``.

        The error is logged, and it is the cause of the ProcessorAbort. The tripwire names only the error's type,
        because the message may quote the text.
        """
        try:
            return await inner_cancel_as_error(work)
        except ProcessorAbort:
            raise
        except Exception as error:
            if self.on_error == "continue":
                logger.warning("processor %r could not judge a text and lets it pass: %r", self.id, error)
                return otherwise
            logger.warning("processor %r could not judge a text and blocks it: %r", self.id, error)
            kind = type(error).__name__
            reason = f"the text could not be judged: {kind}"
            raise ProcessorAbort(reason, processor_id=self.id, metadata={"error": kind}) from error

    def apply_strategy(
        self, args: ProcessorArgs[Any], where: Where, reason: str, metadata: dict[str, Json], *, again: bool = False
    ) -> bool:
        """Block or warn because of a text. Returns True if the strategy is to change the text instead.

        ``again``: the same was reported before, so there is no second warning. Raises ProcessorAbort with ``block``.
        """
        if self.strategy == "block":
            args.abort(reason, metadata=metadata)
        if self.strategy == "warn" and not again:
            logger.warning("processor %r, %s of run %s: %s", self.id, where, args.run_id, reason)
            if self.data_type:
                data = {**metadata, "processor": self.id, "where": where, "reason": reason}
                args.writer.custom(DataChunk(self.data_type, data, transient=True))
        return self.strategy != "warn"

    def judges_each(self, texts: int) -> bool:
        """Return True if the texts of one value, so many, are judged by themselves: a model is called for each."""
        return texts <= MOST_TEXTS or not isinstance(self.helper, AsksModel)

    def new_messages(self, args: ProcessInputArgs[Any]) -> list[Message]:
        """Return the messages to judge: the call's own input. Other messages were judged when they were new."""
        new = [message for message in args.messages if args.message_list.origin_of(message.id) == "input"]
        return new[-1:] if self.last_message_only else new

    def late_results(self, args: ProcessInputArgs[Any]) -> set[str]:
        """Return the ids of messages with tool results that the model gets in the user's role, because no call waits
        for them."""
        given = args.context.messages.messages  # guards that run in parallel get only the input
        results = {message.id for message in given if message.role == "tool"}
        return results & {message.id for message in join_results(given)} if results else results

    def input_with(
        self, args: ProcessInputArgs[Any], changed: Mapping[str, Message | None], reason: str, metadata: dict[str, Json]
    ) -> list[Message]:
        """Return the messages after replacements by id; None removes a message.

        Raises:
            ProcessorAbort: No message of the call's own input is left.
        """
        kept = [changed.get(message.id, message) for message in args.messages]
        remaining = [message for message in kept if message is not None]
        if not any(args.message_list.origin_of(message.id) == "input" for message in remaining):
            args.abort(f"no message of the input is left: {reason}", metadata=metadata)
        return remaining


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A guard's objection to a text.

    Attributes:
        reason: One sentence for people; never quotes the text.
        metadata: Categories, scores and the like, for the tripwire's metadata and the data chunk.
        text: The replacement, for strategies that change texts; None removes the text.
        note: Stored in the changed message's metadata, under the processor's id.
    """

    reason: str
    metadata: dict[str, Json]
    text: str | None = None
    note: dict[str, Json] | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class InputGuard(Guard):
    """Judges each new message of the run's input; subclasses implement ``examine``.

    Attributes:
        tool_results: True judges all results of client tools; False only late ones.
    """

    tool_results = False
    last_message_only: bool = False
    on_error: Literal["fail", "continue"] = "fail"
    run_in_parallel: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run_in_parallel and self.strategy in _EDITING:
            raise ConfigError(
                f"{type(self).__name__}: strategy {self.strategy!r} cannot be combined with run_in_parallel, because "
                "the model has been called already; use 'block' or 'warn'"
            )

    @abstractmethod
    async def examine(self, text: str) -> Finding | None:
        """Return the objection to a text, or None. Raises the classifier's errors."""

    async def judge(
        self, args: ProcessorArgs[Any], text: str, where: Where, *, before: str = "", other_form: str = ""
    ) -> Finding | None:
        """Return the finding for a text that has to be changed; None if the text passes.

        Args:
            args: The hook's arguments.
            text: The text.
            where: Place of the text, for messages and logs.
            before: Context that is judged together with the text.
            other_form: Another form of the text, which must pass as well.

        Raises:
            ProcessorAbort: The text blocks the run, or could not be judged.
        """
        finding = await self.attempt(self.examine(before + text), None) if text.strip() else None
        if finding is None and other_form.strip():
            finding = await self.attempt(self.examine(other_form), None)
        if finding is None or not self.apply_strategy(args, where, finding.reason, finding.metadata):
            return None
        return finding

    async def process_input(self, args: ProcessInputArgs[Any]) -> list[Message] | None:
        """Judge the new messages.

        Raises:
            ProcessorAbort: A text is blocked, or no input message is left.
        """
        changed: dict[str, Message | None] = {}
        last = Finding(reason="", metadata={})
        late = self.late_results(args)
        for message in self.new_messages(args):
            results = self.tool_results or message.id in late
            parts = [
                await self.judge_result(args, part) if results and isinstance(part, ToolPart) else part
                for part in message.parts
            ]
            if any(new is not old for new, old in zip(parts, message.parts, strict=True)):
                changed[message.id] = message = replace(message, parts=parts, part_tokens=None)
            # Some models get the text parts as one text; others get each part on its own line.
            texts = [part.text for part in message.parts if isinstance(part, TextPart)]
            in_lines = "\n".join(texts) if len(texts) > 1 else ""
            finding = await self.judge(args, message.text, "input", other_form=in_lines)
            if finding is None:
                continue
            last = finding
            changed[message.id] = None
            if self.strategy != "filter" and (finding.text or "").strip():
                replaced = with_texts(message, [finding.text or "", *[""] * (len(texts) - 1)])
                parts = [part for part in replaced.parts if not isinstance(part, TextPart) or part.text]
                metadata = message.metadata if finding.note is None else {**message.metadata, self.id: finding.note}
                changed[message.id] = replace(replaced, parts=parts, metadata=metadata)
        return self.input_with(args, changed, last.reason, last.metadata) if changed else None

    async def judge_result(self, args: ProcessorArgs[Any], call: ToolPart) -> ToolPart:
        """Return the call after its result was judged; the same object if nothing changed.

        Of a result that is an object or a list, only the texts in it are rewritten.
        """
        finding = None if call.state == "call" else await self.judge(args, as_text(call.result), "tool-result")
        if finding is None:
            return call
        if self.strategy != "filter" and not isinstance(call.result, str) and self.judges_each(_texts_in(call.result)):
            rewritten = await self._rewritten(call.result)
            if rewritten != call.result and await self.attempt(self.examine(as_text(rewritten)), None) is None:
                return replace(call, result=rewritten)
        elif self.strategy != "filter" and isinstance(call.result, str) and (text := (finding.text or "").strip()):
            return replace(call, result=text)
        what = f"the result of {call.name}" if call.name else "the result"
        return replace(call, state="error", result=f"{what} was withheld: {finding.reason}")

    async def _rewritten(self, value: Json) -> Json:
        """Return a JSON value in which each text was judged by itself, and rewritten or emptied if necessary."""
        match value:
            case str() if value.strip():
                finding = await self.attempt(self.examine(value), None)
                return value if finding is None else (finding.text or "").strip()
            case list():
                return [await self._rewritten(item) for item in cast(list[Json], value)]
            case dict():
                return {name: await self._rewritten(item) for name, item in cast(dict[str, Json], value).items()}
            case _:
                return value


def _texts_in(value: Json) -> int:
    """Return how many texts of a JSON value would be judged by themselves."""
    match value:
        case str():
            return bool(value.strip())
        case list():
            return sum(map(_texts_in, cast(list[Json], value)))
        case dict():
            return sum(map(_texts_in, cast(dict[str, Json], value).values()))
        case _:
            return 0


@dataclass(kw_only=True, eq=False, repr=False)
class StreamGuard(InputGuard):
    """Judges the output, too. Holds text until its span was judged."""

    chunk_window = 0
    span_chars: int | None = 400
    include_reasoning: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        check_span(name, self.span_chars)
        whole(name, "chunk_window", self.chunk_window, least=0)

    def create_state(self) -> HeldOutput:
        return HeldOutput(self.span_chars, window=self.chunk_window, reasoning=self.include_reasoning)

    async def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> StreamHookResult:
        """Judge text and reasoning span by span; other chunks wait for the text before them."""
        held: HeldOutput = args.state

        async def change(text: str) -> str:
            finding = await self.judge(args, text, "output", before="".join(held.passed))
            if finding is None:
                return text
            return "" if self.strategy == "filter" else finding.text or ""

        return await held.feed(args.part, args.stream_parts, change) or DROP


def check_span(owner: str, span_chars: Any) -> None:
    """Raise ConfigError for a ``span_chars`` that is neither a positive whole number nor None."""
    if span_chars is not None:
        whole(owner, "span_chars (or None)", span_chars, least=1)


def with_texts(message: Message, texts: Sequence[str]) -> Message:
    """Return the message with these texts in its text parts. A changed part keeps only its provider and id."""
    left = iter(texts)
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, TextPart) and (text := next(left)) != part.text:
            part = replace(part, text=text, provider_data=provider_identity(part.provider_data))
        parts.append(part)
    return replace(message, parts=parts, part_tokens=None)


# -- holding output, in spans of whole sentences

Delta = TextDelta | ReasoningDelta

_END = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？]+[”’」』）]*\s*|\n+")
"""The end of a sentence or line, from its last dot to the space after it."""

_LONGEST_SPAN = 4
"""Longest span without a sentence end, as a multiple of ``span_chars``."""


def _with_text(delta: Delta, text: str) -> Delta:
    return replace(delta, payload=replace(delta.payload, text=text))


class HeldOutput:
    """Holds the output's text for a guard, in spans of whole sentences, until the span was judged.

    Args:
        span_chars: A span ends with the first sentence or line that ends after this many characters. If none ends
            before four times as many, the span ends there, at a space if possible. None: it ends with its block.
        window: Number of accepted spans to keep as context for the next.
        reasoning: True holds reasoning, too.

    Attributes:
        passed: The last accepted spans.
    """

    def __init__(self, span_chars: int | None, *, window: int = 0, reasoning: bool = True) -> None:
        self._span_chars = span_chars
        self._kinds = (TextDelta, ReasoningDelta) if reasoning else (TextDelta,)
        self._attempt: object = None
        self._text = ""
        self._last: Delta | None = None  # the delta that came last; None after another chunk
        self._changed: set[type[Chunk]] = set()  # kinds of delta with a change since their block began
        self.passed: deque[str] = deque(maxlen=window)

    async def feed(self, part: Chunk, attempt: object, change: Callable[[str], Awaitable[str]]) -> list[Chunk]:
        """Return the chunks to send now that ``part`` has arrived.

        Args:
            part: The next chunk.
            attempt: Identifies the attempt, as ``stream_parts`` of a hook does. When another begins, held chunks of the
                previous attempt are discarded.
            change: Returns the replacement of a span.
        """
        if self._attempt is not attempt:
            self._attempt, self._text, self._last = attempt, "", None
            self.passed.clear()
            self._changed.clear()
        if isinstance(part, DataChunk):
            return [part]
        out: list[Chunk] = []
        for span in self.spans(part):
            text = await change(span.payload.text)
            if text == span.payload.text:
                self.passed.append(text)
            else:
                self._changed.add(type(span))
            if text:
                out.append(_with_text(span, text))
        if isinstance(part, self._kinds):
            return out
        if isinstance(part, TextEnd | ReasoningEnd):
            kind = TextDelta if isinstance(part, TextEnd) else ReasoningDelta
            if kind in self._changed:
                self._changed.discard(kind)
                part = changed_end(part)
        return [*out, part]

    def spans(self, part: Chunk) -> Iterator[Delta]:
        """Hold a delta, and yield the spans that it completes. Other chunks complete the span before them."""
        last, delta = self._last, part if isinstance(part, self._kinds) else None
        if last is not None and (delta is None or (type(last), last.payload.id) != (type(delta), delta.payload.id)):
            if self._text:
                yield _with_text(last, self._text)
            self._text = ""
        self._last = delta
        if delta is None:
            return
        self._text += delta.payload.text
        while (end := self._end(self._text)) is not None:
            text, self._text = self._text[:end], self._text[end:]
            yield _with_text(delta, text)

    def _end(self, text: str) -> int | None:
        """Return the length of the first span in a text; None if more text has to arrive."""
        least = self._span_chars
        if least is None or len(text) < least:
            return None
        most = least * _LONGEST_SPAN
        for match in _END.finditer(text):
            # At the end of the text received so far, dots, quotes and spaces may still follow.
            if least <= match.end() <= most and match.end() < len(text):
                return match.end()
        if len(text) <= most:
            return None
        space = text.rfind(" ", least, most)
        return space + 1 if space >= 0 else most
