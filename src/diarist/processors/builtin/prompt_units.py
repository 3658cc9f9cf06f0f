"""Split a prompt into units of messages that must be kept or removed together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from diarist.message_list import MessageList
from diarist.messages import Prompt, PromptMessage, ToolCallPart, ToolResultPart


@dataclass(slots=True)
class Unit:
    """The prompt messages of one message of the conversation, with the results of its tool calls.

    Attributes:
        fixed: True if the message belongs to the current run, or the run's input has a result of its calls.
        tokens: Tokens of the prompt messages.
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
    """Return the tokens of the system messages, and the other messages as units, in order."""
    system = 0
    units: list[Unit] = []
    by_message: dict[str, Unit] = {}
    by_call: dict[str, Unit] = {}  # by call id, the newest: some models use the same ids in each run
    for message in prompt:
        tokens = count(message)
        if message.role == "system":
            system += tokens
            continue
        unit = by_message.get(message.message_id or "")
        if unit is None:
            results = (part for part in message.parts if isinstance(part, ToolResultPart))
            unit = next((by_call[part.call_id] for part in results if part.call_id in by_call), None)
        if unit is None:
            unit = Unit()
            units.append(unit)
        unit.messages.append(message)
        unit.tokens += tokens
        is_history = message.message_id is not None and messages.source_of(message.message_id) == "memory"
        unit.fixed |= not is_history
        if message.message_id is not None:
            by_message[message.message_id] = unit
        by_call |= {part.call_id: unit for part in message.parts if isinstance(part, ToolCallPart)}
    answered = {part.call_id for message in messages.input for part in message.tool_parts if part.state != "call"}
    for call_id in answered & by_call.keys():
        by_call[call_id].fixed = True
    return system, units
