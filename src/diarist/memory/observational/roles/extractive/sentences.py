"""Prose out of messages: sentences without markup, code and machine-made blocks."""

from __future__ import annotations

import re
from itertools import islice

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BLOCK = re.compile(r"<([a-z]{2,30}[-_][a-z_-]{1,40})(?:\s[^<>]{0,200})?>")
_LINK = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()\s]{1,500}\)")
_LINE_START = re.compile(r"^[\s>#|]*(?:[-*+•–]\s+|\d{1,3}[.)]\s+|☐|☒)?\s*")
_EMPHASIS = re.compile(r"\*{1,3}|(?<!\w)_{1,2}(?=\w)|(?<=\w)_{1,2}(?!\w)|~~")
_SPLIT = re.compile(r"(?<=[.!?…])\s+(?=[^a-z\s])|(?<=[.!?…][\"”’')])\s+(?=[^a-z\s])|(?<=[。！？])")
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:mr|mrs|ms|dr|prof|st|no|vs|etc|approx|e\.g|i\.e|[a-z])\.$", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_SHORT_LINE = 40
_MIN_LETTERS = 0.6
_MAX_BLOCK_NAMES = 50


def split_sentences(text: str, *, limit: int = 400) -> list[str]:
    """The sentences of ``text``, at most ``limit`` of them, each on one line.

    Left out are fenced code, lines that are mostly signs and digits (code, tables, logs), terminal
    colours, and elements named like ``<system-reminder>``, which programs put into messages.
    """
    found = (sentence for line in _prose_lines(text) for sentence in _sentences(_SPACE.sub(" ", line).strip()))
    return list(islice(found, limit))


def shorten(sentence: str, length: int) -> str:
    """At most ``length`` characters, cut at a word where there are words."""
    if len(sentence) <= length:
        return sentence
    head = sentence[: length - 1]
    space = head.rfind(" ", length * 2 // 3)
    return f"{head[:space] if space > 0 else head} …"


def _prose_lines(text: str) -> list[str]:
    lines: list[str] = []
    fenced = False
    for line in _without_blocks(_ANSI.sub("", text)).splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and (clean := _clean(line)):
            lines.append(clean)
    return lines


def _clean(line: str) -> str:
    line = _EMPHASIS.sub("", _LINK.sub(r"\1", _LINE_START.sub("", line, count=1)))
    if len(line) > _SHORT_LINE:
        letters = sum(char.isalpha() or char == " " for char in line)
        if letters < _MIN_LETTERS * len(line):
            return ""
    return line if any(char.isalnum() for char in line) else ""


def _without_blocks(text: str) -> str:
    """Without elements whose name has a hyphen or an underscore; one that is never closed stays."""
    unclosed: set[str] = set()
    out: list[str] = []
    end = 0
    for opening in _BLOCK.finditer(text):
        name = opening[1]
        if opening.start() < end or name in unclosed or len(unclosed) > _MAX_BLOCK_NAMES:
            continue
        closing = text.find(f"</{name}>", opening.end())
        if closing < 0:
            unclosed.add(name)
            continue
        out.append(text[end : opening.start()])
        end = closing + len(name) + 3
    return "".join(out) + text[end:]


def _sentences(line: str) -> list[str]:
    sentences: list[str] = []
    for piece in _SPLIT.split(line):
        if sentences and _ABBREVIATION.search(sentences[-1][-12:]):
            sentences[-1] += f" {piece}"
        elif piece:
            sentences.append(piece)
    return sentences
