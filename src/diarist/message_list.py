"""The messages of one run, each with its origin, and the system messages by tag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache
from types import MethodType
from typing import Any, Literal, cast

from diarist.data_urls import audio_type, read_data_url
from diarist.encoding import parse_arguments
from diarist.exceptions import InputError
from diarist.message_check import flaw
from diarist.messages import (
    MAX_NESTING,
    FilePart,
    Message,
    Part,
    TextPart,
    ToolPart,
    copy_json,
    copy_message,
    parse_time,
    too_deep,
    utc_now,
)

Origin = Literal["input", "memory", "response", "context"]
"""The origin of a message: the caller, memory, the model of this run, or a processor that added context."""

MessageInput = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""The input of a call: a text, a message, an OpenAI-style dictionary, or a list of these."""

_CHAT_FORM = (
    "use the form of chat completions: content parts {'type': 'text', 'text': ...}, {'type': 'image_url', ...}, "
    "{'type': 'input_audio', ...} and {'type': 'file', ...} with file_data, calls in tool_calls of an assistant "
    "message, and results in messages of role tool"
)


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """A system message. ``tag`` names the processor that added it; None marks the agent's instructions."""

    text: str
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class FieldValues:
    """The field values of a part, a chunk or a request, with deep copies of lists and dictionaries.

    ``put_back`` restores them in the same object, since results may refer to it.
    """

    thing: Any
    values: dict[str, Any]

    @classmethod
    def of(cls, thing: Any, *names: str) -> FieldValues:
        """``names``: The fields to keep; by default all."""
        names = names or _names(cast(type[Any], type(thing)))
        return cls(thing, {name: copy_json(getattr(thing, name)) for name in names})

    def put_back(self) -> None:
        for name, value in self.values.items():
            setattr(self.thing, name, copy_json(value))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a ``MessageList`` for ``restore``. ``contents`` has the fields of messages and parts, if requested."""

    messages: tuple[Message, ...]
    origins: Mapping[str, Origin]
    hidden: frozenset[str]
    system: tuple[SystemMessage, ...]
    contents: list[FieldValues]


class MessageList:
    """The conversation as one run sees it, in order.

    ``messages`` are the messages for the prompt. A message of this run that memory's notes cover is *hidden*: it is no
    longer sent, but still belongs to the run's input or response.

    Attributes:
        repaired: Ids of remembered messages that a processor repaired after a provider refused them; memory stores
            them again.
        dropped: Ids of remembered messages that such a repair removed; memory does not load them again.
        obsolete: Dropped ids that memory deletes, since a model has answered without them.
    """

    def __init__(self, instructions: Iterable[str] = ()) -> None:
        self._arrange([], {})
        self._hidden: set[str] = set()
        self.repaired: set[str] = set()
        self.dropped: set[str] = set()
        self.obsolete: set[str] = set()
        self._system: list[SystemMessage] = [SystemMessage(text) for text in instructions if text]

    # -- views

    @property
    def messages(self) -> list[Message]:
        """The messages for the prompt, in order, without system messages."""
        hidden = self._hidden
        return [message for message in self._messages if message.id not in hidden] if hidden else list(self._messages)

    @property
    def all(self) -> list[Message]:
        """All messages, including hidden messages."""
        return list(self._messages)

    @property
    def input(self) -> list[Message]:
        return self.of("input")

    @property
    def response(self) -> list[Message]:
        return self.of("response")

    @property
    def remembered(self) -> list[Message]:
        return self.of("memory")

    def of(self, *origins: Origin) -> list[Message]:
        """Messages of these origins, including hidden messages."""
        if origins not in self._views:
            origin_of = self._origins
            among = self._messages
            if "memory" not in origins:  # most messages are, so the others are collected once for all views
                if self._not_remembered is None:
                    self._not_remembered = [message for message in among if origin_of[message.id] != "memory"]
                among = self._not_remembered
            self._views[origins] = [message for message in among if origin_of[message.id] in origins]
        return list(self._views[origins])

    @property
    def system(self) -> list[SystemMessage]:
        """The agent's instructions, then the system messages that processors added, in order."""
        return list(self._system)

    def origin_of(self, message_id: str) -> Origin | None:
        return self._origins.get(message_id)

    def flaw(self) -> str | None:
        """Return the first mistake in a message, with its index; None if all are valid."""
        for place, message in enumerate(self._messages):
            if wrong := flaw(message):
                return f"message {place}: {wrong}"
            if message.id not in self._origins:
                return f"message {place}: its id was changed, to {message.id!r}; replace the message instead"
        return None

    def __len__(self) -> int:
        return len(self._messages)

    # -- changes

    def _arrange(self, messages: list[Message], origins: dict[str, Origin]) -> None:
        """Set messages and origins. Only this method and ``add`` change them, so ``of`` can cache its lists."""
        self._messages = messages
        self._origins = origins
        self._views: dict[tuple[Origin, ...], list[Message]] = {}
        self._not_remembered: list[Message] | None = None
        self._window: list[Message] | None = None  # the last one given to ``remember``

    def add(self, message: Message, origin: Origin = "input") -> None:
        """Add a message at the end; origin ``memory``: after the remembered ones. A known id is replaced in place."""
        if message.role == "system":
            self.add_system(message.text, tag=message.metadata.get("tag", origin))
            return
        if message.id not in self._origins and origin != "memory":
            self._messages.append(message)
            if self._not_remembered is not None:
                self._not_remembered.append(message)
        else:
            if message.id in self._origins:
                place = next(i for i, other in enumerate(self._messages) if other.id == message.id)
                self._messages[place] = message
            else:
                self._messages.insert(len(self.remembered), message)
            self._not_remembered = self._window = None
        self._origins[message.id] = origin
        self._views.clear()

    def substitute(self, message_id: str, message: Message) -> None:
        """Put a message into the place of another one, with its origin. The id may change."""
        self._arrange(
            [message if other.id == message_id else other for other in self._messages],
            {message.id if known == message_id else known: origin for known, origin in self._origins.items()},
        )

    def remove(self, ids: Iterable[str]) -> None:
        """Remove messages; unknown ids are ignored."""
        if gone := set(ids):
            self._hidden -= gone
            self._arrange(
                [message for message in self._messages if message.id not in gone],
                {message_id: origin for message_id, origin in self._origins.items() if message_id not in gone},
            )

    def recall(self, rows: Iterable[Message]) -> None:
        """Add rows of the thread, in order. Known messages keep their places; a new one follows the row before it."""
        rows = list(rows)
        origins = dict(self._origins)
        ids = [row.id for row in rows]
        if origins.keys().isdisjoint(ids):  # at the start of a run
            origins.update(dict.fromkeys(ids, "memory"))
            self._arrange(rows + self._messages, origins)
            return
        front: list[Message] = []
        after: dict[str, list[Message]] = {}
        place = front
        for row in rows:
            if row.id in origins:
                place = after.setdefault(row.id, [])
            else:
                origins[row.id] = "memory"
                place.append(row)
        if len(origins) > len(self._origins):
            self._arrange(_interleaved(front, self._messages, after), origins)

    def remember(self, window: Sequence[Message]) -> None:
        """Make ``window``, without dropped messages, the thread's part of the prompt.

        Other remembered messages are removed; messages of this run outside the window are hidden.
        """
        window = [message for message in window if message.id not in self.dropped] if self.dropped else list(window)
        shown = {message.id for message in window}
        last = self._window
        grown = last is not None and window[: len(last)] == last and self._origins.keys() >= shown
        if not grown:
            self.remove([message.id for message in self.remembered if message.id not in shown])
            self.recall(window)
        self._window = window
        self._hidden = {m.id for m in self.of("input", "response") if m.seq is not None and m.id not in shown}

    def add_system(self, text: str, *, tag: str | None = None) -> None:
        if text:
            self._system.append(SystemMessage(text, tag))

    def replace_system(self, messages: Sequence[SystemMessage | str]) -> None:
        """Replace all system messages; a string becomes one of the agent's instructions."""
        self._system = [SystemMessage(item) if isinstance(item, str) else item for item in messages]

    # -- attempts

    def snapshot(self, *, contents: bool = False) -> Snapshot:
        """Return the current state. ``contents`` adds the fields of each message, to undo edits in place.

        Fields that memory sets (``seq``, ``sent``, ``part_tokens``) are never restored.
        """
        values: list[FieldValues] = []
        for message in self._messages if contents else ():
            values.append(FieldValues.of(message, "id", "role", "parts", "metadata"))
            values += map(FieldValues.of, message.parts)
        return Snapshot(
            tuple(self._messages), dict(self._origins), frozenset(self._hidden), tuple(self._system), values
        )

    def restore(self, snapshot: Snapshot) -> None:
        self.put_back(snapshot)
        self._arrange(list(snapshot.messages), dict(snapshot.origins))
        self._hidden = set(snapshot.hidden)
        self._system = list(snapshot.system)

    def put_back(self, snapshot: Snapshot) -> None:
        """Undo edits that were made in the snapshot's messages, without changing the list of messages."""
        for content in snapshot.contents:
            content.put_back()

    def copy(self) -> MessageList:
        """Return an independent list with copies of the messages, for a parallel branch."""
        other = MessageList()
        other._arrange([copy_message(message) for message in self._messages], dict(self._origins))
        other._hidden = set(self._hidden)
        other._system = list(self._system)
        return other

    # -- what a processor returned

    def reconcile(self, shown: Sequence[Message], returned: Sequence[Message], *, default: Origin) -> None:
        """Replace the messages that a processor was ``shown`` with those that it ``returned``, in the same order.

        Messages of role ``system`` are added to the system messages. New messages get the origin ``default``; others
        keep theirs. A message that was not shown (hidden, or added during the hook) stays behind its predecessor, or
        first. If an id occurs twice, the later message takes the place of the first.
        """
        for message in returned:
            if message.role == "system":
                self.add(message, default)
        kept = {message.id: message for message in returned if message.role != "system"}
        gone = {message.id for message in shown} - kept.keys()
        front: list[Message] = []
        after: dict[str, list[Message]] = {}
        place = front
        for message in self._messages:
            if message.id in kept:
                place = after.setdefault(message.id, [])
            elif message.id not in gone:
                place.append(message)
        messages = _interleaved(front, kept.values(), after)
        self._arrange(messages, {message.id: self._origins.get(message.id, default) for message in messages})
        self._hidden &= self._origins.keys()


