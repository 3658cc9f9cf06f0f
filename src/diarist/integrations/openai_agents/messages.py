"""Converts input items of OpenAI's Agents SDK. Pure functions: the given items are never changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC
from itertools import chain
from typing import Any, cast

from agents import TResponseInputItem, default_handoff_history_mapper, get_conversation_history_wrappers

from diarist.data_urls import url_of
from diarist.integrations.conversations.building import Builder
from diarist.integrations.conversations.content import FILES, ContentReader
from diarist.integrations.conversations.loading import as_list
from diarist.integrations.conversations.responses import ANSWERED, read_call, read_reasoning
from diarist.integrations.history import Entry, History
from diarist.memory.turn import TurnView, has_open_calls
from diarist.messages import (
    FilePart,
    Json,
    Message,
    Part,
    PromptMessage,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    as_text,
)
from diarist.prompting import build_prompt

_FAKE_ID = "__fake_id__"  # the SDK's id for items of models outside the Responses API

# Items without a form in the library that belong to the response they are in, and items that answer such items.
_OF_RESPONSE = ("program", "mcp_approval_request")
_ANSWERS = ("program_output", "mcp_approval_response", "tool_search_output")


def to_neutral(items: Sequence[TResponseInputItem]) -> History[int]:
    """Return the history; a place is an index of ``items``. The items of one response are one message."""
    return ItemReader().read(items)


def has_summary(items: Sequence[TResponseInputItem]) -> bool:
    """Return True if the SDK has put a summary in place of items: ``nest_handoff_history``."""
    [example] = cast(list[dict[str, str]], default_handoff_history_mapper([]))
    first_line = example["content"].partition("\n")[0]
    start, end = get_conversation_history_wrappers()
    contents = [cast(dict[str, Json], item).get("content") for item in items]
    return any(
        isinstance(content, str) and content.startswith(f"{first_line}\n{start}\n") and content.endswith(f"\n{end}")
        for content in contents
    )


class ItemReader:
    """Reads a history that grows: only what is new since the last call is translated.

    Attributes:
        history: The history that was read last. A place is an index of the items.
        stored: Number of entries, from the first on, that the thread has by their ids. ``read`` lowers it if the items
            are not what they were.
    """

    def __init__(self) -> None:
        self.history = History[int]()
        self.stored = 0
        self._items: list[TResponseInputItem] = []
        self._clear()

    def _clear(self) -> None:
        self.history = History[int]()
        self._response = _Response(self.history)
        self._builder = Builder(zone=UTC, scope="openai-agents")
        self._content = ContentReader(self._builder, files=FILES, unknown=self.history.note)

    def read(self, items: Sequence[TResponseInputItem]) -> History[int]:
        """Return the history of ``items``. Entries of items at the same places as before keep their ids.

        Raises InputError for an item that cannot be read.
        """
        try:
            return self._follow(items)
        except BaseException:
            self._clear()
            self._items, self.stored = [], 0
            raise

    def _follow(self, items: Sequence[TResponseInputItem]) -> History[int]:
        pairs = enumerate(zip(self._items, items, strict=False))
        known = next((n for n, (one, other) in pairs if one is not other and one != other), len(self._items))
        known = min(known, len(items))
        if known < len(self._items):
            before = self.history.entries
            self._clear()
            self._read(items, 0)
            same = [
                (old, new)
                for old, new in zip(before, self.history.entries, strict=False)
                if old.places == new.places and max(old.places) < known
            ]
            for old, new in same:
                new.message.id = old.message.id
            self.stored = min(self.stored, len(same))
        else:
            self._read(items, known)
        self._items = list(items)
        return self.history

    def keep(self) -> None:
        """The thread has all entries now. Results that come later are messages of their own."""
        self.stored = len(self.history.entries)
        self.history.close()

    def _read(self, items: Sequence[TResponseInputItem], start: int) -> None:
        history, response, reader = self.history, self._response, self._content
        for place in range(start, len(items)):
            item = cast(dict[str, Json], items[place])
            kind = str(item.get("type") or "message")
            role = item.get("role") if kind == "message" else None
            if role == "assistant":
                response.add(place, item, reader.parts(item.get("content")))
            elif kind == "reasoning":
                response.add(place, item, read_reasoning(item), thought=True)
            elif kind.endswith("_call"):
                call = read_call(kind, item, self._builder)
                call.provider_executed = kind not in ANSWERED
                response.add(place, item, [call])
            elif kind in _OF_RESPONSE:
                response.add(place, item, [])
                history.note(kind)
            else:
                response.close()
                if role == "user":
                    history.add("user", reader.parts(item.get("content")), [place], _own_id(item))
                elif kind.endswith("_call_output"):
                    output = reader.result(item.get("output"))
                    call_id = str(item.get("call_id") or item.get("id") or "")
                    history.answer(place, call_id, "", output, "result")
                elif role is None:
                    history.note(kind)
                    if kind in _ANSWERS:
                        history.attach([place])
        response.close()


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


def arrange(
    items: Sequence[TResponseInputItem], entries: Sequence[Entry[int]], view: TurnView
) -> list[TResponseInputItem]:
    """Return the items to send: those of kept messages as they are, and stored messages that were not given.

    Items without an entry are sent before the next kept item.
    """
    ours = {entry.message.id: entry for entry in entries}
    brought = {message.id: message for message in view.brought}
    halves = {message_id for message_id in brought.keys() & ours.keys() if has_open_calls(ours[message_id].message)}
    taken = set(chain.from_iterable([entry.places for entry in entries]))
    others = deque(sorted(set(range(len(items))) - taken))
    out: list[TResponseInputItem] = []
    waiting: list[Message] = []  # converted together, since results may be in a later message than their calls
    for message_id in view.order:
        entry = None if message_id in halves else ours.get(message_id)
        if entry is None:
            waiting += [brought[message_id]] if message_id in brought else []
            continue
        if waiting:
            out += to_theirs(waiting)
            waiting.clear()
        while others and others[0] < entry.places[0]:
            out.append(items[others.popleft()])
        note = view.notes.get(message_id)
        sent = [items[place] for place in sorted(entry.places)]
        out += sent if note is None else [_with_note(sent[0], note), *sent[1:]]
    return [*out, *to_theirs(waiting), *(items[place] for place in others)]


def to_theirs(messages: Sequence[Message]) -> list[TResponseInputItem]:
    """Return stored messages as items, without reasoning and item ids: OpenAI takes them only together."""
    return from_prompt(build_prompt((), messages).messages) if messages else []


def from_prompt(messages: Sequence[PromptMessage]) -> list[TResponseInputItem]:
    """Return messages of a prompt as items."""
    return [item for message in messages for item in _from_prompt(message)]


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
                arguments = as_text(part.args)
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
    url = url_of(part)
    if part.media_type.startswith("image/"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if part.data is None:
        return {"type": "input_file", "file_url": url}
    return {"type": "input_file", "file_data": url, "filename": part.name or "file"}
