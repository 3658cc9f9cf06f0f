"""Messages of earlier runs as memory would load them, without a storage."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from diarist import Message, Processor
from diarist.messages import Json, TextPart, ToolPart
from diarist.processors import ProcessInputArgs


class Past(Processor[Any]):
    """Adds messages before the input, as memory does."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        for message in deepcopy(self.messages):
            args.message_list.add(message, "memory")


def turn(number: int, size: int = 1) -> list[Message]:
    """Return a question and an answer, each of about ``size`` tokens plus five."""
    padding = " word" * size
    return [
        Message.user(f"question {number}{padding}", id=f"q{number}"),
        Message.assistant(f"answer {number}{padding}", id=f"a{number}"),
    ]


def with_tool(number: int, name: str = "look", result: Json = "seen", text: str = "") -> Message:
    """Return an assistant message with a finished call; all calls have one id, as with some models."""
    part = ToolPart(call_id="call_1", name=name, args={"n": number}, state="result", result=result)
    parts = [part, *([TextPart(text=text)] if text else [])]
    return Message(role="assistant", parts=parts, id=f"t{number}")


def shown(text: str, numbers: Sequence[int]) -> list[int]:
    """Return the numbers of the questions in a prompt."""
    return [number for number in numbers if f"question {number}\n" in text or f"question {number} " in text]
