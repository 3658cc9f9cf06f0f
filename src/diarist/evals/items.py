"""The items of a data set: histories of dated sessions, and questions about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from diarist.messages import Json, Message
from diarist.tools import Tool

Asks = Literal["answer", "notes", "context"]
"""The judged text: a reader's answer, the notes made from one session, or the context alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session of a history.

    Attributes:
        id: Unique within its history.
        messages: Messages of users and assistants, with ``created_at`` if the data set has times. ``metadata["name"]``
            is the speaker's name, if there is one.
        date: The date in the data set's own words, for prompts.
    """

    id: str
    messages: tuple[Message, ...]
    date: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a history, or another thing to judge.

    Attributes:
        id: Unique within the data set.
        type: The category that averages are made for.
        text: The question.
        answer: The reference answer, or a rubric.
        part: The part of a data set whose parts are scored apart; empty if it has one.
        date: When the question is asked, in the data set's own words.
        asked_at: The same as a time, if it is known.
        after: Number of sessions that precede the question.
        session: For ``asks="notes"``, the session.
        evidence: Ids or texts of the evidence, as the data set gives them.
        data: Further fields that the data set's metric needs.
    """

    id: str
    type: str
    text: str
    answer: str
    part: str = ""
    date: str = ""
    asked_at: datetime | None = None
    after: int
    asks: Asks = "answer"
    session: str = ""
    evidence: tuple[str, ...] = ()
    data: dict[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Sessions in the order of their dates, and the questions about them."""

    id: str
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context that a system gives the reader for a question.

    Attributes:
        text: The text that stands in the place of the history in the reader's prompt.
        tools: Tools that the reader may call.
    """

    text: str
    tools: Sequence[Tool] = ()


def session_text(session: Session) -> str:
    """Return a session as plain text: one paragraph per message, after the speaker's name."""
    return "\n\n".join(f"{speaker_of(message)}: {message.text.strip()}" for message in session.messages)


def speaker_of(message: Message) -> str:
    """Return the speaker's name, else the role."""
    return str(message.metadata.get("name") or message.role)


def spread(count: int, wanted: int | None) -> list[int]:
    """Return ``wanted`` indices below ``count``, spread from 0 on; all of them for None or a larger number.

    A larger ``wanted`` adds indices and drops none: they are chosen in the order of their reversed bits, so the first
    halve the whole, the next the halves, and so on.
    """
    bits = max(1, (count - 1).bit_length())
    order = sorted(range(count), key=lambda index: f"{index:0{bits}b}"[::-1])
    return sorted(order[:wanted])
