"""Converts input items of OpenAI's Agents SDK. Pure functions: the given items are never changed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC
from typing import Any, cast

import orjson
from agents import TResponseInputItem

from diarist.integrations.history import History
from diarist.memory.conversations.building import Builder
from diarist.memory.conversations.content import FILES, ContentReader
from diarist.memory.conversations.loading import as_list
from diarist.memory.conversations.responses import ANSWERED, read_call, read_reasoning
from diarist.messages import FilePart, Json, Message, Part, PromptMessage, TextPart, ToolCallPart, ToolResultPart
from diarist.prompting import build_prompt

_FAKE_ID = "__fake_id__"  # the SDK's id for items of models outside the Responses API

# Items without a form in the library that belong to the response they are in, and items that answer such items.
_OF_RESPONSE = ("program", "mcp_approval_request")
_ANSWERS = ("program_output", "mcp_approval_response", "tool_search_output")


def to_neutral(items: Sequence[TResponseInputItem]) -> History[int]:
    """Return the history; a place is an index of ``items``. The items of one response are one message."""
    history = History[int]()
    builder = Builder(zone=UTC, scope="openai-agents")
    reader = ContentReader(builder, files=FILES, unknown=history.note)
    response = _Response(history)
    for place, given in enumerate(items):
        item = cast(dict[str, Json], given)
        kind = str(item.get("type") or "message")
        role = item.get("role") if kind == "message" else None
        if role == "assistant":
            response.add(place, item, reader.parts(item.get("content"), ""))
        elif kind == "reasoning":
            response.add(place, item, read_reasoning(item), thought=True)
        elif kind.endswith("_call"):
            call = read_call(kind, item, builder, "")
            call.provider_executed = kind not in ANSWERED
            response.add(place, item, [call])
        elif kind in _OF_RESPONSE:
            response.add(place, item, [])
            history.note(kind)
        else:
            response.close()
            if role == "user":
                history.add("user", reader.parts(item.get("content"), ""), [place], _own_id(item))
            elif kind.endswith("_call_output"):
                output = reader.result(item.get("output"))
                call_id = str(item.get("call_id") or item.get("id") or "")
                history.answer(place, call_id, "", output, "result")
            elif role is None:
                history.note(kind)
                if kind in _ANSWERS:
                    history.attach([place])
    response.close()
    return history


def select(
    items: Sequence[TResponseInputItem],
    history: History[int],
    keep: Collection[str],
    notes: Mapping[str, str] | None = None,
) -> list[TResponseInputItem]:
    """Return the items to send: those of the entries in ``keep``, and all that have no entry, as they are.

    Args:
        keep: Ids of the entries to send.
        notes: Text to send before the content of a user message, by id.
    """
    left_out, texts = history.left_out(keep), history.notes(dict(notes or {}))
    return [
        _with_note(item, texts[place]) if place in texts else item
        for place, item in enumerate(items)
        if place not in left_out
    ]


def to_theirs(messages: Sequence[Message]) -> list[TResponseInputItem]:
    """Return stored messages as items, without reasoning and item ids: OpenAI takes them only together."""
    return [item for message in build_prompt((), messages) for item in _from_prompt(message)]


class _Response:
    """Collects the items of one response."""

    def __init__(self, history: History[int]) -> None:
        self._history = history
        self._places: list[int] = []
        self._parts: list[Part] = []
        self._own_id: str | None = None

    def add(self, place: int, item: dict[str, Json], parts: Sequence[Part], *, thought: bool = False) -> None:
        self._places.append(place)
        self._parts += parts
        if not thought:  # a run may be told to omit the ids of reasoning
            self._own_id = self._own_id or _own_id(item)

    def close(self) -> None:
        if self._places:
            self._history.add("assistant", self._parts, self._places, self._own_id)
        self._places, self._parts, self._own_id = [], [], None


def _own_id(item: dict[str, Json]) -> str | None:
    found = item.get("id")
    return found if isinstance(found, str) and found and found != _FAKE_ID else None


def _with_note(item: TResponseInputItem, note: str) -> TResponseInputItem:
    content = cast(dict[str, Json], item).get("content")
    blocks = as_list(content)
    if blocks is None:
        blocks = [{"type": "input_text", "text": content}]
    return cast(TResponseInputItem, {**item, "content": [{"type": "input_text", "text": note}, *blocks]})


def _from_prompt(message: PromptMessage) -> list[TResponseInputItem]:
    out: list[dict[str, Any]] = []
    if message.role in ("system", "user"):
        out.append({"type": "message", "role": message.role, "content": _content(message)})
    for part in message.parts:
        match part:
            case TextPart() if message.role == "assistant" and part.text:
                out.append({"type": "message", "role": "assistant", "content": part.text})
            case ToolCallPart(provider_executed=False):
                arguments = orjson.dumps(part.args).decode()
                call = {"type": "function_call", "call_id": part.call_id, "name": part.name, "arguments": arguments}
                out.append(call)
            case ToolResultPart(provider_executed=True):  # the item itself is not stored: its result is told as text
                out.append({"type": "message", "role": "assistant", "content": f"[{part.name}] {part.text}"})
            case ToolResultPart():
                out.append({"type": "function_call_output", "call_id": part.call_id, "output": part.text})
            case _:
                pass
    return cast(list[TResponseInputItem], out)


def _content(message: PromptMessage) -> str | list[dict[str, Any]]:
    parts = [part for part in message.parts if isinstance(part, TextPart | FilePart)]
    if all(isinstance(part, TextPart) for part in parts) and len(parts) == 1:
        return message.text
    return [_block(part) for part in parts]


def _block(part: TextPart | FilePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    url = part.url if part.data is None else f"data:{part.media_type};base64,{b64encode(part.data).decode()}"
    if part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if part.data is None:
        return {"type": "input_file", "file_url": url}
    return {"type": "input_file", "file_data": url, "filename": part.name or "file"}
