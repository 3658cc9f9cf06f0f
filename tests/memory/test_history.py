"""Message history: what of a thread the model is shown."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Tool
from diarist.exceptions import ConfigError
from diarist.messages import ToolPart
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import answering, assert_all_well_formed, talk


def sent(model: ScriptedModel) -> list[str]:
    """The last word of each message of the last prompt, system messages left out."""
    return [message.text.split()[-1] for message in model.requests[-1].prompt if message.role != "system"]


async def test_ten_messages_unless_told_otherwise() -> None:
    model = answering("noted")
    agent = Agent(model=model, memory=Memory(storage=InMemoryStorage()))
    await talk(agent, 9, size=1)
    assert sent(model) == [
        *["turn-4", "noted", "turn-5", "noted", "turn-6", "noted", "turn-7", "noted", "turn-8", "noted"],
        "turn-9",
    ]


@pytest.mark.parametrize(
    ("last_messages", "shown"),
    [
        (4, ["turn-3", "noted", "turn-4", "noted", "turn-5"]),
        (3, ["turn-4", "noted", "turn-5"]),
        (2, ["turn-4", "noted", "turn-5"]),
        (1, ["turn-4", "turn-5"]),
        (0, ["turn-5"]),
        (False, ["turn-5"]),
    ],
)
async def test_a_window_begins_with_the_user(last_messages: Any, shown: list[str]) -> None:
    model = answering("noted")
    memory = Memory(storage=InMemoryStorage(), last_messages=last_messages)
    agent = Agent(model=model, memory=memory)
    await talk(agent, 5, size=1)
    assert sent(model) == shown
    assert len(await memory.messages.list(thread="t")) == 10


@pytest.mark.parametrize("last_messages", [1, 2, 3, 5, 10, 40])
@pytest.mark.parametrize("steps", [0, 1, 4, 17])
async def test_the_window_moves_in_hops(last_messages: int, steps: int) -> None:
    """A prompt extends the one before but where a hop is due, and then 70% of the window stay."""
    calls = count()
    model = ScriptedModel(lambda _: ToolCall("look", {}) if next(calls) % (steps + 1) < steps else "noted")
    memory = Memory(storage=InMemoryStorage(), last_messages=last_messages)
    tools = [Tool(name="look", function=lambda: "seen")]
    agent = Agent(model=model, memory=memory, tools=tools, max_steps=steps + 2)
    hop = last_messages - last_messages * 7 // 10
    turn = steps + 2  # rows of a turn: the question, and one for each call of the model
    begins: list[tuple[int, int]] = []  # without and with room for the question of a turn that is longer
    for number in range(8 + 3 * last_messages // turn):
        first = len(model.requests)
        await agent.generate(f"turn-{number}", thread="t")
        rows = turn * number
        without, with_room = (max(0, -(-(rows - most) // hop) * hop) for most in (last_messages, last_messages - 1))
        begins.append((without, with_room))
        shown = list(dict.fromkeys(m.message_id for m in model.requests[first].prompt))[:-1]
        assert len(shown) <= last_messages
        assert without == 0 or rows - without > last_messages * 7 // 10
        if number and begins[-1] == begins[-2]:
            assert model.requests[first].text.startswith(model.requests[first - 1].text)
    assert_all_well_formed([model])
    assert len(set(begins)) > 1


async def test_a_last_turn_that_is_longer_than_the_window_is_shown_from_its_question() -> None:
    model = ScriptedModel(*[ToolCall("look", {})] * 14, "found it", lambda _: "yes")
    memory = Memory(storage=InMemoryStorage())
    tools = [Tool(name="look", function=lambda: "seen")]
    agent = Agent(model=model, memory=memory, tools=tools, max_steps=20)
    await agent.generate("first", thread="t")
    await agent.generate("second", thread="t")
    messages = model.requests[-1].prompt.messages
    assert messages[0].text == "first"
    assert [message.text for message in messages[-2:]] == ["found it", "second"]
    assert len(messages) == 1 + 2 * 6 + 2
    assert_all_well_formed([model])


LONG_TURN = "usssa"
ROWS_OF_ITS_OWN = "uacrrauacra"
"""A call and its results as messages of their own, as clients send them."""


@pytest.mark.parametrize(
    ("thread", "last_messages", "shown"),
    [
        ("uaua", 1, [3]),
        ("uaua", 2, [3, 4]),
        ("uaua", 3, [3, 4]),
        ("uaua", 4, [1, 2, 3, 4]),
        ("uau", 1, [3]),
        ("uau", 2, [3]),
        (LONG_TURN, 1, [1]),
        (LONG_TURN, 2, [1, 5]),
        (LONG_TURN, 3, [1, 4, 5]),
        (LONG_TURN, 4, [1, 3, 4, 5]),
        (LONG_TURN, 5, [1, 2, 3, 4, 5]),
        ("ua" + LONG_TURN, 5, [3, 4, 5, 6, 7]),
        ("ua" + LONG_TURN, 4, [3, 5, 6, 7]),
        (ROWS_OF_ITS_OWN, 1, [7]),
        (ROWS_OF_ITS_OWN, 2, [7, 11]),
        (ROWS_OF_ITS_OWN, 3, [7, 11]),
        (ROWS_OF_ITS_OWN, 4, [7, 9, 10, 11]),
        (ROWS_OF_ITS_OWN, 5, [7, 8, 9, 10, 11]),
        ("ucrra", 3, [1, 5]),
        ("ucrra", 4, [1, 5]),
        ("ucrra", 5, [1, 2, 3, 4, 5]),
        ("auaua", 2, [4, 5]),
        ("a", 1, ["stand-in", 1]),
        ("asss", 2, ["stand-in", 3, 4]),
        ("acr", 1, []),
    ],
)
async def test_the_window_exactly(thread: str, last_messages: int, shown: list[int | str]) -> None:
    """u: a question; a: an answer; s: a step with a call and its result; c, r: a call, and a result of it, apart."""
    model = ScriptedModel("noted")
    memory = Memory(storage=InMemoryStorage(), last_messages=last_messages)
    await memory.messages.save([said(kind, place, thread) for place, kind in enumerate(thread, 1)], thread="t")
    ids: list[str] = []
    agent = Agent(model=model, memory=memory)
    await agent.generate("and now?", thread="t", prepare_step=lambda step: ids.extend(m.id for m in step.messages))
    assert [int(id[1:]) if id[1:].isdigit() else "stand-in" for id in ids][:-1] == shown
    assert_all_well_formed([model])


def said(kind: str, place: int, thread: str) -> Message:
    if kind == "u":
        return Message.user("question", id=f"m{place}")
    if kind == "a":
        return Message.assistant("answer", id=f"m{place}")
    if kind == "s":
        seen = ToolPart(call_id=f"c{place}", name="look", args={}, state="result", result="seen")
        return Message(role="assistant", parts=[seen], id=f"m{place}")
    call = thread.rindex("c", 0, place) + 1
    results = thread[call:].index("a") if "a" in thread[call:] else len(thread) - call
    if kind == "c":
        calls = [ToolPart(call_id=f"c{call + n}", name="look", args={}) for n in range(1, results + 1)]
        return Message(role="assistant", parts=list(calls), id=f"m{place}")
    result = ToolPart(call_id=f"c{place}", name="look", args={}, state="result", result="seen")
    return Message(role="tool", parts=[result], id=f"m{place}")


async def test_a_greeting_stays_behind_a_stand_in() -> None:
    model = answering("noted")
    memory = Memory(storage=InMemoryStorage())
    await memory.messages.save([Message.assistant("Hello, I am Iris.")], thread="t")
    agent = Agent(model=model, memory=memory)
    await agent.generate("hi", thread="t")
    assert [message.role for message in model.requests[-1].prompt] == ["user", "assistant", "user"]
    assert "I am Iris" in model.requests[-1].text
    assert len(await memory.messages.list(thread="t")) == 3


async def test_every_step_of_a_run_is_stored() -> None:
    model = ScriptedModel(["Wait.", ToolCall("look", {"at": "sea"})], "Blue.")
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=model, memory=memory, tools=[Tool(name="look", function=lambda at: f"the {at} is blue")])
    result = await agent.generate("what colour?", thread="t")
    rows = await memory.messages.list(thread="t")
    assert [row.text for row in rows] == ["what colour?", "Wait.", "Blue."]
    assert [row.seq for row in rows] == [1, 2, 3]
    assert {row.run_id for row in rows} == {result.run_id}
    assert rows[1].tool_parts[0].result == "the sea is blue"
    assert all(row.part_tokens is not None for row in rows)


async def test_without_a_thread_nothing_is_kept_and_a_warning_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    storage = InMemoryStorage()
    model = answering()
    memory = Memory(storage=storage)
    await Agent(model=model, memory=memory).generate("one")
    async with Agent(model=model, memory=memory).stream("two") as stream:
        await stream.result()
    assert "one" not in model.requests[-1].text
    assert (await storage.list_threads()).items == []
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "nothing of this call is remembered" in warning
    assert "thread='trip'" in warning


async def test_no_warning_where_memory_acts_or_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    await Agent(model=answering(), memory=Memory(storage=InMemoryStorage())).generate("one", thread="t")
    await Agent(model=answering()).generate("one")
    assert not caplog.records


async def test_instructions_are_not_part_of_the_history() -> None:
    model = answering()
    memory = Memory(storage=InMemoryStorage())
    await Agent(model=model, memory=memory, instructions="Be kind.").generate("one", thread="t")
    await Agent(model=model, memory=memory, instructions="Be brief.").generate("two", thread="t")
    assert "Be kind." not in model.requests[-1].text
    assert [row.role for row in await memory.messages.list(thread="t")] == ["user", "assistant"] * 2


@pytest.mark.parametrize("value", [-1, True, "10", 2.5])
def test_an_impossible_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="last_messages"):
        Memory(storage=InMemoryStorage(), last_messages=value)
