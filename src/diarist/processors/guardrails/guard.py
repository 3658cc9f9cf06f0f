"""Base classes of guardrails that judge texts: when texts are judged, and what a finding leads to."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from diarist.checks import flags, one_of, whole
from diarist.chunks import Chunk, DataChunk, ReasoningDelta, ReasoningEnd, TextDelta, TextEnd
from diarist.concurrency import inner_cancel_as_error
from diarist.exceptions import ConfigError, ProcessorAbort
from diarist.messages import Json, Message, Part, TextPart
from diarist.processors.base import (
    DROP,
    ProcessInputArgs,
    Processor,
    ProcessorArgs,
    ProcessOutputStreamArgs,
    StreamHookResult,
)
from diarist.processors.builtin.redaction import provider_identity
from diarist.processors.guardrails.sentences import HeldSpan, SentenceBuffer

logger = logging.getLogger("diarist")

OnError = Literal["fail", "continue"]
Where = Literal["input", "output", "tool-result"]

_EDITING = frozenset({"filter", "rewrite", "redact", "translate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A guard's objection to a text.

    Attributes:
        reason: One sentence for people; never quotes the text.
        metadata: Categories, scores and the like: metadata of the tripwire, and part of the data chunk.
        text: The replacement, for strategies that change texts; None removes the text.
        note: Stored in the changed message's metadata, under the processor's id.
    """

    reason: str
    metadata: dict[str, Json]
    text: str | None = None
    note: dict[str, Json] | None = None


@dataclass(slots=True)
class StreamState:
    """A guard's state for one stream.

    Attributes:
        held: Text that was not judged yet.
        passed: The last spans that passed, as context for the next.
        changed: Kinds of delta with a change since their block began.
        of: The ``stream_parts`` of the attempt that this state belongs to.
    """

    held: SentenceBuffer
    passed: deque[str]
    changed: set[type[Chunk]] = field(default_factory=set[type[Chunk]])
    of: object = None


class Guard(Processor[Any], ABC):
    """Judges texts; subclasses implement ``examine`` and choose the hooks.

    Attributes:
        data_type: Type of the data chunk that ``warn`` sends.
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
                f"{name}: strategy {strategy!r} cannot be combined with run_in_parallel, because the model has been "
                "called already; use 'block' or 'warn'"
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
        """Return the objection to a text, or None. Raises what the classifier raises."""

    def create_state(self) -> StreamState:
        return StreamState(SentenceBuffer(self.span_chars), deque(maxlen=self.chunk_window))

    async def judge(
        self, args: ProcessorArgs[Any], text: str, where: Where, *, before: str = "", or_as: str = ""
    ) -> Finding | None:
        """Return the finding for a text that has to be changed; None if the text passes.

        Args:
            args: The hook's arguments.
            text: The text.
            where: Where the text is, for messages and logs.
            before: Context judged together with the text.
            or_as: A second reading of the text, which must pass too.

        Raises:
            ProcessorAbort: The text blocks the run, or could not be judged.
        """
        finding = await self._examine(before + text) if text.strip() else None
        if finding is None and or_as.strip():
            finding = await self._examine(or_as)
        if finding is None:
            return None
        if self.strategy == "block":
            args.abort(finding.reason, metadata=finding.metadata)
        if self.strategy == "warn":
            logger.warning("processor %r, %s: %s %s", self.id, where, finding.reason, finding.metadata)
            data = {**finding.metadata, "processor": self.id, "where": where, "reason": finding.reason}
            args.writer.custom(DataChunk(self.data_type, data, transient=True))
            return None
        return finding

    async def _examine(self, text: str) -> Finding | None:
        try:
            return await inner_cancel_as_error(self.examine(text))
        except ProcessorAbort:
            raise
        except Exception as error:
            if self.on_error == "fail":
                abort_unjudged(self.id, error)
            logger.warning("processor %r could not judge a text and lets it pass: %r", self.id, error)
            return None


class InputGuard(Guard):
    """Judges each new message of the run's input."""

    async def process_input(self, args: ProcessInputArgs[Any]) -> list[Message] | None:
        """Judge the new messages; messages from memory were judged when they were new.

        Raises:
            ProcessorAbort: A text is blocked, or no input message is left.
        """
        changed: dict[str, Message | None] = {}
        last: Finding | None = None
        for message in new_messages(args, last_only=self.last_message_only):
            # Some models see the text parts as one text, some each on its own line.
            texts = [part.text for part in message.parts if isinstance(part, TextPart)]
            in_lines = "\n".join(texts) if len(texts) > 1 else ""
            finding = await self.judge(args, message.text, "input", or_as=in_lines)
            if finding is not None:
                last = finding
                changed[message.id] = self._changed(message, finding)
        return None if last is None else input_with(args, changed, last.reason, last.metadata)

    def _changed(self, message: Message, finding: Finding) -> Message | None:
        """Return the message with the finding's text in place of its own; None to remove the message."""
        text = finding.text or ""
        if self.strategy == "filter" or not text.strip():
            return None
        count = sum(isinstance(part, TextPart) for part in message.parts)
        changed = with_texts(message, [text, *[""] * (count - 1)])
        parts = [part for part in changed.parts if not isinstance(part, TextPart) or part.text]
        metadata = message.metadata if finding.note is None else {**message.metadata, self.id: finding.note}
        return replace(changed, parts=parts, metadata=metadata)


