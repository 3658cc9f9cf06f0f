"""Detect texts that try to take control of the assistant."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from diarist.checks import share
from diarist.exceptions import ConfigError
from diarist.models.base import Model
from diarist.processors.base import ProcessToolResultArgs, ToolResultResult
from diarist.processors.guardrails.classifier import (
    FLAGGED,
    Classify,
    Verdict,
    load_prompt,
    make_classifier,
    verdict_of,
)
from diarist.processors.guardrails.guard import Finding, InputGuard
from diarist.processors.guardrails.moderation import describe, flagged

DETECTION_TYPES = {
    "injection": "tells the assistant to drop its instructions or to follow new ones that stand in the text",
    "jailbreak": "tries to free the assistant from its rules, by a role, a game, a mode or a story",
    "system-override": "wants to see, replace or outrank the system prompt, or pretends to be one",
    "tool-exfiltration": "tries to have private data sent elsewhere, or tools used without the user knowing",
}

_BEFORE = r"(previous|prior|above|earlier|preceding|former|foregoing)"
_RULES = r"(instructions?|prompts?|rules|directions|guidelines|commands|messages|context)"
_SECRETS = (
    r"(api[ _-]?keys?|passwords?|credentials|secrets?|access tokens?|conversation|chat history|private|system prompt)"
)

_SOURCES = {
    "injection": {
        rf"\b(ignore|disregard|forget|skip|drop)\b.{{0,30}}\b{_BEFORE}\b.{{0,20}}\b{_RULES}\b": 0.9,
        rf"\b(ignore|disregard|forget)\b.{{0,20}}\b(your|all|any|the)\b \b{_RULES}\b": 0.9,
        rf"\b(do not|don'?t|stop) (follow|obey)(ing)?\b.{{0,30}}\b{_RULES}\b": 0.85,
        r"\byour (new|real|actual|true|only) (task|instructions?|goal|purpose|job) (is|are)\b": 0.75,
        r"\b(new|updated|important) (instructions?|directive)s?\s*:": 0.45,
        r"\bignorier\w*\b.{0,30}\b(vorherig|bisherig|obig|früher)\w*\b.{0,20}\b(anweisung|regel|befehl)": 0.9,
        r"\b(ignore[rz]?|oublie[rz]?)\b.{0,30}\b(instructions|consignes|règles)\b.{0,20}"
        r"\b(précédente|antérieure|ci-dessus)": 0.9,
        r"\b(ignora|olvida|ignore)\b.{0,30}\b(instrucciones|reglas|indicaciones)\b.{0,20}\b(anteriores|previas)": 0.9,
    },
    "system-override": {
        r"<\|(im_start|im_end|system|endoftext)\|>|\[/?inst\]|<</?sys>>|</?system(-prompt|_prompt)?>": 0.8,
        r"(^|\n)\s*(#{1,3} )?(system|developer)( (message|prompt|note))?\s*:": 0.5,
        r"\b(override|overwrite|replace|reset|erase) (your|the|all)\b.{0,20}"
        r"\b(prompt|instructions|programming|rules)\b": 0.85,
        r"\b(reveal|show|print|repeat|output|display|leak|give|tell)\b.{0,30}"
        r"\b(system|initial|hidden|secret|original) (prompt|instructions?|message|rules)\b": 0.8,
        r"\brepeat (everything|all|the (words|text)|what is) (\w+ ){0,3}above\b": 0.75,
        r"\bfrom now on,? you (are|will|must|shall)\b|\byou are now\b": 0.4,
    },
    "jailbreak": {
        r"\bdo anything now\b|\byou are (now )?(dan|stan|aim)\b": 0.85,
        r"\b(jailbreak|developer|god|sudo|unrestricted|uncensored) mode\b": 0.75,
        r"\b(pretend|act|imagine|role-?play|behave|respond|answer)\b.{0,60}"
        r"\b(no|without( any)?|free (of|from)( all)?) "
        r"(restrictions?|rules|filters?|guidelines|limits?|limitations|ethics|morals)\b": 0.8,
        r"\b(ignore|bypass|disable|turn off|switch off|circumvent|remove)\b.{0,30}"
        r"\b(safety|content|ethical|moral|security)\b.{0,20}"
        r"\b(filters?|guidelines|polic(y|ies)|restrictions?|measures|rules|checks?)\b": 0.85,
    },
    "tool-exfiltration": {
        r"\b(send|post|e-?mail|upload|forward|exfiltrate|leak|transmit)\b.{0,80}"
        rf"\b{_SECRETS}\b.{{0,80}}(https?://|\S+@\S+)": 0.85,
        r"\b(call|use|invoke|run|execute)\b.{0,40}\b(tool|function|plugin|command)\b.{0,60}"
        r"\b(silently|secretly|without (asking|telling|informing|the user))\b": 0.85,
        r"\b(do not|don'?t|never|without) (tell|mention|inform|notify|show|ask)(ing)?\b.{0,20}\buser\b": 0.5,
        r"!\[[^\]\n]{0,200}\]\(https?://[^)\s]{1,500}[?&][^)\s]{0,200}[{<$\[]": 0.7,
    },
}
"""By type, the patterns for text in the form of ``plain``; by pattern, the certainty of a match, from 0 to 1."""

_PATTERNS = [(kind, re.compile(source), weight) for kind, found in _SOURCES.items() for source, weight in found.items()]

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_TAGS = re.compile("[\U000e0020-\U000e007e]+")
_SENTENCE = re.compile(r"[^\n]*?(?:[.!?]+(?:\s+|$)|\n|$)")


def plain(text: str) -> str:
    """Return the text for patterns: lower case, Unicode NFKC, without invisible characters.

    Unicode tags (invisible characters that encode ASCII) are turned into ASCII.
    """

    def as_ascii(tags: re.Match[str]) -> str:
        return f" {''.join(chr(ord(char) - 0xE0000) for char in tags[0])} "

    visible = _TAGS.sub(as_ascii, text)
    folded = unicodedata.normalize("NFKC", _INVISIBLE.sub("", visible)).casefold()
    return re.sub(r"[^\S\n]+", " ", folded)


def score(text: str) -> dict[str, float]:
    """Return a mapping from type to score; several matches of one type combine as independent evidence."""
    doubts: dict[str, float] = {}
    shown = plain(text)
    views = (shown, shown.replace("\n", " "))  # line by line, and with the lines joined
    for kind, pattern, weight in _PATTERNS:
        if any(pattern.search(view) for view in views):
            doubts[kind] = doubts.get(kind, 1.0) * (1 - weight)
    return {name: round(1 - doubt, 4) for name, doubt in doubts.items()}


@dataclass(kw_only=True, eq=False, repr=False)
class PromptInjectionDetector(InputGuard):
    """Detects prompt injection in the input, with results of client tools, and as an output processor in tool results.

    Patterns run first, without a model call. A model or function judges only texts that the patterns do not flag.

    Args:
        model: A model that judges texts: an id or a ``Model``. Give ``model`` or ``classifier``, not both.
        classifier: A function of the text that returns a mapping from type to score (0 to 1), a bool, or a ``Verdict``.
        detection_types: The types to detect. Default: ``injection``, ``jailbreak``, ``system-override`` and
            ``tool-exfiltration``. With a model or function, you can add other types.
        threshold: Lowest score that is flagged. Default 0.7.
        strategy: ``"block"`` (default): the run ends with a tripwire with ``categories`` and ``scores`` in
            its metadata. ``"warn"``: a log line and a ``data-prompt-injection`` chunk. ``"filter"``: the message is
            removed; a tool result becomes an error. ``"rewrite"``: the text is replaced by the model's version, or
            by its sentences without a match; if nothing remains, the same as ``"filter"``. In a tool's result that is
            an object or a list, each text is rewritten by itself; if a model would have to judge more than 20 texts, it
            becomes an error.
        instructions: Added to the model's task.
        last_message_only: Judge only the last message of the input. Default False.
        tool_results: Judge tool results. Default True.
        on_error: ``"fail"`` (default) blocks a text that could not be judged, ``"continue"`` lets it pass.
        run_in_parallel: Judge the input during the first model call, with ``block`` and ``warn``. Default False.

    Example::

        Agent(model="openai/gpt-5-mini", processors=[PromptInjectionDetector(strategy="block")])
    """

    data_type = "data-prompt-injection"
    edits_in_place = False

    model: str | Model | None = field(default=None, kw_only=False)
    classifier: Classify | None = None
    detection_types: Sequence[str] | Mapping[str, str] | None = None
    threshold: float = 0.7
    strategy: Literal["block", "warn", "filter", "rewrite"] = "block"
    instructions: str = ""
    tool_results: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "PromptInjectionDetector"
        share(name, "threshold", self.threshold)
        self._types = describe(name, self.detection_types, DETECTION_TYPES, option="detection_types")
        self.helper = make_classifier(
            name,
            self.model,
            self.classifier,
            categories=self._types,
            task=load_prompt("prompt_injection"),
            instructions=self.instructions,
            answer_text=self.strategy == "rewrite",
        )
        if self.helper is None and (unknown := self._types.keys() - DETECTION_TYPES.keys()):
            raise ConfigError(
                f"{name}: no pattern detects {', '.join(sorted(unknown))}; give a model or classifier that does, or "
                f"choose from {', '.join(DETECTION_TYPES)}"
            )

    async def examine(self, text: str) -> Finding | None:
        """Return the types over the threshold: those of the patterns, or if there are none, of the classifier."""
        verdict = self._by_patterns(text)
        if self.helper is not None and not verdict.over(self.threshold):
            judged = await verdict_of(self.helper, text)
            known = judged.of((*self._types, FLAGGED)).scores
            verdict = replace(judged, scores={**verdict.scores, **known})
        finding = flagged("the text tries to take control", verdict, self.threshold)
        if finding is None or self.strategy != "rewrite":
            return finding
        rewritten = verdict.text
        if not rewritten:
            sentences = [match[0] for match in _SENTENCE.finditer(text)]
            rewritten = "".join(sentence for sentence in sentences if sentence and not score(sentence)).strip()
        clean = bool(rewritten) and rewritten != text and not self._by_patterns(rewritten).over(self.threshold)
        return replace(finding, text=rewritten if clean else None)

    async def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> ToolResultResult | None:
        """Judge a tool's result before the model sees it."""
        judged = await self.judge_result(args, args.call) if self.tool_results else args.call
        if judged is args.call:
            return None
        return {"result": judged.result} if judged.state == "result" else {"error": judged.result_text}

    def _by_patterns(self, text: str) -> Verdict:
        scores = {name: value for name, value in score(text).items() if name in self._types}
        return Verdict(scores=scores, reason="it matches known patterns" if scores else "")
