"""A prompt's conversation in units that stay or go together, and whether they may go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from diarist.message_list import MessageList
from diarist.messages import Prompt, PromptMessage, ToolCallPart, ToolResultPart


@dataclass(slots=True)
class Unit:
    """One message of the conversation as the prompt has it: a call is never apart from its result.

    Attributes:
        fixed: It belongs to the current run (or answers a call that this run brought the result of).
        tokens: Filled in by whoever counts.
    """

    messages: list[PromptMessage] = field(default_factory=list[PromptMessage])
    fixed: bool = False
    tokens: int = 0

    @property
    def id(self) -> str | None:
        return self.messages[0].message_id

    @property
    def opens_turn(self) -> bool:
        return self.messages[0].role == "user"


def split(prompt: Prompt, messages: MessageList, count: Callable[[PromptMessage], int]) -> tuple[int, list[Unit]]:
    """The tokens of the system messages, and the units of the rest in their order."""
    system = 0
    units: list[Unit] = []
    by_message: dict[str, Unit] = {}
    by_call: dict[str, Unit] = {}  # the newest call of an id: some models number theirs anew in each run
    for message in prompt:
        tokens = count(message)
        if message.role == "system":
            system += tokens
            continue
        unit = by_message.get(message.message_id or "") or _caller(message, by_call)
        if unit is None:
            unit = Unit()
            units.append(unit)
        unit.messages.append(message)
        unit.tokens += tokens
        unit.fixed |= not is_history(message, messages)
        if message.message_id is not None:
            by_message[message.message_id] = unit
        by_call |= {part.call_id: unit for part in message.parts if isinstance(part, ToolCallPart)}
    for call_id in _answered(messages) & by_call.keys():
        by_call[call_id].fixed = True
    return system, units


def is_history(message: PromptMessage, messages: MessageList) -> bool:
    """Whether memory brought the message from earlier runs."""
    return message.message_id is not None and messages.source_of(message.message_id) == "memory"


def _caller(message: PromptMessage, by_call: dict[str, Unit]) -> Unit | None:
    """The unit of the calls whose results a message brings."""
    for part in message.parts:
        if isinstance(part, ToolResultPart) and part.call_id in by_call:
            return by_call[part.call_id]
    return None


def _answered(messages: MessageList) -> set[str]:
    """Calls of earlier runs whose results came with this run's input."""
    return {part.call_id for message in messages.input for part in message.tool_parts if part.state != "call"}
