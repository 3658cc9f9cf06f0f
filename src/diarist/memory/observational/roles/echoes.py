"""What small models write instead of notes: the form they were shown, or once more what is noted already."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.dated_lines import NotedBefore, bare, dated_lines

_PROMPTS = ("observer", "reflector")

_PLACE = re.compile(r"\[[^\]#\n]+\]")
_BEFORE_WORDS = re.compile(r"^[^\w\[<]*(?:(?:HH:MM|\d\d:\d\d)\b\s*)?")
_CITATION = re.compile(r"\[#(?:N|[\d,;\s#–-]+)\]\s*$")
_TIME_PLACE = re.compile(r"^(\W*)HH:MM\b[\s:,–-]*")


@cache
def _form() -> frozenset[str]:
    """The lines of the forms in our prompts."""
    forms = (load_prompt(name).partition("<diary>")[2].partition("</suggested-response>")[0] for name in _PROMPTS)
    return frozenset(_words(line) for form in forms for line in form.splitlines()) - {""}


@cache
def _places() -> tuple[str, ...]:
    """Those place-holders in them that nobody else would write: of several words, not such as ``[new]``."""
    return tuple({place for line in _form() for place in _PLACE.findall(line) if " " in place})


def _words(line: str) -> str:
    """A line without bullet, mark, time and citation."""
    return _BEFORE_WORDS.sub("", _CITATION.sub("", line)).rstrip()


def is_form(line: str) -> bool:
    """Whether a line is one of the form in our prompts, with a place-holder still in it."""
    words = _words(line)
    return words in _form() or (not words and "HH:MM" in line) or any(place in line for place in _places())


def without_form(text: str) -> str:
    """``text`` without lines of the form; a line that says something loses no more than the place of its time."""
    return _under_headings([_TIME_PLACE.sub(r"\1", line) for line in text.splitlines() if not is_form(line)])


def only_repeats(text: str, earlier: Sequence[str]) -> bool:
    """Whether ``text`` has lines, and all of them stand in ``earlier`` under the same date."""
    (lines,), known = dated_lines([text]), NotedBefore(earlier)
    return bool(lines) and all((line.heading, line.bare) in known for line in lines)


def without_repeats(text: str, earlier: Sequence[str]) -> str:
    """``text`` without lines that stand in ``earlier`` under the same date; all of it if nothing else is left."""
    known, heading = NotedBefore(earlier), ""
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
        if line.startswith("Date:") or (heading, bare(line)) not in known:
            kept.append(line)
    return _under_headings(kept) or text


def _under_headings(lines: list[str]) -> str:
    """The lines, without headings that nothing stands under."""
    kept: list[str] = []
    for line in reversed(lines):
        if line.startswith("Date:") and (not kept or kept[-1].startswith("Date:")):
            continue
        kept.append(line)
    return "\n".join(reversed(kept)).strip("\n")
