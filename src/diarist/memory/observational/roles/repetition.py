"""Language models sometimes fall into a loop and write the same thing until they are cut off."""

from __future__ import annotations

from collections.abc import Iterator

MIN_LENGTH = 2_000
"""Shorter texts are never taken for a loop: real notes repeat themselves a little."""

WINDOW = 200
MAX_DUPLICATE_WINDOWS = 0.4
LONG_LINE = 20
MIN_LONG_LINES = 20
MAX_DUPLICATE_LINES = 0.5
MAX_LINE_LENGTH = 50_000

_GLANCES = ((25, 2), (100, 100 * MAX_DUPLICATE_WINDOWS / 2))
"""How many windows, and how many of them must have occurred before. Of a text that is in a loop at least two in five
have: that fewer than two of 25 did happens once in 20,000 times."""
_GOLDEN = 0.618_034


def is_degenerate(text: str) -> bool:
    """Whether ``text`` is caught in a loop.

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
    """A glance at windows that are spread over the text at no regular distance, then at more of them: where fewer than
    half as many as it takes occurred before, the others need not be looked at."""
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
    """``text`` with each line once and loops inside of lines cut; never degenerate itself.

    Order is kept. A date heading stays where a line under it stays.
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
    """``line`` up to where it begins to say again what it, or a line before it, said.

    Lines below 200 characters have no windows and stay as they are.
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
