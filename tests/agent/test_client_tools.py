"""Tools without an implementation: the client runs them, and its result comes in a later call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist import Agent, Memory, Message
from diarist.exceptions import ConfigError, InputError, ModelConnectionError
from diarist.messages import ToolPart
from diarist.processors import ProcessInputArgs, Processor
from diarist.prompting import build_prompt
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall
from diarist.tools import Tool
from tests.agent.kit import run_both, types
from tests.scenarios.kit import assert_all_well_formed, observational

LOCATE = Tool(name="locate", description="Where the user is.", parameters={"properties": {"who": {"type": "string"}}})
CALL = ToolCall("locate", {"who": "ada"}, id="c1")


def answer(content: Any = "Rome", call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


@pytest.fixture(params=["messages", "observational"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Memory:
    storage = SQLiteStorage(tmp_path / "memory.db")
    return Memory(storage=storage) if request.param == "messages" else observational(storage, message_tokens=10_000)


def shape(model: ScriptedModel) -> list[tuple[str, str]]:
    return [(m.role, m.text) for m in model.requests[-1].prompt if m.role != "system"]


async def test_the_run_ends_with_the_call() -> None:
    result, chunks = await run_both(lambda: Agent(model=ScriptedModel(["One moment.", CALL]), tools=[LOCATE]))
    assert (result.stopped_by, result.finish_reason, result.text) == ("client_tool", "tool-calls", "One moment.")
    assert [(call.call_id, call.name, call.args) for call in result.pending] == [("c1", "locate", {"who": "ada"})]
    assert types(chunks)[-1] == "finish"
    assert "tool-call" in types(chunks)
    assert not {"tool-result", "tool-error"} & set(types(chunks))


@pytest.mark.parametrize("form", ["dict", "message"])
async def test_the_result_joins_its_call(memory: Memory, form: str) -> None:
    model = ScriptedModel(CALL, "You are in Rome.", "Still there.")
    agent = Agent(model=model, tools=[LOCATE], memory=memory)
    await agent.generate("where am I?", thread="t")
    part = ToolPart(call_id="c1", name="locate", args={}, state="result", result="Rome")
    given = answer() if form == "dict" else Message(role="tool", parts=[part])
    result = await agent.generate(given, thread="t")  # type: ignore[arg-type]
    assert (result.text, result.stopped_by) == ("You are in Rome.", "answer")
    prompt = shape(model)
    assert [(role, text.split("\n")[-1]) for role, text in prompt][1:] == [
        ("assistant", 'locate({"who":"ada"})'),
        ("tool", "Rome"),
    ]
    await agent.generate("and now?", thread="t")
    assert shape(model)[: len(prompt)] == prompt, "told the same way ever after"
    rows = await memory.messages.list(thread="t")
    assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert_all_well_formed([model])


async def test_results_of_any_kind(memory: Memory) -> None:
    model = ScriptedModel(CALL, "ok")
    agent = Agent(model=model, tools=[LOCATE], memory=memory)
    await agent.generate("where am I?", thread="t")
    await agent.generate(answer({"city": "Rome", "at": [1, 2]}), thread="t")
    assert shape(model)[-1] == ("tool", '{"city":"Rome","at":[1,2]}')


async def test_a_call_stays_unanswered_after_another_message_of_the_user(memory: Memory) -> None:
    model = ScriptedModel(["One moment.", CALL], "ok", "fine")
    agent = Agent(model=model, tools=[LOCATE], memory=memory)
    await agent.generate("where am I?", thread="t")
    await agent.generate("never mind", thread="t")
    assert [role for role, _ in shape(model)] == ["user", "assistant", "user"]
    assert "locate" not in model.requests[-1].text
    await agent.generate([answer("Rome"), {"role": "user", "content": "hello?"}], thread="t")
    roles = [role for role, _ in shape(model)]
    assert roles == ["user", "assistant", "user", "assistant", "user", "user"]
    late = shape(model)[-2][1]
    assert "Rome" in late
    assert "c1" in late
    assert_all_well_formed([model])


async def test_a_result_that_is_sent_again_after_a_failure_is_stored_once(memory: Memory) -> None:
    model = ScriptedModel(
        [CALL, ToolCall("locate", {"who": "bob"}, id="c2")], ModelConnectionError("cut"), "Both in Rome."
    )
    agent = Agent(model=model, tools=[LOCATE], memory=memory)
    await agent.generate("where are we?", thread="t")
    for _ in range(2):
        assert [call.call_id for call in (await agent.generate(answer(), thread="t")).pending] == ["c2"]
    with pytest.raises(ModelConnectionError):
        await agent.generate([answer(), answer("Rome", "c2")], thread="t")
    assert (await agent.generate([answer(), answer("Rome", "c2")], thread="t")).text == "Both in Rome."
    assert [role for role, _ in shape(model)] == ["user", "assistant", "tool"]
    assert "Late result" not in model.requests[-1].text
    assert [row.role for row in await memory.messages.list(thread="t")] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]


async def test_a_result_without_its_call_is_shown_as_text() -> None:
    model = ScriptedModel("ok")
    await Agent(model=model).generate([answer("Rome", "unknown")])
    ((role, text),) = shape(model)
    assert role == "user"
    assert "Rome" in text


async def test_a_result_of_an_unknown_call_is_refused_while_another_waits(memory: Memory) -> None:
    model = ScriptedModel(CALL, "You are in Rome.")
    agent = Agent(model=model, tools=[LOCATE], memory=memory)
    await agent.generate("where am I?", thread="t")
    with pytest.raises(InputError, match=r"no tool call 'c7' to answer; waiting: 'c1' of locate"):
        await agent.generate(answer("Rome", "c7"), thread="t")
    result = await agent.generate(answer(), thread="t")
    assert (result.text, len(model.requests)) == ("You are in Rome.", 2), "the call still waited"


async def test_a_client_may_send_the_whole_history_again() -> None:
    model = ScriptedModel(CALL, lambda _: "ok")
    agent = Agent(model=model, tools=[LOCATE])
    first = await agent.generate("where am I?")
    second = await agent.generate([*first.conversation, answer()])
    third = await agent.generate([*second.conversation, answer(), {"role": "user", "content": "and now?"}])
    assert (third.text, model.requests[-1].text.count("locate(")) == ("ok", 1)


@pytest.mark.parametrize("option", [{"needs_approval": True}, {"timeout": 3.0}])
def test_a_client_tool_has_no_options_of_a_tool_that_runs_here(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"'locate' has no function: .*{next(iter(option))} has no effect"):
        Tool(name="locate", **option)


async def test_a_history_may_begin_with_a_result_whose_call_was_cut_off() -> None:
    """As windows of the last messages do; the newest call is answered, too."""
    calls = [{"id": "c1", "type": "function", "function": {"name": "locate", "arguments": "{}"}}]
    history = [answer("old", "c0"), {"role": "assistant", "content": "", "tool_calls": calls}, answer()]
    model = ScriptedModel("You are in Rome.")
    assert (await Agent(model=model, tools=[LOCATE]).generate(history)).text == "You are in Rome."


TWO = [CALL, ToolCall("locate", {"who": "bob"}, id="c2")]


async def test_several_calls_answered_at_once(memory: Memory) -> None:
    model = ScriptedModel(TWO, "both")
    agent = Agent(model=model, tools=[LOCATE], memory=memory)
    await agent.generate("where are they?", thread="t")
    await agent.generate([answer("Rome", "c1"), answer("Oslo", "c2")], thread="t")
    assert [text for role, text in shape(model) if role == "tool"] == ["RomeOslo"]
    assert_all_well_formed([model])


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_model_is_called_when_the_last_of_several_results_has_come(memory: Memory, streamed: bool) -> None:
    model = ScriptedModel(TWO, "both")
    agent = Agent(model=model, tools=[LOCATE], memory=memory)
    await agent.generate("where are they?", thread="t")
    if streamed:
        result = await agent.stream(answer("Oslo", "c2"), thread="t").result()
    else:
        result = await agent.generate(answer("Oslo", "c2"), thread="t")
    assert (result.stopped_by, [call.call_id for call in result.pending]) == ("client_tool", ["c1"])
    assert (result.steps, len(model.requests)) == ([], 1)
    result = await agent.generate(answer("Rome", "c1"), thread="t")
    assert (result.text, result.pending) == ("both", [])
    assert [role for role, _ in shape(model)] == ["user", "assistant", "tool"]
    assert shape(model)[-1] == ("tool", "RomeOslo")


async def test_without_memory_several_calls_are_answered_one_by_one() -> None:
    model = ScriptedModel(TWO, "both")
    agent = Agent(model=model, tools=[LOCATE])
    result = await agent.generate("where are they?")
    result = await agent.generate([*result.conversation, answer("Rome", "c1")])
    assert [call.call_id for call in result.pending] == ["c2"]
    result = await agent.generate([*result.conversation, answer("Oslo", "c2")])
    assert (result.text, shape(model)[-1]) == ("both", ("tool", "RomeOslo"))


async def test_a_user_message_beside_a_result_closes_the_other_calls(memory: Memory) -> None:
    model = ScriptedModel(TWO, "fine")
    agent = Agent(model=model, tools=[LOCATE], memory=memory)
    await agent.generate("where are they?", thread="t")
    result = await agent.generate([answer("Rome", "c1"), {"role": "user", "content": "never mind bob"}], thread="t")
    assert (result.text, result.stopped_by) == ("fine", "answer")


async def test_guards_judge_a_result_while_another_call_waits() -> None:
    class Guard(Processor):
        run_in_parallel = True

        def process_input(self, args: ProcessInputArgs) -> None:
            if args.messages[-1].role == "tool":
                args.abort("no")

    agent = Agent(model=ScriptedModel(TWO), tools=[LOCATE], input_processors=[Guard()])
    stopped = await agent.generate("where are they?")
    result = await agent.generate([*stopped.conversation, answer()])
    assert result.stopped_by == "tripwire"


async def test_tools_of_ours_beside_it_run_first() -> None:
    def work() -> str:
        """Work."""
        return "done"

    model = ScriptedModel([CALL, ToolCall("work", id="w1")])
    result = await Agent(model=model, tools=[LOCATE, work]).generate("go")
    assert (result.stopped_by, [call.call_id for call in result.pending]) == ("client_tool", ["c1"])
    assert [part.state for part in result.messages[0].tool_parts] == ["call", "result"]


async def test_without_memory_the_client_keeps_the_conversation() -> None:
    model = ScriptedModel(CALL, "ok")
    agent = Agent(model=model, tools=[LOCATE])
    first = await agent.generate("where am I?")
    await agent.generate([*first.conversation, answer()])
    assert [role for role, _ in shape(model)] == ["user", "assistant", "tool"]


# --- whatever comes in whatever order -----------------------------------------------------------------------

IDS = st.sampled_from(["a", "b", "c"])
STATES = st.sampled_from(["call", "result", "error", "denied"])


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = []
    for kind in draw(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=8)):
        if kind == "user":
            messages.append(Message.user("u"))
            continue
        states = STATES if kind == "assistant" else st.sampled_from(["result", "error", "denied"])
        ids = draw(st.lists(IDS, max_size=3, unique=True))
        parts: list[Any] = [
            ToolPart(
                call_id=f"{id}{len(messages)}" if kind == "assistant" else f"{id}{draw(st.integers(0, 7))}",
                name="x",
                args={},
                state=draw(states),
                result="r",
            )
            for id in ids
        ]
        messages.append(Message(role=kind, parts=parts))  # type: ignore[arg-type]
    return messages


@given(conversations())
def test_no_prompt_has_an_orphan(messages: list[Message]) -> None:
    before = [message.to_dict() for message in messages]
    open_calls: list[str] = []
    for message in build_prompt([], messages):
        found = [part.call_id for part in message.parts if part.type == "tool-result"]
        if message.role == "tool":
            assert sorted(found) == sorted(open_calls)
        else:
            assert not open_calls
            assert not found
        open_calls = [part.call_id for part in message.parts if part.type == "tool-call"]
    assert not open_calls
    assert [message.to_dict() for message in messages] == before, "the conversation itself is not touched"
