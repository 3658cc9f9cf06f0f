"""How an answer relates to the transcript it was asked about: citations, reach, copies and loops.

Each message of a transcript has a label, ``[#3]``, and the Observer is asked to end each line with the labels of its
messages. ``take_citations`` takes them out of the text. ``cut_to_reach`` finds how far a cut answer got, ``is_copy``
finds answers that repeat the messages, and ``is_degenerate`` answers that repeat themselves.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

_LABELS = r"\[\s*#(?:\d+(?:\s*[,;–-]\s*#?\d+)*|N)\s*\]"  # [#N] stands in the form that the Observer is shown
_AT_END = re.compile(rf"(?P<labels>(?:\s*{_LABELS}){{1,50}})(?=\.?\s*$)")
_AT_START = re.compile(rf"^(\s*(?:[-*•]\s*)?(?:(?:🔴|🟡|🟢|✅)\s*)?)(?P<labels>{_LABELS}(?!\()\s*)")
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
    """Return the labels that are not citations, and the numbers of those that are."""
    others, cited = labels, list[int]()
    for each in _ONE.findall(labels):
        numbers = _numbers(each)
        if messages is None or not numbers or any(0 < number <= messages for number in numbers):
            cited += numbers
            others = others.replace(each, "", 1)
    return others if "#" in others else "", cited


def cite(text: str, cited: Mapping[str, Sequence[int]], ids: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return, for each line of ``text``, the ids of the messages it cites.

    Args:
        cited: Numbers by line, as returned by ``take_citations``.
        ids: Ids of the messages in the order of their labels. Higher numbers are ignored.
    """
    return tuple(
        tuple(ids[number - 1] for number in cited.get(line, ()) if 0 < number <= len(ids)) for line in text.splitlines()
    )


def _numbers(labels: str) -> list[int]:
    numbers: list[int] = []
    for match in _CITED_NUMBERS.finditer(labels):
        first = int(match[1])
        last = int(match[2] or first)
        numbers += range(first, last + 1) if first <= last < first + 1000 else (first, last)
    return numbers


_LABELLED = re.compile(r"\[#(?P<number>\d+)\](?: (?P<time>\d\d:\d\d))? (?P<text>.*)$")
_SPEAKER = re.compile(r"[^:\n]{1,60}: ")
_WORD = re.compile(r"\w{3,}")
_TIME = re.compile(r"\W*(\d\d:\d\d)\b")

_STRONG = 1.0
"""Score that links a line to a message: shared words, each weighted by the number of messages that have it."""
_NEAR, _MAY_BE = 0.7, 0.5
_ENOUGH = 0.3
_LONGEST_JUMP = 8
"""The most messages in a row that may have no note; a longer jump is a wrong match."""


class Entry(NamedTuple):
    """A message in a transcript: its place among the messages, its day and time, and its text."""

    place: int
    moment: tuple[str, str]
    text: str


def read_transcript(transcript: str) -> list[Entry]:
    """Return the messages of a transcript, without labels and speakers."""
    entries: list[Entry] = []
    date = ""
    for line in transcript.splitlines():
        if line.startswith("Date:"):
            date = line
        elif found := _LABELLED.match(line):
            place, said = int(found["number"]) - 1, _SPEAKER.sub("", found["text"], count=1)
            if entries and entries[-1].place == place:  # another part of the message
                entries[-1] = entries[-1]._replace(text=f"{entries[-1].text}\n{said}")
            else:
                entries.append(Entry(place, (date, found["time"] or ""), said))
        elif entries and line.startswith("    "):
            entries[-1] = entries[-1]._replace(text=f"{entries[-1].text}\n{line.strip()}")
    return entries


def cut_to_reach(
    text: str, cited: Mapping[str, Sequence[int]], entries: Sequence[Entry], whole: Callable[[int], int]
) -> tuple[str, int]:
    """Return the notes of the messages that a cut answer has finished, and the number of these messages.

    The number is 0 if nothing shows how far the answer got. It errs on the low side, since messages that are not
    covered stay raw. A line is linked to the messages it cites, unless its words are an earlier one's; else to the
    first message that shares most of its words; else to the one at its time. The message of the last line may have
    had more lines to come, so it is not finished.

    Args:
        text: The complete lines of the answer.
        cited: Numbers by line, as returned by ``take_citations``.
        entries: The messages that were sent.
        whole: Lowers a number of messages so that no tool call is separated from its result.
    """
    lines = _Places(entries).lines(text, cited)
    if not any(line.first is not None for line in lines):
        lines = _by_time(lines, entries)
    before, end = -1, whole(_reached(lines))
    while before != end:
        # A dropped line may also cover messages before the end; their notes would be lost, so the end moves back.
        parted = [line.first for line in lines if line.first is not None and line.parted_at(end)]
        before, end = end, whole(min([end, *parted]))
    return "\n".join(_before(lines, end)), end


