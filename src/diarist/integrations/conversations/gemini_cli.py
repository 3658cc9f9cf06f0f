"""Reads sessions of Gemini CLI (``~/.gemini/tmp/…/chats/session-*.json`` and ``.jsonl``).

A session is a ``ConversationRecord``. Older versions write one object with ``messages``. Newer versions write a line of
metadata and then a line per message: a line with an earlier id replaces the earlier line, ``{"$rewindTo": id}`` removes
that message and all after it, and ``{"$set": …}`` changes the metadata. See
``packages/core/src/services/chatRecordingTypes.ts`` and ``chatRecordingService.ts`` in
https://github.com/google-gemini/gemini-cli.
"""

from __future__ import annotations

from diarist.data_urls import decode_base64
from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder
from diarist.integrations.conversations.loading import (
    JsonFile,
    JsonItem,
    as_list,
    as_object,
    elements_of,
    fields_of,
    numbered,
)
from diarist.messages import FilePart, Json, Part, ReasoningPart, TextPart, ToolPart, ToolState

_STATES: dict[str, ToolState] = {"success": "result", "error": "error", "cancelled": "denied"}


def detect(file: JsonFile) -> bool:
    return "projectHash" in fields_of(file.first)


def build(found: list[JsonItem], builder: Builder) -> str:
    """Add the messages; return the session's summary as its title."""
    meta: dict[str, Json] = {}
    records: dict[str, JsonItem] = {}
    for item in found:
        line = fields_of(item.value)
        if "$rewindTo" in line:
            ids, to = list(records), str(line["$rewindTo"])
            start = ids.index(to) if to in records else 0
            records = {id: records[id] for id in ids[:start]}
        elif "$set" in line or ("projectHash" in line and "type" not in line):
            meta |= fields_of(line.get("$set", line))
        else:
            records[str(line.get("id") or item.where)] = item
    whole = as_list(meta.get("messages"))  # of older versions
    for item in numbered(whole) if whole else records.values():
        with builder.reading(item.where):
            _add_record(item, builder)
    builder.conversation_id = str(meta.get("sessionId") or "")
    return str(meta.get("summary") or "")


def _add_record(item: JsonItem, builder: Builder) -> None:
    record = as_object(item.value)
    if record is None or not isinstance(record.get("type"), str):
        raise InputError("a message must be an object with a type")
    kind, key, moment = record["type"], str(record.get("id") or item.where), builder.time_of(record)
    if kind == "user":
        # What the user typed. The content may also have the text of files that the user mentioned.
        parts = _parts(record.get("displayContent") or record.get("content"), builder)
        builder.add("user", parts, key=key, created_at=moment)
    elif kind == "gemini":
        thoughts = [fields_of(thought) for thought in elements_of(record.get("thoughts"))]
        texts = (": ".join(str(one[key]) for key in ("subject", "description") if one.get(key)) for one in thoughts)
        parts: list[Part] = [ReasoningPart(text=text) for text in texts]
        parts += _parts(record.get("content"), builder)
        parts += [_call(fields_of(call), builder) for call in elements_of(record.get("toolCalls"))]
        # Gemini CLI saves the session while a turn runs. The key depends on the length of the turn, so a turn that
        # has grown since the last import is added again under another id.
        answered = sum(isinstance(part, ToolPart) and part.state != "call" for part in parts)
        builder.add("assistant", parts, key=f"{key}\0{len(parts)}\0{answered}", created_at=moment)
    else:
        builder.note(f"messages of type {kind}, left out")


def _call(call: dict[str, Json], builder: Builder) -> ToolPart:
    part = builder.call(call.get("id"), call.get("name"), call.get("args"))
    part.state = _STATES.get(str(call.get("status")), "call")
    if part.state != "call":
        results = (_response(result) for result in elements_of(call.get("result")))
        found = next((result for result in results if result is not None), None)
        part.result = call.get("resultDisplay") or "" if found is None else found
    return part


def _response(value: Json) -> Json:
    """Return the output of a ``functionResponse``, or None for other parts."""
    found = as_object(fields_of(value).get("functionResponse"))
    if found is None:
        return None
    response = fields_of(found.get("response"))
    return next((response[key] for key in ("output", "error") if key in response), response)


def _parts(content: Json, builder: Builder) -> list[Part]:
    """Return the parts of a ``PartListUnion``: a text, a part, or a list of them."""
    parts: list[Part] = []
    values = as_list(content)
    for value in [content] if values is None else values:
        part = {"text": value} if isinstance(value, str) else fields_of(value)
        data, file = as_object(part.get("inlineData")), as_object(part.get("fileData"))
        if isinstance(part.get("text"), str):
            if part["text"].strip():
                parts.append((ReasoningPart if part.get("thought") else TextPart)(text=part["text"]))
        elif data is not None and (decoded := decode_base64(data.get("data"))) is not None:
            parts.append(FilePart(media_type=str(data.get("mimeType") or "application/octet-stream"), data=decoded))
        elif file is not None and file.get("fileUri"):
            media_type = str(file.get("mimeType") or "application/octet-stream")
            parts.append(FilePart(media_type=media_type, url=str(file["fileUri"])))
        elif part:
            kind = next(iter(part))
            builder.note(f"parts of type {kind}, kept as a placeholder")
            parts.append(TextPart(text=f"[{kind}]"))
    return parts
