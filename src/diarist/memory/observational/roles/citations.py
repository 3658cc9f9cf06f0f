"""From a line of notes to the messages it was made from.

In a transcript each message has a label, ``[#3]``, and the Observer is asked to end each line with the labels of
its messages. They are taken out of the text, which would only grow by them, and kept beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_LABELS = r"\[\s*#(?:\d+(?:\s*[,;–-]\s*#?\d+)*|N)\s*\]"  # [#N] stands in the form that the Observer is shown
_AT_END = re.compile(rf"(?P<labels>(?:\s*{_LABELS}){{1,50}})(?=\.?\s*$)")
_AT_START = re.compile(rf"^(\s*(?:[-*•]\s*)?(?:(?:🔴|🟡|🟢|✅)\s*)?)(?P<labels>{_LABELS}(?!\()\s*)")
_ONE = re.compile(rf"\s*{_LABELS}")
_NUMBERS = re.compile(r"(\d+)(?:\s*[–-]\s*#?(\d+))?")


def label(number: int) -> str:
    """``[#3]``, the label of the third message of a transcript."""
    return f"[#{number}]"


def take_citations(text: str, messages: int | None = None) -> tuple[str, dict[str, tuple[int, ...]]]:
    """``text`` without its citations, and by each line that had any the numbers that it cites.

    Args:
        messages: How many there were. A label of which no number is one of theirs stands for something else, such as
            a ticket, and stays. None: any number may be.
    """
    cited: dict[str, tuple[int, ...]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if "#" not in line:
            lines.append(line)
            continue
        bare, found = line, list[int]()
        for place in (_AT_END, _AT_START):
            if match := place.search(bare):
                others, numbers = _parted(match["labels"], messages)
                bare = bare[: match.start("labels")] + others + bare[match.end("labels") :]
                found += numbers
        if bare != line:
            cited[bare] = tuple(sorted({*cited.get(bare, ()), *found}))
        lines.append(bare)
    return "\n".join(lines), cited


def _parted(labels: str, messages: int | None) -> tuple[str, list[int]]:
    """Those of the labels that are no citations, and the numbers of those that are."""
    others, cited = labels, list[int]()
    for each in _ONE.findall(labels):
        numbers = _numbers(each)
        if messages is None or not numbers or any(0 < number <= messages for number in numbers):
            cited += numbers
            others = others.replace(each, "", 1)
    return others if "#" in others else "", cited


def cite(text: str, cited: Mapping[str, Sequence[int]], ids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """For each line of ``text`` the ids of the messages it was made from, where the Observer said so.

    Args:
        cited: Numbers by line, as ``take_citations`` gave them.
        ids: The messages' ids, in the order of their labels. Numbers beyond them are left out.
    """
    return tuple(
        tuple(ids[number - 1] for number in cited.get(line, ()) if 0 < number <= len(ids)) for line in text.splitlines()
    )


def _numbers(labels: str) -> list[int]:
    numbers: list[int] = []
    for match in _NUMBERS.finditer(labels):
        first = int(match[1])
        last = int(match[2] or first)
        numbers += range(first, last + 1) if first <= last < first + 1000 else (first, last)
    return numbers
