"""Reads existing conversations from files into messages.

The format is detected from the content, never from the file's name:

=============  ================================================================================
``openai``     Chat-completion messages: a JSON array, ``{"messages": [...]}``, or JSON lines with
               one message or one such object per line. Anthropic's content blocks are read too.
``claude-code``  Session files of Claude Code (JSON lines).
``plain``      ``{role, content, created_at}`` objects, as JSON lines or as an array.
``locomo``     The LoCoMo benchmark's JSON.
``tau-bench``  tau-bench's list of runs.
=============  ================================================================================
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import date as Date
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from diarist.exceptions import InputError
from diarist.memory.conversations import claude_code, locomo, openai, plain, tau_bench
from diarist.memory.conversations.building import Builder
from diarist.memory.conversations.loading import Source, load
from diarist.messages import Message

__all__ = ["FORMATS", "Conversation", "read_conversation", "read_conversations", "thread_id_of"]


class _Reader(Protocol):
    """The functions of a format's module."""

    def detect(self, source: Source) -> bool:
        """Return True if the start of the file looks like this format."""
        ...

    def split(self, source: Source) -> list[Any]:
        """Return the conversations of the file, not parsed yet."""
        ...

    def build(self, found: Any, builder: Builder) -> str:
        """Add one conversation to the builder; return its title, or an empty text."""
        ...


# The most specific format first: the openai reader would also accept plain messages.
_READERS: dict[str, _Reader] = {
    "claude-code": claude_code,
    "locomo": locomo,
    "tau-bench": tau_bench,
    "plain": plain,
    "openai": openai,
}

FORMATS: tuple[str, ...] = tuple(_READERS)
"""Valid values of ``format=``."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One conversation of a file.

    Attributes:
        format: One of ``FORMATS``.
        title: Title in the file, else the file's name.
        messages: Messages in the file's order; a tool call and its result are one part.
        number: Number of this conversation in the file, counted from 1.
        conversations_in_file: Number of conversations in the file.
        notes: One sentence, with a count, for each kind of content that was left out, replaced or not understood.
    """

    format: str
    title: str
    messages: list[Message]
    number: int = 1
    conversations_in_file: int = 1
    notes: list[str] = field(default_factory=list[str])


def read_conversation(
    path: Path | str,
    *,
    select: int | None = None,
    date: Date | datetime | None = None,
    timezone: str = "UTC",
    format: str | None = None,
) -> Conversation:
    """Read one conversation of a file completely.

    Message ids are derived from the content: the same message at the same place always has the same id. So importing a
    file again, or after it has grown, adds only new messages.

    Args:
        path: A UTF-8 file.
        select: Number of the conversation, counted from 1. Default: the first, with a note if there are more.
        date: Date of a conversation without any time stamps; a day without a time means 00:00. If not given, the
            messages have ``created_at=None``.
        timezone: IANA time zone of ``date`` and of time stamps without a zone.
        format: One of ``FORMATS``. Default: detected.

    Raises:
        InputError: The file cannot be read as a conversation; names the path, the place and the remedy.
    """
    file = _File(Path(path), format=format, timezone=timezone)
    chat = file.read(_index(select, len(file.found), file.path), date)
    if select is None and len(file.found) > 1:
        chat.notes.insert(0, f"the file holds {len(file.found)} conversations; this is the first")
    return chat


def read_conversations(
    path: Path | str,
    *,
    select: int | None = None,
    date: Date | datetime | None = None,
    timezone: str = "UTC",
    format: str | None = None,
) -> list[Conversation]:
    """Read all conversations of a file, or the selected one; otherwise as ``read_conversation``."""
    file = _File(Path(path), format=format, timezone=timezone)
    first = _index(select, len(file.found), file.path)
    indices = range(len(file.found)) if select is None else [first]
    return [file.read(index, date) for index in indices]


def thread_id_of(path: Path, conversation: Conversation) -> str:
    """Return a thread id made of the file's name, the conversation's number and a digest of the whole path.

    The digest keeps files of the same name in different folders apart.
    """
    number = f"-{conversation.number}" if conversation.conversations_in_file > 1 else ""
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{path.stem}{number}-{digest[:8]}"


class _File:
    """A loaded file with its format and its conversations, not parsed yet."""

    def __init__(self, path: Path, *, format: str | None, timezone: str) -> None:
        self._zone = _zone(timezone)
        if format is not None and format not in _READERS:
            raise InputError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
        source = load(path)
        self.path = source.path
        try:
            self._format = format or _detect(source)
            self._reader = _READERS[self._format]
            self.found = self._reader.split(source)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error

    def read(self, index: int, date: Date | datetime | None) -> Conversation:
        builder = Builder(zone=self._zone, scope=self._format)
        try:
            title = self._reader.build(self.found[index], builder)
            builder.finish()
            if not builder.messages:
                raise InputError(f"conversation {index + 1} holds no messages")
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error
        _set_dates(builder, date, self._zone)
        return Conversation(
            format=self._format,
            title=title or self.path.stem,
            messages=builder.messages,
            number=index + 1,
            conversations_in_file=len(self.found),
            notes=builder.notes,
        )


def _detect(source: Source) -> str:
    for name, reader in _READERS.items():
        if reader.detect(source):
            return name
    raise InputError(f"not a conversation in a known format ({source.describe()}); known: {', '.join(FORMATS)}")


def _index(select: int | None, count: int, path: Path) -> int:
    if count == 0:
        raise InputError(f"{path}: holds no conversation: the list is empty")
    if select is None:
        return 0
    if not 1 <= select <= count:
        holds = "1 conversation" if count == 1 else f"{count} conversations"
        raise InputError(f"{path}: holds {holds}; select one from 1 to {count}, not {select}")
    return select - 1


def _set_dates(builder: Builder, date: Date | datetime | None, zone: tzinfo) -> None:
    dated = sum(message.created_at is not None for message in builder.messages)
    if date is not None and dated:
        builder.note("the messages have time stamps of their own; the given date is not used")
    elif date is not None:
        moment = _moment(date, zone)
        for message in builder.messages:
            message.created_at = moment
    elif dated < len(builder.messages):
        count = len(builder.messages) - dated
        builder.note("no message has a time stamp" if not dated else f"undated messages: {count}")


def _moment(date: Date | datetime, zone: tzinfo) -> datetime:
    if not isinstance(date, datetime):
        date = datetime(date.year, date.month, date.day)
    return date if date.tzinfo is not None else date.replace(tzinfo=zone)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise InputError(f"unknown time zone {name!r}; use a name such as Europe/Rome") from error
