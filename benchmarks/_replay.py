"""A recorded conversation as turns, and an actor that answers as it was answered then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from diarist import Message, Processor
from diarist.chunks import (
    Chunk,
    ModelFinish,
    ModelFinishPayload,
    TextDelta,
    TextPayload,
    ToolCallChunk,
    ToolCallPayload,
    Usage,
)
from diarist.messages import Json, TextPart, ToolPart
from diarist.models.base import Model, ModelRequest
from diarist.processors.base import ProcessToolCallArgs, ToolCallResult


@dataclass
class Turn:
    """What a user said, and the assistant's messages up to the next user."""

    said: Message
    replies: list[Message] = field(default_factory=list[Message])


def turns_of(messages: list[Message]) -> list[Turn]:
    """The conversation turn by turn. What comes before the first user is left out."""
    turns: list[Turn] = []
    for message in messages:
        if message.role == "user":
            turns.append(Turn(message))
        elif turns and message.role == "assistant":
            turns[-1].replies.append(message)
    return turns


class Recorded(Model):
    """Answers with the recorded replies of the present turn, tool calls included."""

    provider = "recorded"
    name = "actor"

    def __init__(self) -> None:
        self.replies: list[Message] = []
        self.results: dict[str, Json] = {}
        self.prompts: list[int] = []

    def begin(self, turn: Turn) -> None:
        self.replies = list(turn.replies)
        self.results = {part.call_id: part.result for reply in turn.replies for part in reply.tool_parts}

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self.prompts.append(len(request.text))
        reply = self.replies.pop(0) if self.replies else Message.assistant("…")
        for part in reply.parts:
            if isinstance(part, TextPart) and part.text:
                yield TextDelta(payload=TextPayload(text=part.text))
            elif isinstance(part, ToolPart):
                yield ToolCallChunk(
                    payload=ToolCallPayload(tool_call_id=part.call_id, tool_name=part.name, args=part.args)
                )
        reason = "tool-calls" if any(isinstance(part, ToolPart) for part in reply.parts) else "stop"
        yield ModelFinish(payload=ModelFinishPayload(reason=reason, usage=Usage()))


class RecordedTools(Processor[None]):
    """Gives each tool call its recorded result; no tool runs."""

    id = "recorded-tools"

    def __init__(self, actor: Recorded) -> None:
        self._actor = actor

    def process_tool_call(self, args: ProcessToolCallArgs[None]) -> ToolCallResult:
        return {"result": self._actor.results.get(args.call.call_id, "")}
