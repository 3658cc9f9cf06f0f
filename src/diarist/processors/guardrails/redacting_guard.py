"""Base class of guardrails that redact pieces of text: the hooks, and what a match leads to."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from diarist.checks import flags, one_of
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
from diarist.processors.builtin.redaction import RedactingStream
from diarist.processors.guardrails.guard import OnError, Where, abort_unjudged, block_end, check_span
from diarist.processors.guardrails.sentences import SentenceBuffer
from diarist.processors.streaming_redaction import Look, Span

logger = logging.getLogger("diarist")

RedactStrategy = Literal["redact", "block", "warn", "filter"]
STRATEGIES = ("redact", "block", "warn", "filter")

Rewrite = Callable[[ProcessorArgs[Any], str, Where], Awaitable[str]]


@dataclass(slots=True)
class RedactState:
    """A guard's state for one run.

    Attributes:
        held: Text that the classifier has not judged yet.
        streams: The redaction of each place.
        reported: Places and labels that ``warn`` has reported.
        found: Labels found so far.
        changed: Kinds of delta with a change since their block began.
        of: The ``stream_parts`` of the attempt that ``held`` belongs to.
    """

    held: SentenceBuffer
    streams: dict[Where, RedactingStream] = field(default_factory=dict[Where, RedactingStream])
    reported: set[tuple[Where, str]] = field(default_factory=set[tuple[Where, str]])
    found: set[str] = field(default_factory=set[str])
    changed: set[type[Chunk]] = field(default_factory=set[type[Chunk]])
    of: object = None


class RedactingGuard(Processor[Any], ABC):
    """Finds pieces of text and replaces them, blocks, or warns; subclasses implement ``matching`` and ``replacement``.

    Attributes:
        data_type: Type of the data chunk that ``warn`` sends.
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
            self.process_output_stream = (
                self._rewritten_stream
            )  # async; without a classifier, the plain hook costs less

    @abstractmethod
    def matching(self, args: ProcessorArgs[Any]) -> Look:
        """Return the function that finds pieces in this run's texts."""

    @abstractmethod
    def replacement(self, matched: str, label: str) -> str:
        """Return the replacement of a match."""

    def create_state(self) -> RedactState:
        return RedactState(SentenceBuffer(self.span_chars))

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> MaybeAwaitable[StreamHookResult]:
        """Redact everything that streams, and thereby the stored messages."""
        if self._rewrite is not None:
            return self._rewritten_stream(args)
        if isinstance(args.part, StepStart):
            args.state.streams.pop("output", None)  # the instructions may have changed
        out = self.stream(args, "output").feed(args.part, args.stream_parts)
        return out[0] if len(out) == 1 else list(out) or DROP

    async def _rewritten_stream(self, args: ProcessOutputStreamArgs[Any]) -> StreamHookResult:
        """Redact text that the classifier has judged; hold text that it has not."""
        part, of, state = args.part, args.stream_parts, args.state
        if state.of is not of:  # held text of a broken attempt is dropped
            state.of = of
            state.held.clear()
            state.changed.clear()
        if isinstance(part, StepStart):
            state.streams.pop("output", None)
        assert self._rewrite is not None
        ready: list[Chunk] = []
        if isinstance(part, TextDelta | ReasoningDelta):
            spans = list(state.held.feed(part))
        else:
            spans = [] if isinstance(part, DataChunk) else list(state.held.flush())
        for span in spans:
            text = await self._rewrite(args, span.text, "output")
            if text != span.text:
                state.changed.add(type(span.like))
            ready.append(span.delta(text))
        if not isinstance(part, TextDelta | ReasoningDelta):
            ready.append(block_end(part, state.changed))
        stream = self.stream(args, "output")
        return [out for chunk in ready for out in stream.feed(chunk, of)] or DROP

    async def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> ToolResultResult | None:
        """Redact a tool's result before the model, the stream and the storage get it."""
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
        """Redact the finished messages again, since other processors may have changed them."""
        if self.strategy == "warn":
            return None
        return self.stream(args, "output").redact_messages(args.messages)

    def stream(self, args: ProcessorArgs[Any], where: Where) -> RedactingStream:
        """Return the run's redaction for one place."""
        state: RedactState = args.state
        stream = state.streams.get(where)
        if stream is None:

            def replace(matched: str, span: Span) -> str:
                return self.decide(args, matched, span.label, where)

            stream = state.streams[where] = RedactingStream(
                self.matching(args), replace, tools=self.tools, tool_names=lambda: args.context.tool_names
            )
        return stream

    def decide(self, args: ProcessorArgs[Any], matched: str, label: str, where: Where, score: float = 1.0) -> str:
        """Return the replacement of a match. Raises ProcessorAbort with ``block``."""
        state: RedactState = args.state
        state.found.add(label)
        metadata: dict[str, Json] = {"categories": [label], "scores": {label: score}}
        if self.strategy == "block":
            args.abort(f"the {where} contains {label}", metadata=metadata)
        if self.strategy != "warn":
            return "" if self.strategy == "filter" else self.replacement(matched, label)
        if (where, label) not in state.reported:
            state.reported.add((where, label))
            logger.warning("processor %r: the %s contains %s", self.id, where, label)
            data = {**metadata, "processor": self.id, "where": where}
            args.writer.custom(DataChunk(self.data_type, data, transient=True))
        return matched

    def failed(self, error: Exception) -> None:
        """Handle a classifier's error: raise ProcessorAbort, or log it and let the text pass."""
        if self.on_error == "fail":
            abort_unjudged(self.id, error)
        logger.warning("processor %r could not judge a text and lets it pass: %r", self.id, error)
