"""Memory notes: short texts inside the user's message, for facts that depend on the clock or the turn.

A note is composed once per run. It leaves out each item whose value an earlier note in the window already has. It is
stored with the message (``Message.sent``), so that later prompts repeat it byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from diarist.message_list import MessageList
from diarist.messages import Json, Message, SentBlock
from diarist.tokens import TokenCounter, default_counter

ERASURES = "erasures"
"""Key in ``made_from``: the log's number of erasures when the block was made."""
BORN = "born"
"""Key in ``made_from``: the ``born`` id of the diary. A diary that replaces a deleted one has another ``born`` id."""
ALWAYS_TRUE = {"date", ERASURES, BORN}

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
BLOCKS = "observations|memory-note|working-memory"
"""The tags of memory's blocks in the prompt of the agent's model."""
_TAGS = re.compile(rf"<(?=\s*/?\s*(?:{BLOCKS})\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NoteItem:
    """One item of a note: ``value`` is compared with earlier notes, ``lines`` is the text."""

    name: str
    value: Json
    lines: list[str]


def long_date(day: date) -> str:
    """Return a date such as ``13 March 2026``."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def asked_in(messages: MessageList, run_id: str | None = None) -> Message | None:
    """Return the user message that gets the memory note: the last input message that was not stored before this run.

    ``run_id``: the run, for processors that may stand behind the one that stores its messages.
    """
    asked = (m for m in reversed(messages.input) if m.role == "user")
    return next((m for m in asked if m.seq is None or (run_id is not None and m.run_id == run_id)), None)


def note_block(name: str, value: Json, lines: Sequence[str], counter: TokenCounter) -> SentBlock:
    """Return a block with a single item, in lines that the caller has escaped with ``quote``. Without lines it has no
    text: it only records ``value`` in ``made_from``."""
    return _block(lines, {name: value}, counter)


def joined(first: SentBlock | None, second: SentBlock | None, counter: TokenCounter) -> SentBlock | None:
    """Join two blocks into one, ``first`` first."""
    if first is None or second is None:
        return first or second
    lines = [line for block in (first, second) for line in block.text.splitlines()[1:-1]]
    return _block(lines, first.made_from | second.made_from, counter)


def keep_date(block: SentBlock) -> SentBlock | None:
    """Reduce a block to the date on which it was sent, since the rest may quote the log or other threads. This short
    line is counted by default, whatever counter the memory has.

    Returns:
        The same object if the block has only a date; None if it has no date.
    """
    if {"date"} <= block.made_from.keys() <= ALWAYS_TRUE:
        return block
    day = iso_date(str(block.made_from.get("date")))
    return None if day is None else compose([date_item(day)], default_counter())


def without_diary(block: SentBlock) -> SentBlock:
    """Return the block for a copied thread, without the ``born`` id of the original diary."""
    return replace(block, made_from={name: value for name, value in block.made_from.items() if name != BORN})


def compose(items: Sequence[NoteItem], counter: TokenCounter, marks: Mapping[str, Json] | None = None) -> SentBlock:
    """Return the note with these items; ``marks`` are recorded with it but not shown."""
    made_from = {item.name: item.value for item in items} | dict(marks or {})
    return _block([quote(line) for item in items for line in item.lines], made_from, counter)


def _block(lines: Sequence[str], made_from: dict[str, Json], counter: TokenCounter) -> SentBlock:
    text = "\n".join(["<memory-note>", *lines, "</memory-note>"]) if lines else ""
    return SentBlock(text=text, tokens=counter.count(text), made_from=made_from)


def date_item(day: date) -> NoteItem:
    """Return the item with today's date."""
    text = f"Today is {WEEKDAYS[day.weekday()]}, {long_date(day)}."
    return NoteItem("date", day.isoformat(), [text])


def quote(text: str) -> str:
    """Escape the tags of memory's blocks in ``text``, so that untrusted text cannot begin or end one."""
    return _TAGS.sub("&lt;", text)


def iso_date(text: str) -> date | None:
    """Parse a date in the form ``YYYY-MM-DD``; None if the text is not one."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
