"""Compute the calendar dates of phrases such as "next Friday", "last summer" or "two weeks ago".

English only. Ambiguous phrases get no date. "Next Friday" is the Friday of the week after the message (weeks begin on
Monday), "last Friday" the latest one before it. Seasons are the northern ones."""

from __future__ import annotations

import re
from datetime import date, timedelta

from diarist.memory.memory_note import MONTHS, WEEKDAYS, long_date

_COUNTED = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {"a": 1, "an": 1} | {word: value for value, word in enumerate(_COUNTED, start=1)}
_NEAR = {"day after tomorrow": 2, "tomorrow": 1, "day before yesterday": -2, "yesterday": -1, "last night": -1}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}  # the month in which each begins
_COUNT = rf"\d{{1,3}}|{'|'.join(_NUMBERS)}"
_UNIT = "day|weekend|week|month|year"
_WEEKDAY, _MONTH = "|".join(WEEKDAYS), "|".join([*MONTHS, *(name[:3] for name in MONTHS), "Sept"])
_DAY = r"(?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"

_PHRASE = re.compile(
    rf"""\b(?:
      (?<!like\s)(?P<near>{"|".join(map(re.escape, _NEAR))})
    | (?P<day>(?:{_MONTH})\.?\s(?:the\s)?{_DAY}|{_DAY}\s(?:of\s)?(?:{_MONTH}))
      \b(?!(?:,|\s+of)?\s*(?:\d{{4}}|\d{{1,2}}:\d\d))
    | (?:(?P<lead>in|for)\s(?:about\s|(?<=for\s)(?:over|almost|nearly|the\s(?:last|past))\s)?)?
      (?P<count>{_COUNT})\s(?P<unit>{_UNIT})s?
      (?:(?P<way>\sago|\sfrom\snow)|(?!\s(?:of|or|to)\b|\sand\s(?:{_COUNT})\s(?:{_UNIT})))
    | (?:(?P<on>for|by|until|till|since)\s)?(?:(?P<which>next|last|this\spast|this\scoming|this|coming)\s
      (?P<period>{_WEEKDAY}|weekend|week|month|year|{"|".join(_SEASONS)}|Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)
    | (?P<weekday>{_WEEKDAY})(?!s\b|,?\s(?:the\s)?(?:\d|{_MONTH})|\s?(?:to|through|and|or|–|-)\s?(?:{_WEEKDAY})))
    )\b(?!\s?\(meaning)""",
    re.IGNORECASE | re.VERBOSE,
)
_YEARLY = re.compile(r"\b(?:birthday|anniversary|born|every|each|annual|yearly)\b", re.IGNORECASE)
_RECURRING = re.compile(
    r"(?i)(?:\b(?:every|each|most|some|any|a|per|the|of|good|black|cyber|to|through|and|or)|[-–&/])\s?(?:on\s)?$"
)
_CLAUSE_END = re.compile(r"[,;:()–—]|\bbecause\b")
_PERFECT = re.compile(r"\b(?:have|has|been)\b|['’]ve\b", re.IGNORECASE)
_FUTURE = re.compile(
    r"(?i)\b(?:will|going to|gonna|plan(?:s|ning)? (?:to|for)|forecast|(?:excited|wait) for|due|deadline|must|needs?|"
    r"wants?|ha(?:ve|s) to|let['’]s|remind|next|upcoming|postponed|rescheduled|extended|(?:i|we) (?:fly|leave|meet|"
    r"travel|arrive|start|move|go|have|see|present))\b|['’](?:ll|d like|(?:m|re) \w+ing|s (?:\w+ly )?\w+ed for)\b|"
    r"\b(?:am|are) \w+ing\b"
)
_PAST = re.compile(
    r"(?i)\b(?:was|were|did|didn['’]t|had|went|got|saw|met|came|took|made|said|told|bought|found|left|gave|ran|began|felt|"
    r"held|wrote|read|rang|sent|spent|thought|won|lost|(?!(?:need|feed|speed|seed|indeed|hundred|excited)\b)\w{2,}ed)\b"
)
_PRESENT = re.compile(r"(?i)(?:\b(?:is|are|am|be|gets?)(?:n['’]t)?|['’](?:m|re))\s(?:(?:\w+ly|already|not|so)\s)?\w+")
_PLAN = re.compile(  # after these words, a day told in the past may be ahead
    r"(?i)\b(?:said|told|asked|supposed|hoped|wanted|invit\w+|promised|agreed|decided|arranged|offered|booked|planned|"
    r"scheduled|reserv\w+|registered|enrolled|signed up|tickets|would|(?:book|schedule|set) (?:a|the|it|my|our))\b|"
    r"['’](?:d|s (?:\w+ly )?(?:\w+ed|held))\b|\b(?:appointment|to|(?:is|are) (?:now )?(?:set|\w+ed))\s$"
)


def annotate_dates(sentence: str, said: date | None) -> str:
    """Add ``(meaning 13 March 2026)`` after each phrase with a date that can be computed.

    ``said`` is the day of the message in the configured time zone; if it is None, nothing is added. "Today" gets no
    date, since each note is under the heading of its day."""
    if said is None:
        return sentence
    told: set[str | None] = {None}

    def annotate(phrase: re.Match[str]) -> str:
        try:
            meaning = _meaning(phrase, said)
        except (LookupError, ValueError, OverflowError):  # 31 April, a year beyond the calendar, "laſt night"
            meaning = None
        if meaning in told:
            return phrase[0]
        told.add(meaning)
        return f"{phrase[0]} (meaning {meaning})"

    return _PHRASE.sub(annotate, sentence)


