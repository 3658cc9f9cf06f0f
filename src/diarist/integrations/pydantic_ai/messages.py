"""Converts messages of Pydantic AI. Pure functions: the given messages are never changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from itertools import takewhile
from typing import cast

from pydantic_ai import messages as lib
from pydantic_core import to_jsonable_python

from diarist.encoding import parse_arguments
from diarist.integrations.history import History
from diarist.memory import TurnView
from diarist.memory.divergence import key_of
from diarist.messages import (
    FilePart,
    Json,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolPart,
    ToolState,
)
from diarist.models import provider_data
from diarist.models.pydantic_ai import prompt
from diarist.prompting import build_prompt

Place = tuple[int, int]
"""Index of a message, and index of the part in it."""

# System prompts are always sent, and so are the parts in which the framework keeps its own state.
_STATE = (
    lib.SystemPromptPart,
    lib.ToolAvailabilityDeltaPart,
    lib.CapabilityLoadDeltaPart,
    lib.ModelSettingsDeltaPart,
    lib.InstructionDeltaPart,
    lib.InstructionBaselinePart,
)
_OUTCOMES: dict[str, ToolState] = {"success": "result", "denied": "denied"}


def to_neutral(
    messages: Sequence[lib.ModelMessage], history: History[Place] | None = None, *, known: int = 0
) -> History[Place]:
    """Return the history. The own id of an answer is made of its ``run_id`` and time, that of a question of its time
    and words.

    System prompts and instructions have no entry, and neither have the parts in which the framework keeps its own
    state.

    Args:
        history: The history of the first ``known`` messages; the others are added to it.
    """
    history = History[Place]() if history is None else history
    for index, message in enumerate(messages[known:], known):
        if isinstance(message, lib.ModelRequest):
            _read_request(index, message, history)
        else:
            _read_response(index, message, history)
    return history


def select(
    messages: Sequence[lib.ModelMessage],
    history: History[Place],
    keep: Collection[str],
    notes: Mapping[str, str] | None = None,
) -> list[lib.ModelMessage]:
    """Return the messages to send: the parts of the entries in ``keep``, and all that have no entry, as they are.

    A message of which nothing is left is not sent. One of which everything is left is the given object.

    Args:
        keep: Ids of the entries to send.
        notes: Text to send before the content of a user message, by id.
    """
    return [message for _, message in _selected(messages, history, keep, notes or {})]


def arrange(
    messages: Sequence[lib.ModelMessage], history: History[Place], view: TurnView, *, stored: int = 0, system: str
) -> list[lib.ModelMessage]:
    """Return the messages of a request: those in the history as they are, and the others that memory brings.

    Args:
        view: Of the messages of ``history.entries[stored:]``.
        stored: Number of entries that memory has, so it brings them, too.
        system: As for ``to_theirs``.
    """
    given = dict(zip(view.ids, history.entries[stored:], strict=True))
    keep = {e.message.id: e for e in history.entries[:stored] if e.message.id not in given}
    keep |= {message_id: given[message_id] for message_id in view.keep}
    brought = {message.id: message for message in view.brought if message.id not in keep}
    before: dict[int, list[Message]] = {}
    waiting: list[Message] = []
    for message_id in view.order if brought else ():
        if message_id in brought:
            waiting.append(brought[message_id])
        elif waiting:
            before[keep[message_id].places[0][0]], waiting = waiting, []
    own = {keep[message_id].message.id for message_id in view.order if message_id in keep}
    notes = {keep[message_id].message.id: note for message_id, note in view.notes.items() if message_id in keep}
    out: list[lib.ModelMessage] = []
    for index, message in _selected(messages, history, own, notes):
        if index in before:
            head, message = _without_head(message)
            out += [*head, *to_theirs(before[index], system=system)]
        out.append(message)
    return [*out, *to_theirs(waiting, system=system)] if waiting else out


def _selected(
    messages: Sequence[lib.ModelMessage], history: History[Place], keep: Collection[str], notes: Mapping[str, str]
) -> Iterator[tuple[int, lib.ModelMessage]]:
    """Yield the messages that ``select`` returns, with their places among the given ones."""
    left_out, texts = history.left_out(keep), history.notes(dict(notes))
    changed = {index for index, _ in (*left_out, *texts)}
    for index, message in enumerate(messages):
        if index not in changed:
            yield index, message
        elif isinstance(message, lib.ModelRequest):
            kept = [
                _with_note(part, texts.get((index, place)))
                for place, part in enumerate(message.parts)
                if (index, place) not in left_out
            ]
            if kept:
                yield index, replace(message, parts=kept)
        else:
            parts = [part for place, part in enumerate(message.parts) if (index, place) not in left_out]
            if parts:
                yield index, replace(message, parts=parts)


def _without_head(message: lib.ModelMessage) -> tuple[list[lib.ModelMessage], lib.ModelMessage]:
    """Return the system prompts before a message's other parts as a request of their own, and the rest."""
    count = sum(1 for _ in takewhile(lambda part: isinstance(part, lib.SystemPromptPart), message.parts))
    if not count or not isinstance(message, lib.ModelRequest):
        return [], message
    return [replace(message, parts=message.parts[:count])], replace(message, parts=message.parts[count:])


def to_theirs(messages: Sequence[Message], *, system: str) -> list[lib.ModelMessage]:
    """Return stored messages in the framework's form.

    Args:
        system: The framework's name of the provider; reasoning and provider data of other providers are left out.
    """
    return prompt.to_messages(build_prompt((), messages), system=system, breakpoints=False)


