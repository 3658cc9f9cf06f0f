"""What the guardrails that judge texts have in common: what is judged when, and what follows from a finding."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from diarist.chunks import Chunk, DataChunk, ReasoningDelta, ReasoningEnd, StepStart, TextDelta, TextEnd
from diarist.concurrency import contained
from diarist.exceptions import ConfigError, TripWire
from diarist.messages import Json, Message, Part, TextPart
from diarist.processors.base import (
    DROP,
    ProcessInputArgs,
    Processor,
    ProcessorArgs,
    ProcessOutputStreamArgs,
    StreamHookResult,
)
from diarist.processors.builtin.options import flags, one_of, whole
from diarist.processors.builtin.provider_text import identity
from diarist.processors.guardrails.sentences import HeldSpan, SentenceBuffer

logger = logging.getLogger("diarist")

OnError = Literal["fail", "continue"]
Where = Literal["input", "output", "tool-result"]

_EDITING = frozenset({"filter", "rewrite", "redact", "translate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a guard objects to.

    Attributes:
        reason: One sentence for people; never the text itself.
        metadata: Categories, scores and the like: the tripwire's metadata, and part of the data chunk.
        text: What may stand in the text's place, for strategies that change it; None: nothing may.
        note: Kept in the changed message's metadata under the processor's id.
    """

    reason: str
    metadata: dict[str, Json]
    text: str | None = None
    note: dict[str, Json] | None = None


@dataclass(slots=True)
class StreamState:
    """What a guard holds of a stream: text that was not judged yet, and spans that passed before it."""

    held: SentenceBuffer
    passed: deque[str]
    changed: set[type[Chunk]] = field(default_factory=set[type[Chunk]])

    def clear(self) -> None:
        self.held.clear()
        self.passed.clear()
        self.changed.clear()


class Guard(Processor[Any], ABC):
    """Judges texts; a subclass says what it objects to (``examine``) and at which hooks.

    Attributes:
        data_type: The type of the data chunk that ``warn`` sends.
    """

    data_type: str = "data-guard"

    def __init__(
        self,
        *,
        strategy: str,
        strategies: Sequence[str],
        on_error: OnError,
        run_in_parallel: bool = False,
        last_message_only: bool = False,
        span_chars: int | None = None,
        chunk_window: int = 0,
        include_reasoning: bool = True,
    ) -> None:
        name = type(self).__name__
        one_of(name, "strategy", strategy, strategies)
        one_of(name, "on_error", on_error, ("fail", "continue"))
        flags(
            name,
            run_in_parallel=run_in_parallel,
            last_message_only=last_message_only,
            include_reasoning=include_reasoning,
        )
        if run_in_parallel and strategy in _EDITING:
            raise ConfigError(
                f"{name}: with run_in_parallel the model has been called already, so that strategy {strategy!r} comes "
                "too late; use 'block' or 'warn'"
            )
        check_span(name, span_chars)
        whole(name, "chunk_window", chunk_window, least=0)
        self.strategy = strategy
        self.on_error = on_error
        self.run_in_parallel = run_in_parallel
        self.last_message_only = last_message_only
        self.span_chars = span_chars
        self.chunk_window = chunk_window
        self.include_reasoning = include_reasoning

    @abstractmethod
    async def examine(self, text: str) -> Finding | None:
        """What is wrong with a text; None where nothing is. Raises what its classifier raises."""

    def create_state(self) -> StreamState:
        return StreamState(SentenceBuffer(self.span_chars), deque(maxlen=self.chunk_window))

    async def passed(self, args: ProcessorArgs[Any], text: str, where: Where, *, before: str = "") -> Finding | str:
        """The text, or a finding where another text has to stand in its place.

        Raises TripWire where the text blocks the run, and where it could not be judged.
        """
        finding = await self._examine(before + text) if text.strip() else None
        if finding is None:
            return text
        if self.strategy == "block":
            args.abort(finding.reason, metadata=finding.metadata)
        if self.strategy == "warn":
            self._warn(args, finding, where)
            return text
        return finding

    async def _examine(self, text: str) -> Finding | None:
        try:
            return await contained(self.examine(text))
        except TripWire:
            raise
        except Exception as error:
            if self.on_error == "fail":
                unjudged(self.id, error)
            logger.warning("processor %r could not judge a text, which passes: %r", self.id, error)
            return None

    def _warn(self, args: ProcessorArgs[Any], finding: Finding, where: Where) -> None:
        logger.warning("processor %r, %s: %s %s", self.id, where, finding.reason, finding.metadata)
        data = {**finding.metadata, "processor": self.id, "where": where, "reason": finding.reason}
        args.writer.custom(DataChunk(self.data_type, data, transient=True))


