"""What is special about memory in OpenAI's Agents SDK."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    HandoffInputData,
    MaxTurnsExceeded,
    OpenAIConversationsSession,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunHooks,
    Runner,
    UserError,
    function_tool,
    handoff,
    output_guardrail,
)
from agents.extensions.handoff_filters import remove_all_tools
from agents.memory import SQLiteSession
from agents.run import CallModelData, ModelInputData
from agents.testing import ScriptedModel, assistant_message, function_call

from diarist import Memory, ObservationalMemoryConfig
from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError, InputError
from diarist.integrations.openai_agents import ObservationalMemory
from diarist.integrations.openai_agents.messages import arrange
from diarist.memory import RetrievalConfig
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing.adapter_conformance import RecordingStorage

STREAMED = pytest.mark.parametrize("streamed", [False, True])


@function_tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at}: nothing"


@function_tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def says(text: str) -> list[Any]:
    return [assistant_message(text, item_id=f"id-{text}")]


def calls(name: str, args: dict[str, Any], call_id: str = "c1") -> list[Any]:
    return [function_call(name, args, call_id=call_id, item_id=f"fc-{call_id}")]


def types(items: list[Any]) -> list[str]:
    return [item.get("role") or item["type"] for item in items]


def users(agent: Agent[Any]) -> list[Any]:
    """The questions in the last request to the model of an agent."""
    asked: Any = agent.model
    return [item for item in asked.last_call.input if item.get("role") == "user"]


class Talk:
    """A thread in a recording storage."""

    def __init__(self, **options: Any) -> None:
        self.storage = RecordingStorage()
        self.memory = Memory(storage=self.storage)
        self.om = self.join(**options)

    def join(self, **options: Any) -> ObservationalMemory:
        return ObservationalMemory(self.memory, thread="trip", resource="ada", **options)

    async def run(
        self,
        agent: Agent[Any],
        given: Any,
        *,
        streamed: bool = False,
        om: ObservationalMemory | None = None,
        **more: Any,
    ) -> Any:
        om = om or self.om
        options: Any = {"session": om.session, "run_config": om.run_config(), "hooks": om.hooks, **more}
        if not streamed:
            return await Runner.run(agent, given, **options)
        result = Runner.run_streamed(agent, given, **options)
        async for _ in result.stream_events():
            pass
        return result

    async def texts(self) -> list[str]:
        rows = await self.memory.messages.list(thread="trip")
        return [row.text or " ".join(map(str, row.tool_parts)) for row in rows]

    @property
    def outcomes(self) -> list[str]:
        return list(self.storage.outcomes.values())


@STREAMED
async def test_an_agent_that_runs_as_a_tool_is_let_through(streamed: bool) -> None:
    helper = Agent(name="Helper", model=ScriptedModel([says("It rains.")]))
    model = ScriptedModel([calls("ask", {"input": "Ask."}), says("Done.")])
    talk = Talk()
    await talk.run(Agent(name="A", model=model, tools=[helper.as_tool("ask", "Asks.")]), "Ask.", streamed=streamed)
    assert types(helper.model.calls[0].input) == ["user"]  # type: ignore[union-attr]
    assert await talk.texts() == ["Ask.", "ask(input='Ask.') -> 'It rains.'", "Done."]
    assert talk.outcomes == ["committed"]


@STREAMED
async def test_a_handoff_stays_in_the_turn(streamed: bool) -> None:
    other = Agent(name="B", model=ScriptedModel([says("Here is B.")]))
    talk = Talk()
    model = ScriptedModel([calls("transfer_to_b", {})])
    await talk.run(Agent(name="A", model=model, handoffs=[other]), "To B!", streamed=streamed)
    texts = await talk.texts()
    assert (texts[0], len(texts), texts[-1]) == ("To B!", 3, "Here is B.")
    assert talk.outcomes == ["committed"]


@STREAMED
async def test_an_agent_after_a_handoff_with_a_filter_remembers(streamed: bool) -> None:
    other = Agent(name="B", model=ScriptedModel([says("Here is B.")]))
    talk = Talk()
    model = ScriptedModel([says("Hi."), calls("transfer_to_b", {})])
    agent = Agent(name="A", model=model, handoffs=[handoff(other, input_filter=remove_all_tools)])
    await talk.run(agent, "I am Ada.")
    await talk.run(agent, "To B!", streamed=streamed, om=talk.join())
    sent = other.model.calls[0].input  # type: ignore[union-attr]
    assert types(sent) == ["user", "assistant", "user"]
    assert "I am Ada." in str(sent[0])
    assert (await talk.texts())[-1] == "Here is B."
    assert talk.outcomes == ["committed", "committed"]


@STREAMED
async def test_a_handoff_filter_may_remove_items_of_earlier_runs(streamed: bool) -> None:
    other = Agent(name="B", model=ScriptedModel([says("Here is B."), says("Still B.")]))
    talk = Talk()
    model = ScriptedModel([calls("look", {"at": "sky"}), says("Nothing."), calls("transfer_to_b", {}, "c2")])
    agent = Agent(name="A", model=model, tools=[look], handoffs=[handoff(other, input_filter=remove_all_tools)])
    await talk.run(agent, "Look.", streamed=streamed)
    await talk.run(agent, "To B!", streamed=streamed)
    assert talk.om.degraded == ""
    assert [item["content"] for item in users(other)] == ["Look.", "To B!"]
    await talk.run(other, "Again.", streamed=streamed)
    texts = [text for text in await talk.texts() if not text.startswith("transfer_to_b")]
    looked = "look(at='sky') -> 'sky: nothing'"
    assert texts == ["Look.", looked, "Nothing.", "To B!", "Here is B.", "Again.", "Still B."]
    assert talk.outcomes == ["committed"] * 3


@STREAMED
async def test_a_handoff_filter_may_leave_nothing_to_answer(streamed: bool) -> None:
    def brief(data: HandoffInputData) -> HandoffInputData:
        told: Any = {"role": "developer", "content": "Say hello."}
        return replace(data, input_history=(told,), pre_handoff_items=(), new_items=())

    other = Agent(name="B", model=ScriptedModel([says("Hello.")]))
    talk = Talk()
    agent = Agent(
        name="A", model=ScriptedModel([calls("transfer_to_b", {})]), handoffs=[handoff(other, input_filter=brief)]
    )
    result = await talk.run(agent, "To B!", streamed=streamed)
    assert result.final_output == "Hello."
    assert types(other.model.calls[0].input) == ["developer"]  # type: ignore[union-attr]
    assert "left no message" in talk.om.degraded
    assert await talk.texts() == ["To B!", "Hello."]


@STREAMED
@pytest.mark.parametrize("kept", [True, False], ids=["one object", "an object per run"])
async def test_a_handoff_with_nested_history_is_one_without_it(streamed: bool, kept: bool) -> None:
    steps = [calls("look", {"at": "sky"}, f"look{run}") + calls("transfer_to_b", {}, f"to{run}") for run in range(2)]
    answers = [
        step for run in range(2) for step in (calls("look", {"at": "sea"}, f"sea{run}"), says(f"Here is B{run}."))
    ]
    other = Agent(name="B", model=(model := ScriptedModel(answers)), tools=[look])
    agent = Agent(name="A", model=ScriptedModel(steps), tools=[look], handoffs=[other])
    session = None if kept else SQLiteSession("mine")
    talk = Talk(session=session)
    expected: list[str] = []
    for run in range(2):
        om = talk.om if kept else talk.join(session=session)
        config = om.run_config(RunConfig(nest_handoff_history=True))
        await talk.run(agent, f"Q{run}", streamed=streamed, om=om, run_config=config)
        assert om.degraded == ""
        expected += ["user", *["function_call"] * 2, *["function_call_output"] * 2]
        assert types(model.calls[2 * run].input) == expected
        expected += ["function_call", "function_call_output"]
        assert types(model.calls[2 * run + 1].input) == expected
        expected.append("assistant")
    rows = await talk.memory.messages.list(thread="trip")
    assert [row.text for row in rows] == ["Q0", "", "", "Here is B0.", "Q1", "", "", "Here is B1."]
    assert talk.outcomes == ["committed"] * 2


@STREAMED
async def test_a_call_that_is_approved_after_a_handoff_with_nested_history_is_stored(streamed: bool) -> None:
    talk = Talk()
    config = talk.om.run_config(RunConfig(nest_handoff_history=True))
    other = Agent(name="B", model=(model := ScriptedModel([calls("pay", {}, "c2"), says("Paid.")])), tools=[pay])
    agent = Agent(name="A", model=ScriptedModel([calls("transfer_to_b", {})]), handoffs=[other])
    result = await talk.run(agent, "Pay.", streamed=streamed, run_config=config)
    state = result.to_state()
    state.approve(result.interruptions[0])
    await talk.run(agent, state, streamed=streamed, run_config=config)
    assert types(model.calls[1].input)[-2:] == ["function_call", "function_call_output"]
    rows = await talk.memory.messages.list(thread="trip")
    assert [row.text for row in rows if row.text] == ["Pay.", "Paid."]
    assert talk.outcomes == ["committed"] * 2


@STREAMED
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another process"])
async def test_an_approved_call_is_stored_once(streamed: bool, elsewhere: bool) -> None:
    talk = Talk()
    model = ScriptedModel([calls("pay", {}), says("Paid.")])
    agent = Agent(name="A", model=model, tools=[pay])
    result = await talk.run(agent, "Pay.", streamed=streamed)
    state = result.to_state()
    state.approve(result.interruptions[0])
    om = talk.join() if elsewhere else talk.om
    await talk.run(agent, state, streamed=streamed, om=om)
    assert types(model.calls[1].input) == ["user", "function_call", "function_call_output"]
    rows = await talk.memory.messages.list(thread="trip")
    assert [row.text for row in rows if row.text] == ["Pay.", "Paid."]
    assert len({part.call_id for row in rows for part in row.tool_parts}) == 1
    results = [part for row in rows for part in row.tool_parts if part.state == "result"]
    assert [(part.name, part.result) for part in results] == [("pay", "paid")]
    assert talk.outcomes == ["committed", "committed"]


async def test_an_approved_call_is_sent_also_if_its_thread_was_deleted() -> None:
    talk = Talk()
    model = ScriptedModel([calls("pay", {}), says("Paid.")])
    agent = Agent(name="A", model=model, tools=[pay])
    result = await talk.run(agent, "Pay.")
    await talk.memory.threads.delete("trip")
    state = result.to_state()
    state.approve(result.interruptions[0])
    await talk.run(agent, state)
    assert types(model.calls[1].input) == ["user", "function_call", "function_call_output"]
    assert await talk.texts() == ["Pay.", "pay() -> 'paid'", "Paid."]


async def test_a_run_without_a_new_item_asks_again() -> None:
    talk = Talk()
    model = ScriptedModel([says("Hi."), says("Hi again.")])
    agent = Agent(name="A", model=model)
    await talk.run(agent, "Hello")
    await talk.run(agent, [])
    assert types(model.calls[1].input) == ["user", "assistant"]
    assert await talk.texts() == ["Hello", "Hi.", "Hi again."]


@STREAMED
async def test_an_answer_that_is_the_output_of_a_tool_ends_the_turn(streamed: bool) -> None:
    talk = Talk()
    model = ScriptedModel([calls("look", {"at": "sky"})])
    agent = Agent(name="A", model=model, tools=[look], tool_use_behavior="stop_on_first_tool")
    await talk.run(agent, "Look.", streamed=streamed)
    assert await talk.texts() == ["Look.", "look(at='sky') -> 'sky: nothing'"]
    assert talk.outcomes == ["committed"]


@STREAMED
async def test_a_blocked_answer_discards_the_turn(streamed: bool) -> None:
    @output_guardrail
    async def never(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=output == "Secret.")

    talk = Talk()
    agent = Agent(name="A", model=ScriptedModel([says("Secret."), says("Fine.")]), output_guardrails=[never])
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await talk.run(agent, "Tell.", streamed=streamed)
    await talk.run(agent, "And you?", streamed=streamed)
    assert talk.outcomes == ["discarded", "committed"]
    assert (await talk.texts())[-2:] == ["And you?", "Fine."]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_too_many_steps_end_the_turn_and_keep_the_finished_ones(elsewhere: bool) -> None:
    talk = Talk()
    agent = Agent(name="A", model=ScriptedModel([calls("look", {"at": "sky"}), says("Fine.")]), tools=[look])
    with pytest.raises(MaxTurnsExceeded):
        await talk.run(agent, "Look.", max_turns=1)
    await talk.run(agent, "And you?", om=talk.join() if elsewhere else None)
    assert await talk.texts() == ["Look.", "look(at='sky') -> 'sky: nothing'", "And you?", "Fine."]


async def test_a_stream_that_is_cancelled_after_a_step_keeps_the_step() -> None:
    talk = Talk()
    agent = Agent(name="A", model=ScriptedModel([calls("look", {"at": "sky"}), says("Fine.")]), tools=[look])
    om = talk.om
    result = Runner.run_streamed(agent, "Look.", session=om.session, run_config=om.run_config(), hooks=om.hooks)
    async for _ in result.stream_events():
        result.cancel(mode="after_turn")
    await talk.run(agent, "And you?", om=talk.join())
    assert await talk.texts() == ["Look.", "look(at='sky') -> 'sky: nothing'", "And you?", "Fine."]


async def test_a_failed_run_of_another_object_does_not_hold_the_thread() -> None:
    talk = Talk()
    with suppress(RuntimeError):
        await talk.run(Agent(name="A", model=ScriptedModel([RuntimeError("down")])), "Hello")
    other = talk.join()
    await talk.run(Agent(name="A", model=ScriptedModel([says("Hi.")])), "Hello again", om=other)
    assert (talk.outcomes, other.degraded) == (["interrupted", "committed"], "")


@pytest.mark.parametrize("fail_open", [True, False])
async def test_a_failed_run_of_a_task_that_lives_on_does_not_hold_the_thread(fail_open: bool) -> None:
    memory = Memory(storage=(storage := RecordingStorage()), thread_wait=0)
    agent = Agent(name="A", model=ScriptedModel([RuntimeError("down"), says("Hi.")]))

    async def work() -> None:
        om = ObservationalMemory(memory, thread="trip", resource="ada", fail_open=fail_open)
        await Runner.run(agent, "Hello", session=om.session, run_config=om.run_config())
        assert om.degraded == ""

    async def fail_and_live_on() -> None:
        try:
            await work()
        except RuntimeError as error:
            errors.append(error)  # a program may keep it
        failed.set()
        await asyncio.Event().wait()

    errors, failed = list[RuntimeError](), asyncio.Event()
    worker = asyncio.create_task(fail_and_live_on())
    await failed.wait()
    await asyncio.create_task(work())
    assert list(storage.outcomes.values()) == ["interrupted", "committed"]
    worker.cancel()


async def test_a_run_waits_for_another_one_of_the_thread_as_long_as_it_is_alive() -> None:
    @function_tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await finish.wait()
        return "waited"

    talk, started, finish = Talk(), asyncio.Event(), asyncio.Event()
    first = Agent(name="A", model=ScriptedModel([calls("wait", {}), RuntimeError("down")]), tools=[wait])
    one = asyncio.create_task(talk.run(first, "First"))
    await started.wait()
    second = asyncio.create_task(
        talk.run(Agent(name="A", model=ScriptedModel([says("Hi.")])), "Second", om=talk.join())
    )
    await asyncio.sleep(0.1)
    assert not second.done()
    finish.set()
    with pytest.raises(RuntimeError, match="down"):
        await one
    await second
    assert await talk.texts() == ["First", "wait() -> 'waited'", "Second", "Hi."]
    assert talk.outcomes == ["interrupted", "committed"]


def test_a_failed_run_under_asyncio_run_does_not_hold_the_thread(tmp_path: Path) -> None:
    def program(step: Any) -> None:
        async def main() -> None:
            memory = Memory(storage=SQLiteStorage(tmp_path / "memory.db"), thread_wait=0)
            om = ObservationalMemory(memory, thread="trip", resource="ada", fail_open=False)
            agent = Agent(name="A", model=ScriptedModel([step]))
            await Runner.run(agent, "Hello", session=om.session, run_config=om.run_config())

        asyncio.run(main())

    with pytest.raises(RuntimeError, match="down"):
        program(RuntimeError("down"))
    program(says("Hi."))


async def test_items_of_unknown_types_are_sent_and_named() -> None:
    events: list[DataChunk] = []
    given: list[Any] = []
    received: list[Any] = []

    def watch(data: CallModelData[Any]) -> ModelInputData:
        received.append(data.model_data)
        return data.model_data

    talk = Talk(on_event=events.append)
    config = talk.om.run_config(RunConfig(call_model_input_filter=watch))
    agent = Agent(name="A", instructions="Be kind.", model=ScriptedModel([says("Hi.")]))
    given = [{"type": "compaction", "encrypted_content": "e"}, {"role": "user", "content": "Hello"}]
    await talk.run(agent, given, run_config=config)
    assert types(received[0].input) == ["compaction", "user"]
    assert received[0].instructions == "Be kind."
    assert [event.data for event in events if event.type == "data-om-unread"] == [{"types": ["compaction"]}]


async def test_items_are_sent_as_the_same_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Any]] = []

    def watched(items: Any, entries: Any, view: Any) -> Any:
        seen.append((items, arrange(items, entries, view)))
        return seen[-1][1]

    monkeypatch.setattr("diarist.integrations.openai_agents.memory.arrange", watched)
    talk = Talk()
    steps = [calls("look", {"at": "sky"}), says("Nothing."), says("Fine.")]
    agent = Agent(name="A", model=ScriptedModel(steps), tools=[look])
    for text in ("Look.", "And you?"):
        await talk.run(agent, text)
    for given, sent in seen:
        assert len(given) == len(sent)
        assert all(one is other for one, other in zip(given, sent, strict=True))


async def test_the_users_hooks_are_called_too() -> None:
    class Mine(RunHooks[Any]):
        seen: ClassVar[list[str]] = []

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            self.seen.append(output)

        async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
            self.seen.append("llm")

    talk = Talk()
    await talk.run(Agent(name="A", model=ScriptedModel([says("Hi.")])), "Hello", hooks=talk.om.hooks_with(Mine()))
    assert Mine.seen == ["llm", "Hi."]
    assert talk.outcomes == ["committed"]


async def test_memory_brings_its_tools() -> None:
    talk = Talk()
    config = ObservationalMemoryConfig(model="extractive", retrieval=RetrievalConfig())
    memory = Memory(storage=InMemoryStorage(), working_memory=True, observational_memory=config)
    om = ObservationalMemory(memory, thread="trip", resource="ada")
    model = ScriptedModel([calls("update_working_memory", {"memory": "Name: Ada"}), says("Noted.")])
    agent = Agent(name="A", model=model, tools=[look, *om.tools])
    await talk.run(agent, "I am Ada.", om=om)
    assert {tool.name for tool in model.calls[0].tools} == {"look", "recall", "update_working_memory"}
    assert "Ada" in await memory.working.get(resource="ada")


async def test_a_failure_in_the_adapter_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("diarist.integrations.openai_agents.memory.arrange", broken)
    talk = Talk()
    result = await talk.run(Agent(name="A", model=ScriptedModel([says("Hi.")])), "Hello")
    assert result.final_output == "Hi."
    assert "ZeroDivisionError" in talk.om.degraded
    with pytest.raises(ZeroDivisionError):
        await talk.run(Agent(name="A", model=ScriptedModel([says("Hi.")])), "Hello", om=talk.join(fail_open=False))


async def test_mistakes_of_the_caller_are_raised() -> None:
    talk = Talk()
    agent = Agent(name="A", model=ScriptedModel([says("Hi."), says("Hi.")]))
    await talk.run(agent, "Hello")
    with pytest.raises(InputError, match="belongs to resource 'ada'"):
        await talk.run(agent, "Hello", om=ObservationalMemory(talk.memory, thread="trip", resource="bob"))
    with pytest.raises(ConfigError, match=r"pass session=om\.session"):
        await Runner.run(agent, "Hello", run_config=talk.join().run_config())
    with pytest.raises(ConfigError, match=r"pass run_config=om\.run_config\(\)"):
        await Runner.run(agent, "Hello", session=talk.join().session)
    with pytest.raises(ConfigError, match="thread must be an id"):
        ObservationalMemory(talk.memory, thread=UUID(int=1))  # type: ignore[arg-type]


async def test_a_run_without_its_run_config_is_named(caplog: pytest.LogCaptureFixture) -> None:
    talk = Talk()
    agent = Agent(name="A", model=ScriptedModel([says("Hi."), says("Hi again.")]))
    await talk.run(agent, "Hello")
    assert talk.om.degraded == caplog.text == ""
    await talk.run(agent, "Hello again", run_config=None)
    assert "run_config=om.run_config()" in talk.om.degraded
    assert "run_config=om.run_config()" in caplog.text


@STREAMED
async def test_answers_in_the_input_of_a_run_are_no_sign_that_it_lacks_its_run_config(
    streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk()
    given = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    await talk.run(Agent(name="A", model=ScriptedModel([says("Hi.")])), given, streamed=streamed)
    assert await talk.texts() == ["user", "assistant", "user", "Hi."]
    assert talk.om.degraded == caplog.text == ""


async def test_conversations_on_openais_servers_are_refused() -> None:
    talk = Talk()
    with pytest.raises(ConfigError, match="OpenAIConversationsSession"):
        talk.join(session=OpenAIConversationsSession(openai_client=object()))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="conversation_id"):  # by the SDK, beside any session
        await talk.run(Agent(name="A", model=ScriptedModel()), "Hello", conversation_id="id")


async def test_a_session_of_the_user_has_everything_and_joins_in_another_process() -> None:
    session = SQLiteSession("mine")
    talk = Talk(session=session)
    model = ScriptedModel([says("Hi."), says("Fine.")])
    await talk.run(Agent(name="A", model=model), "Hello")
    await talk.run(Agent(name="A", model=model), "How are you?", om=talk.join(session=session))
    assert types(await session.get_items()) == ["user", "assistant", "user", "assistant"]
    assert types(model.calls[1].input) == ["user", "assistant", "user"]
    assert await talk.texts() == ["Hello", "Hi.", "How are you?", "Fine."]