class _Line(NamedTuple):
    """A line of notes; None means unknown.

    Attributes:
        first, last: The first and last message that it covers.
        sure: Based on more than similar words.
        alike: The first message with similar words.
        moment: Its day and time.
    """

    text: str
    first: int | None = None
    last: int | None = None
    sure: bool = False
    alike: int | None = None
    moment: tuple[str, str] | None = None

    def parted_at(self, end: int) -> bool:
        if self.first is None or self.last is None:
            return False
        return self.first < end <= self.last <= self.first + _LONGEST_JUMP  # a longer span is an overview


class _Places:
    """Links lines of notes to messages."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._words = {entry.place: _words(entry.text) for entry in entries}
        self._shared_by = Counter(word for words in self._words.values() for word in words)

    def lines(self, text: str, cited: Mapping[str, Sequence[int]]) -> list[_Line]:
        lines: list[_Line] = []
        heading = ""
        for line in text.splitlines():
            if line.startswith("Date:"):
                heading = line
                lines.append(_Line(line))
                continue
            named = sorted(number - 1 for number in cited.get(line, ()) if number - 1 in self._words)
            time = _TIME.match(line)
            moment = (heading, time[1]) if time else None
            alike, belied = self._alike(line, named)
            if named and not belied:
                lines.append(_Line(line, named[0], named[-1], True, alike, moment))
            else:
                lines.append(_Line(line, alike, alike, bool(named), alike, moment))
        return lines

    def _alike(self, line: str, named: Sequence[int]) -> tuple[int | None, bool]:
        """Return the first message that shares nearly the most words with the line, and whether the words contradict
        its citations because they belong to an earlier message."""
        words = _words(line)
        shared = {place: words & said for place, said in self._words.items()}
        scores = {place: sum(1 / self._shared_by[word] for word in both) for place, both in shared.items()}
        best = max((score for place, score in scores.items() if len(shared[place]) > 1), default=0.0)
        if best < _STRONG:
            return None, False
        alike = next(place for place, score in scores.items() if score >= _NEAR * best and len(shared[place]) > 1)
        best_named = max((scores[place] for place in named), default=0.0)
        return alike, bool(named) and alike < named[0] and best_named < _MAY_BE * best


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _by_time(lines: Sequence[_Line], entries: Sequence[Entry]) -> list[_Line]:
    """Link lines to the first message at or after their time, if their day is in the transcript."""
    days = {entry.moment[0] for entry in entries}
    placed: list[_Line] = []
    for line in lines:
        place = None
        if line.moment is not None and line.moment[0] in days:
            place = next((entry.place for entry in entries if entry.moment >= line.moment), None)
        placed.append(line._replace(first=place, last=place, sure=True))
    return placed


def _reached(lines: Sequence[_Line]) -> int:
    """Return the number of messages before the one that the answer was at; 0 if unknown."""
    placed = [(line.first, line.last) for line in lines if line.first is not None and line.last is not None]
    way = _way(placed)
    if not any(line.sure for line in lines):
        return way[-2:][0][0]  # two similar lines in a row are no accident
    alike = [(line.alike, line.alike) for line in lines if line.alike is not None]
    if len(alike) > _ENOUGH * len(lines):  # notes in another language share few words
        return min(way[-1][0], _way(alike)[-2:][0][0])
    return way[-1][0]


def _way(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest increasing sequence of places, from the beginning to the first long jump."""
    ways: list[list[tuple[int, int]]] = [[(0, 0)]]  # for each length, the one that ends earliest
    for place in places:
        length = bisect_right(ways, place[0], key=lambda way: way[-1][0])
        ways[length : length + 1] = [[*ways[length - 1], place]]
    way = ways[-1]
    jumps = (at for at, (one, other) in enumerate(pairwise(way), 1) if other[0] - one[1] > _LONGEST_JUMP)
    return way[: next(jumps, len(way))]


