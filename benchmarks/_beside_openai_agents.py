"""Agents of OpenAI's SDK for ``beside_frameworks.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import count as counter
from typing import Any

from _beside import INSTRUCTIONS, TOOLS, Recorder, look_up, newest, observational_memory
from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SessionSettings,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.extensions.tool_output_trimmer import ToolOutputTrimmer
from agents.testing import assistant_message, function_call

from diarist.integrations.openai_agents import ObservationalMemory
from diarist.testing.adapter_conformance import SentMessage

set_tracing_disabled(True)  # else each run asks for a key

ITEMS_PER_TURN = 4
"""A question, an answer, and on average one call and its result."""


class Fake(Model):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ids = counter(1)

    async def get_response(self, system_instructions: str | None, input: Any, *args: Any, **named: Any) -> Any:
        given = [{"role": "user", "content": input}] if isinstance(input, str) else input
        step = self._recorder.step([system_instructions or ""], sent(given))
        if isinstance(step, str):
            output: list[Any] = [assistant_message(step, item_id=f"msg_{next(self._ids)}")]
        else:
            output = [
                function_call(call.tool, {"city": call.city}, call_id=call.id, item_id=f"fc_{next(self._ids)}")
                for call in step
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def sent(items: Sequence[Any]) -> list[SentMessage]:
    """Return items as messages: calls of one response are one."""
    out: list[SentMessage] = []
    joins = False
    for item in items:
        kind = item.get("role") or item["type"]
        if kind == "function_call_output":
            out.append(SentMessage(role="tool", text=item["output"], result_of=item["call_id"]))
        elif kind == "function_call":
            if not joins:
                out.append(SentMessage(role="assistant"))
            out[-1] = replace(out[-1], calls=(*out[-1].calls, item["call_id"]))
        else:
            content = item["content"]
            text = content if isinstance(content, str) else "\n\n".join(block["text"] for block in content)
            out.append(SentMessage(role=kind, text=text))
        joins = kind == "function_call"
    return out


def tool(name: str) -> FunctionTool:
    def look(city: str) -> str:
        return look_up(name, city)

    return function_tool(look, name_override=name, description_override=f"Looks up {name}.")


class Program:
    def __init__(self, recorder: Recorder, **options: Any) -> None:
        self.agent = Agent(
            name="Planner", instructions=INSTRUCTIONS, model=Fake(recorder), tools=[tool(name) for name in TOOLS]
        )
        self.options = {"session": SQLiteSession("trip"), **options}

    async def ask(self, text: str) -> str:
        return str((await Runner.run(self.agent, text, **self.options)).final_output)

    async def stored(self) -> list[SentMessage]:
        return sent(await self.options["session"].get_items(limit=1_000_000))


def limited(recorder: Recorder, tokens: int) -> Program:
    settings = SessionSettings(limit=newest(tokens, ITEMS_PER_TURN))
    return Program(recorder, session=SQLiteSession("trip", session_settings=settings))


def trimmed(recorder: Recorder, tokens: int) -> Program:
    return Program(recorder, run_config=RunConfig(call_model_input_filter=ToolOutputTrimmer()))


def ours(recorder: Recorder, tokens: int) -> Program:
    memory = observational_memory(recorder, tokens)
    om = ObservationalMemory(memory, thread="trip", resource="ada", session=SQLiteSession("trip"))
    return Program(recorder, session=om.session, run_config=om.run_config(), hooks=om.hooks)


WAYS: dict[str, Callable[[Recorder, int], Program]] = {
    "`SQLiteSession`: full history": lambda recorder, tokens: Program(recorder),
    "`ToolOutputTrimmer`": trimmed,
    "`SQLiteSession` with a limit": limited,
    "observational memory": ours,
}
