"""A forgotten message stays gone when a client sends its history again, with ids or without."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, Memory, Message, Tool
from diarist.exceptions import InputError
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.memory.stores import made_storage, storage
from tests.properties import examples
from tests.scenarios.kit import observational, words

__all__ = ["made_storage", "storage"]

Given = list[dict[str, Any]]


def numbered_answers() -> ScriptedModel:
    numbers = count(1)
    return ScriptedModel(lambda _: f"answer-{next(numbers)}")


async def texts(memory: Memory, thread: str = "t") -> list[str]:
    return [row.text for row in await memory.messages.list(thread=thread) if row.text]


async def forget(memory: Memory, *said: str, thread: str = "t") -> None:
    rows = await memory.messages.list(thread=thread)
    ids = [row.id for row in rows if row.text in said]
    assert len(ids) == len(said)
    await memory.forget(message_ids=ids, thread=thread)


# --- clients that keep ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize("observing", [True, False])
async def test_a_message_with_an_id_is_refused(storage: Storage, observing: bool) -> None:
    model = numbered_answers()
    memory = observational(storage) if observing else Memory(storage=storage, last_messages=100)
    agent = Agent(model=model, memory=memory)
    copy: list[Message] = []
    for number in range(4):
        copy.append(Message.user(words(f"secret-{number}", 30), id=f"u{number}"))
        copy += (await agent.generate(list(copy), thread="t")).messages
    await memory.settled()
    await memory.forget(message_ids=["u1", copy[3].id], thread="t")
    copy.append(Message.user("and now?", id="u4"))
    await agent.generate(list(copy), thread="t")
    await memory.settled()
    assert "secret-1" not in model.requests[-1].text
    said = [text.split()[0] for text in await texts(memory)]
    assert said == ["secret-0", "answer-1", "secret-2", "answer-3", "secret-3", "answer-4", "and", "answer-5"]
    assert {row.id for row in await memory.messages.list(thread="t")}.isdisjoint({"u1", copy[3].id})


async def test_save_messages_refuses_it_as_well(storage: Storage) -> None:
    memory = Memory(storage=storage)
    history = [Message.user("one", id="m1"), Message.assistant("two", id="m2"), Message.user("three", id="m3")]
    await memory.messages.save(history, thread="t")
    await memory.forget(message_ids=["m2"], thread="t")
    assert await memory.messages.save([*history, Message.user("four", id="m4")], thread="t") == 1
    assert await texts(memory) == ["one", "three", "four"]


async def test_a_forgotten_message_alone_is_no_question(storage: Storage) -> None:
    model = numbered_answers()
    memory = Memory(storage=storage)
    agent = Agent(model=model, memory=memory)
    first, second = Message.user("one", id="m1"), Message.user("two", id="m2")
    await agent.generate(first, thread="t")
    await agent.generate(second, thread="t")
    await memory.forget(message_ids=["m2"], thread="t")
    for again in ([second], [first, second]):
        with pytest.raises(InputError, match=r"'m2' of thread 't' was forgotten.*new id"):
            await agent.generate(again, thread="t")
    assert await texts(memory) == ["one", "answer-1", "answer-2"]
    await agent.generate([second, first], thread="t")  # the first is asked again
    assert "two" not in model.requests[-1].text
    await agent.generate(Message.user("two", id="m3"), thread="t")
    assert await texts(memory) == ["one", "answer-1", "answer-2", "answer-3", "two", "answer-4"]


async def test_a_forgotten_thread_starts_empty(storage: Storage) -> None:
    memory = Memory(storage=storage)
    history = [Message.user("one", id="m1"), Message.user("two", id="m2")]
    await memory.messages.save(history, thread="t")
    await memory.forget(message_ids=["m1"], thread="t")
    await memory.forget(thread="t")
    assert await memory.messages.save(history, thread="t") == 2


# --- clients without ids ----------------------------------------------------------------------------------------


async def talk(agent: Agent, copy: Given, text: str) -> None:
    copy.append({"role": "user", "content": text})
    result = await agent.generate(list(copy), thread="t")
    copy.append({"role": "assistant", "content": result.text})


TALK = [f"{kind}-{number}" for number in range(1, 5) for kind in ("question", "answer")]
FORGOTTEN = [
    ["question-1"],
    ["answer-1"],
    ["question-1", "answer-1"],
    ["question-2"],
    ["answer-2"],
    ["question-2", "answer-2"],
    ["question-2", "answer-2", "question-3", "answer-3"],
    ["answer-2", "question-3"],
    ["question-4"],
    ["answer-4"],
    ["question-4", "answer-4"],
    ["question-1", "answer-2", "question-4"],
]


@pytest.mark.parametrize("gone", FORGOTTEN, ids=",".join)
@pytest.mark.parametrize("client", ["keeps it", "drops it"])
async def test_only_the_new_message_of_a_client_without_ids_is_stored(gone: list[str], client: str) -> None:
    model = numbered_answers()
    memory = Memory(storage=InMemoryStorage(), last_messages=100)
    agent = Agent(model=model, memory=memory)
    copy: Given = []
    for number in range(1, 5):
        await talk(agent, copy, f"question-{number}")
    await forget(memory, *gone)
    if client == "drops it":
        copy = [entry for entry in copy if entry["content"] not in gone]
    left = [text for text in TALK if text not in gone]
    for number in (5, 6):
        await talk(agent, copy, f"question-{number}")
        left += [f"question-{number}", f"answer-{number}"]
        assert await texts(memory) == left
        assert not any(text in model.requests[-1].text for text in gone)


@pytest.mark.parametrize("observing", [True, False])
async def test_it_is_not_noted_again_either(storage: Storage, observing: bool) -> None:
    model, observer = numbered_answers(), ScriptedModel(lambda _: "<diary>\nDate: 2026-03-02\n- 🟡 noted\n</diary>")
    memory = observational(storage, observer_model=observer) if observing else Memory(storage=storage)
    agent = Agent(model=model, memory=memory)
    copy: Given = []
    for number in range(4):
        await talk(agent, copy, words(f"secret-{number}", 30))
    await memory.settled()
    before, seen = len(await memory.messages.list(thread="t")), len(observer.requests)
    await forget(memory, words("secret-1", 30))
    for number in range(4, 7):
        await talk(agent, copy, words(f"secret-{number}", 30))
    await memory.settled()
    assert len(await memory.messages.list(thread="t")) == before - 1 + 6
    assert not any("secret-1" in request.text for request in [*model.requests[4:], *observer.requests[seen:]])


async def test_a_forgotten_step_with_a_tool_stays_gone() -> None:
    asked = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"place": "Rome"}'}}
    history: Given = [
        {"role": "user", "content": "How is Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": "a secret"},
        {"role": "assistant", "content": "Rome is fine."},
    ]
    model = ScriptedModel(ToolCall("look", {"place": "Rome"}, id="c1"), "Rome is fine.", "Good.", "Bye.")
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=model, memory=memory, tools=[Tool(name="look", function=lambda place: "a secret")])
    await agent.generate(history[:1], thread="t")
    (step,) = [row.id for row in await memory.messages.list(thread="t") if row.tool_parts]
    await memory.forget(message_ids=[step], thread="t")
    for text in ("Fine.", "So long."):
        await talk(agent, history, text)
    assert await texts(memory) == ["How is Rome?", "Rome is fine.", "Fine.", "Good.", "So long.", "Bye."]
    assert "a secret" not in model.requests[-1].text


async def test_words_that_were_replaced_stay_gone(storage: Storage) -> None:
    model = numbered_answers()
    memory = Memory(storage=storage)
    agent = Agent(model=model, memory=memory)
    copy: Given = []
    for number in range(1, 4):
        await talk(agent, copy, f"question-{number}")
    row = next(row for row in await memory.messages.list(thread="t") if row.text == "question-2")
    await memory.messages.update(row.id, thread="t", text="[removed]")
    await talk(agent, copy, "question-4")
    assert "question-2" not in model.requests[-1].text
    copy[2]["content"] = "[removed]"  # a client that has heard of it
    await talk(agent, copy, "question-5")
    expected = [text if text != "question-2" else "[removed]" for text in [*TALK, "question-5", "answer-5"]]
    assert await texts(memory) == expected


def _say(request: ModelRequest) -> str:
    return "ok" if len(request.prompt.messages) % 4 else "done"


turns = st.lists(
    st.tuples(st.sampled_from(["yes", "no"]), st.sets(st.integers(0, 9), max_size=3), st.booleans()), max_size=7
)


@settings(max_examples=examples(150), deadline=None)
@given(turns=turns)
async def test_whatever_is_forgotten_nothing_is_stored_twice(turns: Sequence[tuple[str, set[int], bool]]) -> None:
    """Few words, often repeated; after each turn some messages are forgotten, which the client keeps or drops."""
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=ScriptedModel(_say), memory=memory)
    copy: Given = []
    owned: list[str | None] = []  # of each entry of the client's the stored id; None: it is forgotten
    for text, gone, keeps in turns:
        before = await memory.messages.list(thread="t") if copy else []
        sent = [*copy, {"role": "user", "content": text}]
        result = await agent.generate(sent, thread="t")
        rows = await memory.messages.list(thread="t")
        answers = [id for id, entry in zip(owned, copy, strict=True) if entry["role"] == "assistant"]
        if answers:  # else nothing tells the client's first words from new ones
            assert [row.id for row in rows[: len(before)]] == [row.id for row in before]
            assert [row.text for row in rows[len(before) :]] == [text, result.text]
        copy = [*sent, {"role": "assistant", "content": result.text}]
        owned = [*owned, rows[-2].id, rows[-1].id]
        forgotten = {row.id for place, row in enumerate(reversed(rows)) if place in gone}
        await memory.forget(message_ids=forgotten, thread="t")
        owned = [None if id in forgotten else id for id in owned]
        if not keeps:
            copy = [entry for entry, id in zip(copy, owned, strict=True) if id is not None]
            owned = [id for id in owned if id is not None]


# --- elsewhere --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [True, False])
async def test_it_stays_gone_where_the_thread_is_moved_to(storage: Storage, ids: bool) -> None:
    memory, other = Memory(storage=InMemoryStorage()), Memory(storage=storage)
    agent = Agent(model=numbered_answers(), memory=memory)
    copy: list[Any] = []
    for number in range(1, 4):
        if ids:
            copy.append(Message.user(f"question-{number}", id=f"m{number}"))
            copy += (await agent.generate(list(copy), thread="t")).messages
        else:
            await talk(agent, copy, f"question-{number}")
    await forget(memory, "question-1", "answer-1", "question-3")
    await other.threads.import_all([line async for line in memory.threads.export_all()])
    new: Any = Message.user("new", id="new") if ids else {"role": "user", "content": "new"}
    await Agent(model=ScriptedModel("ok"), memory=other).generate([*copy, new], thread="t")
    assert await texts(other) == ["question-2", "answer-2", "answer-3", "new", "ok"]
    again = [line async for line in memory.threads.export_all()]
    third = Memory(storage=InMemoryStorage())
    await third.threads.import_all(again)
    assert [line async for line in third.threads.export_all()] == again


async def test_it_stays_gone_in_a_clone(storage: Storage) -> None:
    memory = Memory(storage=storage)
    agent = Agent(model=numbered_answers(), memory=memory)
    copy: Given = []
    for number in range(1, 4):
        await talk(agent, copy, f"question-{number}")
    await forget(memory, "question-1", "answer-1", "question-3")
    await memory.threads.clone("t", new_thread="copy")
    await agent.generate([*copy, {"role": "user", "content": "new"}], thread="copy")
    assert await texts(memory, "copy") == ["question-2", "answer-2", "answer-3", "new", "answer-4"]
