"""What the guardrails that take pieces out of texts have in common: the hooks, and what follows from a match."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from diarist.chunks import Chunk, DataChunk, ReasoningDelta, StepStart, TextDelta
from diarist.messages import Json, Message
from diarist.processors.base import (
    DROP,
    MaybeAwaitable,
    Processor,
    ProcessorArgs,
    ProcessOutputResultArgs,
    ProcessOutputStreamArgs,
    ProcessToolResultArgs,
    StreamHookResult,
    ToolResultResult,
)
from diarist.processors.builtin.options import flags, one_of
from diarist.processors.builtin.redacting_messages import redacted_messages
from diarist.processors.builtin.redacting_stream import RedactingStream
from diarist.processors.guardrails.guard import OnError, Where, check_span, ended, unjudged
from diarist.processors.guardrails.sentences import HeldSpan, SentenceBuffer
from diarist.processors.streaming_redaction import Look, MakeSkim, Span, no_skim

logger = logging.getLogger("diarist")

RedactStrategy = Literal["redact", "block", "warn", "filter"]
STRATEGIES = ("redact", "block", "warn", "filter")

Rewrite = Callable[[ProcessorArgs[Any], str, Where], Awaitable[str]]


@dataclass(slots=True)
class RedactState:
    """One run: its streams by where they are, text not yet judged by the classifier, and what was found."""

    held: SentenceBuffer
    streams: dict[Where, RedactingStream] = field(default_factory=dict[Where, RedactingStream])
    reported: set[tuple[Where, str]] = field(default_factory=set[tuple[Where, str]])
    found: set[str] = field(default_factory=set[str])
    changed: set[type[Chunk]] = field(default_factory=set[type[Chunk]])


class RedactingGuard(Processor[Any], ABC):
    """Finds pieces of text and replaces them, blocks, or warns; a subclass says what it finds.

    Attributes:
        data_type: The type of the data chunk that ``warn`` sends.
    """

    process_data_parts = True
    data_type: str = "data-redaction"

    def __init__(
        self,
        *,
        strategy: str,
        on_error: OnError,
        tools: bool,
        span_chars: int | None,
        rewrite: Rewrite | None,
    ) -> None:
        name = type(self).__name__
        one_of(name, "strategy", strategy, STRATEGIES)
        one_of(name, "on_error", on_error, ("fail", "continue"))
        flags(name, tools=tools)
        check_span(name, span_chars)
        self.strategy = strategy
        self.on_error = on_error
        self.tools = tools
        self.span_chars = span_chars
        self._rewrite = rewrite
        if rewrite is not None and type(self).process_output_stream is RedactingGuard.process_output_stream:
            self.process_output_stream = self._rewritten_stream  # async, while a plain hook costs less

    @abstractmethod
    def matching(self, args: ProcessorArgs[Any]) -> Look:
        """How pieces are found in this run's texts."""

    def skimming(self, args: ProcessorArgs[Any]) -> MakeSkim:
        """A quick look that spares ``matching`` where nothing can be found; none by default."""
        return no_skim

    @abstractmethod
    def replacement(self, matched: str, label: str) -> str:
        """What stands in the place of a match."""

    def create_state(self) -> RedactState:
        return RedactState(SentenceBuffer(self.span_chars))

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> MaybeAwaitable[StreamHookResult]:
        """Take pieces out of everything that streams, and with it out of what is stored."""
        if self._rewrite is not None:
            return self._rewritten_stream(args)
        part = args.part
        if isinstance(part, StepStart):
            self._begin_step(args.state)
        return _sent(self.stream(args, "output").feed(part))

    async def _rewritten_stream(self, args: ProcessOutputStreamArgs[Any]) -> StreamHookResult:
        """The same, after the classifier has seen it."""
        part = args.part
        if isinstance(part, StepStart):
            self._begin_step(args.state)
        assert self._rewrite is not None
        stream = self.stream(args, "output")
        return _sent([out for ready in await self._ready(args, part, self._rewrite) for out in stream.feed(ready)])

    def _begin_step(self, state: RedactState) -> None:
        """A new step, or another attempt at the same one."""
        state.held.clear()
        state.changed.clear()
        state.streams.pop("output", None)

    async def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> ToolResultResult | None:
        """Take pieces out of what a tool returned, before the model, the stream and the storage get it."""
        if not self.tools:
            return None
        call, state = args.call, args.state
        state.found.clear()
        result = call.result
        if self._rewrite is not None and isinstance(result, str):
            result = await self._rewrite(args, result, "tool-result")
        result = self.stream(args, "tool-result").redact_json(result)
        if result == call.result:
            return None
        if self.strategy == "filter":
            return {"error": f"the result of {call.name} was withheld: it contains {', '.join(sorted(state.found))}"}
        return {"error": str(result)} if call.state == "error" else {"result": result}

    async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> list[Message] | None:
        """Once more over the finished messages, for what other processors have put into them."""
        if self.strategy == "warn":
            return None
        return redacted_messages(args.messages, self.stream(args, "output"), tools=self.tools)

    def stream(self, args: ProcessorArgs[Any], where: Where) -> RedactingStream:
        """The run's redactor for one place."""
        state: RedactState = args.state
        stream = state.streams.get(where)
        if stream is None:

            def replace(matched: str, span: Span) -> str:
                return self.decide(args, matched, span.label, where)

            look, skim = self.matching(args), self.skimming(args)
            stream = state.streams[where] = RedactingStream(look, replace, skim=skim, tools=self.tools)
        return stream

    def decide(self, args: ProcessorArgs[Any], matched: str, label: str, where: Where, score: float = 1.0) -> str:
        """What becomes of a match. Raises TripWire with ``block``."""
        state: RedactState = args.state
        state.found.add(label)
        metadata: dict[str, Json] = {"categories": [label], "scores": {label: score}}
        if self.strategy == "block":
            args.abort(f"the {where} contains {label}", metadata=metadata)
        if self.strategy != "warn":
            return "" if self.strategy == "filter" else self.replacement(matched, label)
        if (where, label) not in state.reported:
            state.reported.add((where, label))
            logger.warning("processor %r, %s: it contains %s", self.id, where, label)
            data = {**metadata, "processor": self.id, "where": where}
            args.writer.custom(DataChunk(self.data_type, data, transient=True))
        return matched

    def failed(self, error: Exception) -> None:
        """A classifier failed: raises TripWire, or lets the text pass with a log line."""
        if self.on_error == "fail":
            unjudged(self.id, error)
        logger.warning("processor %r could not judge a text, which passes: %r", self.id, error)

    async def _ready(self, args: ProcessOutputStreamArgs[Any], part: Chunk, rewrite: Rewrite) -> list[Chunk]:
        """Chunks whose text the classifier has seen; the current one may have to wait."""
        state: RedactState = args.state

        async def judged(span: HeldSpan) -> Chunk:
            text = await rewrite(args, span.text, "output")
            if text != span.text:
                state.changed.add(type(span.like))
            return span.delta(text)

        if isinstance(part, TextDelta | ReasoningDelta):
            return [await judged(span) for span in state.held.feed(part)]
        if isinstance(part, DataChunk):
            return [part]
        out = [await judged(span) for span in state.held.flush()]
        return [*out, ended(part, state.changed)]


def _sent(out: Sequence[Chunk]) -> StreamHookResult:
    if not out:
        return DROP
    return out[0] if len(out) == 1 else out