def _interleaved(
    front: Iterable[Message], messages: Iterable[Message], after: Mapping[str, Iterable[Message]]
) -> list[Message]:
    """Return ``front``, then each of ``messages`` with those that come ``after`` its id."""
    out = list(front)
    for message in messages:
        out.append(message)
        out += after.get(message.id, ())
    return out


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def to_messages(value: MessageInput) -> list[Message]:
    """Convert the caller's input to messages owned by the run. Raises InputError with the index of a wrong entry."""
    if isinstance(value, str):
        return [Message.user(value)]
    entries = [value] if isinstance(value, Message | Mapping) else value
    if not isinstance(cast(Any, entries), list | tuple):
        raise InputError(f"the input must be a text, a message or a list of messages, not {type(entries).__name__}")
    messages = [_to_message(entry, index) for index, entry in enumerate(entries)]
    if not messages:
        raise InputError("there is nothing to answer: the list of messages is empty")
    for index, message in enumerate(messages):
        values = [message.metadata, *(value for part in message.tool_parts for value in (part.args, part.result))]
        if any(map(too_deep, values)):
            raise InputError(
                f"message {index}: metadata, arguments or a result are nested more than {MAX_NESTING} deep"
            )
    return messages


def _to_message(entry: Message | Mapping[str, Any], index: int) -> Message:
    if isinstance(entry, Message):
        if wrong := flaw(entry):
            raise InputError(f"message {index}: {wrong}")
        # Copy the message, so that edits by processors and values set by storage do not reach the caller's object.
        return replace(entry, parts=[copy(part) for part in entry.parts], metadata=dict(entry.metadata))
    if isinstance(dump := getattr(cast(Any, entry), "model_dump", None), MethodType):  # a message of the openai package
        entry = cast(Mapping[str, Any], dump(exclude_none=True))
    if not isinstance(cast(Any, entry), Mapping):
        raise InputError(f"message {index}: must be a Message or a dictionary, not {type(entry).__name__}")
    created_at = _to_time(entry.get("created_at"), index)
    if "parts" in entry:
        try:
            message = Message.from_dict({**entry, "created_at": None})
        except InputError as error:
            raise InputError(
                f"message {index}: {error}; parts must have the form of Message.to_dict(); instead of a UIMessage, as "
                "useChat sends it, pass its id, its role, and its text as content"
            ) from error
        if wrong := flaw(message):
            raise InputError(f"message {index}: {wrong}")
        message.created_at = created_at
        return message
    role, content = entry.get("role"), entry.get("content")
    if role == "tool":
        return Message(role="tool", parts=[_to_result(entry, content, index)], created_at=created_at)
    if role is None and "type" in entry:
        raise InputError(f"message {index}: cannot read an item of type {entry['type']!r}; {_CHAT_FORM}")
    if role == "assistant" and content is None:  # it has calls, refuses, or was cut off before its first word
        content = entry.get("refusal") or ""
    elif role is None or "content" not in entry:
        raise InputError(
            f"message {index}: a dictionary needs role and content; it has {', '.join(map(str, entry)) or 'nothing'}"
        )
    if role == "developer":  # OpenAI's newer name for it
        role = "system"
    if role not in ("system", "user", "assistant"):
        raise InputError(f"message {index}: role must be system, user, assistant or tool, not {role!r}")
    called: Any = entry.get("tool_calls") or []
    if not isinstance(called, list | tuple):
        raise InputError(f"message {index}: tool_calls must be a list, not {type(called).__name__}")
    calls = [_to_call(call, index) for call in cast(Sequence[Any], called)]
    parts: list[Part]
    if isinstance(content, str):
        parts = [*calls] if calls and not content else [TextPart(text=content), *calls]
    elif isinstance(content, list):
        parts = [*(_to_part(part, index) for part in cast(list[Any], content)), *calls]
    else:
        raise InputError(f"message {index}: content must be a text or a list of parts, not {type(content).__name__}")
    message = Message(role=role, parts=parts, created_at=created_at)
    if entry.get("id"):
        message.id = str(entry["id"])
    return message


