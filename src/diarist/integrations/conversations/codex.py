"""Reads session files of OpenAI's Codex CLI: ``~/.codex/sessions/…/rollout-*.jsonl``.

Each line is ``{timestamp, type, payload}``; the payloads of ``response_item`` lines are items of the Responses API
(``RolloutLine`` in ``codex-rs/protocol/src/protocol.rs`` and ``ResponseItem`` in ``models.rs`` of
https://github.com/openai/codex). Until summer 2025, a first line with the session's ``id`` and ``timestamp`` was
followed by the items themselves.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder
from diarist.integrations.conversations.loading import JsonFile, JsonItem, as_object, fields_of, parse
from diarist.integrations.conversations.responses import ItemReader, is_item
from diarist.messages import Json, Part, TextPart

# Text that Codex sends in the user's role: its own context, and tags around images (``core/src/event_mapping.rs``).
_ADDED = re.compile(
    r"\s*(?:</?(?:environment_context|user_instructions|turn_aborted|skill|subagent_notification|image|local_image)\b"
    r"|# AGENTS\.md instructions)"
)


def detect(file: JsonFile) -> bool:
    first = fields_of(file.first)
    if any(fields_of(item.value).get("type") == "response_item" for item in file.items):
        return True
    is_old = {"id", "timestamp", "instructions"} <= first.keys() and "type" not in first
    return first.get("type") == "session_meta" or is_old


def build(found: list[JsonItem], builder: Builder) -> str:
    reader = ItemReader(builder, own_words=_own_words, result=_output)
    started: Json = None
    for position, item in enumerate(found):
        with builder.reading(item.where):
            line = as_object(item.value)
            if line is None:
                raise InputError("every line must be a JSON object")
            kind, payload, moment = line.get("type"), as_object(line.get("payload")), line.get("timestamp")
            if kind is None and "id" in line:
                payload = line
            if kind == "session_meta" or (kind is None and payload is line):
                meta = payload or {}
                if not builder.conversation_id:
                    builder.conversation_id, started = str(meta.get("id") or ""), meta.get("timestamp")
                continue
            if kind == "response_item":
                if payload is None:
                    raise InputError("a line of type response_item without a payload")
            elif is_item(line):
                payload, moment = line, started
            else:
                builder.note(f"lines of type {kind or line.get('record_type')}, left out")
                continue
            if payload.get("role") in ("developer", "system"):
                builder.note("instructions of Codex, left out")
                continue
            reader.read(position, payload, builder.time(moment))
    reader.close()
    return ""


def _own_words(part: Part) -> Part | None:
    return None if isinstance(part, TextPart) and _ADDED.match(part.text) else part


def _output(output: Json) -> Json:
    """Return the text of ``{"output": …, "metadata": {"exit_code": …}}``, as commands report it in JSON."""
    if not isinstance(output, str) or not output.startswith("{"):
        return output
    with suppress(json.JSONDecodeError):
        value = fields_of(parse(output))
        if isinstance(value.get("output"), str):
            code = fields_of(value.get("metadata")).get("exit_code")
            return value["output"] + (f"\n[exit code {code}]" if code else "")
    return output
