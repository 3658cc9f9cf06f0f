"""Base class of processors that redact pieces of text: its hooks, and the handling of matches."""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from diarist.checks import flags
from diarist.chunks import DataChunk, StepStart
from diarist.messages import Json, Message
from diarist.processors.base import (
    DROP,
    MaybeAwaitable,
    ProcessorArgs,
    ProcessOutputResultArgs,
    ProcessOutputStreamArgs,
    ProcessToolResultArgs,
    StreamHookResult,
    ToolResultResult,
)
from diarist.processors.builtin.redaction import RedactingStream
from diarist.processors.guardrails.guard import Guard, HeldOutput, Where, check_span
from diarist.processors.streaming_redaction import Look, Span

logger = logging.getLogger("diarist")


def masked(text: str) -> str:
    """Return the text with ``*`` for letters and digits."""
    return "".join("*" if char.isalnum() else char for char in text)


@dataclass(slots=True, kw_only=True)
class RedactingState:
    """State of one run.

    Attributes:
        held: The text that the classifier has yet to judge.
        streams: A ``RedactingStream`` per place: ``"input"``, ``"output"`` and ``"tool-result"``.
        found: The labels found so far.
        reported: The places and labels that were reported.
    """

    held: HeldOutput
    streams: dict[str, RedactingStream] = field(default_factory=dict[str, RedactingStream])
    found: set[str] = field(default_factory=set[str])
    reported: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


@dataclass(kw_only=True, eq=False, repr=False)
class RedactingGuard(Guard):
    """Finds pieces of text and replaces them, blocks, or warns.

    Subclasses implement ``matching`` and ``replaced``, and ``rewrite`` if they ask a model or function.

    Attributes:
        tools: False leaves tool calls and results unchanged.
        on_output: False leaves everything unchanged that the run produces.
    """

    strategies = ("redact", "block", "warn", "filter")
    process_data_parts = True
    span_chars: Any = field(default=400, init=False)

    strategy: Any = "redact"
    tools: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        flags(name, tools=self.tools)
        check_span(name, self.span_chars)
        self.on_output = True
        if self.asks is not None:
            self.process_output_stream = self._rewritten_stream  # async; without a classifier, the plain hook is faster

    @abstractmethod
    def matching(self, args: ProcessorArgs[Any]) -> Look:
        """Return the function that finds matches in this run's texts."""

    @abstractmethod
    def replaced(self, matched: str, label: str) -> str:
        """Return the replacement of a match."""

    async def rewrite(self, args: ProcessorArgs[Any], text: str, where: Where) -> str:
        """Return the text without the parts to which the model or function objects."""
        return text

    def create_state(self) -> RedactingState:
        return RedactingState(held=HeldOutput(self.span_chars))

    def stream(self, args: ProcessorArgs[Any], where: str) -> RedactingStream:
        """Return the run's ``RedactingStream`` for one place."""
        state: RedactingState = args.state
        stream = state.streams.get(where)
        if stream is None:

            def replace(matched: str, span: Span) -> str:
                return self.decide(args, matched, span.label, where)

            stream = state.streams[where] = RedactingStream(
                self.matching(args), replace, tools=self.tools, tool_names=lambda: args.context.tool_names
            )
        return stream

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> MaybeAwaitable[StreamHookResult]:
        """Redact the stream, and thereby the stored messages."""
        if not self.on_output:
            return args.part
        if isinstance(args.part, StepStart):
            args.state.streams.pop("output", None)  # the instructions may have changed
        out = self.stream(args, "output").feed(args.part, args.stream_parts)
        return out[0] if len(out) == 1 else list(out) or DROP

    async def _rewritten_stream(self, args: ProcessOutputStreamArgs[Any]) -> StreamHookResult:
        async def change(text: str) -> str:
            return await self.rewrite(args, text, "output")

        if isinstance(args.part, StepStart):
            args.state.streams.pop("output", None)
        ready = await args.state.held.feed(args.part, args.stream_parts, change)
        stream = self.stream(args, "output")
        return [out for chunk in ready for out in stream.feed(chunk, args.stream_parts)] or DROP

    async def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> ToolResultResult | None:
        """Redact a tool's result before the model, the stream and the storage get it."""
        if not self.on_output or not self.tools:
            return None
        call, state = args.call, args.state
        state.found.clear()
        result = call.result
        if self.asks is not None and isinstance(result, str):
            result = await self.rewrite(args, result, "tool-result")
        result = self.stream(args, "tool-result").redact_json(result)
        if result == call.result:
            return None
        if self.strategy == "filter":
            return {"error": f"the result of {call.name} was withheld: it contains {', '.join(sorted(state.found))}"}
        return {"error": str(result)} if call.state == "error" else {"result": result}

    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> list[Message] | None:
        """Redact the finished messages again, since other processors may have changed them."""
        if not self.on_output or self.strategy == "warn":
            return None
        return self.stream(args, "output").redact_messages(args.messages)

    def decide(self, args: ProcessorArgs[Any], matched: str, label: str, where: str, score: float = 1.0) -> str:
        """Return the replacement of a match. Raises ProcessorAbort with ``block``."""
        state: RedactingState = args.state
        state.found.add(label)
        metadata: dict[str, Json] = {"categories": [label], "scores": {label: score}}
        if self.strategy == "block":
            args.abort(f"the {where} contains {label}", metadata=metadata)
        if self.strategy != "warn":
            return "" if self.strategy == "filter" else self.replaced(matched, label)
        if (where, label) not in state.reported:
            state.reported.add((where, label))
            logger.warning("processor %r: the %s of run %s contains %s", self.id, where, args.run_id, label)
            if self.data_type:
                data = {**metadata, "processor": self.id, "where": where}
                args.writer.custom(DataChunk(self.data_type, data, transient=True))
        return matched
