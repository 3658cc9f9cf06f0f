"""Removes lines of the form in memory's prompts, which small models copy into their notes."""

from __future__ import annotations

import re
from functools import cache

from diarist.memory.observational.prompts import load_prompt

_PROMPTS = ("observer", "reflector")

_PLACE = re.compile(r"\[[^\]#\n]+\]")
_BEFORE_WORDS = re.compile(r"^[^\w\[<]*(?:(?:HH:MM|\d\d:\d\d)\b\s*)?")
_CITATION = re.compile(r"\[#(?:N|[\d,;\s#–-]+)\]\s*$")
_TIME_PLACE = re.compile(r"^(\W*)HH:MM\b[\s:,–-]*")
_EMPTY = r"\[\s*(?:(?:…|\.\.\.)\s*)?\]"
_EMPTY_PLACE = re.compile(rf"^(\W*?(?:\d\d:\d\d\s+)?){_EMPTY}\s*(?!\()|(?<!\s)\s*{_EMPTY}(?=\s*$)")
_FILLED_PLACE = re.compile(
    r"^(\W*?(?:\d\d:\d\d\s+)?(?:User (?:stated|asked|changed)|Assistant)\s+)\[([^\[\]#]+)\](?=[\s.;,]|$)"
)


@cache
def _form() -> tuple[frozenset[str], frozenset[str]]:
    """Return the lines of the forms in the prompts, and their placeholders of several words. No real note contains
    these; it may contain a single word such as ``[new]``."""
    forms = (load_prompt(name).partition("<diary>")[2].partition("</suggested-response>")[0] for name in _PROMPTS)
    lines = frozenset(_words(line) for form in forms for line in form.splitlines()) - {""}
    return lines, frozenset(place for line in lines for place in _PLACE.findall(line) if " " in place)


def _words(line: str) -> str:
    """Return a line without bullet, mark, time and citation."""
    return _BEFORE_WORDS.sub("", _CITATION.sub("", line)).rstrip()


def is_form(line: str) -> bool:
    """Return whether a line was copied from a form in the prompts, with its placeholder unfilled."""
    words, (lines, places) = _words(line), _form()
    return words in lines or (not words and "HH:MM" in line) or any(place in line for place in places)


def without_form(text: str) -> str:
    """Return ``text`` without lines of the form. From other lines, remove only empty placeholders, and the brackets
    around filled ones."""
    kept: list[str] = []
    for line in text.splitlines():
        said = _TIME_PLACE.sub(r"\1", line)
        if "[" in said:
            said = _EMPTY_PLACE.sub(r"\1", _FILLED_PLACE.sub(r"\1\2", said))
        if not is_form(line) and (said == line or re.search(r"[^\W\d]", _CITATION.sub("", said))):
            kept.append(said)
    return under_headings(kept)


def under_headings(lines: list[str]) -> str:
    """Join lines, without headings that have no lines below them."""
    kept: list[str] = []
    for line in reversed(lines):
        if line.startswith("Date:") and (not kept or kept[-1].startswith("Date:")):
            continue
        kept.append(line)
    return "\n".join(reversed(kept)).strip("\n")
