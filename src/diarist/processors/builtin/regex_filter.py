"""Find patterns such as personal data and secrets; redact, block or report them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from diarist.checks import flags, one_of, text_list, texts
from diarist.exceptions import ConfigError
from diarist.messages import Message
from diarist.processors.base import (
    ProcessInputArgs,
    Processor,
    ProcessorArgs,
    ProcessOutputResultArgs,
    ProcessOutputStreamArgs,
    ProcessToolResultArgs,
    StreamHookResult,
    ToolResultResult,
)
from diarist.processors.builtin.presets import PRESETS
from diarist.processors.builtin.redaction import RedactingStream
from diarist.processors.patterns import KnownPattern, PatternSet
from diarist.processors.streaming_redaction import Span

logger = logging.getLogger("diarist")

Strategy = Literal["block", "redact", "warn"]
Phase = Literal["input", "output"]


@dataclass(slots=True)
class _State:
    """State of one run: the redaction of its input and of its answer, and the labels reported so far."""

    streams: dict[str, RedactingStream] = field(default_factory=dict[str, RedactingStream])
    reported: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


class RegexFilter(Processor[Any]):
    """Finds patterns in the input and the output.

    A match is found wherever the model cuts its text into chunks: no part of it reaches the client, the result,
    the storage or a tool, and text is held only while it may still be part of a match. Covers text, reasoning, tool
    calls and results, data parts, sources, links and errors. Put it into ``input_processors`` and
    ``output_processors``, after processors that write text.

    Args:
        presets: ``"pii"`` (e-mail addresses, phone, card and social security numbers, IBANs, IPv4 addresses),
            ``"secrets"`` (private keys, tokens, API keys, passwords in assignments), ``"urls"``. Default: all three;
            ``()`` for your own patterns alone.
        patterns: Further patterns in the syntax of ``re``: by label, or a list (``pattern-1``, ...). Matches may have
            any length.
        strategy: ``"redact"`` (default) replaces a match; ``"block"`` ends the run with a tripwire whose metadata
            has the label, never the text; ``"warn"`` logs each label once per run.
        replacement: Replacement of a match; ``{label}`` is its label in capitals. Default ``"[{label}]"``.
        phases: ``"input"``: the messages of the call. ``"output"``: everything the run produces. Default: both.
        tools: Default True. False leaves tool calls and results unchanged, for tools that need the real data; it is
            then stored, and sent in the stream's tool chunks.

    Raises:
        ConfigError: An unknown preset, phase or strategy, a pattern that does not compile or matches the empty
            text, or neither preset nor pattern.

    Example::

        guard = RegexFilter(presets=("pii",), patterns={"order": r"ORD-\\d{6}"})
        Agent(model="openai/gpt-5-mini", input_processors=[guard], output_processors=[guard])
    """

    process_data_parts = True
    edits_in_place = False

    def __init__(
        self,
        presets: Sequence[str] = ("pii", "secrets", "urls"),
        *,
        patterns: Mapping[str, str | re.Pattern[str]] | Sequence[str | re.Pattern[str]] = (),
        strategy: Strategy = "redact",
        replacement: str = "[{label}]",
        phases: Sequence[Phase] = ("input", "output"),
        tools: bool = True,
    ) -> None:
        presets = text_list("RegexFilter", "presets", presets)
        phases = cast(Sequence[Phase], text_list("RegexFilter", "phases", phases))
        texts("RegexFilter", replacement=replacement)
        flags("RegexFilter", tools=tools)
        one_of("RegexFilter", "strategy", strategy, ("block", "redact", "warn"))
        for phase in phases:
            one_of("RegexFilter", "phases", phase, ("input", "output"))
        self._patterns = PatternSet(_rules(presets, patterns), option="RegexFilter: patterns")
        if not len(self._patterns):
            raise ConfigError("RegexFilter: presets and patterns are both empty, there is nothing to look for")
        self._strategy = strategy
        self._replacement = replacement
        self._phases = frozenset(phases)
        self._tools = tools

    def create_state(self) -> _State:
        return _State()

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        """Filter the call's own messages; messages from memory were filtered when they were new."""
        if "input" not in self._phases:
            return
        stream = self._stream(args, "the input")
        for message in args.message_list.input:  # hidden ones included, which may be stored
            filtered = stream.redact_message(message)
            if filtered is not message:
                args.message_list.add(filtered, "input")

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> StreamHookResult:
        """Filter the stream, and thereby the stored messages."""
        if "output" not in self._phases:
            return args.part
        out = self._stream(args).feed(args.part, args.stream_parts)
        return out[0] if len(out) == 1 else out

    def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> ToolResultResult | None:
        """Filter a tool's result before the model, the stream and the storage get it."""
        if "output" not in self._phases or not self._tools:
            return None
        call = args.call
        redacted = self._stream(args).redact_json(call.result)
        if redacted == call.result:
            return None
        return {"error": str(redacted)} if call.state == "error" else {"result": redacted}

    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> list[Message] | None:
        """Filter the finished messages again, since other processors may have changed them."""
        if "output" not in self._phases or self._strategy == "warn":
            return None
        return self._stream(args).redact_messages(args.messages)

    def _stream(self, args: ProcessorArgs[Any], where: str = "the answer") -> RedactingStream:
        state: _State = args.state
        stream = state.streams.get(where)
        if stream is None:

            def replace(matched: str, span: Span) -> str:
                return self._judge(args, matched, span, where)

            stream = state.streams[where] = RedactingStream(
                self._patterns.look,
                replace,
                tools=self._tools,
                tool_names=lambda: args.context.tool_names,
            )
        return stream

    def _judge(self, args: ProcessorArgs[Any], matched: str, span: Span, where: str) -> str:
        if self._strategy == "redact":
            return self._replacement.replace("{label}", span.label.upper())
        if self._strategy == "block":
            args.abort(f"{where} contains {span.label}", metadata={"label": span.label})
        state: _State = args.state
        if (where, span.label) not in state.reported:
            state.reported.add((where, span.label))
            logger.warning("%s: %s of run %s contains %s", self.id, where, args.run_id, span.label)
        return matched


def _rules(
    presets: Sequence[str], patterns: Mapping[str, str | re.Pattern[str]] | Sequence[str | re.Pattern[str]]
) -> dict[str, str | re.Pattern[str] | KnownPattern]:
    rules: dict[str, str | re.Pattern[str] | KnownPattern] = {}
    for preset in presets:
        one_of("RegexFilter", "presets", preset, tuple(PRESETS))
        rules |= PRESETS[preset]
    if isinstance(patterns, str | re.Pattern) or not isinstance(cast(Any, patterns), Iterable):
        raise ConfigError("RegexFilter: patterns must be a mapping or a list of patterns, not a single one")
    if not isinstance(patterns, Mapping):
        patterns = {f"pattern-{number}": pattern for number, pattern in enumerate(patterns, 1)}
    return rules | dict(patterns)
