"""Words and meaning together: in the API and in the tool."""

from __future__ import annotations

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig
from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.memory import RetrievalConfig
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall
from diarist.vectors import InMemoryVectorStore
from tests.memory.semantic.kit import OUT_OF_ORDER, TopicEmbedder, memory_with, say

SAID = [
    "Rome is warm in May.",
    "My booking code is AZ204.",
    "Italy was on my mind, code AZ204.",
    "The garden needs water.",
]


async def remembering(embedder: TopicEmbedder, **more: object) -> Memory:
    memory = memory_with(embedder, **more)
    await memory.messages.save([Message.user(text) for text in SAID], thread="trip", resource="ada")
    await memory.messages.save([Message.user("Rome of Bob, AZ204.")], thread="b", resource="bob")
    await memory.settled()
    return memory


async def recalled(memory: Memory, query: str, **more: object) -> list[str]:
    page = await memory.recall(query, **({"resource": "ada"} | more))  # pyright: ignore
    return [hit.message.text for hit in page.items]


async def test_search_finds_by_meaning_and_by_words() -> None:
    memory = await remembering(TopicEmbedder())
    assert (await recalled(memory, "Italy"))[:2] == [SAID[2], SAID[0]]  # the word and the meaning, then the meaning
    assert SAID[1] in await recalled(memory, "az204")
    assert SAID[0] not in [hit.message.text for hit in (await memory.messages.search("Italy", resource="ada")).items]


async def test_what_both_find_comes_first() -> None:
    memory = await remembering(TopicEmbedder())
    assert (await recalled(memory, "code italy"))[0] == SAID[2]


async def test_pages_have_each_message_once() -> None:
    memory = await remembering(TopicEmbedder())
    whole = await recalled(memory, "Italy")
    found: list[str] = []
    cursor: str | None = None
    for _ in whole:
        page = await memory.recall("Italy", resource="ada", limit=1, cursor=cursor)
        found += [hit.message.text for hit in page.items]
        cursor = page.cursor
    assert (found, cursor) == (whole, None)


async def test_one_thread_or_all_of_one_resource() -> None:
    memory = await remembering(TopicEmbedder())
    await say(memory, "Rome again.", thread="other")
    assert "Rome again." in await recalled(memory, "Italy")
    assert "Rome again." not in await recalled(memory, "Italy", thread="trip")
    assert not any("Bob" in text for text in await recalled(memory, "Rome AZ204"))


async def test_a_query_without_words_may_mean_something() -> None:
    memory = await remembering(TopicEmbedder())
    with pytest.raises(InputError):
        await memory.messages.search("?!", resource="ada")
    assert await recalled(memory, "?!") == []


async def test_what_cannot_be_asked_is_refused() -> None:
    memory = await remembering(TopicEmbedder())
    for wrong in ({}, {"resource": "bob", "thread": "trip"}, {"resource": "ada", "limit": 0}):
        with pytest.raises(InputError):
            await memory.recall("Rome", **wrong)  # pyright: ignore
    for cursor in ("x", "cmFua2VkIC0x"):
        with pytest.raises(InputError, match="not a cursor"):
            await memory.recall("Rome", resource="ada", cursor=cursor)
    with pytest.raises(InputError):
        await memory.recall(" ", resource="ada")
    with pytest.raises(NotFoundError):
        await memory.recall("Rome", thread="none")
    with pytest.raises(ConfigError, match="pass embedder="):
        await Memory(storage=InMemoryStorage()).recall("Rome", resource="ada")


@pytest.mark.parametrize("error", OUT_OF_ORDER, ids=repr)
async def test_a_failing_embedder_is_an_error_for_people(error: BaseException) -> None:
    embedder = TopicEmbedder()
    memory = await remembering(embedder)
    embedder.failing = error
    with pytest.raises(RuntimeError, match=r"out of order|something that it awaited was cancelled"):
        await memory.recall("Rome", resource="ada")


# --- the tool


def with_tool(**more: object) -> dict[str, object]:
    config = ObservationalMemoryConfig(model="extractive", scope="thread", retrieval=RetrievalConfig())
    return {"observational_memory": config, "semantic_recall": False, **more}


async def asked(memory: Memory, query: str) -> ScriptedModel:
    model = ScriptedModel(ToolCall("recall", {"mode": "search", "query": query}), "done")
    await Agent(name="a", model=model, memory=memory).generate("Look it up.", thread="new", resource="ada")
    await memory.settled()
    return model


async def test_the_tool_finds_by_meaning() -> None:
    model = await asked(await remembering(TopicEmbedder(), **with_tool()), "dreams of Italy")
    answer = model.requests[-1].text
    assert "Rome is warm in May." in answer
    assert "Bob" not in answer
    (tool,) = [tool for tool in model.requests[0].tools if tool.name == "recall"]
    assert "mean something like" in (tool.description or "")


async def test_the_tool_of_a_read_only_memory_finds_by_meaning_too() -> None:
    storage, vector = InMemoryStorage(), InMemoryVectorStore()
    diary = ObservationalMemoryConfig(model="extractive", retrieval=True)
    more = {"storage": storage, "vector": vector, "observational_memory": diary, "semantic_recall": False}
    writing = memory_with(TopicEmbedder(), **more)
    await writing.messages.save(Message.user("My flight leaves at seven."), thread="trip", resource="ada")
    await writing.settled()
    model = await asked(memory_with(TopicEmbedder(), read_only=True, **more), "Italy")
    assert "My flight leaves at seven." in model.requests[-1].text


@pytest.mark.parametrize("error", OUT_OF_ORDER, ids=repr)
async def test_the_tool_goes_by_words_where_meaning_fails(error: BaseException) -> None:
    embedder = TopicEmbedder()
    memory = await remembering(embedder, **with_tool())
    embedder.failing = error
    assert "My booking code is AZ204." in (await asked(memory, "booking")).requests[-1].text


async def test_without_vectors_the_tool_goes_by_words() -> None:
    config = ObservationalMemoryConfig(model="extractive", scope="thread", retrieval=True)
    memory = Memory(storage=InMemoryStorage(), observational_memory=config)
    await memory.messages.save([Message.user(SAID[0])], thread="trip", resource="ada")
    model = await asked(memory, "Rome")
    (tool,) = [tool for tool in model.requests[0].tools if tool.name == "recall"]
    assert "with all words of `query`, newest first" in (tool.description or "")
    await memory.settled()


async def test_with_the_tool_alone_nothing_is_shown_by_itself() -> None:
    memory = await remembering(TopicEmbedder(), **with_tool())
    assert "warm" not in await say(memory, "Italy?", thread="new")
