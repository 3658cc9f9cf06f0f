"""Find patterns such as personal data and secrets; redact, block or report them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from diarist.checks import one_of, text_list
from diarist.exceptions import ConfigError
from diarist.messages import Json, Message
from diarist.processors.base import ProcessInputArgs, ProcessorArgs
from diarist.processors.guardrails.redacting_guard import RedactingGuard
from diarist.processors.patterns import PRESETS, KnownPattern, PatternSet
from diarist.processors.streaming_redaction import Look


@dataclass(kw_only=True, eq=False, repr=False)
class RegexFilter(RedactingGuard):
    """Finds patterns in the input and the output.

    A match is found even if it is split across chunks: no part of it reaches the client, the result, the storage or a
    tool. Text is held only while it may be part of a match. Covers text, reasoning, tool calls and results, data
    parts, sources, links and errors. Put it into ``input_processors`` and ``output_processors``, after processors that
    write text.

    Args:
        presets: ``"pii"`` (e-mail addresses, phone, card and social security numbers, IBANs, IPv4 addresses),
            ``"secrets"`` (private keys, tokens, API keys, passwords in assignments), ``"urls"``. Default: all three;
            ``()`` to use only your own patterns.
        patterns: Further patterns in the syntax of ``re``: a mapping from label to pattern, or a list, with the labels
            ``pattern-1``, ... Matches may have any length.
        strategy: ``"redact"`` (default) replaces a match. ``"block"`` ends the run with a tripwire; its metadata has
            the label, but not the text. ``"warn"`` logs each label once per run.
        replacement: Replacement of a match; ``{label}`` is its label in capitals. Default ``"[{label}]"``.
        phases: ``"input"``: the messages of the call. ``"output"``: everything that the run produces. Default: both.
        tools: Default True. False leaves tool calls and results unchanged, for tools that need the real data. The data
            is then stored, and sent in the stream's tool chunks.

    Example::

        guard = RegexFilter(presets=("pii",), patterns={"order": r"ORD-\\d{6}"})
        Agent(model="openai/gpt-5-mini", input_processors=[guard], output_processors=[guard])
    """

    data_type = ""
    edits_in_place = False

    presets: Sequence[str] = field(default=("pii", "secrets", "urls"), kw_only=False)
    patterns: Mapping[str, str | re.Pattern[str]] | Sequence[str | re.Pattern[str]] = ()
    strategy: Literal["block", "redact", "warn"] = "redact"
    replacement: str = "[{label}]"
    phases: Sequence[Literal["input", "output"]] = ("input", "output")

    def __post_init__(self) -> None:
        super().__post_init__()
        phases = text_list("RegexFilter", "phases", self.phases)
        for phase in phases:
            one_of("RegexFilter", "phases", phase, ("input", "output"))
        if not phases:
            raise ConfigError("RegexFilter: phases is empty; give 'input', 'output' or both")
        self.on_output = "output" in phases
        self._on_input = "input" in phases
        if not self._on_input:
            self.output_option = "phases=('output',)"
        rules: dict[str, str | re.Pattern[str] | KnownPattern] = {}
        for preset in text_list("RegexFilter", "presets", self.presets):
            one_of("RegexFilter", "presets", preset, tuple(PRESETS))
            rules |= PRESETS[preset]
        patterns = self.patterns
        if isinstance(patterns, str | re.Pattern) or not isinstance(cast(Any, patterns), Iterable):
            raise ConfigError("RegexFilter: patterns must be a mapping or a list of patterns, not a single pattern")
        if not isinstance(patterns, Mapping):
            patterns = {f"pattern-{number}": pattern for number, pattern in enumerate(patterns, 1)}
        rules |= patterns
        if not rules:
            raise ConfigError("RegexFilter: presets and patterns are both empty; give at least one")
        self._patterns = PatternSet(rules, option="RegexFilter: patterns")

    def matching(self, args: ProcessorArgs[Any]) -> Look:
        return self._patterns.look

    def replaced(self, matched: str, label: str) -> str:
        return self.replacement.replace("{label}", label.upper())

    async def process_input(self, args: ProcessInputArgs[Any]) -> list[Message] | None:
        """Filter the call's own messages; messages from memory were filtered when they were new."""
        return await self.redact_input(args) if self._on_input else None

    def metadata(self, label: str, score: float) -> dict[str, Json]:
        return {"label": label}
