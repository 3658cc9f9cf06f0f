"""Compares an answer with its transcript: citations, how far the answer got, copied messages, and loops.

Each message of a transcript has a label, ``[#3]``, and the Observer is asked to end each line with the labels of its
messages. ``take_citations`` takes them out of the text. ``cut_to_reach`` finds how far a cut answer got, ``is_copy``
finds answers that repeat the messages, and ``is_degenerate`` answers that repeat themselves.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

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


_LABELLED = re.compile(r"^\[#(\d+)\](?: \d\d:\d\d)? (.*(?:\n    .*)*)", re.MULTILINE)
_SPEAKER = re.compile(r"[^:\n]{1,60}: ")
_WORD = re.compile(r"\w{3,}")

_STRONG = 1.0
"""Minimum score that links a line to a message. Each shared word adds 1, divided by the number of messages that have
it."""
_NEAR = 0.7
_ENOUGH = 0.3
_LONGEST_JUMP = 8
"""The most messages in a row that may have no note; a longer jump is a wrong citation."""


def read_transcript(transcript: str) -> dict[int, str]:
    """Return the messages of a transcript by their place, without labels and speakers."""
    messages: dict[int, list[str]] = {}
    for number, entry in _LABELLED.findall(transcript):
        first, *more = entry.split("\n")
        messages.setdefault(int(number) - 1, []).extend([_SPEAKER.sub("", first, count=1), *map(str.strip, more)])
    return {place: "\n".join(lines) for place, lines in messages.items()}


def cut_to_reach(
    text: str, cited: Mapping[str, Sequence[int]], messages: Mapping[int, str], whole: Callable[[int], int]
) -> tuple[str, int]:
    """Return the notes of the messages that a cut answer has finished, and the number of these messages.

    The number is 0 if nothing shows how far the answer got. It is rather too low than too high, since messages that are
    not covered stay raw. It follows the citations, but not beyond the messages that share words with the lines, since
    weak models number their own lines. The message of the last line counts as unfinished, since more lines about it may
    have followed.

    Args:
        text: The complete lines of the answer.
        cited: Numbers by line, as returned by ``take_citations``.
        messages: The messages that were sent, by their place.
        whole: Lowers a number of messages so that no tool call is separated from its result.
    """
    lines = text.splitlines()
    cites = [sorted(number - 1 for number in cited.get(line, ()) if number - 1 in messages) for line in lines]
    spans = [(places[0], places[-1]) for places in cites if places]
    reached = _steady_progress(spans)[-1][0]
    alike = _alike([line for line in lines if not line.startswith("Date:")], messages)
    if len(alike) > _ENOUGH * len(lines):  # notes in another language share few words
        steps = _steady_progress([(place, place) for place in alike])
        last = steps[-2] if len(steps) > 1 else steps[0]  # the very last similar line may be an accident
        reached = min(reached, last[0])
    before, end = -1, whole(reached)
    while before != end:
        # A dropped line may also cover messages before the end; their notes would be lost, so the end moves back.
        # A line that cites more messages than a jump is an overview and does not count.
        parted = [first for first, last in spans if first < end <= last <= first + _LONGEST_JUMP]
        before, end = end, whole(min([end, *parted]))
    kept: list[str] = []
    keeps = True
    for line, places in zip(lines, cites, strict=True):
        keeps = places[-1] < end if places else keeps  # a line without citations follows the line before it
        if keeps or line.startswith("Date:"):
            kept.append(line)
    return "\n".join(kept), end


def _steady_progress(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest increasing sequence of spans, from (0, 0) to the first long jump."""
    ways: list[list[tuple[int, int]]] = [[(0, 0)]]  # for each length, the one that ends earliest
    for span in spans:
        length = bisect_right(ways, span[0], key=lambda way: way[-1][0])
        ways[length : length + 1] = [[*ways[length - 1], span]]
    way = ways[-1]
    jumps = (at for at, (one, other) in enumerate(pairwise(way), 1) if other[0] - one[1] > _LONGEST_JUMP)
    return way[: next(jumps, len(way))]


def _alike(lines: Iterable[str], messages: Mapping[int, str]) -> list[int]:
    """Return, for each line that shares enough words with a message, the first message with nearly the best score."""
    said = {place: frozenset(_WORD.findall(text.lower())) for place, text in messages.items()}
    having = Counter(word for words in said.values() for word in words)
    places: list[int] = []
    for line in lines:
        noted = frozenset(_WORD.findall(line.lower()))
        shared = {place: words & noted for place, words in said.items()}
        scores = {place: sum(1 / having[word] for word in both) for place, both in shared.items() if len(both) > 1}
        best = max(scores.values(), default=0.0)
        if best >= _STRONG:
            places.append(next(place for place, score in scores.items() if score >= _NEAR * best))
    return places


LEAST_SOURCE = 800
"""In characters. Good notes of shorter messages may be as long as the messages, and in the same words."""

_AS_LONG = 0.8
_LONG, _VERBATIM = 0.35, 0.6
_RUN = 5

_LINE_LEAD = re.compile(r"^[^\w\[]*(?:\d\d:\d\d\b\W*)?", re.MULTILINE)
_ANY_WORD = re.compile(r"\w+")


def is_copy(notes: str, source: str, *, short: bool = False) -> bool:
    """Return whether notes are about as long as their source, or over a third as long and mostly verbatim.

    Args:
        notes: Notes without citations. Headings, marks and times do not count.
        source: Text of the messages.
        short: True: a source of less than ``LEAST_SOURCE`` is judged, too, by its words alone.
    """
    bare = "\n".join(_LINE_LEAD.sub("", line) for line in notes.splitlines() if not line.startswith("Date:"))
    is_long = len(source) >= LEAST_SOURCE
    if not source or not (is_long or short):
        return False
    share = len(bare) / len(source)
    return (is_long and share >= _AS_LONG) or (share >= _LONG and verbatim_share(bare, source) >= _VERBATIM)


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
    """Return ``text`` with each line once and loops inside lines cut; the result is never degenerate.

    A line is cut where it repeats 200 characters of itself or of an earlier line. A date heading is kept if a line
    below it is.
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
        end = min(len(line), MAX_LINE_LENGTH - 2)
        for start in range(len(line) - WINDOW + 1):
            window = hash(line[start : start + WINDOW])  # a few bytes instead of 200 characters
            if window in seen_windows:
                end = start
                break
            seen_windows.add(window)
        if end == 0:
            continue
        if heading != shown:
            kept.append(heading)
            shown = heading
        kept.append(line if end == len(line) else f"{line[:end].rstrip()} …")
    result = "\n".join(kept)
    # Lines may still differ by a few characters only.
    return result[: MIN_LENGTH - 1] if is_degenerate(result) else result
