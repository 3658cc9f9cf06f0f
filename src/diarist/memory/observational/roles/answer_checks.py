"""Compares an answer with its transcript: citations, copied messages, and loops.

Each message of a transcript has a label, ``[#3]``, and the Observer is asked to end each line with the labels of its
messages. ``take_citations`` takes them out of the text. ``is_copy`` finds answers that repeat the messages, and
``is_degenerate`` answers that repeat themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from diarist.memory.observational.roles.prompt_echo import under_headings

_LABELS = r"\[\s*#(?:\d+(?:\s*[,;–-]\s*#?\d+)*|N)\s*\]"  # [#N] is in the form that the Observer is shown
_AT_END = re.compile(rf"(?P<labels>(?:\s*{_LABELS}){{1,50}})(?=\.?\s*$)")
_AT_START = re.compile(rf"(\s*(?:[-*•]\s*)?(?:(?:🔴|🟡|🟢|✅)\s*)?)(?P<labels>{_LABELS}(?!\()\s*)")
_ONE = re.compile(rf"\s*{_LABELS}")
_CITED_NUMBERS = re.compile(r"(\d+)(?:\s*[–-]\s*#?(\d+))?")


def label(number: int) -> str:
    """Return the label of a message in a transcript, such as ``[#3]``."""
    return f"[#{number}]"


def has_citation(line: str) -> bool:
    """Return whether a line ends with labels of messages."""
    return "#" in line and _AT_END.search(line) is not None


def take_citations(text: str, messages: int | None = None) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Return ``text`` without its citations, and the numbers cited by each line that has any.

    Args:
        messages: Number of messages. A label without any number in that range means something else, such as a ticket,
            and is kept. None accepts any number.
    """
    cited: dict[str, tuple[int, ...]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if "#" not in line:
            lines.append(line)
            continue
        bare, found = line, list[int]()
        for find in (_AT_END.search, _AT_START.match):
            if match := find(bare):
                others = match["labels"]  # the labels that are no citations, after the loop
                for each in _ONE.findall(others):
                    numbers: list[int] = []
                    for pair in _CITED_NUMBERS.finditer(each):
                        first, last = int(pair[1]), int(pair[2] or pair[1])
                        numbers += range(first, last + 1) if first <= last < first + 1000 else (first, last)
                    if messages is None or not numbers or any(0 < number <= messages for number in numbers):
                        found += numbers
                        others = others.replace(each, "", 1)
                others = others if "#" in others else ""
                bare = bare[: match.start("labels")] + others + bare[match.end("labels") :]
        if bare != line:
            cited[bare] = tuple(sorted({*cited.get(bare, ()), *found}))
        lines.append(bare)
    return "\n".join(lines), cited


def cite(text: str, cited: Mapping[str, Sequence[int]], ids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return, for each line of ``text``, the ids of the messages it cites.

    Args:
        cited: Numbers by line, as returned by ``take_citations``.
        ids: Ids of the messages in the order of their labels. Higher numbers are ignored.
    """
    return tuple(
        tuple(ids[number - 1] for number in cited.get(line, ()) if 0 < number <= len(ids)) for line in text.splitlines()
    )


_LABELLED = re.compile(r"^\[#\d+\](?: \d\d:\d\d)? (.*(?:\n    .*)*)", re.MULTILINE)
_SPEAKER = re.compile(r"[^:\n]{1,60}: ")


def without_labels(transcript: str) -> str:
    """Return the messages of a transcript without labels, times, speakers and indentation."""
    lines: list[str] = []
    for entry in _LABELLED.findall(transcript):
        first, *more = entry.split("\n")
        lines += [_SPEAKER.sub("", first, count=1), *map(str.strip, more)]
    return "\n".join(lines)


LEAST_SOURCE = 800
"""In characters. Good notes of shorter messages may be as long as the messages, and in the same words."""

_AS_LONG = 0.8
_LONG, _VERBATIM = 0.35, 0.6
_RUN = 5

_LINE_LEAD = re.compile(r"^[^\w\[]*(?:\d\d:\d\d\b\W*)?", re.MULTILINE)
_ANY_WORD = re.compile(r"\w+")


def is_copy(notes: str, source: str) -> bool:
    """Return whether notes are about as long as their source, or over a third as long and mostly verbatim.

    Args:
        notes: Notes without citations. Headings, marks and times do not count.
        source: Text of the messages. A short one is never copied.
    """
    if len(source) < LEAST_SOURCE:
        return False
    bare = "\n".join(_LINE_LEAD.sub("", line) for line in notes.splitlines() if not line.startswith("Date:"))
    share = len(bare) / len(source)
    return share >= _AS_LONG or (share >= _LONG and verbatim_share(bare, source) >= _VERBATIM)


def verbatim_share(notes: str, source: str) -> float:
    """Return the share of words in runs of five or more that are also in the source."""
    said, noted = _ANY_WORD.findall(source.lower()), _ANY_WORD.findall(notes.lower())
    runs = {tuple(said[start : start + _RUN]) for start in range(len(said) - _RUN + 1)}
    copied = 0
    end = 0  # of the last run found
    for start in range(len(noted) - _RUN + 1):
        if tuple(noted[start : start + _RUN]) in runs:
            copied += start + _RUN - max(end, start)
            end = start + _RUN
    return copied / len(noted) if noted else 0.0


MIN_LENGTH = 2_000
"""Characters. Shorter texts are never considered loops: real notes repeat themselves a little."""

WINDOW = 200
MAX_DUPLICATE_WINDOWS = 0.4
LONG_LINE = 20
MIN_LONG_LINES = 20
MAX_DUPLICATE_LINES = 0.5
MAX_LINE_LENGTH = 50_000

_SAMPLES = 100
_GOLDEN = 0.618_034


def is_degenerate(text: str) -> bool:
    """Return whether ``text`` is a loop; False if it has less than 2,000 characters.

    It is a loop if more than 40 % of sampled windows of 200 characters also occur earlier in it. It is also one if more
    than half of its lines of 20 or more characters do (with at least 20 such lines), or if a line is longer than 50,000
    characters.
    """
    if len(text) < MIN_LENGTH:
        return False
    lines = [line.strip() for line in text.splitlines()]
    if any(len(line) > MAX_LINE_LENGTH for line in lines):
        return True
    long_lines = [line for line in lines if len(line) >= LONG_LINE]
    duplicates = len(long_lines) - len(set(long_lines))
    if len(long_lines) >= MIN_LONG_LINES and duplicates > MAX_DUPLICATE_LINES * len(long_lines):
        return True
    total = len(text) - WINDOW + 1
    starts = [int(total * (number * _GOLDEN % 1)) for number in range(_SAMPLES)]  # evenly, at irregular distances
    repeats = sum(text.find(text[start : start + WINDOW], 0, start + WINDOW - 1) >= 0 for start in starts)
    return repeats > MAX_DUPLICATE_WINDOWS * _SAMPLES


def deduplicate(text: str) -> str:
    """Return ``text`` with each line once, under its date, or the beginning if that is a loop, too; the result is never
    degenerate."""
    seen, kept = set[str](), list[str]()
    for line in text.splitlines():
        if line.startswith("Date:") or line not in seen:
            kept.append(line)
        seen.add(line)
    result = under_headings(kept)
    return result[: MIN_LENGTH - 1] if is_degenerate(result) else result
