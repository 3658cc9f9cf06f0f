"""Reads Claude.ai's data export: ``conversations.json``.

Anthropic does not document the form. These facts come from public parsers of it, such as
https://github.com/Sinity/polylogue (``docs/providers/claude-ai.md``): a list of conversations with ``uuid``, ``name``
and ``chat_messages``. A message has a ``sender``, blocks of content in the form of Anthropic's API, and the text of
attached files. Its ``parent_message_uuid`` makes a tree, if the user edited a message.
"""

from __future__ import annotations

from diarist.exceptions import InputError
from diarist.memory.conversations.building import Builder, read_role
from diarist.memory.conversations.content import ContentReader
from diarist.memory.conversations.loading import JsonFile, JsonItem, as_list, elements_of, fields_of
from diarist.messages import Json, Message, Part, TextPart, ToolState


def detect(file: JsonFile) -> bool:
    return as_list(fields_of(file.first).get("chat_messages")) is not None


def build(found: JsonItem, builder: Builder) -> str:
    """Add the messages of the branch that was continued last; return the conversation's name."""
    chat = fields_of(found.value)
    values = as_list(chat.get("chat_messages"))
    if values is None:
        raise InputError(f"{found.where or 'conversation'}: a conversation must have a list chat_messages")
    messages = [fields_of(value) for value in values]
    branch = _branch(messages)
    for number, message in enumerate(messages, 1):
        with builder.reading(f"{found.where or 'conversation'}, message {number}"):
            if number - 1 in branch:
                _add(message, builder)
            else:
                builder.note("messages of other branches, left out")
    builder.conversation_id = str(chat.get("uuid") or "")
    return str(chat.get("name") or "")


def _branch(messages: list[dict[str, Json]]) -> set[int]:
    """Return the indexes of the last message and of its parents; all indexes if the file does not name parents."""
    places = {str(message.get("uuid")): place for place, message in enumerate(messages)}
    path: set[int] = set()
    place = len(messages) - 1 if messages else None
    while place is not None and place not in path:
        path.add(place)
        if "parent_message_uuid" not in messages[place]:
            return set(range(len(messages)))
        place = places.get(str(messages[place]["parent_message_uuid"]))
    return path


def _add(message: dict[str, Json], builder: Builder) -> None:
    role = read_role(message.get("sender"))
    reader = ContentReader(builder)
    moment, key = builder.time_of(message), str(message.get("uuid") or builder.where)
    added: Message | None = None
    # A call and its result stand in one message. The call must be known before the result can be added to it.
    for block in as_list(message.get("content")) or [message.get("text")]:
        result = fields_of(block)
        if result.get("type") == "tool_result":
            state: ToolState = "error" if result.get("is_error") else "result"
            answer = reader.result(result.get("content"))
            builder.answer(result.get("tool_use_id"), result.get("name"), answer, state)
            continue
        if result.get("type") in ("token_budget", "flag"):
            continue
        parts = reader.parts(block if isinstance(block, str) else [block])
        if added is not None:
            builder.extend(added, parts)
        elif parts:
            added = builder.add(role, parts, key=key, created_at=moment)
    files = _files(message)
    if added is not None:
        builder.extend(added, files)
    else:
        builder.add(role, files, key=key, created_at=moment)


def _files(message: dict[str, Json]) -> list[Part]:
    """Return the text of attached files; of others, their names."""
    parts: list[Part] = []
    for key in ("attachments", "files"):
        for value in elements_of(message.get(key)):
            file = fields_of(value)
            text = str(file.get("extracted_content") or "")
            if file.get("file_name") or text:
                parts.append(TextPart(text=f"[file: {file.get('file_name') or 'without a name'}]\n{text}".rstrip()))
    return parts
