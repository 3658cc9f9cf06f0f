"""Compute the calendar dates of phrases such as "next Friday", "last summer" or "two weeks ago".

English only. Ambiguous phrases get no date. "Next Friday" is the Friday of the week after the message (weeks begin on
Monday), "last Friday" the latest one before it. Seasons are the northern ones.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

from diarist.memory.memory_note import MONTHS, WEEKDAYS

_COUNTED = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {"a": 1, "an": 1} | {word: value for value, word in enumerate(_COUNTED, start=1)}
_NEAR = {"tomorrow": 1, "day after tomorrow": 2, "yesterday": -1, "last night": -1, "day before yesterday": -2}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_MONTH = "|".join([*MONTHS, *(f"{name[:3]}" for name in MONTHS if name != "May"), "Sept"])
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_WEEKDAY = "|".join(WEEKDAYS)
_NUMBER = r"\d{1,3}|" + "|".join(_NUMBERS)
_NO_YEAR = r"(?!(?:,|\s+of)?\s*(?:\d{4}|\d{1,2}:\d\d))"
_UNIT = "day|weekend|week|month|year"

_PHRASE = re.compile(
    rf"""\b(?:
      (?P<month1>{_MONTH})\.?\s(?:the\s)?(?P<day1>{_DAY})(?:st|nd|rd|th)?\b{_NO_YEAR}
    | (?P<day2>{_DAY})(?:st|nd|rd|th)?\s(?:of\s)?(?P<month2>{_MONTH})\b{_NO_YEAR}
    | (?<!like\s)(?P<near>day\safter\stomorrow|day\sbefore\syesterday|tomorrow|yesterday|last\snight)
    | in\s(?:about\s)?(?P<in>{_NUMBER})\s(?P<in_unit>{_UNIT})s?(?:\stime)?\b(?!\s(?:of|or|to|and)\b)
    | (?P<ago>{_NUMBER})\s(?P<ago_unit>{_UNIT})s?\s(?P<way>ago|from\snow)
    | for\s(?:about\s|over\s|almost\s|nearly\s|the\s(?:last|past)\s)?(?P<for>{_NUMBER})\s(?P<for_unit>month|year)s?
    | (?P<which>next|last|this\spast|this\scoming|this|coming)\s
      (?P<period>{_WEEKDAY}|weekend|week|month|year|{"|".join(_SEASONS)}|Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)
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
_CLAUSE_END = re.compile(r"[,;:()–—]")
_PERFECT = re.compile(r"\b(?:have|has|been)\b|['’]ve\b", re.IGNORECASE)
_FUTURE = re.compile(
    r"\b(?:will|going to|gonna|planning to|plans? to|due|deadline|must|needs? to|have to|has to|want to|let['’]s|"
    r"remind|next|upcoming|(?:i|we) (?:fly|leave|meet|travel|arrive|start|move|go|have|see|present))\b"
    r"|['’](?:ll|d like|m \w+ing|re \w+ing)\b|\b(?:am|are) \w+ing\b",
    re.IGNORECASE,
)
_PAST = re.compile(
    r"\b(?:was|were|did|didn['’]t|had|went|got|saw|met|came|took|made|said|told|bought|found|left|"
    r"gave|ran|began|felt|held|wrote|read|rang|sent|spent|thought|won|lost|(?!(?:need|feed|speed|seed|indeed|hundred)\b)\w{2,}ed)\b",
    re.IGNORECASE,
)


def annotate_dates(sentence: str, said: date | None) -> str:
    """Add ``(meaning 13 March 2026)`` after each phrase with a date that can be computed.

    ``said`` is the day of the message in the configured time zone; if it is None, nothing is added. "Today" gets no
    date, since each note is under the heading of its day.
    """
    if said is None:
        return sentence
    out: list[str] = []
    end = 0
    told: set[str] = set()
    for phrase in _PHRASE.finditer(sentence):
        try:
            meaning = _meaning(phrase, said)
        except (ValueError, OverflowError):  # 31 April, or a year beyond the calendar
            continue
        if meaning and meaning not in told:
            told.add(meaning)
            out += [sentence[end : phrase.end()], f" (meaning {meaning})"]
            end = phrase.end()
    return "".join(out) + sentence[end:] if out else sentence


def has_date(sentence: str) -> bool:
    """Return whether a sentence names a day, as a date or relative to another day."""
    return _PHRASE.search(sentence) is not None


def _meaning(phrase: re.Match[str], said: date) -> str | None:
    before = _CLAUSE_END.split(phrase.string[: phrase.start()])[-1]
    after = _CLAUSE_END.split(phrase.string[phrase.end() :], maxsplit=1)[0]
    clause = f"{before}{phrase[0]}{after}"
    # 1 if the clause looks ahead, -1 if it looks back, 0 if neither or both
    tense = bool(_FUTURE.search(clause)) - bool(_PAST.search(clause))
    if month := phrase["month1"] or phrase["month2"]:
        return None if not month[0].isupper() else _day_of_month(phrase, said, tense)
    if near := phrase["near"]:
        return _write(said + timedelta(days=_NEAR[" ".join(near.lower().split())]))
    if number := phrase["in"] or phrase["ago"] or phrase["for"]:
        count = _NUMBERS.get(number.lower()) or int(number)
        if phrase["for"]:
            return f"since {_later(said, -count, phrase['for_unit'])}" if _PERFECT.search(before) else None
        if phrase["in"] and tense < 0:  # "in three days" tells how long something took
            return None
        return _later(said, -count if phrase["way"] == "ago" else count, phrase["in_unit"] or phrase["ago_unit"])
    if phrase["which"]:
        return _period(phrase["which"].lower(), phrase["period"].lower(), said, tense)
    weekday, on = WEEKDAYS.index(phrase["weekday"].title()), (phrase["on"] or "").lower()
    recurring = _RECURRING.search(phrase.string[max(0, phrase.start() - 12) : phrase.start()])
    if recurring or weekday == said.weekday() or not phrase["weekday"][0].isupper():
        return None
    if tense < 0 or on == "since":
        return _write(said - timedelta(days=(said.weekday() - weekday) % 7))
    if tense > 0 or on in ("by", "until", "till"):
        return _write(said + timedelta(days=(weekday - said.weekday()) % 7))
    return None


def _day_of_month(phrase: re.Match[str], said: date, tense: int) -> str | None:
    """Return the next such day if the clause looks ahead, or if that day is at most four months away. If the clause
    looks back, return the last such day, if it is at most two months ago. None otherwise, and for days that recur every
    year, such as birthdays."""
    if _YEARLY.search(phrase.string):
        return None
    name, day = phrase["month1"] or phrase["month2"], int(phrase["day1"] or phrase["day2"])
    month = next(i for i, full in enumerate(MONTHS, start=1) if full[:3] == name[:3].title())
    near = [date(year, month, day) for year in (said.year - 1, said.year, said.year + 1)]
    if tense < 0:
        behind = next(each for each in reversed(near) if each <= said)
        return _write(behind) if said - behind <= timedelta(days=62) else None
    ahead = next(each for each in near if each >= said)
    return _write(ahead) if tense > 0 or ahead - said <= timedelta(days=124) else None


def _period(which: str, period: str, said: date, tense: int) -> str | None:
    step = {"next": 1, "last": -1}.get(which, 0)
    monday = said - timedelta(days=said.weekday())
    if start := _SEASONS.get(period):
        return _season(period, start, said, step)
    if period == "week":
        return f"the week of {_write(monday + timedelta(weeks=step))}" if step else None
    if period in ("month", "year"):
        return _later(said, step, period) if step or which == "this" else None
    weekday = 5 if period == "weekend" else next(n for n, day in enumerate(WEEKDAYS) if day[:3].lower() == period[:3])
    behind = (said.weekday() - weekday) % 7 or 7
    if which in ("last", "this past") or (which == "this" and tense < 0 and behind < 7):
        day = said - timedelta(days=behind)
    elif which == "next" or period == "weekend":
        day = monday + timedelta(days=weekday, weeks=step)
    else:
        day = said + timedelta(days=(weekday - said.weekday()) % 7)
    return f"the weekend of {_write(day)}" if period == "weekend" else _write(day)


def _season(name: str, start: int, said: date, step: int) -> str | None:
    """Return the last season that is over, this year's, or the next year's; None for a next one that is near."""
    year = said.year
    if step < 0 and said.month < start + 3:
        year -= 2 if said.month <= start - 10 else 1
    elif step > 0:
        if said.month < start:
            return None
        year += 1
    return f"{name} {year}/{year + 1}" if name == "winter" else f"{name} {year}"


def _later(said: date, count: int, unit: str) -> str:
    """Return the date ``count`` units later: a day for days and weeks, a month for months, a year for years."""
    match unit.lower():
        case "day" | "week":
            return _write(said + timedelta(days=count * (7 if unit.lower() == "week" else 1)))
        case "weekend":
            return f"the weekend of {_write(said + timedelta(days=5 - said.weekday(), weeks=count))}"
        case "month":
            year, month = divmod(said.year * 12 + said.month - 1 + count, 12)
            return f"{MONTHS[month]} {date(year, month + 1, 1).year}"
        case _:
            return str(date(said.year + count, 1, 1).year)


def _write(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
