"""Regular expressions over a text that is still being written, and the built-in patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from diarist.exceptions import ConfigError
from diarist.processors.streaming_redaction import Span

if TYPE_CHECKING:
    import regex

# The `regex` package reports a partial match only if there is no complete match anywhere. This tail requires one more
# character and then fails. It prevents complete matches, so a search finds the first place where a match is still open.
_MORE = r"[\s\S](?!)"

# At the end of a text, \b, \Z and $ depend on the next character. Written as look-aheads, they count as undecided
# there. The look-ahead comes first, because `regex` does not backtrack into a look-ahead.
_GUESSES = {
    r"\b": r"(?:(?<=\w)(?!\w)|(?<!\w)(?=\w))",
    r"\B": r"(?:(?<=\w)(?=\w)|(?<!\w)(?!\w))",
    r"\Z": r"(?![\s\S])",
    "$": r"(?:(?!\n?[\s\S])|$)",
}


@dataclass(frozen=True, slots=True)
class KnownPattern:
    """A pattern with a cheap test that rules out most text.

    Attributes:
        source: The pattern.
        begins: A pattern for the first characters of every match, without assertions about what follows them. A match
            of ``source`` begins only where ``begins`` matches. Where it reaches the end of the text unfinished, no
            later place may match it.
        inside_words: True if a match may begin right after a letter, digit or underscore.
        overlapping: True finds a match at every place where one begins, even inside another match. For candidates that
            a check may reject; they must be short.
    """

    source: str
    begins: str
    inside_words: bool = False
    overlapping: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    """One compiled pattern: ``find`` for complete matches, ``undecided`` for a match that more text may continue."""

    label: str
    find: regex.Pattern[str]
    undecided: regex.Pattern[str]
    overlapping: bool = False


class PatternSet:
    """Named patterns in the syntax of Python's ``re``; pass ``look`` to a ``Redactor``.

    Each pattern finds the matches of ``re.finditer`` in the whole text, no matter how the text is cut into pieces.
    Look-behinds see at least 1024 characters. Matches may be of any length.

    Args:
        patterns: Label to pattern. A ``KnownPattern`` costs less than a plain one.
        option: The name that errors use for the patterns.

    Raises:
        ConfigError: A pattern that does not compile, or that matches the empty text.
    """

    def __init__(
        self, patterns: Mapping[str, str | re.Pattern[str] | KnownPattern], *, option: str = "patterns"
    ) -> None:
        self._plain: list[_Rule] = []
        self._known: list[tuple[_Rule, regex.Pattern[str]]] = []
        known: list[KnownPattern] = []
        for label, given in patterns.items():
            if isinstance(given, KnownPattern):
                known.append(given)
                rule = replace(_rule(label, given.source, option), overlapping=given.overlapping)
                self._known.append((rule, _beginning([given])))
            else:
                self._plain.append(_rule(label, given, option))
        self._begins = _beginning(known) if known else None

    def look(self, text: str, start: int = 0, final: bool = True) -> tuple[Sequence[Span], int]:
        """Return the matches that begin at ``start`` or later, and how many characters at the end may still become part
        of a match.

        Matches of one pattern do not overlap, unless it is ``overlapping``. The number is 0 if the text is ``final``.
        """
        spans: list[Span] = []
        first = len(text)
        for rule in self._plain:
            spans += [Span(*match.span(), rule.label) for match in rule.find.finditer(text, start)]
            if not final and (open_match := rule.undecided.search(text, start, partial=True)):
                first = min(first, open_match.start())
        if self._begins is not None and (begun := self._begins.search(text, start, partial=not final)):
            if begun.partial:
                first = min(first, begun.start())
            else:
                for rule, pattern in self._known:
                    first = min(first, _look_at_begins(rule, pattern, text, start, final, spans))
        return spans, 0 if final else len(text) - first


def _look_at_begins(
    rule: _Rule, begins: regex.Pattern[str], text: str, start: int, final: bool, spans: list[Span]
) -> int:
    """Add a known pattern's matches to ``spans``. Returns the place of the first match that is still open.

    One place at a time: a search for an open match would first try all later places in vain, and that is quadratic.
    """
    while begun := begins.search(text, start, partial=not final):
        start = begun.start()
        if begun.partial or (not final and rule.undecided.match(text, start, partial=True)):
            return start
        if match := rule.find.match(text, start):
            spans.append(Span(*match.span(), rule.label))
        start = match.end() if match and not rule.overlapping else start + 1
    return len(text)


def _beginning(patterns: Iterable[KnownPattern]) -> regex.Pattern[str]:
    """Compile one pattern for the beginnings of all given patterns."""
    import regex

    at_words = [pattern.begins for pattern in patterns if not pattern.inside_words]
    anywhere = [pattern.begins for pattern in patterns if pattern.inside_words]
    either = ([rf"(?<!\w)(?:{'|'.join(at_words)})"] if at_words else []) + anywhere
    return regex.compile("|".join(either), regex.V0)


def _rule(label: str, given: str | re.Pattern[str], option: str) -> _Rule:
    import regex

    try:
        pattern = re.compile(given)
    except (re.error, TypeError) as error:
        raise ConfigError(f"{option}: the pattern {label!r} is no regular expression: {error}") from error
    if isinstance(cast(str | bytes, pattern.pattern), bytes):
        raise ConfigError(f"{option}: the pattern {label!r} is for bytes; give one for text")
    if pattern.search(""):
        raise ConfigError(f"{option}: the pattern {label!r} matches the empty text, and so everything")
    # `regex` numbers the flags in its own way.
    flags = regex.V0 | pattern.flags & ~(re.DEBUG | re.ASCII) | (regex.ASCII if pattern.flags & re.ASCII else 0)
    after = "\n" if pattern.flags & re.VERBOSE else ""  # there may be a comment at the end
    undecided = f"(?:{_without_guesses(pattern.pattern)}{after}){_MORE}"
    return _Rule(label, regex.compile(pattern.pattern, flags), regex.compile(undecided, flags))


def _without_guesses(source: str) -> str:
    r"""Replace ``\b``, ``\B``, ``\Z`` and ``$`` outside character classes with look-aheads and look-behinds."""
    # A bracket right after the opening one of a class is literal.
    return re.sub(
        r"\\[\s\S]|\[\^?\]?(?:\\[\s\S]|[^\]\\])*\]?|\$", lambda token: _GUESSES.get(token[0], token[0]), source
    )


# -- the built-in patterns of ``RegexFilter``
#
# Sources: card ranges from ISO/IEC 7812, IBANs from ISO 13616, social security numbers from the SSA's rules for numbers
# that are never issued, key prefixes from the providers' pages on secret scanning. Checksums are not verified.

_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

PRESETS: dict[str, dict[str, KnownPattern]] = {
    "pii": {
        "email": KnownPattern(
            # RFC 5322 allows "/" and "?" too, but they are far more often part of a URL with an address in it.
            rf"(?=[.!#$%&'*+=^`{{|}}~-]{{0,63}}\w)[\w.!#$%&'*+=^`{{|}}~-]{{1,64}}@{_LABEL}(?:\.{_LABEL}){{1,8}}",
            begins=r"[\w.!#$%&'*+=^`{|}~-]{1,64}@",
            inside_words=True,
        ),
        "credit_card": KnownPattern(
            r"(?<![\w-])(?:(?<!\d\.)|(?=\d{4}[ -]))"
            r"(?:(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}|6(?:011|4[4-9]\d|5\d{2}))(?:[ -]?\d{4}){3}"
            r"|3[47]\d{2}[ -]?\d{6}[ -]?\d{5})(?![\w-])",
            begins=r"[2-6]\d{3}[ -]?\d{4}",
        ),
        "ssn": KnownPattern(
            r"(?<![\w-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])", begins=r"\d{3}-\d{2}-"
        ),
        "iban": KnownPattern(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b", begins=r"[A-Z]{2}\d{2}"),
        "phone": KnownPattern(
            r"(?<![\w+])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{2,4}(?:[ .-]?\d{2,4}){1,4}"
            r"|(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4})(?!\w)",
            begins=r"\+\d|\(?\d{3}[ .)-] ?\d{3}",
        ),
        "ip_address": KnownPattern(rf"(?<![\w.])(?:{_BYTE}\.){{3}}{_BYTE}(?!\w|\.\d)", begins=r"\d{1,3}\.\d{1,3}\."),
    },
    "secrets": {
        "private_key": KnownPattern(
            r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[A-Za-z0-9+/=:,\s]*"
            r"(?:-----END [A-Z ]{0,20}PRIVATE KEY-----)?",
            begins="-----BEGIN ",
            inside_words=True,
        ),
        "jwt": KnownPattern(
            # After a hyphen, headers are shorter: in a run of "eyJ-", each begins a search.
            r"(?:(?<![\w-])eyJ[\w-]{5,16000}|(?<=-)eyJ[\w-]{5,2000})\.eyJ[\w-]{5,}\.[\w-]*",
            begins="eyJ",
        ),
        "api_key": KnownPattern(
            r"\b(?:sk-[A-Za-z0-9_-]{16,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|AIza[\w-]{35}"
            r"|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
            r"|(?:AKIA|ASIA)[0-9A-Z]{16})",
            begins=r"sk-|[rs]k_(?:live|test)_|AIza|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|A[KS]IA",
        ),
        "bearer_token": KnownPattern(r"\b[Bb]earer +[\w.~+/-]{16,}=*", begins="[Bb]earer "),
        "password": KnownPattern(
            r"\b(?i:password|passwd|api[_-]?key|secret[_-]?key)\b[\"']? ?[:=] ?[\"']?[^\s\"']{6,}[\"']?",
            begins=r"(?i:passw(?:or)?d|(?:api|secret)[_-]?key)[\"' ]?[ :=]",
        ),
    },
    "urls": {
        "url": KnownPattern(r"\b(?:https?|ftp)://[^\s<>\"'`]+|\bwww\.[^\s<>\"'`]+", begins=r"https?://|ftp://|www\."),
    },
}
