"""What small models write instead of notes: the form they were shown, or once more what is noted already."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.dated_lines import NotedBefore, bare, dated_lines

_PROMPTS = ("observer", "reflector")

_PLACE = re.compile(r"\[[^\]#\n]+\]")
_TIME_PLACE = re.compile(r"\W*(?:HH:MM\b|Date:\s*YYYY-MM-DD\b)")


@cache
def _places() -> tuple[str, ...]:
    """The place-holders of the forms in our prompts, such as ``[question]``."""
    forms = (load_prompt(name).partition("<diary>")[2].partition("</suggested-response>")[0] for name in _PROMPTS)
    return tuple({place for form in forms for place in _PLACE.findall(form)})


def is_form(line: str) -> bool:
    """Whether a line is one of the form in our prompts, with a place-holder still in it."""
    return _TIME_PLACE.match(line) is not None or ("[" in line and any(place in line for place in _places()))


def without_form(text: str) -> str:
    """``text`` without lines of the form."""
    return _under_headings([line for line in text.splitlines() if not is_form(line)])


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
