"""Reads LoCoMo's JSON: long conversations of two people in dated sessions (Maharana et al., 2024)."""

from __future__ import annotations

import re
from datetime import datetime

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder
from diarist.integrations.conversations.loading import JsonFile, JsonItem, as_object, elements_of, fields_of
from diarist.messages import Json, Role, TextPart

_SESSION = re.compile(r"session_(\d+)")


def detect(file: JsonFile) -> bool:
    return "speaker_a" in _talk(file.first)


def build(found: JsonItem, builder: Builder) -> str:
    """Add a conversation; ``speaker_a`` is the user. Each message gets the time of its session, since the file has no
    other times."""
    talk = _talk(found.value)
    user, assistant = talk.get("speaker_a"), talk.get("speaker_b")
    if not isinstance(user, str) or not isinstance(assistant, str) or user == assistant:
        raise InputError(f"{found.where or 'conversation'}: speaker_a and speaker_b must be two different names")
    speakers: dict[str, Role] = {user: "user", assistant: "assistant"}
    sample = str(fields_of(found.value).get("sample_id") or "")
    sessions = [(int(match[1]), name) for name in talk if (match := _SESSION.fullmatch(name))]
    for _, name in sorted(sessions):
        stamp = talk.get(f"{name}_date_time")
        with builder.reading(f"{name}_date_time"):
            moment = builder.time(_iso(stamp))
        for number, turn in enumerate(elements_of(talk[name]), 1):
            where = f"{name}, message {number}"
            with builder.reading(where):
                value = fields_of(turn)
                role = speakers.get(str(value.get("speaker")))
                if role is None:
                    raise InputError(f"unknown speaker {value.get('speaker')!r}")
                caption = value.get("blip_caption")
                lines = [str(value.get("text") or ""), f"[image: {caption}]" if caption else ""]
                text = "\n".join(line for line in lines if line.strip())
                metadata = {"name": value["speaker"]} | ({"dia_id": value["dia_id"]} if "dia_id" in value else {})
                parts = [TextPart(text=text)] if text else []
                builder.add(role, parts, key=f"{sample}\0{where}\0{text}", created_at=moment, metadata=metadata)
    return f"{user} and {assistant}" + (f" ({sample})" if sample else "")


def _talk(value: Json) -> dict[str, Json]:
    outer = fields_of(value)
    return as_object(outer.get("conversation")) or outer


def _iso(stamp: Json) -> Json:
    """Convert ``1:56 pm on 8 May, 2023`` to ISO 8601; return other values unchanged."""
    try:
        return datetime.strptime(str(stamp).strip(), "%I:%M %p on %d %B, %Y").isoformat()
    except ValueError:
        return stamp