def _before(lines: Sequence[_Line], end: int) -> list[str]:
    """Return the lines of messages before the end; a line without a known message follows the line before it."""
    kept: list[str] = []
    keeps = True
    for line in lines:
        if line.text.startswith("Date:"):
            kept.append(line.text)
            continue
        keeps = keeps if line.last is None else line.last < end
        if keeps:
            kept.append(line.text)
    return kept


LEAST_SOURCE = 800
"""Characters. Notes of shorter messages may well be as long and in the same words."""

_AS_LONG = 0.8
_LONG, _VERBATIM = 0.35, 0.6
_RUN = 5

_LINE_LEAD = re.compile(r"^[^\w\[]*(?:\d\d:\d\d\b\W*)?", re.MULTILINE)
_ANY_WORD = re.compile(r"\w+")


def is_copy(notes: str, source: str) -> bool:
    """Return whether notes are about as long as their source, or over a third as long and mostly verbatim.

    Args:
        notes: Notes without citations. Headings, marks and times do not count.
        source: Text of the messages.
    """
    bare = "\n".join(_LINE_LEAD.sub("", line) for line in notes.splitlines() if not line.startswith("Date:"))
    if len(source) < LEAST_SOURCE:
        return False
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

_GLANCES = ((25, 2), (100, 100 * MAX_DUPLICATE_WINDOWS / 2))
"""Samples of windows, and how many of each must be repeats. In a loop at least two in five windows are repeats, so
fewer than two of 25 are found once in 20,000 times."""
_GOLDEN = 0.618_034


def is_degenerate(text: str) -> bool:
    """Return whether ``text`` is a loop.

    It is when it has at least 2,000 characters and: more than 40 % of its windows of 200 characters
    (one begins at each character, so a loop of any length shows) occurred before in it; or it has
    at least 20 lines of 20 characters or more, and more than half of those occurred before; or one
    line is longer than 50,000 characters.
    """
    if len(text) < MIN_LENGTH:
        return False
    lines = [line.strip() for line in text.splitlines()]
    if any(len(line) > MAX_LINE_LENGTH for line in lines):
        return True
    long_lines = [line for line in lines if len(line) >= LONG_LINE]
    if len(long_lines) >= MIN_LONG_LINES:
        duplicates = len(long_lines) - len(set(long_lines))
        if duplicates > MAX_DUPLICATE_LINES * len(long_lines):
            return True
    total = len(text) - WINDOW + 1
    return _may_repeat(text) and total - len(set(_windows(text))) > MAX_DUPLICATE_WINDOWS * total


def _may_repeat(text: str) -> bool:
    """Look at a sample of windows at irregular distances, then at a larger one. If fewer than half as many as required
    are repeats, the text is no loop, and the rest is not read."""
    total = len(text) - WINDOW + 1
    found, looked = 0, 0
    for glances, least in _GLANCES:
        starts = [int(total * (number * _GOLDEN % 1)) for number in range(looked, glances)]
        found += sum(text.find(text[start : start + WINDOW], 0, start + WINDOW - 1) >= 0 for start in starts)
        if found < least:
            return False
        looked = glances
    return True


def deduplicate(text: str) -> str:
    """Return ``text`` with each line once and loops inside lines cut; the result is never degenerate.

    Order is kept. A date heading is kept if a line below it is.
    """
    seen_lines: set[str] = set()
    seen_windows: set[int] = set()
    kept: list[str] = []
    heading = shown = ""
    for line in text.splitlines():
        if line.startswith("Date:"):
            heading = line
            continue
        body = line.strip()
        if not body or body in seen_lines:
            continue
        seen_lines.add(body)
        fresh = _without_loop(line, seen_windows)
        if not fresh:
            continue
        if heading != shown:
            kept.append(heading)
            shown = heading
        kept.append(fresh)
    result = "\n".join(kept)
    if is_degenerate(result):  # lines that differ by a few characters only
        return result[: MIN_LENGTH - 1]
    return result


def _without_loop(line: str, seen: set[int]) -> str:
    """Return ``line`` up to the place where it repeats itself or an earlier line.

    Lines below 200 characters are returned unchanged.
    """
    for start, window in enumerate(_windows(line)):
        if window in seen:
            return f"{line[:start].rstrip()} …" if start else ""
        seen.add(window)
    if len(line) > MAX_LINE_LENGTH:
        return f"{line[: MAX_LINE_LENGTH - 2]} …"
    return line


def _windows(text: str) -> Iterator[int]:
    """A hash for each window; a few bytes instead of 200 characters each."""
    return (hash(text[start : start + WINDOW]) for start in range(len(text) - WINDOW + 1))
