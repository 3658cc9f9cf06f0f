"""Agents of Pydantic AI for ``beside_frameworks.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from _beside import INSTRUCTIONS, RECENT, TOOLS, Recorder, look_up, newest, observational_memory
from _conversation import count
from pydantic_ai import (
    Agent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.models.function import AgentInfo, FunctionModel

from diarist.integrations.pydantic_ai import ObservationalMemory
from diarist.testing.adapter_conformance import SentMessage

MESSAGES_PER_TURN = 2 + 2 * 2 / 3
"""A question and an answer; in two of three turns, calls and their results."""


def sent(messages: Sequence[ModelMessage]) -> Iterator[SentMessage]:
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = tuple(part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart))
            yield SentMessage(role="assistant", text=message.text or "", calls=calls)
            continue
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                yield SentMessage(role="tool", text=part.model_response_str(), result_of=part.tool_call_id)
            elif isinstance(part, UserPromptPart):
                content = [part.content] if isinstance(part.content, str) else part.content
                yield SentMessage(role="user", text="\n\n".join(str(item) for item in content))


class Program:
    def __init__(self, recorder: Recorder, *capabilities: Any) -> None:
        def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            parts = [part for message in messages for part in message.parts]
            system = [part.content for part in parts if isinstance(part, SystemPromptPart)]
            step = recorder.step([info.instructions or "", *system], list(sent(messages)))
            if isinstance(step, str):
                return ModelResponse([TextPart(step)])
            return ModelResponse([ToolCallPart(call.tool, {"city": call.city}, call.id) for call in step])

        self.history: list[ModelMessage] = []
        self.agent = Agent(FunctionModel(reply), instructions=INSTRUCTIONS, capabilities=capabilities)
        for name in TOOLS:
            self.agent.tool_plain(lambda city, name=name: look_up(name, city), name=name)

    async def ask(self, text: str) -> str:
        result = await self.agent.run(text, message_history=self.history or None, conversation_id="trip")
        self.history = result.all_messages()
        return result.output

    async def stored(self) -> list[SentMessage]:
        return list(sent(self.history))


def begins_turn(message: ModelMessage) -> bool:
    return any(isinstance(part, UserPromptPart) for part in message.parts)


def last_messages(recorder: Recorder, tokens: int) -> Program:
    """The shortest processor of history: a slice."""
    number = newest(tokens, MESSAGES_PER_TURN)
    return Program(recorder, ProcessHistory(lambda messages: messages[-number:]))


def last_turns(recorder: Recorder, tokens: int) -> Program:
    """A slice that begins with a question."""
    number = newest(tokens, MESSAGES_PER_TURN)

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        start = max(0, len(messages) - number)
        return next((messages[at:] for at in range(start, len(messages)) if begins_turn(messages[at])), messages)

    return Program(recorder, ProcessHistory(process))


def summarized(recorder: Recorder, tokens: int) -> Program:
    """A processor that replaces all but the newest turns with a summary. The framework has none of its own."""

    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        sizes = [sum(count(one.text) for one in sent([message])) for message in messages]
        if sum(sizes) < tokens:
            return messages
        starts = [at for at in range(1, len(messages)) if begins_turn(messages[at])]
        cut = next((at for at in starts if sum(sizes[at:]) <= RECENT * tokens), starts[-1] if starts else 0)
        if not cut:
            return messages
        read = "\n".join(f"{one.role}: {one.text}" for one in sent(messages[:cut]))
        summary = recorder.summary(f"Summarize this conversation. Keep what matters for its goal.\n\n{read}")
        first = ModelRequest([UserPromptPart(f"Summary of the conversation so far:\n\n{summary}")])
        return [first, ModelResponse([TextPart("Thank you.")]), *messages[cut:]]

    return Program(recorder, ProcessHistory(process))


def ours(recorder: Recorder, tokens: int) -> Program:
    return Program(recorder, ObservationalMemory(observational_memory(recorder, tokens), resource="ada"))


WAYS: dict[str, Callable[[Recorder, int], Program]] = {
    "full history": lambda recorder, tokens: Program(recorder),
    "`ProcessHistory`: a slice": last_messages,
    "`ProcessHistory`: whole turns": last_turns,
    "`ProcessHistory`: a summary": summarized,
    "observational memory": ours,
}
