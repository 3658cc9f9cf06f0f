"""What the adapter relies on in the loop of OpenAI's Agents SDK."""

from __future__ import annotations

from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunHooks,
    Runner,
    function_tool,
    output_guardrail,
    set_tracing_disabled,
)
from agents.memory import SQLiteSession
from agents.run import CallModelData, ModelInputData
from agents.testing import ScriptedModel, assistant_message, function_call

from diarist.integrations.openai_agents.messages import select, to_neutral

set_tracing_disabled(True)  # else each run asks for a key


class Log(RunHooks[Any]):
    """Keeps the order of hooks, filters and what the session gets."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.lines.append(f"start {agent.name}")

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.lines.append(f"end {agent.name}")

    def config(self) -> RunConfig:
        def last_turn_only(data: CallModelData[Any]) -> ModelInputData:
            self.lines.append(f"filter {data.agent.name}")
            items = data.model_data.input
            history = to_neutral(items)
            asked = max(place for place, message in enumerate(history.messages) if message.role == "user")
            keep = {message.id for message in history.messages[asked:]}
            return ModelInputData(input=select(items, history, keep), instructions=data.model_data.instructions)

        return RunConfig(call_model_input_filter=last_turn_only)

    def session(self, name: str) -> SQLiteSession:
        log = self

        class Session(SQLiteSession):
            async def add_items(self, items: list[Any], **more: Any) -> None:
                log.lines.append("store " + " ".join(item.get("role") or item["type"] for item in items))
                await super().add_items(items, **more)

        return Session(name)


@function_tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at}: nothing"


def types(items: list[Any]) -> list[str]:
    return [item.get("role") or item["type"] for item in items]


async def test_the_model_sees_the_selection_and_the_session_has_everything() -> None:
    steps = [
        [function_call("look", {"at": "sky"}, call_id="c", item_id="fc")],
        [assistant_message("Nothing.", item_id="m1")],
        [assistant_message("Fine.", item_id="m2")],
    ]
    model, log = ScriptedModel(steps), Log()
    agent = Agent(name="A", model=model, tools=[look])
    session = log.session("trip")
    for text in ("Look.", "And you?"):
        await Runner.run(agent, text, session=session, run_config=log.config(), hooks=log)
    call, result = "function_call", "function_call_output"
    assert [types(asked.input) for asked in model.calls] == [["user"], ["user", call, result], ["user"]]
    assert types(await session.get_items()) == ["user", call, result, "assistant", "user", "assistant"]
    assert log.lines[:6] == ["store user", "start A", "filter A", f"store {call} {result}", "filter A", "end A"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_a_guardrail_blocks_reaches_the_end_hook_but_not_the_session(streamed: bool) -> None:
    @output_guardrail
    async def never(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    log = Log()
    agent = Agent(name="A", model=ScriptedModel([[assistant_message("Secret.")]]), output_guardrails=[never])
    session = log.session("blocked")

    async def run() -> None:
        options: Any = {"session": session, "run_config": log.config(), "hooks": log}
        if not streamed:
            await Runner.run(agent, "Tell.", **options)
            return
        async for _ in Runner.run_streamed(agent, "Tell.", **options).stream_events():
            pass

    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run()
    assert log.lines[-1] == "end A"
    assert types(await session.get_items()) == ["user"]


async def test_the_filter_also_sees_agents_that_run_as_tools_but_the_hooks_do_not() -> None:
    helper = Agent(name="Helper", model=ScriptedModel([[assistant_message("Yes.")]]))
    steps = [[function_call("ask", {"input": "?"}, call_id="c")], [assistant_message("Done.")]]
    agent = Agent(name="A", model=ScriptedModel(steps), tools=[helper.as_tool("ask", "Asks.")])
    log = Log()
    await Runner.run(agent, "Ask.", run_config=log.config(), hooks=log)
    assert log.lines == ["start A", "filter A", "filter Helper", "filter A", "end A"]
