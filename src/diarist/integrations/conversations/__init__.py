"""Reads existing conversations from files into messages.

The format is detected from the content, never from the file's name:

=============  ================================================================================
``openai``     Chat-completion messages: a JSON array, ``{"messages": [...]}``, or JSON lines with
               one message or one such object per line. Anthropic's content blocks and the AI SDK's
               parts are read too.
``responses``  Items of OpenAI's Responses API.
``chatgpt``    ChatGPT's data export.
``claude-ai``  Claude.ai's data export.
``claude-code``  Session files of Claude Code (JSON lines).
``codex``      Session files of OpenAI's Codex CLI (JSON lines).
``gemini-cli``  Sessions of Gemini CLI.
``langchain``  Messages of LangChain and LangGraph.
``pydantic-ai``  Messages of Pydantic AI.
``plain``      ``{role, content, created_at}`` objects, as JSON lines or as an array.
``locomo``     The LoCoMo benchmark's JSON.
``tau-bench``  tau-bench's list of runs.
=============  ================================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date as Date
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

from diarist.exceptions import InputError
from diarist.integrations.conversations import (
    chatgpt,
    claude_ai,
    claude_code,
    codex,
    gemini_cli,
    langchain,
    locomo,
    openai,
    pydantic_ai,
    responses,
)
from diarist.integrations.conversations.building import Builder
from diarist.integrations.conversations.loading import JsonFile, JsonItem, fields_of, load
from diarist.messages import Message

__all__ = ["Conversation", "read_conversation", "read_conversations"]


@dataclass(frozen=True, slots=True)
class _Format:
    """The functions of a format.

    Attributes:
        detect: Returns True if the start of the file looks like this format.
        build: Adds one conversation to the builder; returns its title, or an empty text.
        split: Returns the conversations of the file, not parsed yet. Default: all items are one conversation.
    """

    detect: Callable[[JsonFile], bool]
    build: Callable[[Any, Builder], str]
    split: Callable[[JsonFile], list[Any]] = lambda file: [file.items] if file.items else []


def _each(file: JsonFile) -> list[JsonItem]:
    """Split a file in which each item is a conversation."""
    return file.items


# The most specific format first: the openai reader would also accept plain messages.
_FORMATS: dict[str, _Format] = {
    "claude-code": _Format(claude_code.detect, claude_code.build),
    "codex": _Format(codex.detect, codex.build),
    "gemini-cli": _Format(gemini_cli.detect, gemini_cli.build),
    "chatgpt": _Format(chatgpt.detect, chatgpt.build, _each),
    "claude-ai": _Format(claude_ai.detect, claude_ai.build, _each),
    "pydantic-ai": _Format(pydantic_ai.detect, pydantic_ai.build),
    "langchain": _Format(langchain.detect, langchain.build, langchain.split),
    "locomo": _Format(locomo.detect, locomo.build, _each),
    "tau-bench": _Format(openai.detect_tau_bench, openai.build_tau_bench, _each),
    "responses": _Format(responses.detect, responses.build, responses.split),
    "plain": _Format(openai.detect_plain, openai.build, openai.split),
    "openai": _Format(openai.detect, openai.build, openai.split),
}

FORMATS: tuple[str, ...] = tuple(_FORMATS)
"""Valid values of ``format=``."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One conversation of a file.

    Attributes:
        format: One of ``FORMATS``.
        title: Title in the file, else the file's name.
        other_branches: Ids of the messages on branches that the file does not show.
        id: The conversation's own id in the file, such as a session's; empty if it has none.
        messages: Messages in the file's order; a tool call and its result are one part. Without ``waiting``.
        waiting: The messages behind them, from the first call that waits for its result. Stored messages never change,
            so a later reading, when the file has the result, returns them in ``messages``.
        number: Number of this conversation in the file, counted from 1.
        conversations_in_file: Number of conversations in the file.
        notes: One sentence, with a count, for each kind of content that was left out, replaced or not understood.
    """

    format: str
    title: str
    messages: list[Message]
    waiting: list[Message] = field(default_factory=list[Message])
    other_branches: set[str] = field(default_factory=set[str])
    id: str = ""
    number: int = 1
    conversations_in_file: int = 1
    notes: list[str] = field(default_factory=list[str])

    @property
    def begun(self) -> datetime | None:
        """Time of the first message that has one."""
        return next((message.created_at for message in self.messages if message.created_at is not None), None)


def read_conversation(
    path: Path | str,
    *,
    select: int | None = None,
    date: Date | datetime | None = None,
    timezone: str = "UTC",
    format: str | None = None,
    skip_broken_lines: bool = False,
) -> Conversation:
    """Read one conversation of a file completely.

    Message ids are derived from the content: the same message at the same place always has the same id. So importing a
    file again, or after it has grown, adds only new messages.

    Args:
        path: A UTF-8 file.
        select: Number of the conversation, counted from 1. Default: the first, with a note if there are more.
        date: Date of the messages, for a conversation without time stamps; a day without a time means 00:00. If not
            given, the messages have ``created_at=None``.
        timezone: IANA time zone of ``date`` and of time stamps without a zone.
        format: One of ``FORMATS``. Default: detected.
        skip_broken_lines: Leave out lines and messages that cannot be read, with a note, instead of raising.

    Raises:
        InputError: The file cannot be read as a conversation; names the path, the place and the remedy.
    """
    number = 1 if select is None else select
    (chat,) = read_conversations(
        path, select=number, date=date, timezone=timezone, format=format, skip_broken_lines=skip_broken_lines
    )
    if select is None and chat.conversations_in_file > 1:
        chat.notes.insert(0, f"the file holds {chat.conversations_in_file} conversations; this is the first")
    return chat


def read_conversations(
    path: Path | str,
    *,
    select: int | None = None,
    date: Date | datetime | None = None,
    timezone: str = "UTC",
    format: str | None = None,
    skip_broken_lines: bool = False,
    on_note: Callable[[str], None] | None = None,
) -> list[Conversation]:
    """Read all conversations of a file, or the selected one; otherwise as ``read_conversation``.

    Conversations without messages, which exports of chat programs contain, are left out with a note, unless there is
    no other.

    Args:
        on_note: Called with each note about the file. Default: the first conversation gets these notes, too.
    """
    path = Path(path)
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, OSError, TypeError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise InputError(f"unknown time zone {timezone!r}; use a name such as Europe/Rome") from error
    if not isinstance(cast(object, date), Date | None):
        raise InputError(f"date must be a date or datetime, such as datetime.date(2026, 3, 2), not {date!r}")
    if format is not None and format not in _FORMATS:
        raise InputError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    try:
        file = load(path, skip_broken=skip_broken_lines)
        if fields_of(file.first).get("type") == "diarist":
            raise InputError("is an export of diarist, which only 'diarist import' reads")
        format = format or next((name for name, one in _FORMATS.items() if one.detect(file)), None)
        if format is None:
            raise InputError(f"not a conversation in a known format ({file.describe()}); known: {', '.join(FORMATS)}")
        reader = _FORMATS[format]
        found = reader.split(file)
        if not found:
            raise InputError("holds no conversation: the list is empty")
        if select is not None and select not in range(1, len(found) + 1):
            holds = "1 conversation" if len(found) == 1 else f"{len(found)} conversations"
            raise InputError(f"holds {holds}; select one from 1 to {len(found)}, not {select!r}")
        chats: list[Conversation] = []
        empty = 0
        for number in range(1, len(found) + 1) if select is None else [select]:
            # A plain chat becomes one in OpenAI's form with its first tool call: its messages keep their ids.
            scope = "openai" if format == "plain" else format
            builder = Builder(zone=zone, scope=scope, skip_broken=skip_broken_lines)
            title = reader.build(found[number - 1], builder)
            builder.finish()
            if not builder.messages:
                if select is None and (chats or number < len(found)):
                    empty += 1
                    continue
                besides = " besides calls that wait for a tool's result" if builder.waiting else ""
                raise InputError(f"conversation {number} holds no messages{besides}")
            _set_dates(builder, date, zone)
            chat = Conversation(
                format=format,
                title=title or path.stem,
                messages=builder.messages,
                waiting=builder.waiting,
                other_branches=builder.other_branches,
                id=builder.conversation_id,
                number=number,
                conversations_in_file=len(found),
                notes=builder.notes,
            )
            chats.append(chat)
        about_file = on_note or chats[0].notes.append
        if file.broken:
            about_file(f"lines that are not JSON, left out: {len(file.broken)} (first: {file.broken[0]})")
        if empty:
            about_file(f"conversations without messages, left out: {empty}")
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error
    return chats


def thread_id_of(path: Path, conversation: Conversation) -> str:
    """Return the conversation's own id, or an id made of the file's name, the conversation's number and a digest of the
    whole path.

    The digest distinguishes files of the same name in different folders.
    """
    if conversation.id:
        return conversation.id
    number = f"-{conversation.number}" if conversation.conversations_in_file > 1 else ""
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{path.stem}{number}-{digest[:8]}"


def _set_dates(builder: Builder, date: Date | datetime | None, zone: tzinfo) -> None:
    dated = sum(message.created_at is not None for message in builder.messages)
    if date is not None and dated:
        builder.note("the messages have time stamps of their own; the given date is not used")
    elif date is not None:
        if not isinstance(date, datetime):
            date = datetime(date.year, date.month, date.day)
        if date.tzinfo is None:
            date = date.replace(tzinfo=zone)
        for message in [*builder.messages, *builder.waiting]:
            message.created_at = date
    elif dated < len(builder.messages):
        count = len(builder.messages) - dated
        builder.note("no message has a time stamp" if not dated else f"undated messages: {count}")
