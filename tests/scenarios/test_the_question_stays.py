"""The run's own question is in every prompt, even if messages are observed during the run. The conversation in the
prompt begins with this question or with another message of the user."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Memory, Message, Tool
from diarist.models.base import ModelRequest
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import Recount, answering, assert_all_well_formed, ids_sent, log_of, observational, talk, words


async def test_a_question_larger_than_the_threshold(storage: Storage) -> None:
    model = answering()
    agent = Agent(model=model, memory=observational(storage), input_processors=[Recount(storage)])
    await talk(agent, 2)
    await agent.generate(words("huge", 500), thread="t")
    assert model.requests[-1].text.count("huge") == 500
    await talk(agent, 3)
    assert "huge" not in model.requests[-1].text
    assert_all_well_formed([model])


async def test_several_messages_are_one_question(storage: Storage) -> None:
    model = answering()
    agent = Agent(model=model, memory=observational(storage), input_processors=[Recount(storage)])
    await talk(agent, 4)
    question = [Message.user(words(f"part-{n}", 60)) for n in range(3)]
    await agent.generate(question, thread="t")
    assert ids_sent(model.requests[-1])[-3:] == [message.id for message in question]


async def test_through_all_steps_of_a_tool_loop(storage: Storage) -> None:
    def answer(request: ModelRequest) -> Any:
        return "Done." if len(model.requests) == 20 else ToolCall("look", {})

    model = ScriptedModel(answer)
    agent = Agent(
        model=model,
        tools=[Tool(name="look", function=lambda: words("found", 40))],
        memory=observational(storage),
        max_steps=30,
        input_processors=[Recount(storage)],
    )
    await agent.generate("my question", thread="t")
    assert (await log_of(storage)).entries
    for request in model.requests:
        assert "my question" in request.text
    assert_all_well_formed([model])


async def test_the_turn_that_the_diary_cuts_is_shown_with_its_question(storage: Storage) -> None:
    """The diary may end in the middle of a turn; the next prompt still begins with a user's message."""
    model = ScriptedModel(*[ToolCall("look", {})] * 9, "Found it.", lambda _: "Yes.")
    agent = Agent(
        model=model,
        tools=[Tool(name="look", function=lambda: words("found", 40))],
        memory=observational(storage),
        max_steps=30,
        input_processors=[Recount(storage)],
    )
    await agent.generate("first question", thread="t")
    await agent.generate("second question", thread="t")
    first = next(m for m in model.requests[-1].prompt if m.role != "system")
    assert first.role == "user"
    assert "first question" in first.text
    assert "second question" in model.requests[-1].prompt.messages[-1].text
    assert_all_well_formed([model])


async def test_a_thread_that_begins_with_the_assistant(storage: Storage) -> None:
    model = answering()
    memory = observational(storage)
    await memory.messages.save([Message.assistant(words("welcome", 20))], thread="t")
    agent = Agent(model=model, memory=memory)
    await talk(agent, 6)
    assert_all_well_formed([model])


async def test_a_question_that_is_asked_again_with_the_same_id(storage: Storage) -> None:
    """A client that got no answer sends its message again: stored once, in the prompt, and never observed
    before it was answered."""
    model = ScriptedModel(RuntimeError("no answer"), lambda _: "Here it is.")
    memory = observational(storage, buffer_activation=1.0)
    agent = Agent(model=model, memory=memory)
    question = Message.user(words("question", 150), id="q-1")
    with pytest.raises(RuntimeError, match="no answer"):
        await agent.generate(question, thread="t")
    again = Message.user(words("question", 150), id="q-1")
    result = await agent.generate(again, thread="t")
    assert result.text == "Here it is."
    assert model.requests[-1].text.count("question") == 150
    rows = await memory.messages.list(thread="t")
    assert [row.id for row in rows] == ["q-1", result.messages[0].id]


async def test_an_old_question_that_is_asked_again_with_the_same_id(storage: Storage) -> None:
    """Even if the diary has covered it since, there is something for the model to answer."""
    model = answering()
    memory = observational(storage)
    agent = Agent(model=model, memory=memory)
    await agent.generate(Message.user(words("old", 30), id="q-1"), thread="t")
    await talk(agent, 8)
    assert "old" not in model.requests[-1].text.split()
    before = len(await memory.messages.list(thread="t"))
    await agent.generate(Message.user(words("old", 30), id="q-1"), thread="t")
    last = model.requests[-1].prompt.messages[-1]
    assert (last.role, last.text.split().count("old")) == ("user", 30)
    assert len(await memory.messages.list(thread="t")) == before + 1


@pytest.mark.parametrize("observing", [True, False])
async def test_one_message_asked_in_two_threads(storage: Storage, observing: bool) -> None:
    """A message that is stored elsewhere already is new here, and the caller's object stays as it was."""
    model = answering()
    memory = observational(storage) if observing else Memory(storage=storage)
    agent = Agent(model=model, memory=memory)
    question = Message.user("my question")
    for thread in ("a", "b"):
        await agent.generate(question, thread=thread)
        assert "my question" in model.requests[-1].text
        assert ("Today is" in model.requests[-1].text) is observing
        assert [row.text for row in await memory.messages.list(thread=thread)] == [
            "my question",
            "Understood, noted.",
        ]
    assert (question.seq, question.sent, question.thread_id) == (None, None, None)
    stored = (await memory.messages.list(thread="a"))[0]
    await agent.generate(stored, thread="c")
    assert "my question" in model.requests[-1].text
