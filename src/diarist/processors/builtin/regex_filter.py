"""Personal data, secrets and the like by pattern: blocked, replaced or reported."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

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
from diarist.processors.builtin.options import flags, one_of, text_list, texts
from diarist.processors.builtin.presets import PRESETS
from diarist.processors.builtin.redacting_messages import redacted_message, redacted_messages
from diarist.processors.builtin.redacting_stream import RedactingStream
from diarist.processors.patterns import PatternSet
from diarist.processors.streaming_redaction import Span

logger = logging.getLogger("diarist")

Strategy = Literal["block", "redact", "warn"]
Phase = Literal["input", "output"]


@dataclass(slots=True)
class _State:
    """One run: its input and its answer, and what has been warned of."""

    streams: dict[str, RedactingStream] = field(default_factory=dict[str, RedactingStream])
    reported: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


class RegexFilter(Processor[Any]):
    """Finds patterns in what goes in and what comes out.

    A match is found wherever the model cuts its text into pieces: no part of it reaches the client, the result,
    the storage or a tool before the match is decided, and text waits only as long as it may still be part of
    one. Text, reasoning, tool arguments and results, data parts, sources and links are looked at. Put it into
    ``input_processors`` and ``output_processors``, after processors that write text.

    Args:
        presets: ``"pii"`` (e-mail addresses, phone, card and social security numbers, IBANs, IPv4 addresses),
            ``"secrets"`` (private keys, tokens, API keys, passwords in assignments), ``"urls"``. Default: all three;
            ``()`` for your own patterns alone.
        patterns: More patterns in the syntax of ``re``: by label, or a list (``pattern-1``, ...). They may be of
            any length.
        strategy: ``"redact"`` (default) replaces a match; ``"block"`` ends the run with a tripwire whose metadata
            name the label, never the text; ``"warn"`` logs each label once per run and lets the
            text pass.
        replacement: What stands for a match; ``{label}`` is its label in capitals. Default ``"[{label}]"``.
        phases: ``"input"``: the messages of the call. ``"output"``: everything the run says. Default: both.
        tools: Default True. False leaves tool calls and tool results as they are, where a tool needs the real
            address to work with; it then also reaches the storage and the stream's tool chunks.

    Raises:
        ConfigError: An unknown preset, phase or strategy, a pattern that does not compile or matches the empty
            text, or nothing to look for.

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
        """Filter the call's own messages; remembered ones were filtered when they came."""
        if "input" not in self._phases:
            return
        stream = self._stream(args, "the input")
        for message in args.message_list.input:  # hidden ones included, which may be stored
            filtered = redacted_message(message, stream, tools=self._tools)
            if filtered is not message:
                args.message_list.add(filtered, "input")

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> StreamHookResult:
        """Filter what streams, and with it what is stored."""
        if "output" not in self._phases:
            return args.part
        out = self._stream(args).feed(args.part)
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
        """Once more over the finished messages, for what other processors have put into them."""
        if "output" not in self._phases or self._strategy == "warn":
            return None
        return redacted_messages(args.messages, self._stream(args), tools=self._tools)

    def _stream(self, args: ProcessorArgs[Any], where: str = "the answer") -> RedactingStream:
        state: _State = args.state
        stream = state.streams.get(where)
        if stream is None:

            def replace(matched: str, span: Span) -> str:
                return self._judge(args, matched, span, where)

            stream = state.streams[where] = RedactingStream(
                self._patterns.look, replace, skim=self._patterns.skim, tools=self._tools
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
) -> dict[str, str | re.Pattern[str]]:
    rules: dict[str, str | re.Pattern[str]] = {}
    for preset in presets:
        one_of("RegexFilter", "presets", preset, tuple(PRESETS))
        rules |= PRESETS[preset]
    if isinstance(patterns, str | re.Pattern) or not isinstance(cast(Any, patterns), Iterable):
        raise ConfigError("RegexFilter: patterns must be a mapping or a list of patterns, not a single one")
    if not isinstance(patterns, Mapping):
        patterns = {f"pattern-{number}": pattern for number, pattern in enumerate(patterns, 1)}
    return rules | dict(patterns)
