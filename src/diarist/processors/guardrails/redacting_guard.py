"""Base class of processors that redact pieces of text: its hooks, and the handling of matches."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diarist.chunks import StepStart
from diarist.messages import Json, Message, TextPart, ToolPart
from diarist.processors.base import (
    DROP,
    MaybeAwaitable,
    ProcessInputArgs,
    ProcessorArgs,
    ProcessOutputResultArgs,
    ProcessOutputStreamArgs,
    ProcessToolResultArgs,
    StreamHookResult,
    ToolResultResult,
)
from diarist.processors.builtin.redaction import RedactingStream, json_items, with_items
from diarist.processors.guardrails.guard import Guard, HeldOutput, Where, check_span, with_texts
from diarist.processors.streaming_redaction import Look, Span


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

    process_data_parts = True
    redacts_stream = True
    span_chars: Any = field(default=400, init=False)

    strategy: Any = "redact"
    tools: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_span(type(self).__name__, self.span_chars)
        self.on_output = True
        if self.helper is not None:
            self.process_output_stream = self._rewritten_stream  # async; without a classifier, the plain hook is faster

    @abstractmethod
    def matching(self, args: ProcessorArgs[Any]) -> Look:
        """Return the function that finds matches in this run's texts."""

    @abstractmethod
    def replaced(self, matched: str, label: str) -> str:
        """Return the replacement of a match."""

    async def rewrite(self, args: ProcessorArgs[Any], texts: Sequence[str], where: Where) -> list[str]:
        """Return adjacent texts without the pieces to which the model or function objects."""
        return list(texts)

    def create_state(self) -> RedactingState:
        return RedactingState(held=HeldOutput(self.span_chars))

    def stream(self, args: ProcessorArgs[Any], where: Where) -> RedactingStream:
        """Return the run's ``RedactingStream`` for one place."""
        state: RedactingState = args.state
        stream = state.streams.get(where)
        if stream is None:

            def replace(matched: str, span: Span) -> str:
                return self.decide(args, matched, span.label, where)

            stream = state.streams[where] = RedactingStream(
                self.matching(args),
                replace,
                has_schema=where == "output" and args.context.has_schema,
                tools=self.tools,
                tool_names=lambda: args.context.tool_names,
            )
        return stream

    async def redact_input(self, args: ProcessInputArgs[Any]) -> list[Message] | None:
        """Return the messages with the call's own ones redacted; None if nothing changed."""
        changed: dict[str, Message | None] = {}
        late = self.late_results(args)
        for message in self.new_messages(args):
            redacted = message
            if message.id in late:
                results = [await self.redact_result(args, part, "input") for part in message.tool_parts]
                if any(new is not old for new, old in zip(results, message.tool_parts, strict=True)):
                    redacted = replace(message, parts=[*results], part_tokens=None)
            elif self.helper is not None:
                texts = [part.text for part in message.parts if isinstance(part, TextPart)]
                rewritten = await self.rewrite(args, texts, "input")
                if rewritten != texts:
                    redacted = with_texts(message, rewritten)
            redacted = self.stream(args, "input").redact_message(redacted)
            if redacted is not message:
                changed[message.id] = None if self.strategy == "filter" else redacted
        if not changed:
            return None
        found = sorted(args.state.found)
        return self.input_with(args, changed, f"it contains {', '.join(found)}", {"categories": found})

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
            items = json_items(text) if args.context.has_schema else None
            if items is None:
                return (await self.rewrite(args, [text], "output"))[0]
            items = [item for item in items if item[0][0] == '"' and not item[1]]  # texts, without the names of fields
            lines = [line for item in items for line in (json.loads(item[0]), "\n")]
            return with_items(text, items, (await self.rewrite(args, lines, "output"))[::2])

        if isinstance(args.part, StepStart):
            args.state.streams.pop("output", None)
            args.state.held = HeldOutput(None if args.context.has_schema else self.span_chars)
        ready = await args.state.held.feed(args.part, args.stream_parts, change)
        stream = self.stream(args, "output")
        return [out for chunk in ready for out in stream.feed(chunk, args.stream_parts)] or DROP

    async def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> ToolResultResult | None:
        """Redact a tool's result before the model, the stream and the storage get it."""
        if not self.on_output or not self.tools:
            return None
        call, state = args.call, args.state
        state.found.clear()
        redacted = await self.redact_result(args, call, "tool-result")
        if redacted is call:
            return None
        if self.strategy == "filter":
            return {"error": f"the result of {call.name} was withheld: it contains {', '.join(sorted(state.found))}"}
        return {"result": redacted.result} if call.state == "result" else {"error": str(redacted.result)}

    async def redact_result(self, args: ProcessorArgs[Any], call: ToolPart, where: Where) -> ToolPart:
        """Return the call after its result was redacted; the same object if nothing changed."""
        result = call.result
        if self.helper is not None and isinstance(result, str):
            (result,) = await self.rewrite(args, [result], where)
        result = self.stream(args, where).redact_json(result)
        return call if result == call.result else replace(call, result=result)

    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> list[Message] | None:
        """Redact the finished messages again, since other processors may have changed them."""
        if not self.on_output or self.strategy == "warn":
            return None
        stream = self.stream(args, "output")
        redacted = [stream.redact_message(message) for message in args.messages]
        return redacted if any(new is not old for new, old in zip(redacted, args.messages, strict=True)) else None

    def decide(self, args: ProcessorArgs[Any], matched: str, label: str, where: Where, score: float = 1.0) -> str:
        """Return the replacement of a match. Raises ProcessorAbort with ``block``."""
        state: RedactingState = args.state
        state.found.add(label)
        again = (where, label) in state.reported
        state.reported.add((where, label))
        if not self.apply_strategy(
            args, where, f"the {where} contains {label}", self.metadata(label, score), again=again
        ):
            return matched
        return "" if self.strategy == "filter" else self.replaced(matched, label)

    def metadata(self, label: str, score: float) -> dict[str, Json]:
        """Return the metadata of tripwires and data chunks about a match."""
        return {"categories": [label], "scores": {label: score}}
