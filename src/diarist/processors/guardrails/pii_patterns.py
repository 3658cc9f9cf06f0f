"""Find personal data by its form: patterns find candidates, and checks rule out wrong ones.

The checks are Luhn's check digit (ISO/IEC 7812) for cards, the checksum modulo 97 (ISO 13616) and the length by
country for IBANs, and Python's own parser for IP addresses.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import ip_address

from diarist.processors.patterns import PRESETS, KnownPattern, PatternSet
from diarist.processors.streaming_redaction import Span

_PII, _SECRETS = PRESETS["pii"], PRESETS["secrets"]

_DATE = (
    r"(?:\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\d{1,2}(?:st|nd|rd|th|\.)? [A-Za-zäé]{3,10},? \d{4}"
    r"|[A-Za-z]{3,10} \d{1,2}(?:st|nd|rd|th)?,? \d{4})"
)

_BIRTH = ("born", "born on", "date of birth", "birth date", "birthdate", "birthday", "dob", "d.o.b.", "geboren am")
_AFTER_BIRTH = "|".join(f"(?<={re.escape(word)}{gap})" for word in _BIRTH for gap in (" ", ": ", ":", " is "))

_CARD = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7]|35)\d{14}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|6\d{15,18}"
)
"""First digits of card numbers: Visa, Mastercard and JCB, American Express, Diners Club, Discover and UnionPay."""

_CANDIDATES: dict[str, tuple[KnownPattern, ...]] = {
    "email": (_PII["email"],),
    "phone": (
        _PII["phone"],
        KnownPattern(
            r"(?<![\w+])(?<!\d[ -])\(?00?[1-9]\d{0,4}\)?(?: ?[/-] ?| )\d{2,8}(?:[ -]?\d{2,6}){0,3}(?!\w)",
            begins=r"\(?00?[1-9]",
        ),
    ),
    # Candidates are as short as the longest number. Longer ones would hold, and search again and again, all of a text
    # that has only digits.
    "credit-card": (
        KnownPattern(
            r"(?<!\w)(?:(?<!\d\.)|(?=\d{4}[ -]))[2-6](?:[ -]?\d){12,18}(?!\w)",
            begins=r"[2-6](?:[ -]?\d){12}",
            overlapping=True,
        ),
    ),
    "iban": (
        KnownPattern(r"(?i)\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b", begins=r"(?i:[A-Z]{2}\d{2})", overlapping=True),
    ),
    "ip-address": (
        _PII["ip_address"],
        KnownPattern(
            r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:\.\d{1,3}){0,3}(?![\w:])",
            begins=r"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:",
        ),
    ),
    "ssn": (_PII["ssn"],),
    "api-key": tuple(_SECRETS[name] for name in ("private_key", "jwt", "api_key", "bearer_token")),
    "url-credentials": (
        KnownPattern(  # "[" cannot begin a login, but begins its replacement, a hash
            r"(?<=://)(?!\[)[^\s/:@]{0,256}:[^\s/@]{1,256}@", begins=r"(?<=://)[^\s/:@]{0,256}:", inside_words=True
        ),
    ),
    "date-of-birth": (
        KnownPattern(rf"(?i)(?:{_AFTER_BIRTH}){_DATE}(?!\d)", begins=rf"(?i:(?:{_AFTER_BIRTH})[\dA-Z])"),
    ),
}

DETECTION_TYPES = tuple(_CANDIDATES)
DEFAULT_TYPES = tuple(name for name in DETECTION_TYPES if name != "date-of-birth")

_IBANS = """
AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR21 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20
EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20
LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29
PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 TL23 TN24 TR26 UA29 VA22 VG24 XK20
"""
_IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBANS.split()}
"""Characters of an IBAN by country, from the registry of ISO 13616."""

# A stream continues its search at a refined match, so a search that begins there must find the match again.
Refine = Callable[[str], Iterable[tuple[int, int]]]


class PIIPatterns:
    """Finds personal data of some types; pass ``look`` to a ``Redactor``."""

    def __init__(self, types: Sequence[str]) -> None:
        self._patterns = PatternSet(
            {f"{name}/{index}": source for name in types for index, source in enumerate(_CANDIDATES[name])}
        )

    def look(self, text: str, start: int = 0, final: bool = True) -> tuple[Sequence[Span], int]:
        """Return the candidates that pass their check, cut to the data itself, and how many characters at the end may
        still become part of a candidate."""
        candidates, held = self._patterns.look(text, start, final)
        spans: list[Span] = []
        for candidate in candidates:
            name, begin = candidate.label.partition("/")[0], candidate.start
            if (refine := _REFINE.get(name)) is None:
                spans.append(Span(begin, candidate.end, name))
            else:
                found = refine(text[begin : candidate.end])
                spans += [Span(begin + first, begin + last, name) for first, last in found]
        # The end of a URL's login and the host after it look like an e-mail address.
        logins = sorted(span.end for span in spans if span.label == "url-credentials")
        return [
            span
            for span in spans
            if span.label != "email" or bisect_right(logins, span.start) == bisect_left(logins, span.end)
        ], held


def luhn(digits: str) -> bool:
    """Return True if a card number's check digit is right."""
    total = 0
    for index, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + index % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def iban_checksum(iban: str) -> bool:
    """Return True if an IBAN without spaces has the checksum 1 modulo 97."""
    moved = iban[4:] + iban[:4]
    return int("".join(str(int(char, 36)) for char in moved)) % 97 == 1


def _cards(text: str) -> Iterator[tuple[int, int]]:
    """Yield every card number that begins with the candidate and consists of whole digit groups."""
    for end in (group.end() for group in re.finditer(r"\d+", text) if group.end() >= 13):
        digits = re.sub("[ -]", "", text[:end])
        if _CARD.fullmatch(digits) and luhn(digits):
            yield 0, end


def _ibans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the IBAN that begins with the candidate, without the capitals after it."""
    length = _IBAN_LENGTHS.get(text[:2].upper())
    places = [index for index, char in enumerate(text) if char != " "]
    if length is None or len(places) < length:
        return
    end = places[length - 1] + 1
    whole_word = end == len(text) or not text[end].isalnum()
    if whole_word and iban_checksum(text[:end].replace(" ", "").upper()):
        yield 0, end


def _addresses(text: str) -> Iterator[tuple[int, int]]:
    shown = text.rstrip(".")
    try:
        address = ip_address(shown)
    except ValueError:
        return
    if not address.is_unspecified and re.search(r"\d", shown):  # a::b is more likely a name in a program
        yield 0, len(shown)


_REFINE: dict[str, Refine] = {
    "credit-card": _cards,
    "iban": _ibans,
    "ip-address": _addresses,
    "phone": lambda text: [(0, len(text))] if 7 <= sum(map(str.isdigit, text)) <= 17 else [],
    "url-credentials": lambda text: [(0, len(text) - 1)],
}
