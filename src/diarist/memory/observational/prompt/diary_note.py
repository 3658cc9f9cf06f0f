"""The memory note of observational memory: dates, plans that have passed, the current task, news of other threads."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from operator import attrgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo

from diarist.byte_cache import cached
from diarist.memory.memory_note import ALWAYS_TRUE, BORN, ERASURES, MONTHS, NoteItem, compose, date_item, iso_date
from diarist.memory.observational.prompt.tails import Tail
from diarist.memory.observational.roles.transcript import in_zone, name_pause, shorten
from diarist.messages import Json, SentBlock
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter

MAX_DAYS = 6
MAX_PASSED = 5
_LINE_LENGTH = 160
_HEADING = re.compile(r"Date:\s*(\d{4}-\d{2}-\d{2})\b")
_MEANING = re.compile(
    r"\(meaning\s+(?:on\s+)?(?:"
    r"(?P<iso>\d{4}-\d{2}-\d{2})|(?P<day>\d{1,2})(?:st|nd|rd|th)?\s+(?P<month>[A-Z][a-z]+)\s+(?P<year>\d{4})|"
    r"(?P<month2>[A-Z][a-z]+)\s+(?P<day2>\d{1,2})(?:st|nd|rd|th)?,?\s+(?P<year2>\d{4}))\)"
)


def compose_diary_note(
    log: ObservationLog,
    *,
    now: datetime,
    timezone: str,
    earlier: Sequence[SentBlock],
    counter: TokenCounter,
    since: datetime | None = None,
    tails: Sequence[Tail] = (),
) -> SentBlock | None:
    """Compose the memory note for a user message, as of ``now``; None if there is nothing new to say.

    It has today's date, the ages of the newest days in the log (at most 6), the newest plans with a day that has passed
    (at most 5), the current task, the suggested response, and ``tails``. Once a task or response is over that a note in
    the window has, it says "none".

    Args:
        earlier: The notes still in the window, oldest first. Items that have the same value in them are left out.
        since: Time of the previous message, if a pause of ten minutes or more should be named.
        tails: New messages of other threads that the log does not cover yet.
    """
    today = in_zone(now, ZoneInfo(timezone)).date()
    said: dict[str, Json] = {}
    for block in earlier:
        said |= block.made_from
    items = [item for item in _items(log, today, tails) if said.get(item.name, "") != item.value]
    if since and (pause := name_pause(since, now)):
        items.append(NoteItem("pause", now.isoformat(), [f"This message came {pause}."]))
    if not items:
        return None
    marks: dict[str, Json] = {ERASURES: log.erasures, BORN: log.born}
    return compose(items, counter, {name: value for name, value in marks.items() if value})


def may_quote_forgotten(block: SentBlock, log: ObservationLog) -> bool:
    """Return True if something was forgotten since the block was made, so that it may quote the forgotten text. This
    happens to blocks of live runs: their rows are not visible, so ``forget`` cannot clean them.
    """
    marks = block.made_from.get(ERASURES, 0), block.made_from.get(BORN, log.born)
    return marks != (log.erasures, log.born) and not block.made_from.keys() <= ALWAYS_TRUE


def distance(day: date, today: date) -> str:
    """Return a day's distance from today: ``yesterday``, ``5 days ago``, ``3 weeks ago``, ``2 years ago``."""
    days = (today - day).days
    if days <= 1:
        return "yesterday" if days == 1 else "today"
    if days < 14:
        return f"{days} days ago"
    if days < 60:
        return f"{days // 7} weeks ago"
    months = (today.year - day.year) * 12 + today.month - day.month - (today.day < day.day)
    return f"{months} months ago" if months < 24 else f"{months // 12} years ago"


def _items(log: ObservationLog, today: date, tails: Sequence[Tail]) -> Iterator[NoteItem]:
    yield date_item(today)
    days, plans = set[date](), list[_Plan]()  # before today, the newest ones of each entry
    for entry in log.active:
        dated = _dated(entry.text)
        days.update(dated.days[: bisect_left(dated.days, today)][-MAX_DAYS:])
        plans += dated.plans[: bisect_left(dated.plans, today, key=_day_of)][-MAX_PASSED:]
    if days:
        distances = [f"{day.isoformat()} was {distance(day, today)}" for day in sorted(days)[-MAX_DAYS:]]
        yield NoteItem("days", distances, [f"In your diary: {'; '.join(distances)}."])
    if plans:
        passed = [plan.line for plan in sorted(plans, key=_day_of)[-MAX_PASSED:]]
        heading = "The day of these lines of your diary has passed since they were written:"
        yield NoteItem("passed", passed, [heading, *(f"- {line}" for line in passed)])
    if (task := log.hints.current_task) is not None:
        yield NoteItem("current_task", task, [f"Current task: {task or 'none'}"])
    if (response := log.hints.suggested_response) is not None:
        yield NoteItem("suggested_response", response, [f"Suggested response: {response or 'none'}"])
    for tail in tails:
        yield NoteItem(f"thread {tail.label}", list(tail.lines), [tail.heading, *(f"- {line}" for line in tail.lines)])


class _Plan(NamedTuple):
    """A line about a day later than its heading's."""

    day: date
    line: str


class _Dated(NamedTuple):
    """The days of an entry's headings, and its plans, both sorted by day."""

    days: tuple[date, ...]
    plans: tuple[_Plan, ...]


_day_of = attrgetter("day")


@cached(2_000_000)
def _dated(text: str) -> _Dated:
    """Parse the dates in an entry's text. Cached, since each entry is read in every run and rarely changes."""
    plans: list[_Plan] = []
    headings = list(_HEADING.finditer(text))
    places = [heading.start() for heading in headings]
    for match in _MEANING.finditer(text):
        start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.start())
        end = end if end >= 0 else len(text)
        last = bisect_left(places, end) - 1
        said = iso_date(headings[last][1]) if last >= 0 else None
        day = _meant(match)
        if day is not None and said is not None and said < day:
            line = text[start:end].strip().lstrip("-* ")
            plans.append(_Plan(day, shorten(line, _LINE_LENGTH)))
    days = {day for heading in headings if (day := iso_date(heading[1])) is not None}
    return _Dated(tuple(sorted(days)), tuple(sorted(plans, key=_day_of)))


def _meant(match: re.Match[str]) -> date | None:
    if match["iso"]:
        return iso_date(match["iso"])
    try:
        month = MONTHS.index(match["month"] or match["month2"]) + 1
        return date(int(match["year"] or match["year2"]), month, int(match["day"] or match["day2"]))
    except ValueError:  # also for a word that is not a month
        return None
