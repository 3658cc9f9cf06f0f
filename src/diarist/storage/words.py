"""Terms of full-text search: the words of a message and of a query, by the same rules in every back end.

Text is normalized (NFKC) and case-folded. A word is an unbroken sequence of letters, digits and their marks, so
``snake_case`` is two words. Text in scripts without spaces between words (Chinese, Japanese, Korean, Thai and related
ones) is split into pieces of three characters, so a part of a sequence can be found as well; shorter sequences are
kept whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from unicodedata import normalize

from diarist.exceptions import InputError
from diarist.messages import FilePart, Json, Message, SourcePart, TextPart, ToolPart
from diarist.tokens import pieces

if TYPE_CHECKING:
    import regex

LONGEST_WORD = 64
"""Maximum length of a word, in characters; longer ones are usually encoded data."""

MAX_TERMS = 100
"""Maximum number of words and pieces in a query."""

PIECE = 3
EXCERPT_LENGTH = 160

_APART = {code: " " for code in range(128) if not chr(code).isalnum()}
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Hangul}\p{Yi}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\u30fc"
)
_SPACE = re.compile(r"\s+")


def text_terms(text: str) -> set[str]:
    """Return the terms of a text: its words, and all pieces of up to three characters where words have no spaces."""
    terms: set[str] = set()
    for piece in pieces(text):
        if piece.isascii():
            terms.update(word[:LONGEST_WORD] for word in set(_ascii_words(piece)))
            continue
        for word, unspaced in _words(piece):
            if unspaced:
                terms.update(word[at : at + size] for size in range(1, PIECE + 1) for at in range(len(word) - size + 1))
            else:
                terms.add(word)
    return terms


def check_query(query: str) -> None:
    """Raise InputError if the query is not text."""
    if not isinstance(cast(Any, query), str):
        raise InputError(f"query must be a text, not {query!r}")


def query_terms(query: str) -> list[str]:
    """Return the terms of a query, in order and without duplicates. A match contains all of them.

    Raises:
        InputError: The query is not text, has no words, or has too many.
    """
    check_query(query)
    terms: dict[str, None] = {}
    for word, unspaced in _words(query):
        if unspaced and len(word) > PIECE:
            terms.update(dict.fromkeys(word[at : at + PIECE] for at in range(len(word) - PIECE + 1)))
        else:
            terms[word] = None
    if not terms:
        raise InputError(f"a search needs at least one word of letters or digits, not {query[:100]!r}")
    if len(terms) > MAX_TERMS:
        raise InputError(f"a search takes at most {MAX_TERMS} words, not {len(terms)}: look for fewer at once")
    return list(terms)


def message_terms(message: Message) -> set[str]:
    """Return the terms of a message: text, tools' names, arguments and results, names of files, cited sources.

    Reasoning, data parts, context sent by memory, and system messages have no terms.
    """
    return set[str]().union(*map(text_terms, message_texts(message)))


def message_texts(message: Message) -> Iterator[str]:
    """Yield the searchable texts of a message, in order."""
    if message.role == "system":
        return
    for part in message.parts:
        match part:
            case TextPart():
                yield part.text
            case ToolPart():
                yield part.name
                yield from _leaves(part.args)
                if part.state != "call":
                    yield from _leaves(part.result)
            case FilePart() if part.name:
                yield part.name
            case SourcePart():
                yield part.title
                yield part.url
            case _:
                pass


def excerpt_of(texts: Iterable[str], terms: Iterable[str]) -> str:
    """Return one line of about 160 characters around the first match, or from the beginning if there is none."""
    wanted = frozenset(terms)
    lines = [_SPACE.sub(" ", text).strip() for text in texts]
    for line in lines:
        if (place := _find(line, wanted)) is not None:
            return _around(line, place)
    return _around(" ".join(lines), 0)


def _words(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each case-folded word, with True if its script has no spaces between words."""
    if text.isascii():
        for word in _ascii_words(text):
            yield word[:LONGEST_WORD], False
        return
    for match in _word_pattern().finditer(normalize("NFKC", normalize("NFKC", text).casefold())):
        unspaced = match[1] is not None
        yield (match[0] if unspaced else match[0][:LONGEST_WORD]), unspaced


@cache
def _word_pattern() -> regex.Pattern[str]:
    import regex  # slow to load, and not needed for ASCII

    return regex.compile(rf"([{_UNSPACED}]+)|[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED}]]+", regex.VERSION1)


def _ascii_words(text: str) -> list[str]:
    return text.lower().translate(_APART).split()


def _leaves(value: Json) -> Iterator[str]:
    """Yield strings, numbers and keys of a JSON value. (In the JSON text, escapes would become part of words.)"""
    if isinstance(value, dict):
        for key, item in cast(dict[Any, Json], value).items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in cast(Iterable[Json], value):
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _find(text: str, wanted: frozenset[str]) -> int | None:
    """Return the position of the query's first word in ``text``."""
    for match in _word_pattern().finditer(text):
        if match[1] is None:
            if not wanted.isdisjoint(text_terms(match[0])):
                return match.start()
        else:
            places = [place for term in wanted if (place := match[0].find(term)) >= 0]
            if places:
                return match.start() + min(places)
    return None


def _around(text: str, place: int) -> str:
    start = max(0, min(place - EXCERPT_LENGTH // 3, len(text) - EXCERPT_LENGTH))
    if start:
        start = text.find(" ", start, place) + 1 or start
    end = start + EXCERPT_LENGTH
    return f"{'…' if start else ''}{text[start:end].strip()}{'…' if end < len(text) else ''}"
