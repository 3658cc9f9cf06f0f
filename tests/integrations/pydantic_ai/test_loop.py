"""What the adapter relies on in Pydantic AI's own loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelContextWindowExceededError, RetryModelRequest
from pydantic_ai.messages import InstructionPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from diarist.integrations.pydantic_ai.messages import select, to_neutral


class LastTurnOnly(AbstractCapability[Any]):
    """Sends the last question and what follows it, with one more block of instructions."""

    def __init__(self) -> None:
        self.hooks: list[str] = []

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        try:
            result = await handler()
        except BaseException as error:
            self.hooks.append(type(error).__name__)
            raise
        self.hooks.append("end")
        return result

    async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:
        self.hooks.append("prepare")
        history = to_neutral(request_context.messages)
        asked = max(place for place, message in enumerate(history.messages) if message.role == "user")
        keep = {message.id for message in history.messages[asked:]}
        parameters = request_context.model_request_parameters
        blocks = [*(parameters.instruction_parts or []), InstructionPart("Diary.", dynamic=True)]
        return replace(
            request_context,
            messages=select(request_context.messages, history, keep),
            model_request_parameters=replace(parameters, instruction_parts=blocks),
        )

    async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> ModelResponse:
        if isinstance(error, ModelContextWindowExceededError):
            raise RetryModelRequest from error
        raise error


Asked = list[tuple[list[str], str | None]]


def build(script: list[ModelResponse | Exception], capability: LastTurnOnly) -> tuple[Agent[None, str], Asked]:
    asked: Asked = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(([part.part_kind for message in messages for part in message.parts], info.instructions))
        step = script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    agent = Agent(FunctionModel(answer), capabilities=[capability], instructions="Be brief.")

    @agent.tool_plain
    def look() -> str:
        return "nothing"

    return agent, asked


def text(words: str) -> ModelResponse:
    return ModelResponse([TextPart(words)])


async def test_the_model_sees_the_selection_and_the_history_has_everything() -> None:
    capability = LastTurnOnly()
    agent, asked = build([ModelResponse([ToolCallPart("look")]), text("Nothing."), text("Fine.")], capability)
    first = await agent.run("Look.")
    second = await agent.run("And you?", message_history=first.all_messages())
    kinds = ["user-prompt", "tool-call", "tool-return"]
    assert asked == [(sent, "Be brief.\n\nDiary.") for sent in (["user-prompt"], kinds, ["user-prompt"])]
    messages = second.all_messages()
    assert [part.part_kind for m in messages for part in m.parts] == [*kinds, "text", "user-prompt", "text"]
    assert {m.instructions for m in messages if m.kind == "request"} == {"Be brief."}  # theirs alone are recorded
    assert first.conversation_id == second.conversation_id
    assert capability.hooks == ["prepare", "prepare", "end", "prepare", "end"]


async def test_after_an_overflow_the_request_can_be_prepared_again() -> None:
    capability = LastTurnOnly()
    agent, asked = build([ModelContextWindowExceededError("test", "too long"), text("Fine.")], capability)
    result = await agent.run("Hi")
    assert (result.output, len(asked)) == ("Fine.", 2)
    assert capability.hooks == ["prepare", "prepare", "end"]


async def test_an_error_reaches_the_wrapped_run() -> None:
    capability = LastTurnOnly()
    agent, _ = build([ValueError("broken")], capability)
    with pytest.raises(ValueError, match="broken"):
        await agent.run("Hi")
    assert capability.hooks == ["prepare", "ValueError"]