def _id_of_answer(message: lib.ModelResponse) -> str | None:
    return None if message.run_id is None else f"{message.run_id}-{_moment(message.timestamp)}"


def _id_of_question(moment: datetime, parts: Sequence[Part]) -> str:
    """Return an id that does not depend on the ``run_id``: the framework drops it when it merges requests.

    The id looks like one of memory's own, so memory also compares the words: a program may make the message again in
    each run, with another time.
    """
    words = repr(key_of(Message(role="user", parts=list(parts))))
    return f"msg_{sha256(f'{_moment(moment)} {words}'.encode()).hexdigest()[:32]}"


def _moment(time: datetime) -> str:
    return f"{int(time.timestamp() * 1_000_000):x}"


def _read_request(index: int, message: lib.ModelRequest, history: History[Place]) -> None:
    for number, part in enumerate(message.parts):
        place = index, number
        match part:
            case lib.UserPromptPart():
                said = list(_said(part.content, history))
                added = history.add("user", said, [place], _id_of_question(part.timestamp, said))
                if added is not None:
                    added.created_at = part.timestamp
            case lib.ToolReturnPart():
                state = _OUTCOMES.get(part.outcome, "error")
                history.answer(place, part.tool_call_id, part.tool_name, _result(part.content), state)
            case lib.RetryFeedbackPart():  # what was wrong with the answer before
                history.attach([place])
            case lib.SpeechPart() if part.transcript:
                history.add("user", [TextPart(text=part.transcript)], [place], None)
            case _ if isinstance(part, _STATE):
                pass
            case _:
                history.note(part.part_kind)


def _read_response(index: int, message: lib.ModelResponse, history: History[Place]) -> None:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, lib.NativeToolReturnPart):
            _answer_native(part, parts, history)
        else:
            parts += _answer(part, history)
    places = [(index, number) for number in range(len(message.parts))]
    added = history.add("assistant", parts, places, _id_of_answer(message))
    if added is not None:
        added.created_at = message.timestamp


def _answer(part: lib.ModelResponsePart, history: History[Place]) -> Iterator[Part]:
    match part:
        case lib.TextPart():
            yield TextPart(text=part.content, provider_data=provider_data.from_part(part))
        case lib.ThinkingPart():
            yield ReasoningPart(
                text=part.content,
                signature=part.signature,
                provider=part.provider_name,
                provider_data=provider_data.from_part(part),
            )
        case lib.NativeToolCallPart():
            yield ToolPart(
                call_id=part.tool_call_id,
                name=part.tool_name,
                args=_arguments(part.args),
                provider_executed=True,
                provider_data=provider_data.of_call(part),
            )
        case lib.ToolCallPart():
            yield ToolPart(
                call_id=part.tool_call_id,
                name=part.tool_name,
                args=_arguments(part.args),
                provider_data=provider_data.from_part(part),
            )
        case lib.FilePart():
            yield FilePart(media_type=part.content.media_type, data=part.content.data)
        case lib.SpeechPart() if part.transcript:
            yield TextPart(text=part.transcript)
        case _:
            history.note(part.part_kind)


def _answer_native(part: lib.NativeToolReturnPart, parts: Sequence[Part], history: History[Place]) -> None:
    for call in parts:
        if isinstance(call, ToolPart) and call.call_id == part.tool_call_id:
            call.result, call.state = _result(part.content), _OUTCOMES.get(part.outcome, "error")
            call.provider_data = {**(call.provider_data or {}), **provider_data.of_result(part)}
            return
    history.note(part.part_kind)


def _arguments(args: str | Mapping[str, object] | None) -> dict[str, Json]:
    """Return the arguments; text that is not a JSON object becomes one argument."""
    if args is None:
        return {}
    if not isinstance(args, str):
        return dict(args)
    found, problem = parse_arguments(args)
    return {"arguments": args} if problem else found


def _result(content: object) -> Json:
    """Return a tool's result as JSON, with a placeholder for each file."""
    if isinstance(content, lib.BinaryContent | lib.FileUrl):
        return f"[{content.media_type}]"
    if isinstance(content, list):
        return [_result(item) for item in cast(list[object], content)]
    return content if isinstance(content, str) else to_jsonable_python(content, bytes_mode="base64", fallback=str)


def _said(content: str | Sequence[lib.UserContent], history: History[Place]) -> Iterator[Part]:
    for item in [content] if isinstance(content, str) else content:
        match item:
            case str():
                yield TextPart(text=item)
            case lib.TextContent():
                yield TextPart(text=item.content)
            case lib.BinaryContent():
                yield FilePart(media_type=item.media_type, data=item.data)
            case lib.ImageUrl() | lib.AudioUrl() | lib.VideoUrl() | lib.DocumentUrl():
                yield FilePart(media_type=_media_type(item), url=item.url)
            case lib.CachePoint():
                pass
            case _:
                history.note(item.kind)
                yield TextPart(text=f"[{item.kind}]")


def _media_type(item: lib.ImageUrl | lib.AudioUrl | lib.VideoUrl | lib.DocumentUrl) -> str:
    try:
        return item.media_type
    except ValueError:  # the address does not tell
        kind = item.kind.removesuffix("-url")
        return "application/octet-stream" if kind == "document" else f"{kind}/*"


def _with_note(part: lib.ModelRequestPart, note: str | None) -> lib.ModelRequestPart:
    if note is None or not isinstance(part, lib.UserPromptPart):
        return part
    content = [part.content] if isinstance(part.content, str) else part.content
    return replace(part, content=[note, *content])