class StreamGuard(Guard):
    """Judges the output: holds text until the span that it belongs to was judged."""

    async def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> StreamHookResult:
        """Judge text and reasoning span by span; other chunks wait for the text before them."""
        part = args.part
        state: StreamState = args.state
        if state.of is not args.stream_parts:  # a new step, or a new attempt: held text of a broken one is dropped
            state.of = args.stream_parts
            state.held.clear()
            state.passed.clear()
            state.changed.clear()
        if isinstance(part, TextDelta) or (isinstance(part, ReasoningDelta) and self.include_reasoning):
            return [chunk for span in state.held.feed(part) for chunk in await self._judged(args, span)] or DROP
        out: list[Chunk] = [chunk for span in state.held.flush() for chunk in await self._judged(args, span)]
        part = block_end(part, state.changed)
        return [*out, part] if out else part

    async def _judged(self, args: ProcessOutputStreamArgs[Any], span: HeldSpan) -> list[Chunk]:
        state: StreamState = args.state
        finding = await self.judge(args, span.text, "output", before="".join(state.passed))
        if finding is None:
            state.passed.append(span.text)
            return [span.delta(span.text)]
        state.changed.add(type(span.like))
        text = "" if self.strategy == "filter" else finding.text or ""
        return [span.delta(text)] if text else []


def abort_unjudged(processor_id: str, error: Exception) -> NoReturn:
    """Block a text that a failed classifier could not judge.

    The error is logged and is the cause of the ProcessorAbort. The tripwire names only its type, because the message
    may quote the text.
    """
    logger.warning("processor %r could not judge a text and blocks it: %r", processor_id, error)
    kind = type(error).__name__
    reason = f"the text could not be judged: {kind}"
    raise ProcessorAbort(reason, processor_id=processor_id, metadata={"error": kind}) from error


def check_span(owner: str, span_chars: int | None) -> None:
    """Raise ConfigError unless ``span_chars`` is a number of characters, or None."""
    if span_chars is not None:
        whole(owner, "span_chars (or None)", span_chars, least=1)


def new_messages(args: ProcessInputArgs[Any], *, last_only: bool) -> list[Message]:
    """Return the messages of the call's own input, or the last of them."""
    new = [message for message in args.messages if args.message_list.source_of(message.id) == "input"]
    return new[-1:] if last_only else new


def input_with(
    args: ProcessInputArgs[Any], changed: Mapping[str, Message | None], reason: str, metadata: dict[str, Json]
) -> list[Message]:
    """Return the messages with some replaced, by id, or removed (None).

    Raises:
        ProcessorAbort: No message of the call's own input is left.
    """
    kept = [changed.get(message.id, message) for message in args.messages]
    remaining = [message for message in kept if message is not None]
    if not any(args.message_list.source_of(message.id) == "input" for message in remaining):
        args.abort(f"nothing of the input is left: {reason}", metadata=metadata)
    return remaining


def with_texts(message: Message, texts: Sequence[str]) -> Message:
    """Return the message with these texts in its text parts. A changed part keeps only its provider and id."""
    left = iter(texts)
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, TextPart) and (text := next(left)) != part.text:
            part = replace(part, text=text, provider_data=provider_identity(part.provider_data))
        parts.append(part)
    return replace(message, parts=parts, part_tokens=None)


def block_end(part: Chunk, changed: set[type[Chunk]]) -> Chunk:
    """Return a block's end without data about the text before its change.

    Changed reasoning loses its signature and provider, which would refuse it; changed text loses citations, which may
    quote the old text.

    Args:
        part: Any chunk; only the end of a changed block is changed.
        changed: The kinds of delta that were changed; the block's kind is removed.
    """
    if isinstance(part, ReasoningEnd) and ReasoningDelta in changed:
        changed.discard(ReasoningDelta)
        return replace(part, payload=replace(part.payload, signature=None, provider=None, provider_data=None))
    if isinstance(part, TextEnd) and TextDelta in changed:
        changed.discard(TextDelta)
        return replace(part, payload=replace(part.payload, provider_data=provider_identity(part.payload.provider_data)))
    return part
