"""Reads Claude.ai's data export: ``conversations.json``.

Anthropic does not document the form. These facts come from public parsers of it, such as
https://github.com/Sinity/polylogue (``docs/providers/claude-ai.md``): a list of conversations with ``uuid``, ``name``
and ``chat_messages``. A message has a ``sender``, blocks of content in the form of Anthropic's API, and the text of
attached files. Its ``parent_message_uuid`` makes a tree, if the user edited a message.
"""

from __future__ import annotations

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder, path_to, read_role
from diarist.integrations.conversations.content import ContentReader
from diarist.integrations.conversations.loading import JsonFile, JsonItem, as_list, elements_of, fields_of, numbered
from diarist.messages import Json, Part, TextPart


def detect(file: JsonFile) -> bool:
    return as_list(fields_of(file.first).get("chat_messages")) is not None


def build(found: JsonItem, builder: Builder) -> str:
    """Add the messages of the branch that was continued last; return the conversation's name."""
    chat = fields_of(found.value)
    values, place = as_list(chat.get("chat_messages")), found.where or "conversation"
    if values is None:
        raise InputError(f"{place}: a conversation must have a list chat_messages")
    messages = [fields_of(value) for value in values]
    parents = {str(message.get("uuid")): message.get("parent_message_uuid") for message in messages}
    is_tree = all("parent_message_uuid" in message for message in messages)
    branch = path_to(next(reversed(parents), None), parents) if is_tree else list(parents)
    for item in numbered(values, place):
        with builder.reading(item.where):
            message = fields_of(item.value)
            if str(message.get("uuid")) in branch:
                _add(message, builder)
            else:
                builder.leave_out_branch(str(message.get("uuid")))
    builder.conversation_id = str(chat.get("uuid") or "")
    return str(chat.get("name") or "")


def _add(message: dict[str, Json], builder: Builder) -> None:
    role = read_role(message.get("sender"))
    reader = ContentReader(builder)
    moment, key = builder.time_of(message), str(message.get("uuid") or builder.where)
    # A call and its result stand in one message. The call must be known before the result can be added to it.
    for block in as_list(message.get("content")) or [message.get("text")]:
        parts = reader.parts(block if isinstance(block, str) else [block])
        if parts:
            builder.append(role, parts, key=key, created_at=moment)
    builder.append(role, _files(message), key=key, created_at=moment)


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
