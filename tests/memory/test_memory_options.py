"""Options of memory for a single call: ``read_only``, ``last_messages``, ``semantic_recall``."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, CallOptions, Memory, ObservationalMemoryConfig, ThreadRef
from diarist.exceptions import ConfigError
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel
from tests.memory.semantic.kit import TopicEmbedder


def agent_with(**options: Any) -> tuple[Agent, ScriptedModel, Memory]:
    memory = Memory(storage=InMemoryStorage(), await_background=True, **options)
    model = ScriptedModel(lambda request: "ok")
    return Agent(model=model, memory=memory), model, memory


def shown(model: ScriptedModel) -> list[str]:
    return [message.text for message in model.requests[-1].prompt if message.role != "system"]


async def talk(agent: Agent, count: int) -> None:
    for number in range(1, count + 1):
        await agent.generate(f"number {number}", thread="t", resource="ada")


# -- read_only


@pytest.mark.parametrize("diary", [False, ObservationalMemoryConfig(model="extractive")], ids=["history", "diary"])
async def test_a_read_only_call_sees_the_thread_and_stores_nothing(diary: Any) -> None:
    agent, model, memory = agent_with(observational_memory=diary, working_memory=True)
    await memory.working.update("Likes tea.", resource="ada")
    await talk(agent, 2)
    await agent.generate("Only a look.", thread="t", resource="ada", read_only=True)
    assert "number 1" in model.requests[-1].text
    assert "Likes tea." in model.requests[-1].text
    assert [tool.name for tool in model.requests[-1].tools] == []
    assert [row.text for row in await memory.messages.list(thread="t")] == ["number 1", "ok", "number 2", "ok"]
    await talk(agent, 1)
    assert [tool.name for tool in model.requests[-1].tools] == ["update_working_memory"]
    assert len(await memory.messages.list(thread="t")) == 6


async def test_a_read_only_call_creates_no_thread_and_no_title() -> None:
    agent, _, memory = agent_with(generate_title=True)
    await agent.generate("Only a look.", thread=ThreadRef(id="new"), read_only=True)
    assert (await memory.threads.list()).items == []


async def test_a_call_cannot_make_a_read_only_memory_write() -> None:
    agent, _, memory = agent_with(read_only=True)
    await agent.generate("hi", thread="t", read_only=False)
    assert (await memory.threads.list()).items == []


# -- last_messages


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (0, ["now"]),
        (False, ["now"]),
        (2, ["number 4", "ok", "now"]),
        (None, ["number 3", "ok", "number 4", "ok", "now"]),
    ],
)
async def test_a_call_may_see_another_number_of_messages(last: Any, expected: list[str]) -> None:
    agent, model, memory = agent_with(last_messages=4)
    await talk(agent, 4)
    await agent.generate("now", thread="t", resource="ada", last_messages=last)
    assert shown(model) == expected
    assert len(await memory.messages.list(thread="t")) == 10
    await agent.generate("again", thread="t", resource="ada")
    assert shown(model) == ["number 4", "ok", "now", "ok", "again"]


async def test_observational_memory_selects_the_messages_itself() -> None:
    agent, _, _ = agent_with(observational_memory=ObservationalMemoryConfig(model="extractive"))
    with pytest.raises(ConfigError, match="last_messages has no effect with observational memory"):
        await agent.generate("hi", thread="t", last_messages=3)


# -- semantic_recall


async def recalled(options: CallOptions, **memory_options: Any) -> bool:
    agent, model, _ = agent_with(embedder=TopicEmbedder(), **memory_options)
    await agent.generate("My garden has roses.", thread="one", resource="ada")
    await agent.generate("What grows in my garden?", thread="two", resource="ada", **options)
    return "roses" in model.requests[-1].text


async def test_a_call_may_leave_out_semantic_recall_or_ask_for_it() -> None:
    assert await recalled({}, semantic_recall=True)
    assert not await recalled({"semantic_recall": False}, semantic_recall=True)
    assert not await recalled({})
    assert await recalled({"semantic_recall": True})


async def test_messages_of_a_call_without_recall_are_embedded_all_the_same() -> None:
    agent, model, _ = agent_with(embedder=TopicEmbedder(), semantic_recall=True)
    await agent.generate("My garden has roses.", thread="one", resource="ada", semantic_recall=False)
    await agent.generate("What grows in my garden?", thread="two", resource="ada")
    assert "roses" in model.requests[-1].text


async def test_recall_needs_an_embedder() -> None:
    agent, _, _ = agent_with()
    with pytest.raises(ConfigError, match="needs an embedder"):
        await agent.generate("hi", thread="t", semantic_recall=True)


# -- all


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"read_only": "yes"}, "read_only must be True or False, not 'yes'"),
        ({"last_messages": -1}, "last_messages must be a whole number from 0 on, or False, not -1"),
        ({"last_messages": True}, "last_messages must be a whole number from 0 on, or False, not True"),
        ({"semantic_recall": 3}, "semantic_recall must be True or False, not 3"),
    ],
)
async def test_other_values_are_refused(options: Any, why: str) -> None:
    agent, _, _ = agent_with()
    with pytest.raises(ConfigError, match=why):
        await agent.generate("hi", thread="t", **options)


async def test_an_agent_without_memory_has_no_such_options() -> None:
    with pytest.raises(ConfigError, match=r"options of memory, and agent 'agent' has none"):
        await Agent(model=ScriptedModel("ok")).generate("hi", read_only=True)


async def test_they_may_be_defaults_of_an_agent() -> None:
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=ScriptedModel("ok"), memory=memory, default_options={"read_only": True})
    async with agent.stream("hi", thread="t") as stream:
        await stream.result()
    assert (await memory.threads.list()).items == []
