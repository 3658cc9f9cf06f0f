"""What stands raw in front of the model, and which of it may be observed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from diarist.counting import message_tokens
from diarist.messages import Message, ToolPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The sizes that decisions are made of, in tokens.

    Attributes:
        message_tokens: All raw rows, with the blocks that memory sent along.
        observable_tokens: Those of them that may be observed.
        observation_tokens: The log as this run sees it.
        reflectable: There are entries that a reflection could replace and has not given up on.
        observer_ready, reflector_ready: The role may be called and awaited: it does not back off after a
            failure, and the run has not used up its time for waiting.
    """

    message_tokens: int
    observable_tokens: int
    observation_tokens: int
    reflectable: bool
    observer_ready: bool = True
    reflector_ready: bool = True


def tokens_of(rows: Sequence[Message]) -> int:
    return sum(message_tokens(row) for row in rows)


def stand_in(first: Message) -> Message:
    """A user's message to stand before ``first``, where a conversation begins with the assistant: some
    providers refuse that."""
    text = "(The conversation begins with the assistant.)"
    return Message.user(text, id=f"{first.id}-opening", created_at=first.created_at)


def observable_units(raw: Sequence[Message], pinned: Collection[str]) -> list[list[Message]]:
    """The raw rows that may be observed, in order.

    Left out are pinned rows, and everything from the first tool call on that may still get its result. Rows
    that must not be parted, a call and the result that came in a row of its own, form one unit with what
    stands between them; every other unit is one row.
    """
    answers = _answers(raw)
    held = {*pinned, *(raw[call].id for call, answer in answers.items() if raw[answer].id in pinned)}
    end = _first_pending(raw, answers)
    units: list[list[Message]] = []
    joined_until = -1
    for index, row in enumerate(raw[:end]):
        if row.id in held:
            continue
        if index <= joined_until:
            units[-1].append(row)
        else:
            units.append([row])
        joined_until = max(joined_until, answers.get(index, -1))
    return units


def _answers(raw: Sequence[Message]) -> dict[int, int]:
    """Places of rows whose pending calls are answered by a later row, and the place of the last such row."""
    calls: dict[str, int] = {}
    answers: dict[int, int] = {}
    for index, row in enumerate(raw):
        for part in row.tool_parts:
            if part.state == "call":
                calls[part.call_id] = index
            elif row.role == "tool" and part.call_id in calls:
                answers[calls.pop(part.call_id)] = index
    return answers


def _first_pending(raw: Sequence[Message], answers: dict[int, int]) -> int:
    """The place of the first row with a call that may still be answered: a new user turn closes it."""
    last_user = max((index for index, row in enumerate(raw) if row.role == "user"), default=-1)
    done = {part.call_id for row in raw if row.role == "tool" for part in row.tool_parts if part.state != "call"}
    for index, row in enumerate(raw):
        if index > last_user and any(_pending(part) and part.call_id not in done for part in row.tool_parts):
            return index
    return len(raw)


def _pending(part: ToolPart) -> bool:
    return part.state == "call" and not part.provider_executed
