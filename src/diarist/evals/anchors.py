"""Find the load-bearing pieces of a text, its anchors: numbers, dates, times, addresses, paths, code, quotes, names.

Anchors are normalised, so that other ways of writing agree: ``2,5k`` and ``2500``, ``June 12``, ``12.06.`` and
``2026-06-12``. Where a text can be read in two ways (``1,234``; ``03/04/2026``) the anchor has both readings. Months
are known in the languages of ``_MONTHS``, number words in English; the rest does not depend on the language, except
that names are the words with a capital inside a sentence, so in German all nouns are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

AnchorKind = Literal["number", "date", "time", "email", "url", "path", "code", "identifier", "quote", "name"]

KINDS: tuple[AnchorKind, ...] = (
    *("number", "date", "time", "email", "url", "path", "code", "identifier", "quote", "name"),
)

_MONTHS = (
    "january januar janvier enero gennaio janeiro januari jan",
    "february februar février fevrier febrero febbraio fevereiro februari feb",
    "march märz maerz mars marzo março marco maart mar",
    "april avril abril aprile apr",
    "may mai mayo maggio maio mei",
    "june juni juin junio giugno junho jun",
    "july juli juillet julio luglio julho jul",
    "august août aout agosto augustus aug",
    "september septembre septiembre settembre setembro sept sep",
    "october oktober octobre octubre ottobre outubro oct okt",
    "november novembre noviembre novembro nov",
    "december dezember décembre decembre diciembre dicembre dezembro dec dez",
)
_MONTH_NUMBERS = {name: number for number, names in enumerate(_MONTHS, start=1) for name in names.split()}
_COUNTED = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBER_WORDS = {word: str(number) for number, word in enumerate(_COUNTED, start=2)}
_SCALES = {"k": 3, "thousand": 3, "tausend": 3, "mille": 3, "万": 4, "m": 6, "mio": 6, "million": 6, "millionen": 6} | {
    "millions": 6,
    "millones": 6,
    "億": 8,
    "亿": 8,
    "bn": 9,
    "mrd": 9,
    "billion": 9,
    "milliarden": 9,
}

_MONTH = "|".join(sorted(_MONTH_NUMBERS, key=len, reverse=True))
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_YEAR = r"(?:1[5-9]|20|21)\d\d"
_PIECE = re.compile(
    rf"""
      (?P<url>\b(?:https?|ftp|wss?)://[^\s<>"'`\])]{{1,2000}}|\bwww\.[^\s<>"'`\])]{{3,500}})
    | (?P<email>\b[\w.+-]{{1,64}}@[\w-]{{1,63}}(?:\.[\w-]{{1,63}}){{1,5}})
    | `(?P<code>[^`\s][^`\n]{{0,300}})`
    | (?<!\S)(?:\$|>>>)\ (?P<command>\S[^\n]{{1,300}})
    | (?P<path>(?<![\w/.])(?:[A-Za-z]:\\|~/|\.{{1,2}}/|/)[\w.@%+~-]{{1,100}}(?:[/\\][\w.@%+~-]{{1,100}}){{0,30}}/?
        |(?<![\w/.@+-])[\w.@+-]{{1,100}}(?:/[\w.@+-]{{1,100}}){{0,30}}/[\w@+-]{{1,100}}\.[a-z]\w{{0,7}}(?!\w)
        |(?<![\w/.-])[\w-]{{2,60}}(?:\.[\w-]{{1,50}}){{0,3}}\.[a-z][a-z0-9]{{1,4}}(?![\w.@])(?=\W|$))
    | (?P<iso>(?<!\d)(?P<y1>{_YEAR})[-/.](?P<m1>0?[1-9]|1[0-2])[-/.](?P<d1>{_DAY}))(?!\d)
    | (?P<cjk>(?:(?P<y5>\d{{4}})\s?[年년]\s?)?(?P<m5>1[0-2]|0?[1-9])\s?[月월](?:\s?(?P<d5>{_DAY})\s?[日일])?)
    | (?P<dotted>(?<![\d.])(?P<d2>{_DAY})\.\s?(?P<m2>0?[1-9]|1[0-2])\.(?:\s?(?P<y2>{_YEAR}|\d\d)(?!\d))?)(?!\.?\d)
    | (?P<slashed>(?<![\d/])(?P<a3>{_DAY})/(?P<b3>{_DAY})/(?P<y3>{_YEAR}|\d\d)(?![\d/]))
    | (?P<month>\b(?P<m4>(?i:{_MONTH}))\b\.?(?:\s(?:the\s)?(?P<d4>{_DAY})(?:st|nd|rd|th)?\b(?!:\d))?
        (?:,?\s(?:of\s)?(?P<y4>{_YEAR})\b)?)
    | (?P<daymonth>(?<![\d.,])(?P<d6>{_DAY})(?:st|nd|rd|th|\.|º|er)?\s(?:of\s|de\s)?(?P<m6>(?i:{_MONTH}))\b\.?
        (?:,?\s(?:of\s|de\s)?(?P<y6>{_YEAR})\b)?)
    | (?P<time>(?<![\d:])(?P<hour>[01]?\d|2[0-4])
        (?:[:h](?P<minute>[0-5]\d)(?::[0-5]\d)?(?![\d:])(?:\s?(?P<half>[apAP])\.?[mM]\b\.?)?
        |\s?(?P<half2>[apAP])\.?[mM]\b\.?|\s?(?:Uhr\b|時|시)(?:\s?(?P<minute2>[0-5]\d)[分분]?)?))
    | (?P<phone>(?<!\w)\+\d[\d\ ()/-]{{5,20}}\d)
    | (?P<identifier>\b[0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}\b
        |\bv?\d+(?:\.\d+){{2,5}}(?:[-+]\w{{1,20}})?\b
        |[\#@](?=[\w-]{{2,40}}\b)\w[\w-]{{1,39}}
        |\b[A-Z]{{1,3}}[\ -]\d{{2,8}}\b
        |(?<![\w-])[^\W\d]\w{{0,60}}(?:_\w{{1,60}}){{1,6}}
        |\b(?=[^\W_]{{0,60}}\d)(?=[^\W_]{{0,60}}[A-Za-z])(?!\d{{1,9}}(?:st|nd|rd|th|[a-zA-Z]{{1,3}})\b)[A-Za-z0-9]{{3,60}}
            (?:-[A-Za-z0-9]{{1,60}}){{0,5}}\b
        |\b[a-z]{{1,30}}[A-Z][A-Za-z0-9]{{0,60}}\b|\b[A-Z][a-z]{{1,30}}[A-Z][A-Za-z0-9]{{1,60}}\b)
    | (?P<number>(?<![A-Za-z_\d.])
        (?:\d{{1,3}}(?:(?P<group>[.,'’\ \u202f])\d{{3}}(?!\d))(?:(?P=group)\d{{3}}(?!\d)){{0,5}}|\d{{1,30}})
        (?:[.,]\d{{1,12}}(?![.,]?\d))?)
        (?:(?P<tight>(?:k|K|M|bn)(?![^\W\d_])|[万億亿])
        |\ (?P<scale>(?i:thousand|tausend|mille|mio|millions?|millionen|millones|bn|mrd|billion|milliarden))\b)?
    """,
    re.VERBOSE,
)
_QUOTE = re.compile(r"""(?:(?<!\w)"(?=\w)|[“„«「『])([^"“”„«»「」『』\n]{2,120})(?:(?<=[\w.,!?…)])"(?!\w)|[”“»」』])""")
_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_STARTS = frozenset('.!?…:;\n•*-–—"“”„«»(>。！？')
_SPACE = re.compile(r"\s+")
_LONGEST = 200_000


@dataclass(frozen=True, slots=True)
class Anchor:
    """One load-bearing piece.

    Attributes:
        kind: Its kind.
        text: The piece as it is written.
        readings: Normalised forms, one or more. Numbers are decimal, times ``HH:MM``. Dates are ISO 8601:
            ``2026-06-12``, ``--06-12`` without a year, ``2026-06`` without a day. Names, quotes and code are in lower
            case. Identifiers have neither blanks nor hyphens.
    """

    kind: AnchorKind
    text: str
    readings: tuple[str, ...]


def find_anchors(text: str) -> list[Anchor]:
    """Return the anchors of a text, each once, in order of kind and place. Reads the first 200,000 characters."""
    text = unicodedata.normalize("NFKC", text[:_LONGEST])
    found: dict[tuple[str, tuple[str, ...]], Anchor] = {}
    pieces = list(_PIECE.finditer(text))
    for anchor in (*_pieces(pieces), *_quotes(text), *_names(text, pieces)):
        found.setdefault((anchor.kind, anchor.readings), anchor)
    return sorted(found.values(), key=lambda anchor: KINDS.index(anchor.kind))


class Sources:
    """Texts in which anchors can be looked up: ``anchor in Sources(texts)``.

    An anchor is found if one of its readings is there. A date without a year is found in one with any year, and a date
    with a year in one without. Names are found as words in any case.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        whole = "\n\n".join(text[:_LONGEST] for text in texts)  # a blank line, so that no anchor spans two texts
        normal = unicodedata.normalize("NFKC", whole)
        self._flat = _flat(normal)
        self._tight = _tight(normal)
        self._words = {word for found in _WORD.findall(normal) for word in _name_forms(found)}
        self._values: set[str] = {_NUMBER_WORDS[word] for word in self._words & _NUMBER_WORDS.keys()}
        self._days: set[str] = set()
        for anchor in _pieces(_PIECE.finditer(normal)):
            self._values.update(anchor.readings)
            if anchor.kind == "date":
                for reading in anchor.readings:
                    year, month, day = _date_parts(reading)
                    self._days.add(f"{month}-{day}")
                    self._values.update({str(int(part)) for part in (year, day) if part})
                    self._values.update({f"{year}-{month}"} if year else ())

    def __contains__(self, anchor: Anchor) -> bool:
        match anchor.kind:
            case "name":
                return any(form in self._words for form in anchor.readings)
            case "date":
                return any(self._has_date(reading) for reading in anchor.readings)
            case "identifier":
                return any(reading in self._tight for reading in anchor.readings)
            case "number" | "time":
                return any(reading in self._values for reading in anchor.readings)
            case _:
                return any(reading in self._flat for reading in anchor.readings)

    def _has_date(self, reading: str) -> bool:
        if reading in self._values:
            return True
        year, month, day = _date_parts(reading)
        if not day:
            return not year and any(known.startswith(f"{month}-") for known in self._days)
        return f"--{month}-{day}" in self._values if year else f"{month}-{day}" in self._days


def _pieces(pieces: Iterable[re.Match[str]]) -> Iterator[Anchor]:
    for found in pieces:
        written = found[0].strip()
        match found.lastgroup:
            case "url" | "email" | "path":
                clean = written.rstrip(".,;:!?")
                yield Anchor(found.lastgroup, clean, (_flat(clean),))
            case "code" | "command":
                yield Anchor("code", found[found.lastgroup].strip(), (_flat(found[found.lastgroup]),))
            case "iso" | "dotted" | "slashed" | "cjk" | "month" | "daymonth":
                if readings := tuple(_dates(found)):
                    yield Anchor("date", written, readings)
            case "time":
                yield Anchor("time", written, _times(found))
            case "phone" | "identifier":
                yield Anchor("identifier", written, (_tight(written),))
            case _:
                if found["number"]:
                    yield Anchor("number", written, _numbers(found))


def _dates(found: re.Match[str]) -> Iterator[str]:
    kind = found.lastgroup
    if kind == "slashed":
        for month, day in dict.fromkeys([(found["a3"], found["b3"]), (found["b3"], found["a3"])]):
            if int(month) <= 12:
                yield _iso(found["y3"], int(month), day)
        return
    number = {"iso": 1, "dotted": 2, "cjk": 5, "month": 4, "daymonth": 6}[kind or ""]
    year, month, day = (found[f"{part}{number}"] for part in "ymd")
    if number in (4, 6):
        # "may" and "mar" are words, too: a month alone counts only with a year, and only if it has a capital letter
        if not month[0].isupper() and not (day and number == 6):
            return
        if not day and not year:
            return
        month = _MONTH_NUMBERS[month.lower()]
    yield _iso(year, int(month), day)


def _iso(year: str | None, month: int, day: str | None) -> str:
    full = f"20{year}" if year and len(year) == 2 else year or "-"
    return f"{full}-{month:02}" + (f"-{int(day):02}" if day else "")


def _date_parts(reading: str) -> tuple[str, str, str]:
    """Return year, month and day of a reading; an empty string for what it lacks."""
    year, rest = ("", reading[2:]) if reading.startswith("--") else reading.split("-", 1)
    month, _, day = rest.partition("-")
    return year, month, day


def _times(found: re.Match[str]) -> tuple[str, ...]:
    hour, minute = int(found["hour"]), found["minute"] or found["minute2"] or "00"
    if half := found["half"] or found["half2"]:
        return (f"{hour % 12 + (12 if half.lower() == 'p' else 0):02}:{minute}",)
    other = f"{(hour + 12) % 24:02}:{minute}"
    return (
        (f"{hour % 24:02}:{minute}", other) if 0 < hour <= 12 and found["hour"][0] != "0" else (f"{hour:02}:{minute}",)
    )


def _numbers(found: re.Match[str]) -> tuple[str, ...]:
    digits, group = found["number"], found["group"]
    scale = _SCALES.get((found["tight"] or found["scale"] or "").lower(), 0)
    readings: list[str] = []
    if group:
        readings.append(digits.replace(group, "").replace(",", "."))
        if group in ".," and digits.count(group) == 1 and not set(digits) & (set(".,") - {group}):
            readings.append(digits.replace(",", "."))
    else:
        readings.append(digits.replace(",", "."))
    return tuple(dict.fromkeys(_plain(Decimal(each).scaleb(scale)) for each in readings))


def _plain(value: Decimal) -> str:
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).lstrip("0") or "0"


def _quotes(text: str) -> Iterator[Anchor]:
    for found in _QUOTE.finditer(text):
        if any(map(str.isalnum, found[1])):
            yield Anchor("quote", found[1].strip(), (_flat(found[1]).strip(".,;:!?… "),))


def _names(text: str, pieces: Iterable[re.Match[str]]) -> Iterator[Anchor]:
    taken = bytearray(len(text))
    for piece in pieces:
        taken[piece.start() : piece.end()] = b"\1" * (piece.end() - piece.start())
    for found in _WORD.finditer(text):
        word = found[0]
        if taken[found.start()]:
            continue
        if len(word) < 2 or not word[0].isupper() or word[1:2] in "'’":
            continue
        before = text[max(0, found.start() - 3) : found.start()].rstrip(" ")
        if before and before[-1] not in _STARTS:
            yield Anchor("name", word, _name_forms(word))


def _name_forms(word: str) -> tuple[str, ...]:
    """Return a word in lower case, and without an English genitive."""
    low = word.casefold().replace("’", "'")
    return (low.removesuffix("'s"), low) if low.endswith("'s") else (low,)


def _flat(text: str) -> str:
    return _SPACE.sub(" ", text.casefold().replace("’", "'")).strip()


def _tight(text: str) -> str:
    return re.sub(r"[\s-]+", "", text.casefold())


__all__ = ["KINDS", "Anchor", "AnchorKind", "Sources", "find_anchors"]