def has_date(sentence: str) -> bool:
    """Return whether a sentence names a day, as a date or relative to another day; "a day" alone does not."""
    return any(found["lead"] or found["way"] or not found["count"] for found in _PHRASE.finditer(sentence))


def _meaning(phrase: re.Match[str], said: date) -> str | None:
    before = _CLAUSE_END.split(phrase.string[: phrase.start()])[-1]
    after = _CLAUSE_END.split(phrase.string[phrase.end() :], maxsplit=1)[0]
    tail = re.split(r"(?i)\b(?:is|are)\b(?:\s\w+ed\b)?", before)[-1]  # "I heard it is on Friday" may look ahead
    clause = before + phrase[0] + after
    past, told, over = (bool(_PAST.search(_PRESENT.sub("", part))) for part in (clause, tail, after))
    # 1 if the clause looks ahead, -1 if it looks back ("is booked" does not), 0 if neither or both
    tense = bool(_FUTURE.search(clause)) - past
    if near := phrase["near"]:
        return long_date(said + timedelta(days=_NEAR[near.lower()]))
    if phrase["day"]:
        return _day_of_month(phrase, said, tense)
    if number := phrase["count"]:
        count, unit = _NUMBERS.get(number.lower()) or int(number), phrase["unit"].lower()
        how = (phrase["way"] or phrase["lead"] or "").lower().strip()
        if how == "for":
            perfect = _PERFECT.search(before) and unit in ("month", "year")
            return f"since {_later(said, -count, unit)}" if perfect else None
        if not how or (how == "in" and tense < 0):  # "in three days" tells how long something took
            return None
        return _later(said, -count if how == "ago" else count, unit)
    on, day, plan = (phrase["on"] or "").lower(), phrase["weekday"], bool(_PLAN.search(before))
    if day and (not day[0].isupper() or day.title() == WEEKDAYS[said.weekday()] or _RECURRING.search(before)):
        return None
    back = on == "since" or (tense < 0 and not on and not plan and (told or tail == before))
    sure = (on and plan) if tense < 0 else tense or not day or (plan if on == "for" else on)
    which, period = (phrase["which"] or "this").lower(), (phrase["period"] or day).lower()
    meaning = _period(which, period, said, -1 if back else 1)
    return meaning if back or (sure and not over) or meaning == _period(which, period, said, -1) else None


def _day_of_month(phrase: re.Match[str], said: date, tense: int) -> str | None:
    """Return the last such day if the clause looks back, else the next one. None if that is more than four months away,
    unless the clause looks ahead, and for days that recur every year, such as birthdays."""
    name = re.findall(rf"(?i:{_MONTH})", phrase["day"])[0]
    if not name[0].isupper() or _YEARLY.search(phrase.string):
        return None
    month = 1 + [full[:3] for full in MONTHS].index(name[:3].title())
    days = [date(year, month, int(re.sub(r"\D", "", phrase["day"]))) for year in range(said.year - 1, said.year + 2)]
    day = max(day for day in days if day <= said) if tense < 0 else min(day for day in days if day >= said)
    return long_date(day) if tense > 0 or abs(day - said) <= timedelta(days=124) else None


def _period(which: str, period: str, said: date, tense: int) -> str | None:
    """Return the date of a weekday, week, season and so on; ``which`` is a word such as "last", "this" or "next"."""
    step = {"next": 1, "last": -1}.get(which, 0)
    if start := _SEASONS.get(period):
        over = (said.year * 12 + said.month - start - 3) // 12  # when the latest one that is over began
        if step > 0 and said.month < start:  # the next one, or the one after it
            return None
        year = over if step < 0 else said.year + 1 if step > 0 else min(over + 1, said.year)
        return f"{period} {year}/{year + 1}" if period == "winter" else f"{period} {year}"
    if period in ("month", "year"):
        return _later(said, step, period) if step or which == "this" else None
    monday = said - timedelta(days=said.weekday())
    if period == "week":
        return f"the week of {long_date(monday + timedelta(weeks=step))}" if step else None
    weekday = 5 if period == "weekend" else [day[:3].lower() for day in WEEKDAYS].index(period[:3])
    behind = (said.weekday() - weekday) % 7 or 7
    if which in ("last", "this past") or (which == "this" and tense < 0 and behind < 7):
        day = said - timedelta(days=behind)
    elif which == "next" or period == "weekend":
        day = monday + timedelta(days=weekday, weeks=step)
    else:
        day = said + timedelta(days=7 - behind)
    return f"the weekend of {long_date(day)}" if period == "weekend" else long_date(day)


def _later(said: date, count: int, unit: str) -> str:
    """Return the date ``count`` units later: a day for days and weeks, a month for months, a year for years."""
    if unit in ("day", "week"):
        return long_date(said + timedelta(days=count * (7 if unit == "week" else 1)))
    if unit == "weekend":
        return f"the weekend of {long_date(said + timedelta(days=5 - said.weekday(), weeks=count))}"
    year, month = divmod(said.year * 12 + said.month - 1 + count * (12 if unit == "year" else 1), 12)
    year = date(year, 1, 1).year  # raises ValueError beyond the calendar
    return f"{MONTHS[month]} {year}" if unit == "month" else str(year)