class InputGuard(Guard):
    """A guard of what comes in: it judges each new message of the run's input."""

    async def process_input(self, args: ProcessInputArgs[Any]) -> list[Message] | None:
        """Judge the texts of the input; messages that memory brought were judged when they came.

        Raises TripWire for a blocked text, and where removing messages leaves nothing of the input.
        """
        judged = [message for message in args.messages if args.message_list.source_of(message.id) == "input"]
        if self.last_message_only:
            judged = judged[-1:]
        changed: dict[str, Message | None] = {}
        last: Finding | None = None
        for message in judged:
            outcome = await self.passed(args, message.text, "input")
            if isinstance(outcome, Finding):
                last = outcome
                changed[message.id] = self._changed(message, outcome)
        if last is None:
            return None
        kept = [changed.get(message.id, message) for message in args.messages]
        remaining = [message for message in kept if message is not None]
        if not any(args.message_list.source_of(message.id) == "input" for message in remaining):
            args.abort(f"nothing of the input is left: {last.reason}", metadata=last.metadata)
        return remaining

    def _changed(self, message: Message, finding: Finding) -> Message | None:
        if self.strategy == "filter" or not (finding.text or "").strip():
            return None
        metadata = message.metadata if finding.note is None else {**message.metadata, self.id: finding.note}
        return replace(with_text(message, finding.text or ""), metadata=metadata)


class StreamGuard(Guard):
    """A guard of what goes out: it holds text back until the span it belongs to was judged."""

    async def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> StreamHookResult:
        """Judge text and reasoning span by span; everything else waits for the text before it."""
        part = args.part
        state: StreamState = args.state
        if isinstance(part, TextDelta) or (isinstance(part, ReasoningDelta) and self.include_reasoning):
            return [chunk for span in state.held.feed(part) for chunk in await self._let_go(args, span)] or DROP
        if isinstance(part, StepStart):
            state.clear()  # a new step, or another attempt at the same one
            return part
        out: list[Chunk] = [chunk for span in state.held.flush() for chunk in await self._let_go(args, span)]
        part = ended(part, state.changed)
        return [*out, part] if out else part

    async def _let_go(self, args: ProcessOutputStreamArgs[Any], span: HeldSpan) -> list[Chunk]:
        state: StreamState = args.state
        outcome = await self.passed(args, span.text, "output", before="".join(state.passed))
        if isinstance(outcome, str):
            state.passed.append(span.text)
            return [span.delta(outcome)]
        state.changed.add(type(span.like))
        text = "" if self.strategy == "filter" else outcome.text or ""
        return [span.delta(text)] if text else []


def unjudged(processor_id: str, error: Exception) -> NoReturn:
    """Block a text that a broken classifier could not judge. Raises TripWire, with the error as its cause."""
    what = f"{type(error).__name__}: {error}"
    reason = f"the text could not be judged: {what}"
    raise TripWire(reason, processor_id=processor_id, metadata={"error": what}) from error


def check_span(owner: str, span_chars: int | None) -> None:
    """Raise ConfigError unless ``span_chars`` is a number of characters, or None."""
    if span_chars is not None:
        whole(owner, "span_chars (or None)", span_chars, least=1)


def with_text(message: Message, text: str) -> Message:
    """The message with one text in the place of all its own; files and all else stay."""
    count = sum(isinstance(part, TextPart) for part in message.parts)
    changed = with_texts(message, [text, *[""] * (count - 1)])
    return replace(changed, parts=[part for part in changed.parts if not isinstance(part, TextPart) or part.text])


def with_texts(message: Message, texts: Sequence[str]) -> Message:
    """The message with these texts in its text parts."""
    left = iter(texts)
    parts: list[Part] = [_with_text(part, next(left)) if isinstance(part, TextPart) else part for part in message.parts]
    return replace(message, parts=parts, part_tokens=None)


def _with_text(part: TextPart, text: str) -> TextPart:
    return part if text == part.text else replace(part, text=text, provider_data=identity(part.provider_data))


def ended(part: Chunk, changed: set[type[Chunk]]) -> Chunk:
    """The end of a block whose text was changed, by the kinds of delta in ``changed``: of reasoning, its maker would
    refuse it, so that nothing names its maker; of text, citations would quote what was there."""
    if isinstance(part, ReasoningEnd) and ReasoningDelta in changed:
        changed.discard(ReasoningDelta)
        return replace(part, payload=replace(part.payload, signature=None, provider=None, provider_data=None))
    if isinstance(part, TextEnd) and TextDelta in changed:
        changed.discard(TextDelta)
        return replace(part, payload=replace(part.payload, provider_data=identity(part.payload.provider_data)))
    return part
