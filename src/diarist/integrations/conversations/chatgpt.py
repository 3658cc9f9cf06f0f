"""Reads ChatGPT's data export: ``conversations.json``, in large exports ``conversations-000.json`` and so on.

OpenAI does not document the form. These facts come from public parsers of it, such as
https://github.com/mitkury/chatgpt-export-parser: a list of conversations, each with a ``mapping`` of nodes that have a
``message``, a ``parent`` and ``children``. Edited questions and repeated answers make branches; ``current_node`` is the
end of the branch that ChatGPT shows.
"""

from __future__ import annotations

import re

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder, path_to, read_role
from diarist.integrations.conversations.loading import JsonFile, JsonItem, as_list, as_object, elements_of, fields_of
from diarist.messages import Json, Part, ReasoningPart, TextPart

# References to sources of a search, between characters of Unicode's private use area.
_CITATION = re.compile("\ue200(?:url\ue202([^\ue201\ue202]*)\ue202)?[^\ue201]*\ue201")
# Settings of the user and ChatGPT's own notes, which are repeated in every conversation.
_CONTEXT = ("user_editable_context", "model_editable_context")


def detect(file: JsonFile) -> bool:
    return as_object(fields_of(file.first).get("mapping")) is not None


def build(found: JsonItem, builder: Builder) -> str:
    """Add the messages of the branch that ChatGPT shows; return the conversation's title."""
    chat = fields_of(found.value)
    mapping, place = as_object(chat.get("mapping")), found.where or "conversation"
    if mapping is None:
        raise InputError(f"{place}: a conversation must have a mapping")
    nodes = {id: node for id, value in mapping.items() if (node := as_object(value)) is not None}
    parents = {id: node.get("parent") for id, node in nodes.items()}
    branch = path_to(chat.get("current_node"), parents) or path_to(next(reversed(nodes), None), parents)
    for id in branch:
        message = as_object(nodes[id].get("message"))
        if message is not None:
            with builder.reading(f"{place}, message {id}"):
                _add(id, message, builder)
    for id, node in nodes.items():
        message = fields_of(node.get("message"))
        if id not in branch and fields_of(message.get("author")).get("role") in ("user", "assistant"):
            with builder.reading(f"{place}, message {id}"):
                builder.leave_out_branch(str(message.get("id") or id))
    builder.conversation_id = str(chat.get("conversation_id") or chat.get("id") or "")
    return str(chat.get("title") or "")


def _add(id: str, message: dict[str, Json], builder: Builder) -> None:
    author, content = fields_of(message.get("author")), fields_of(message.get("content"))
    metadata, kind = fields_of(message.get("metadata")), content.get("content_type")
    role, recipient = read_role(author.get("role")), message.get("recipient")
    if kind in _CONTEXT or metadata.get("is_user_system_message"):
        builder.note("custom instructions and saved memories, left out")
    elif role == "tool":
        text = "\n".join(part.text for part in _parts(content, metadata) if isinstance(part, TextPart))
        state = "error" if kind == "system_error" else "result"
        builder.answer(None, author.get("name"), text, state)
    elif role == "system" or metadata.get("is_visually_hidden_from_conversation"):
        builder.note("hidden messages, left out")
    else:
        parts = _parts(content, metadata)
        if role == "assistant" and isinstance(recipient, str) and recipient not in ("all", ""):
            given = "\n".join(part.text for part in parts if isinstance(part, TextPart))
            parts = [builder.call(id, recipient, given if given.startswith("{") else {"input": given})]
        moment = builder.time(message.get("create_time"))
        builder.add(role, parts, key=str(message.get("id") or id), created_at=moment)


def _parts(content: dict[str, Json], metadata: dict[str, Json]) -> list[Part]:
    thoughts = [fields_of(value) for value in elements_of(content.get("thoughts"))]
    parts: list[Part] = [ReasoningPart(text=str(thought["content"])) for thought in thoughts if thought.get("content")]
    if content.get("content_type") == "reasoning_recap":  # "Thought for 12 seconds"
        return parts
    values = as_list(content.get("parts")) or [content.get(key) for key in ("text", "result") if content.get(key)]
    texts = [_text(value) for value in values]
    files = [fields_of(file) for file in elements_of(metadata.get("attachments"))]
    texts += [f"[file: {file['name']}]" for file in files if file.get("name")]
    return parts + [TextPart(text=text) for text in texts if text.strip()]


def _text(value: Json) -> str:
    if isinstance(value, str):
        return _CITATION.sub(lambda match: match[1] or "", value)
    part = fields_of(value)
    if isinstance(part.get("text"), str):  # what was said, in words
        return str(part["text"])
    kind = str(part.get("content_type") or "part")
    return "" if "audio" in kind else f"[{kind.removesuffix('_asset_pointer')}]"
