"""What attempts to take control of an assistant look like: patterns, each with how sure it is."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

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


@dataclass(frozen=True, slots=True)
class InjectionPattern:
    """``weight``: how sure a match is, from 0 to 1."""

    type: str
    weight: float
    source: str


PATTERNS: tuple[InjectionPattern, ...] = (
    InjectionPattern(
        "injection",
        0.9,
        rf"\b(ignore|disregard|forget|skip|drop)\b.{{0,30}}\b{_BEFORE}\b.{{0,20}}\b{_RULES}\b",
    ),
    InjectionPattern("injection", 0.9, rf"\b(ignore|disregard|forget)\b.{{0,20}}\b(your|all|any|the)\b \b{_RULES}\b"),
    InjectionPattern("injection", 0.85, rf"\b(do not|don'?t|stop) (follow|obey)(ing)?\b.{{0,30}}\b{_RULES}\b"),
    InjectionPattern(
        "injection", 0.75, r"\byour (new|real|actual|true|only) (task|instructions?|goal|purpose|job) (is|are)\b"
    ),
    InjectionPattern("injection", 0.45, r"\b(new|updated|important) (instructions?|directive)s?\s*:"),
    InjectionPattern(
        "injection",
        0.9,
        r"\bignorier\w*\b.{0,30}\b(vorherig|bisherig|obig|früher)\w*\b.{0,20}\b(anweisung|regel|befehl)",
    ),
    InjectionPattern(
        "injection",
        0.9,
        r"\b(ignore[rz]?|oublie[rz]?)\b.{0,30}\b(instructions|consignes|règles)\b.{0,20}\b(précédente|antérieure|ci-dessus)",
    ),
    InjectionPattern(
        "injection",
        0.9,
        r"\b(ignora|olvida|ignore)\b.{0,30}\b(instrucciones|reglas|indicaciones)\b.{0,20}\b(anteriores|previas)",
    ),
    InjectionPattern(
        "system-override",
        0.8,
        r"<\|(im_start|im_end|system|endoftext)\|>|\[/?inst\]|<</?sys>>|</?system(-prompt|_prompt)?>",
    ),
    InjectionPattern("system-override", 0.5, r"(^|\n)\s*(#{1,3} )?(system|developer)( (message|prompt|note))?\s*:"),
    InjectionPattern(
        "system-override",
        0.85,
        r"\b(override|overwrite|replace|reset|erase) (your|the|all)\b.{0,20}"
        r"\b(prompt|instructions|programming|rules)\b",
    ),
    InjectionPattern(
        "system-override",
        0.8,
        r"\b(reveal|show|print|repeat|output|display|leak|give|tell)\b.{0,30}"
        r"\b(system|initial|hidden|secret|original) (prompt|instructions?|message|rules)\b",
    ),
    InjectionPattern("system-override", 0.75, r"\brepeat (everything|all|the (words|text)|what is) (\w+ ){0,3}above\b"),
    InjectionPattern("system-override", 0.4, r"\bfrom now on,? you (are|will|must|shall)\b|\byou are now\b"),
    InjectionPattern("jailbreak", 0.85, r"\bdo anything now\b|\byou are (now )?(dan|stan|aim)\b"),
    InjectionPattern("jailbreak", 0.75, r"\b(jailbreak|developer|god|sudo|unrestricted|uncensored) mode\b"),
    InjectionPattern(
        "jailbreak",
        0.8,
        r"\b(pretend|act|imagine|role-?play|behave|respond|answer)\b.{0,60}"
        r"\b(no|without( any)?|free (of|from)( all)?) "
        r"(restrictions?|rules|filters?|guidelines|limits?|limitations|ethics|morals)\b",
    ),
    InjectionPattern(
        "jailbreak",
        0.85,
        r"\b(ignore|bypass|disable|turn off|switch off|circumvent|remove)\b.{0,30}"
        r"\b(safety|content|ethical|moral|security)\b.{0,20}\b(filters?|guidelines|polic(y|ies)|restrictions?|measures|rules|checks?)\b",
    ),
    InjectionPattern(
        "tool-exfiltration",
        0.85,
        rf"\b(send|post|e-?mail|upload|forward|exfiltrate|leak|transmit)\b.{{0,80}}\b{_SECRETS}\b.{{0,80}}(https?://|\S+@\S+)",
    ),
    InjectionPattern(
        "tool-exfiltration",
        0.85,
        r"\b(call|use|invoke|run|execute)\b.{0,40}\b(tool|function|plugin|command)\b.{0,60}"
        r"\b(silently|secretly|without (asking|telling|informing|the user))\b",
    ),
    InjectionPattern(
        "tool-exfiltration",
        0.5,
        r"\b(do not|don'?t|never|without) (tell|mention|inform|notify|show|ask)(ing)?\b.{0,20}\buser\b",
    ),
    InjectionPattern("tool-exfiltration", 0.7, r"!\[[^\]\n]{0,200}\]\(https?://[^)\s]{1,500}[?&][^)\s]{0,200}[{<$\[]"),
)

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_TAGS = re.compile("[\U000e0020-\U000e007e]+")
_SENTENCE = re.compile(r"[^\n]*?(?:[.!?]+(?:\s+|$)|\n|$)")


@cache
def _compiled() -> tuple[tuple[InjectionPattern, re.Pattern[str]], ...]:
    return tuple((pattern, re.compile(pattern.source)) for pattern in PATTERNS)


def plain(text: str) -> str:
    """The text as a reader sees it, for patterns: lower case, one form per character, nothing invisible.

    Characters that only machines see (Unicode tags, which spell ASCII) are read like any others.
    """
    visible = _TAGS.sub(lambda match: f" {''.join(chr(ord(char) - 0xE0000) for char in match[0])} ", text)
    folded = unicodedata.normalize("NFKC", _INVISIBLE.sub("", visible)).casefold()
    return re.sub(r"[^\S\n]+", " ", folded)


def score(text: str) -> dict[str, float]:
    """Type to score; matches of one type add up as independent hints do."""
    doubts: dict[str, float] = {}
    seen = plain(text)
    views = (seen, seen.replace("\n", " "))  # as lines, and as one text that was broken up
    for pattern, compiled in _compiled():
        if any(compiled.search(view) for view in views):
            doubts[pattern.type] = doubts.get(pattern.type, 1.0) * (1 - pattern.weight)
    return {name: round(1 - doubt, 4) for name, doubt in doubts.items()}


def without_matches(text: str) -> str:
    """The text without the sentences in which a pattern is found."""
    return "".join(sentence for sentence in _sentences(text) if not score(sentence)).strip()


def _sentences(text: str) -> Iterator[str]:
    return (match[0] for match in _SENTENCE.finditer(text) if match[0])
