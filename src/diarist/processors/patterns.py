"""Regular expressions over a text that has not ended yet: what matches, and what still might."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from diarist.exceptions import ConfigError
from diarist.processors.prescan import Prescan
from diarist.processors.streaming_redaction import Skim, Span

if TYPE_CHECKING:
    import regex

# The `regex` package calls a match partial where the text ends before it is decided. It does so only if no
# complete match is to be had anywhere, so this tail makes completeness impossible: it wants one more character,
# and refuses it. What remains is the leftmost place from which a match could reach beyond the end.
_MORE = r"[\s\S](?!)"

# The scan that goes first holds a little more than it must, and may hold this much.
_MOST_HELD = 48

_MOST_SCANS = 16

# At the end of a text \b, \Z and $ are guesses about what follows. Written as looks ahead they count as undecided. The
# look comes first: inside another look ahead nothing is tried again.
_GUESSES = {
    r"\b": r"(?:(?<=\w)(?!\w)|(?<!\w)(?=\w))",
    r"\B": r"(?:(?<=\w)(?=\w)|(?<!\w)(?!\w))",
    r"\Z": r"(?![\s\S])",
    "$": r"(?:(?!\n?[\s\S])|$)",
}


class PatternSet:
    """Named patterns in the syntax of Python's ``re``; ``look`` is for a ``Redactor``.

    Each pattern finds what ``re.finditer`` would find in the whole text, whatever pieces the text comes in;
    look-behinds see at least 1024 characters. There is no longest match.

    Args:
        patterns: Label to pattern.
        option: The name under which errors speak of the patterns.

    Raises:
        ConfigError: A pattern that does not compile, or that matches the empty text.
    """

    def __init__(self, patterns: Mapping[str, str | re.Pattern[str]], *, option: str = "patterns") -> None:
        self._rules = [(label, _checked(label, pattern, option)) for label, pattern in patterns.items()]
        self._find = [_compiled(pattern.pattern, pattern) for _, pattern in self._rules]
        self._undecided = [_compiled(_reaching_the_end(pattern), pattern) for _, pattern in self._rules]
        self._scan = Prescan([pattern for _, pattern in self._rules])
        self._scans_without: dict[frozenset[int], Prescan] = {}
        self._alone: dict[int, Prescan] = {}

    def __len__(self) -> int:
        return len(self._rules)

    def look(self, text: str, start: int = 0, final: bool = True) -> tuple[Sequence[Span], int]:
        """All matches from ``start`` on, those of one pattern without overlap; and how many characters at the end
        may still become part of one (not counted where the text is ``final``)."""
        tried, first = self._promising(text, start, final)
        if not tried:
            return (), 0 if final else len(text) - first
        spans: list[Span] = []
        for number in sorted(tried):
            label = self._rules[number][0]
            spans += [Span(*match.span(), label) for match in self._find[number].finditer(text, start)]
            if not final:
                first = min(first, self._going_on(number, text, start))
        return spans, 0 if final else len(text) - first

    def skim(self) -> Skim | None:
        """The quick look, at work on one text that comes in pieces; None where there is none for these patterns."""
        return self._scan.skim(_MOST_HELD)

    def _going_on(self, number: int, text: str, start: int) -> int:
        """Where a match of this pattern begins that may go on behind the text; its end where there is none."""
        place = self._only(number).open_from(text, start)
        match = self._undecided[number].search(text, place, partial=True) if place < len(text) else None
        return len(text) if match is None else match.start()

    def _promising(self, text: str, start: int, final: bool) -> tuple[frozenset[int], int]:
        """The patterns that have to be tried, and where a match of the others may begin that is still going on."""
        tried = self._scan.left_out
        scan, most = self._scan, None if final else _MOST_HELD
        while True:
            found = scan.look(text, start, most)
            if isinstance(found, int):
                return tried, found
            tried |= found
            scan = self._without(tried)

    def _only(self, number: int) -> Prescan:
        scan = self._alone.get(number)
        if scan is None:
            scan = self._alone[number] = self._scan.only(number)
        return scan

    def _without(self, numbers: frozenset[int]) -> Prescan:
        scan = self._scans_without.get(numbers)
        if scan is None:
            if len(self._scans_without) >= _MOST_SCANS:
                self._scans_without.clear()
            scan = self._scans_without[numbers] = self._scan.without(numbers)
        return scan


def _checked(label: str, pattern: str | re.Pattern[str], option: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(f"{option}: the pattern {label!r} is no regular expression: {error}") from error
    if isinstance(cast(str | bytes, compiled.pattern), bytes):
        raise ConfigError(f"{option}: the pattern {label!r} is for bytes; give one for text")
    if compiled.search(""):
        raise ConfigError(f"{option}: the pattern {label!r} matches the empty text, and so everything")
    return compiled


def _compiled(source: str, pattern: re.Pattern[str]) -> regex.Pattern[str]:
    """``source`` with the pattern's flags, which `regex` numbers in its own way."""
    import regex

    flags = pattern.flags & ~(re.DEBUG | re.ASCII) | (regex.ASCII if pattern.flags & re.ASCII else 0)
    return regex.compile(source, flags | regex.V0)


def _reaching_the_end(pattern: re.Pattern[str]) -> str:
    after = "\n" if pattern.flags & re.VERBOSE else ""  # there may be a comment at the end
    return f"(?:{_without_guesses(pattern.pattern)}{after}){_MORE}"


def _without_guesses(source: str) -> str:
    r"""``\b``, ``\B``, ``\Z`` and ``$`` outside character classes, written as looks ahead and behind."""
    out: list[str] = []
    in_class = False
    place = 0
    while place < len(source):
        token = source[place : place + 2] if source[place] == "\\" else source[place]
        if in_class:
            in_class = token != "]"
        elif token == "[":
            in_class = True
            token = "[^" if source.startswith("[^", place) else "["
            if source.startswith("]", place + len(token)):  # a bracket right after the opening one is literal
                token += "]"
        else:
            out.append(_GUESSES.get(token, token))
            place += len(token)
            continue
        out.append(token)
        place += len(token)
    return "".join(out)
