"""A framework's history as messages of the library, each with the places where the framework keeps its parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from diarist.messages import Json, Message, Part, Role, ToolPart, ToolState, new_id

UNREAD = "data-om-unread"
"""The event of an adapter that names types of messages which memory cannot read; they are sent as they are."""

Place = TypeVar("Place", bound="int | tuple[int, int]")


@dataclass(slots=True)
class Entry(Generic[Place]):
    """One message, and the places of what it is made of.

    Attributes:
        places: The framework's messages or parts: a tool's result is at another place than its call.
        own_id: True if the message has the framework's id, the same in each call; False if its id is new.
    """

    message: Message
    places: list[Place]
    own_id: bool


@dataclass(slots=True)
class History(Generic[Place]):
    """A history in the library's form.

    System messages and what the library has no form for have no entry, so they are always sent.

    Attributes:
        unknown: Types of messages and parts that have no entry, or only a placeholder in one, each once.
    """

    entries: list[Entry[Place]] = field(default_factory=list["Entry[Place]"])
    unknown: list[str] = field(default_factory=list[str])
    _open: dict[str, tuple[ToolPart, Entry[Place]]] = field(
        default_factory=dict[str, "tuple[ToolPart, Entry[Place]]"], repr=False
    )
    _late: dict[str, str] = field(default_factory=dict[str, str], repr=False)  # names of tools, by ids of closed calls
    _ids: set[str] = field(default_factory=set[str], repr=False)

    @property
    def messages(self) -> list[Message]:
        return [entry.message for entry in self.entries]

    def add(self, role: Role, parts: Sequence[Part], places: Sequence[Place], own_id: str | None) -> Message | None:
        """Add a message; its calls then wait for their results.

        Without parts it gets no entry. An answer without parts is sent, or left out, with the entry before it.

        Args:
            own_id: The framework's id. Without one, or if it occurs twice, the message gets a new id.
        """
        if not parts:
            if role == "assistant":
                self.attach(places)
            return None
        own = own_id is not None and own_id not in self._ids
        message_id = own_id if own_id is not None and own else new_id("msg")
        message = Message(id=message_id, role=role, parts=list(parts))
        entry = Entry(message, list(places), own)
        self._ids.add(message_id)
        self.entries.append(entry)
        for part in message.tool_parts:
            if part.state == "call":
                self._open[part.call_id] = part, entry
        return message

    def attach(self, places: Sequence[Place]) -> None:
        """Send these places, or leave them out, with the entry before them."""
        if self.entries:
            self.entries[-1].places += places

    def answer(self, place: Place, call_id: str, name: str, result: Json, state: ToolState) -> None:
        """Add a result to its call. Without its call, it becomes a message of role ``tool``."""
        found = self._open.pop(call_id, None)
        if found is None:
            name = name or self._late.get(call_id, "")
            part = ToolPart(call_id=call_id, name=name, args={}, state=state, result=result)
            self.add("tool", [part], [place], None)
            return
        part, entry = found
        part.result, part.state = result, state
        entry.places.append(place)

    @property
    def complete(self) -> int:
        """Number of entries before the first one that waits for a result."""
        waiting = {id(entry) for _, entry in self._open.values()}
        return next((i for i, entry in enumerate(self.entries) if waiting and id(entry) in waiting), len(self.entries))

    def close(self) -> None:
        """Wait for no more results: one that comes later becomes a message of role ``tool``."""
        self._late |= {call_id: part.name for call_id, (part, _) in self._open.items()}
        self._open.clear()

    def note(self, kind: str) -> None:
        """Name a type that has no form in the library."""
        if kind not in self.unknown:
            self.unknown.append(kind)

    def rename(self, ids: Sequence[str]) -> None:
        """Take over the ids that a turn gave the messages: ``TurnView.ids``."""
        for entry, message_id in zip(self.entries, ids, strict=True):
            entry.message.id = message_id

    def left_out(self, keep: Collection[str]) -> set[Place]:
        """Return the places of the messages whose ids are not in ``keep``."""
        return {place for entry in self.entries if entry.message.id not in keep for place in entry.places}

    def notes(self, notes: dict[str, str]) -> dict[Place, str]:
        """Return the notes by the first place of their message."""
        return {e.places[0]: notes[e.message.id] for e in self.entries if e.message.id in notes}