def _to_time(value: Any, index: int) -> datetime:
    if value is None:
        return utc_now()
    moment = value if isinstance(value, datetime) else parse_time(value)
    if moment is None:
        raise InputError(
            f"message {index}: created_at must be a time in ISO 8601, such as '2024-03-05T09:00:00Z', not {value!r}"
        )
    if moment.tzinfo is None:
        raise InputError(f"created_at of message {index} needs a time zone: {value!r}")
    return moment


def _to_call(call: Any, index: int) -> ToolPart:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
            args, problem = parse_arguments(arguments)
            if problem is not None:  # a mistake of the model, which the loop answers with an error
                args = {"arguments": arguments}
            return ToolPart(call_id=call_id, name=name, args=args)
        case _:
            raise InputError(f"message {index}: cannot read the tool call {str(call)[:100]}")


def _to_result(entry: Mapping[str, Any], content: Any, index: int) -> ToolPart:
    call_id = entry.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise InputError(f"message {index}: a message of role tool needs the tool_call_id of the call it answers")
    parts = cast(list[Any], content) if isinstance(content, list) else []
    if parts and all(isinstance(part, Mapping) and cast(Any, part).get("type") == "text" for part in parts):
        content = "\n".join([str(part.get("text", "")) for part in parts])
    return ToolPart(call_id=call_id, name=str(entry.get("name") or ""), args={}, state="result", result=content)


def _to_part(part: Any, index: int) -> Part:
    match part:
        case str():
            return TextPart(text=part)
        case TextPart() | FilePart() | ToolPart():
            return copy(part)  # the caller's own object
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return TextPart(text=text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return _to_file(url, "image/*", index)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return _to_file(f"data:{audio_type(kind)};base64,{data}", "audio/*", index)
        case {"type": "file", "file": {"file_data": str(url), **rest}}:
            return _to_file(url, "application/octet-stream", index, rest.get("filename"))
        case _:
            raise InputError(f"message {index}: cannot read the content part {str(part)[:100]}; {_CHAT_FORM}")


def _to_file(url: str, media_type: str, index: int, name: str | None = None) -> FilePart:
    """Return a file with its URL; of a ``data:`` URL, with its bytes."""
    if not url.startswith("data:"):
        return FilePart(media_type=media_type, url=url, name=name)
    found = read_data_url(url)
    if found is None:
        raise InputError(f"message {index}: cannot decode the bytes of a file: {url[:60]}")
    return FilePart(media_type=found[0] or media_type, data=found[1], name=name)
