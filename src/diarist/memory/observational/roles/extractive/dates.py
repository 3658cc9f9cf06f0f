"""Compute the calendar dates of phrases such as "next Friday" or "two weeks ago".

English only. Ambiguous phrases get no date. "Next Friday" is the Friday of the week after the message (weeks begin on
Monday), "last Friday" the latest one before it.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBERS = {"a": 1, "an": 1} | {
    word: value
    for value, word in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), start=1
    )
}
_MONTH = "|".join([*_MONTHS, *(f"{name[:3]}" for name in _MONTHS if name != "May"), "Sept"])
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_WEEKDAY = "|".join(_WEEKDAYS)
_NUMBER = r"\d{1,3}|" + "|".join(_NUMBERS)
_NO_YEAR = r"(?!(?:,|\s+of)?\s*(?:\d{4}|\d{1,2}:\d\d))"
_UNIT = "day|week|month|year"

_PHRASE = re.compile(
    rf"""\b(?:
      (?P<month1>{_MONTH})\.?\s(?:the\s)?(?P<day1>{_DAY})(?:st|nd|rd|th)?\b{_NO_YEAR}
    | (?P<day2>{_DAY})(?:st|nd|rd|th)?\s(?:of\s)?(?P<month2>{_MONTH})\b{_NO_YEAR}
    | (?P<near>day\safter\stomorrow|day\sbefore\syesterday|tomorrow|yesterday|last\snight)
    | in\s(?:about\s)?(?P<in>{_NUMBER})\s(?P<in_unit>{_UNIT})s?(?:\stime)?\b(?!\s(?:of|or|to|and)\b)
    | (?P<ago>{_NUMBER})\s(?P<ago_unit>{_UNIT})s?\s(?P<way>ago|from\snow)
    | (?P<which>next|last|this\spast|this\scoming|this|coming)\s
      (?P<period>{_WEEKDAY}|weekend|week|month|year)
    | (?:(?P<on>on|by|until|till|before|since)\s)?(?P<weekday>{_WEEKDAY})
      (?!s\b|,?\s(?:the\s)?(?:\d|{_MONTH})|\s?(?:to|through|and|or|–|-)\s?(?:{_WEEKDAY}))
    )\b(?!\s?\(meaning)""",
    re.IGNORECASE | re.VERBOSE,
)
_YEARLY = re.compile(r"\b(?:birthday|anniversary|born|every|each|annual|yearly)\b", re.IGNORECASE)
_RECURRING = re.compile(
    r"(?:\b(?:every|each|most|some|any|a|per|the|of|good|black|cyber)|\b(?:to|through|and|or)|[-–&/])\s?$",
    re.IGNORECASE,
)
_FIGURATIVE = re.compile(r"\blike (?:it was )?(?:only |just )?$", re.IGNORECASE)
_FUTURE = re.compile(
    r"\b(?:will|going to|gonna|planning to|plans? to|due|deadline|must|needs? to|have to|has to|want to|let['’]s|"
    r"remind|next|upcoming|(?:i|we) (?:fly|leave|meet|travel|arrive|start|move|go|have|see|present))\b"
    r"|['’](?:ll|m \w+ing|re \w+ing)\b|\b(?:am|are) \w+ing\b",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"[,;:()–—]")
_OWN_PLAN = re.compile(
    r"\b(?:i|we)(?:['’]ll|['’]m|['’]re|['’]d like| will| am| are| want| plan| fly| leave| meet| travel| arrive| start|"
    r" move| go| see| present)\b|\blet['’]s\b|\bremind\b",
    re.IGNORECASE,
)
_PAST = re.compile(
    r"\b(?:was|were|did|didn['’]t|had|went|got|saw|met|came|took|made|said|told|bought|found|left|"
    r"gave|ran|began|felt|held|wrote|read|rang|sent|spent|thought|won|lost|(?!(?:need|feed|speed|seed|indeed|hundred)\b)\w{2,}ed)\b",
    re.IGNORECASE,
)


def annotate_dates(sentence: str, said: date | None) -> str:
    """Add ``(meaning 13 March 2026)`` after each phrase whose date can be computed.

    ``said`` is the day of the message in the user's time zone; without it nothing is computed. "Today" gets no date,
    since each note is under its date.
    """
    if said is None:
        return sentence
    out: list[str] = []
    end = 0
    told: set[str] = set()
    for phrase in _PHRASE.finditer(sentence):
        meaning = _meaning(phrase, said, _Tense(phrase))
        if meaning and meaning not in told:
            told.add(meaning)
            out += [sentence[end : phrase.end()], f" (meaning {meaning})"]
            end = phrase.end()
    return "".join(out) + sentence[end:] if out else sentence


def has_date(sentence: str) -> bool:
    """Return whether a sentence names a day, as a date or relative to another day."""
    return _PHRASE.search(sentence) is not None


class _Tense:
    """The tense of the clause around a phrase."""

    def __init__(self, phrase: re.Match[str]) -> None:
        before = _CLAUSE_END.split(phrase.string[: phrase.start()])[-1]
        after = _CLAUSE_END.split(phrase.string[phrase.end() :], maxsplit=1)[0]
        self.clause = f"{before}{phrase[0]}{after}"

    @property
    def past(self) -> bool:
        return bool(_PAST.search(self.clause)) and not _FUTURE.search(self.clause)

    @property
    def planned(self) -> bool:
        return bool(_OWN_PLAN.search(self.clause)) and not _PAST.search(self.clause)

    @property
    def future(self) -> bool:
        return bool(_FUTURE.search(self.clause)) and not _PAST.search(self.clause)


def _meaning(phrase: re.Match[str], said: date, tense: _Tense) -> str | None:
    try:
        if month := phrase["month1"] or phrase["month2"]:
            return _day_of_month(month, int(phrase["day1"] or phrase["day2"]), said, tense)
        if phrase["near"]:
            if _FIGURATIVE.search(phrase.string[max(0, phrase.start() - 20) : phrase.start()]):
                return None
            return _write(said + timedelta(days=_near(phrase["near"])))
        if phrase["in"]:
            return None if tense.past else _offset(phrase["in"], phrase["in_unit"], said, 1)
        if phrase["ago"]:
            sign = -1 if phrase["way"].lower() == "ago" else 1
            return _offset(phrase["ago"], phrase["ago_unit"], said, sign)
        if phrase["which"]:
            return _period(phrase["which"].lower(), phrase["period"].lower(), said, tense)
        return _bare_weekday(phrase, said, tense)
    except (ValueError, OverflowError):  # 31 April, or a year beyond the calendar
        return None


def _day_of_month(name: str, day: int, said: date, tense: _Tense) -> str | None:
    """Return the next such day if the clause looks ahead, or the last one if it looks back by at most two months;
    None for days that recur every year, such as birthdays."""
    if not name[0].isupper() or _YEARLY.search(tense.clause):
        return None
    month = next(i for i, full in enumerate(_MONTHS, start=1) if full[:3] == name[:3].title())
    near = [date(year, month, day) for year in (said.year - 1, said.year, said.year + 1)]
    ahead = next(each for each in near if each >= said)
    behind = next(each for each in reversed(near) if each <= said)
    if tense.past:
        return _write(behind) if said - behind <= timedelta(days=62) else None
    if tense.future or ahead - said <= timedelta(days=124):
        return _write(ahead)
    return None


def _near(phrase: str) -> int:
    words = " ".join(phrase.lower().split())
    return {"tomorrow": 1, "day after tomorrow": 2, "day before yesterday": -2}.get(words, -1)


def _offset(number: str, unit: str, said: date, sign: int) -> str:
    n = sign * (_NUMBERS.get(number.lower()) or int(number))
    match unit.lower():
        case "day":
            return _write(said + timedelta(days=n))
        case "week":
            return _write(said + timedelta(weeks=n))
        case "month":
            return _write_month(said, n)
        case _:
            return str(date(said.year + n, 1, 1).year)


def _period(which: str, period: str, said: date, tense: _Tense) -> str | None:
    step = {"next": 1, "last": -1}.get(which, 0)
    monday = said - timedelta(days=said.weekday())
    match period:
        case "week":
            return f"the week of {_write(monday + timedelta(weeks=step))}" if step else None
        case "month":
            return _write_month(said, step) if step else None
        case "year":
            return str(said.year + step) if step else None
        case "weekend":
            if which == "last" or which == "this past" or (which == "this" and tense.past):
                saturday = said - timedelta(days=(said.weekday() - 5) % 7 or 7)
            else:
                saturday = monday + timedelta(days=5, weeks=step)
            return f"the weekend of {_write(saturday)}"
        case _:
            return _write(_weekday(which, _WEEKDAYS.index(period.title()), said, tense))


def _weekday(which: str, weekday: int, said: date, tense: _Tense) -> date:
    ahead = (weekday - said.weekday()) % 7
    behind = (said.weekday() - weekday) % 7 or 7
    if which in ("last", "this past") or (which == "this" and ahead and tense.past):
        return said - timedelta(days=behind)
    if which == "next":
        return said + timedelta(days=7 - said.weekday() + weekday)
    return said + timedelta(days=ahead)


def _bare_weekday(phrase: re.Match[str], said: date, tense: _Tense) -> str | None:
    """Return the day of "on Friday" by the tense of its clause; None if it was said on a Friday."""
    weekday = _WEEKDAYS.index(phrase["weekday"].title())
    prefix = (phrase["on"] or "").lower()
    recurring = _RECURRING.search(phrase.string[max(0, phrase.start() - 12) : phrase.start()])
    if recurring or weekday == said.weekday() or not phrase["weekday"][0].isupper():
        return None
    if tense.past or prefix == "since":
        return _write(said - timedelta(days=(said.weekday() - weekday) % 7))
    if tense.planned or prefix in ("by", "until", "till"):
        return _write(said + timedelta(days=(weekday - said.weekday()) % 7))
    return None


def _write(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _write_month(said: date, months: int) -> str:
    index = said.year * 12 + said.month - 1 + months
    first = date(index // 12, index % 12 + 1, 1)
    return f"{_MONTHS[first.month - 1]} {first.year}"
