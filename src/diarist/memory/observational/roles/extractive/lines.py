"""The lines of the diary: written and read in one format by the extractive Observer and Reflector."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MARKS = ("🔴", "✅", "🟡", "🟢")
"""What counts most comes first."""

_LINE = re.compile(r"(?P<indent>\s*)(?:[-*•]\s+)?(?:(?P<mark>🔴|🟡|🟢|✅)\s*)?(?:(?P<time>\d\d?:\d\d)\s+)?(?P<text>.*)")
_MEANING = re.compile(r"\s?\((?:meaning|replaces)[^()]*\)")
_SIGNS = re.compile(r"[\W_]+")
_TIMES = re.compile(r" ×\d+$")
_SPEAKER = re.compile(
    r"^Assistant called\s"
    r"|^[^:]{1,80}? (?:stated|changed|said|asked|requested|reported done|promised|answered):\s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One note.

    Attributes:
        date: The heading it stands under; empty where there is none.
        mark: One of ``MARKS``; empty where the writer gave none.
        time: ``09:12`` or empty.
        detail: It is a sub-line of the line before it.
        messages: Places of the messages it was made from; empty where nobody knows.
    """

    date: str
    mark: str
    time: str
    text: str
    detail: bool = False
    messages: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = (part for part in (self.mark, self.time, self.text) if part)
        return f"{'  ' if self.detail else ''}- {' '.join(words)}"


def write_lines(lines: Iterable[Line]) -> str:
    """The lines with their date headings; a heading stands once for lines of one day in a row."""
    out: list[str] = []
    date = ""
    for line in lines:
        if line.date != date:
            out.append(line.date)
            date = line.date
        out.append(str(line))
    return "\n".join(out)


def read_lines(text: str) -> Iterator[Line]:
    """The lines of a diary, whoever wrote it; blank ones are left out."""
    date = ""
    for raw in text.splitlines():
        if raw.startswith("Date:"):
            date = raw.strip()
        elif raw.strip() and (match := _LINE.fullmatch(raw)):
            yield Line(
                date=date,
                mark=match["mark"] or "",
                time=match["time"] or "",
                text=match["text"].strip(),
                detail=len(match["indent"]) >= 2,
            )


def body(text: str) -> str:
    """What a note says, without who said it, and without what we added in brackets."""
    return _TIMES.sub("", _MEANING.sub("", _SPEAKER.sub("", text)))


def fingerprint(text: str) -> str:
    """Equal for texts that differ in case, blanks and punctuation only."""
    return _SIGNS.sub(" ", text.casefold()).strip()
