"""``step.request`` is what the model was given; ``memory.context`` is what memory adds to the next prompt."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig, Processor, tool
from diarist.exceptions import InputError
from diarist.memory import WorkingMemoryConfig
from diarist.messages import Prompt
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall

STORY = "We walked along the river, and the sun was out. " * 20


@tool
def look(city: str) -> str:
    """Look at a city."""
    return f"{city} is fine"


def diary(scope: Any = "thread") -> dict[str, Any]:
    observation = ObservationConfig(message_tokens=300)
    return {"observational_memory": ObservationalMemoryConfig(model="extractive", scope=scope, observation=observation)}


KINDS: dict[str, dict[str, Any]] = {
    "history": {},
    "short history": {"last_messages": 3},
    "no history": {"last_messages": False},
    "working memory": {"working_memory": True},
    "working memory of the thread": {"working_memory": WorkingMemoryConfig(scope="thread")},
    "diary": diary(),
    "shared diary": diary("resource"),
    "diary and working memory": {**diary(), "working_memory": True},
    "read-only": {"working_memory": True, "read_only": True},
}


def steps() -> list[Any]:
    update = ToolCall("update_working_memory", {"memory": "# Ada\n- Likes rivers"})
    return [ToolCall("look", {"city": "Rome"}), "It is fine.", update, "Noted.", "Good."]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_context_is_what_the_next_prompt_has(kind: str, tmp_path: Path) -> None:
    options = KINDS[kind]
    storage = SQLiteStorage(tmp_path / "memory.db")
    writes = {name: value for name, value in options.items() if name != "read_only"}
    async with Memory(storage=storage, **writes) as memory:
        told = Agent(model=ScriptedModel(*steps()), tools=[look], memory=memory)
        for text in ("I'm Ada, and I am allergic to walnuts.", "Remember rivers.", STORY):
            if kind in ("working memory", "working memory of the thread", "diary and working memory", "read-only"):
                await told.generate(text, thread="t", resource="ada")
            else:
                await Agent(model=ScriptedModel("Good."), memory=memory).generate(text, thread="t", resource="ada")
        await memory.settled()

    memory = Memory(storage=storage, **options)
    before = rows_of(tmp_path / "memory.db")
    context = await memory.context(thread="t", resource="ada")
    assert rows_of(tmp_path / "memory.db") == before

    agent = Agent(model=ScriptedModel("Yes."), instructions="Be kind.", memory=memory)
    result = await agent.generate("And now?", thread="t", resource="ada")
    request = result.steps[0].request
    assert request is not None
    first, *sent, question = request.prompt.messages
    assert (first.text, "And now?" in question.text) == ("Be kind.", True)
    assert context.text == Prompt(messages=sent).text
    assert context.system == [message.text for message in sent if message.role == "system"]
    assert [message.parts for message in context.messages] == [m.parts for m in sent if m.role != "system"]
    await memory.close()


def rows_of(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        dump = list(connection.iterdump())
    connection.close()
    return dump


async def test_due_notes_are_shown_as_taken_in_and_stay_due(tmp_path: Path) -> None:
    memory = Memory(storage=SQLiteStorage(tmp_path / "memory.db"), **diary())
    model = ScriptedModel("Good.", "That sounds like a very fine day. " * 15, "Yes.")
    agent = Agent(model=model, memory=memory)
    for text in ("I'm Ada, and I am allergic to walnuts. " * 18, "How does that sound?"):
        await agent.generate(text, thread="t")
        await memory.settled()
    before = await memory.diary.get(thread="t")
    assert (before.active, bool(before.buffered)) == ((), True), "a note is due"
    context = await memory.context(thread="t")
    assert "walnuts" in context.system[-1]
    assert "walnuts" not in "".join(message.text for message in context.messages)
    assert await memory.diary.get(thread="t") == before
    await agent.generate("And now?", thread="t")
    assert model.requests[-1].text.startswith(context.text)
    await memory.close()


async def test_a_new_thread_has_what_its_resource_shares() -> None:
    memory = Memory(storage=InMemoryStorage(), working_memory=True)
    await memory.working.update("# Ada", resource="ada")
    context = await memory.context(thread="new", resource="ada")
    assert context.messages == []
    assert "# Ada" in context.text
    assert await memory.threads.list() == await memory.threads.list(resource="nobody"), "no thread was created"
    assert "# Ada" not in (await memory.context(thread="new")).text


async def test_a_thread_of_another_resource_is_refused() -> None:
    memory = Memory(storage=InMemoryStorage())
    await memory.messages.save("Hello", thread="t", resource="ada")
    with pytest.raises(InputError, match="does not belong to resource 'bob'"):
        await memory.context(thread="t", resource="bob")


async def test_no_model_is_needed_to_read_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    memory = Memory(storage=InMemoryStorage(), observational_memory=True)
    await memory.messages.save("Hello", thread="t", resource="ada")
    assert (await memory.context(thread="t")).text == "[user]\nHello"


async def test_a_step_has_the_request_that_its_model_got() -> None:
    class Shout(Processor[Any]):
        def process_llm_request(self, args: Any) -> Prompt:
            messages = [*args.prompt.messages]
            return Prompt(messages=messages[:1])

    model = ScriptedModel(ToolCall("look", {"city": "Rome"}), "Fine.")
    result = await Agent(model=model, tools=[look], processors=[Shout()]).generate("Look!")
    assert [step.request for step in result.steps] == model.requests
    first = result.steps[0].request
    assert first is not None
    assert (first.text, [definition.name for definition in first.tools]) == ("[user]\nLook!", ["look"])


async def test_a_repeated_step_has_the_request_of_its_last_attempt() -> None:
    model = ScriptedModel("three", "3")
    result = await Agent(model=model).generate("How many?", output_type=int, max_processor_retries=1)
    request = result.steps[0].request
    assert request is not None
    assert (len(model.requests), request) == (2, model.requests[-1])
    assert "processor-retry-feedback" in request.text
