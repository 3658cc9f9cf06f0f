"""Compute the calendar dates of phrases such as "next Friday", "last summer" or "two weeks ago". English only.

"Next Friday" is the Friday of the week after the message (weeks begin on Monday), "last Friday" the latest one before
it. Seasons are the northern ones. Ambiguous phrases such as "on Friday" get no date.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

from diarist.memory.memory_note import MONTHS, WEEKDAYS

_NEAR = {"day after tomorrow": 2, "tomorrow": 1, "yesterday": -1, "last night": -1, "day before yesterday": -2}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
"""The month in which each season begins."""
_COUNTED = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {"a": 1, "an": 1} | {word: value for value, word in enumerate(_COUNTED, start=1)}
_PHRASE = re.compile(
    rf"""\b(?:
      (?<!like\s)(?P<near>{"|".join(map(re.escape, _NEAR))})
    | (?P<lead>(?:will|going\sto|due|['’]ll)\b[^,;:]{{0,60}}?\bin\s(?:about\s)?
              |(?:have|has|been|['’]ve)\b[^,;:]{{0,60}}?\bfor\s(?:about\s|over\s|almost\s|the\s(?:last|past)\s)?)?
      (?P<count>\d{{1,3}}|{"|".join(_NUMBERS)})\s(?P<unit>day|weekend|week|month|year)s?(?P<way>\sago|\sfrom\snow)?
    | (?P<which>next|last)\s
      (?P<period>weekend|week|month|year|{"|".join([*_SEASONS, *WEEKDAYS, *(day[:3] for day in WEEKDAYS)])})
    )\b(?!\s?\(meaning)""",
    re.IGNORECASE | re.VERBOSE,
)


def annotate_dates(sentence: str, said: date | None) -> str:
    """Add ``(meaning 13 March 2026)`` after each phrase with a date that can be computed.

    ``said`` is the day of the message in the configured time zone; if it is None, nothing is added. "Today" gets no
    date, since each note is under the heading of its day.
    """

    def annotate(phrase: re.Match[str]) -> str:
        try:
            meaning = said and _meaning(phrase, said)
        except (ValueError, OverflowError):  # a year beyond the calendar
            meaning = None
        return f"{phrase[0]} (meaning {meaning})" if meaning else phrase[0]

    return _PHRASE.sub(annotate, sentence)


def has_date(sentence: str) -> bool:
    """Return whether a sentence names a time relative to its day."""
    return _PHRASE.search(sentence) is not None


def _meaning(phrase: re.Match[str], said: date) -> str | None:
    if near := phrase["near"]:
        return _write(said + timedelta(days=_NEAR[near.lower()]))
    if phrase["which"]:
        return _period(phrase["period"].lower(), said, 1 if phrase["which"].lower() == "next" else -1)
    lead, way, number = (phrase["lead"] or "").lower(), (phrase["way"] or "").lower(), phrase["count"].lower()
    count, unit = _NUMBERS.get(number) or int(number), phrase["unit"].lower()
    if way:
        return _later(said, -count if way == " ago" else count, unit)
    if " for " in lead:
        return f"since {_later(said, -count, unit)}" if unit in ("month", "year") else None
    return _later(said, count, unit) if lead else None


def _period(period: str, said: date, step: int) -> str | None:
    """Return the next (``step`` 1) or last (-1) week, month, year, weekend, weekday or season."""
    if period in ("month", "year"):
        return _later(said, step, period)
    if period in _SEASONS:  # the last one that is over; the next one is ambiguous
        year = (said.year * 12 + said.month - _SEASONS[period] - 3) // 12
        return None if step > 0 else f"{period} {year}/{year + 1}" if period == "winter" else f"{period} {year}"
    monday = said - timedelta(days=said.weekday())
    if period == "week":
        return f"the week of {_write(monday + timedelta(weeks=step))}"
    weekday = 5 if period == "weekend" else next(n for n, day in enumerate(WEEKDAYS) if day.lower().startswith(period))
    behind = (said.weekday() - weekday) % 7 or 7
    day = monday + timedelta(days=weekday, weeks=1) if step > 0 else said - timedelta(days=behind)
    return f"the weekend of {_write(day)}" if period == "weekend" else _write(day)


def _later(said: date, count: int, unit: str) -> str:
    """Return the date ``count`` units later: a day for days and weeks, a month for months, a year for years."""
    if unit in ("day", "week"):
        return _write(said + timedelta(days=count * (7 if unit == "week" else 1)))
    if unit == "weekend":
        return f"the weekend of {_write(said + timedelta(days=5 - said.weekday(), weeks=count))}"
    year, month = divmod(said.year * 12 + said.month - 1 + count * (12 if unit == "year" else 1), 12)
    year = date(year, 1, 1).year  # raises ValueError beyond the calendar
    return f"{MONTHS[month]} {year}" if unit == "month" else str(year)


def _write(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
