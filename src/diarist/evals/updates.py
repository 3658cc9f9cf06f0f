"""Does the newest value stand? Small conversations, written for this, in which a value is corrected later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from diarist.evals.retention import as_entry
from diarist.evals.work import STOPS
from diarist.exceptions import ModelError, RoleError
from diarist.memory.observational.roles.base import ObserverRole, ReflectorRole
from diarist.memory.observational.roles.extractive.reflector import read_lines
from diarist.messages import Message
from diarist.storage.records import Observation
from diarist.tokens import default_counter

CASES: tuple[tuple[str, str, str, str], ...] = (
    ("I live in Turku.", "We moved last week, so I live in Bergen now.", "Turku", "Bergen"),
    ("My budget for the trip is 2,500 euros.", "The budget changed: it is 3,100 euros.", "2,500", "3,100"),
    ("My flight is AZ 204.", "They rebooked me, my flight is now LH 1870.", "AZ 204", "LH 1870"),
    ("The deadline is 12 June 2026.", "Good news, the deadline is now 26 June 2026.", "12 June", "26 June"),
    ("My doctor is Dr. Okafor.", "I changed doctors and see Dr. Lindqvist now.", "Okafor", "Lindqvist"),
    ("We deploy with deploy.sh.", "Please don't use deploy.sh any more, we use ship.py now.", "deploy.sh", "ship.py"),
    ("I work at a bakery.", "I quit the bakery and work at a library since Monday.", "bakery", "library"),
    ("Call me at 09:30.", "Not 09:30 after all, call me at 11:45.", "09:30", "11:45"),
    ("My e-mail is ada@old.example.", "I have a new e-mail, ada@new.example.", "ada@old.example", "ada@new.example"),
    ("Our database runs on port 5432.", "Correction: the database runs on port 6543.", "5432", "6543"),
    ("I drive a Volvo.", "I sold the car and bought a Fiat instead.", "Volvo", "Fiat"),
    ("The meeting room is B12.", "The room changed, we meet in C07.", "B12", "C07"),
    ("My son is called Emil.", "You wrote Emil, but my son is called Elias.", "Emil", "Elias"),
    ("I take 20 mg of the tablets.", "The doctor raised it, I take 40 mg now.", "20", "40"),
    ("My favourite tea is Assam.", "I used to like Assam, but now it is Sencha.", "Assam", "Sencha"),
    ("Ich wohne in Köln.", "Ich bin umgezogen und wohne jetzt in Leipzig.", "Köln", "Leipzig"),
    ("Mein Budget ist 800 Euro.", "Neues Budget: 950 Euro.", "800", "950"),
    ("Mi hermana vive en Sevilla.", "Mi hermana se mudó y vive en Bilbao.", "Sevilla", "Bilbao"),
    ("J'habite à Lyon.", "J'ai déménagé, j'habite à Nantes.", "Lyon", "Nantes"),
    ("We have 14 guests.", "Two more said yes, so we have 16 guests.", "14", "16"),
)
"""For each case: a statement, its correction, the old value, the new value."""

_TALK = (
    ("It has been raining all day here.", "Then it is a good day to stay in and read."),
    ("Can you suggest something to cook tonight?", "A soup with lentils and carrots takes half an hour."),
    ("My neighbour plays the trumpet in the evening.", "A friendly word often helps more than a complaint."),
    ("How do I get wax out of a tablecloth?", "Put paper on the stain and iron it at low heat."),
)


@dataclass(slots=True)
class Updates:
    """The results of ``measure_updates``: the number of cases, and those in which the old value is the last one."""

    cases: int = 0
    stale: list[str] = field(default_factory=list[str])


async def measure_updates(
    observer: ObserverRole,
    reflector: ReflectorRole | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> Updates:
    """Observe each case in two batches, a week apart, and look for the values in the diary.

    The newest value stands if it is in the diary, and no line after its last one has the old value without it.

    Args:
        reflector: Condenses the diary to three quarters before it is looked at. Default: nothing condenses it.
        progress: Called with a line of text when a case begins.

    Raises:
        ModelError: As for ``measure``.
    """
    counter = default_counter()
    result = Updates(cases=len(CASES))
    for number, (first, second, old, new) in enumerate(CASES):
        if progress:
            progress(f"correction {number + 1} of {len(CASES)}")
        monday = datetime(2026, 3, 2, 9, 12, tzinfo=UTC)
        entries: list[Observation] = []
        try:
            for week, statement in enumerate((first, second)):
                talk = _talk(statement, number + 2 * week, monday + timedelta(weeks=week))
                entries.append(as_entry((await observer.observe(talk, earlier=entries)).text, week, counter))
            text = "\n".join(entry.text for entry in entries)
            if reflector:
                text = (await reflector.reflect(entries, target_tokens=counter.count(text) * 3 // 4)).text
        except STOPS:
            raise
        except (RoleError, ModelError):  # a diary that cannot be written has no new value
            text = ""
        lines = [line.text for line in read_lines(text)]
        fresh = [place for place, line in enumerate(lines) if new in line]
        if not fresh or any(old in line for line in lines[fresh[-1] + 1 :]):
            result.stale.append(f"{new} instead of {old}")
    return result


def _talk(statement: str, number: int, at: datetime) -> list[Message]:
    before, after = _TALK[number % len(_TALK)], _TALK[(number + 1) % len(_TALK)]
    made: list[Message] = []
    for minute, (asked, answered) in enumerate((before, (statement, "Noted."), after)):
        moment = at + timedelta(minutes=minute)
        made += [Message.user(asked, created_at=moment), Message.assistant(answered, created_at=moment)]
    return made
