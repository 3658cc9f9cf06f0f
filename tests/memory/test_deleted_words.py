"""What a person took out of the diary stays out, whatever is forgotten later."""

from __future__ import annotations

from typing import Literal

import pytest

from diarist import Agent, Memory
from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.rows import seq_of
from diarist.storage import InMemoryStorage, Observation
from diarist.testing import ScriptedModel
from tests.memory.diary_kit import keeping_diary, told, word
from tests.scenarios.kit import answering

pytestmark = pytest.mark.parametrize("scope", ["thread", "resource"])
Scope = Literal["thread", "resource"]


@pytest.fixture
def storage() -> InMemoryStorage:
    return InMemoryStorage()


@pytest.fixture
def memory(storage: InMemoryStorage, scope: Scope) -> Memory:
    return keeping_diary(storage, scope=scope, reflector_model=ScriptedModel(*["- 🔴 much was told"] * 9))


async def reflected(memory: Memory, *numbers: int) -> Observation:
    """What messages of these numbers come to, in words that none of them says."""
    await told(memory, numbers)
    return (await memory.diary.reflect(thread="t", guidance="briefly")).active[0]


async def noted(memory: Memory) -> set[int]:
    """The messages whose word the next prompt has."""
    await memory.diary.observe(thread="t")
    model = answering()
    await Agent(model=model, memory=memory).generate("and now?", thread="t", resource="ada")
    await memory.settled()
    return {number for number in range(1, 13) if word(number) in model.requests[-1].text}


async def covered_once(memory: Memory) -> None:
    entries = (await memory.diary.get(thread="t")).active
    for row in await memory.storage.list_messages("t"):
        assert sum(seq_of(row) in Coverage([entry], "t") for entry in entries) <= 1


async def test_a_deleted_reflection(memory: Memory) -> None:
    reflection = await reflected(memory, 1, 2, 3, 4, 5, 6)
    await memory.diary.delete(reflection.id, thread="t")
    receipt = await memory.forget(message_ids=["m3"], thread="t")
    assert reflection.id in receipt.observation_ids
    assert receipt.restored_ids == ()
    assert await noted(memory) == set()
    await memory.forget(message_ids=["m1", "m6"], thread="t")
    assert await noted(memory) == set()
    await covered_once(memory)


async def test_a_reflection_that_lost_a_line(memory: Memory) -> None:
    reflection = await reflected(memory, 1, 2, 3, 4)
    await memory.diary.edit(reflection.id, "- 🔴 little was told", thread="t")
    await memory.forget(message_ids=["m1"], thread="t")
    assert "told" not in (await memory.diary.get(thread="t")).text
    assert await noted(memory) == set()


async def test_a_line_that_a_later_reflection_took_over(memory: Memory) -> None:
    reflection = await reflected(memory, 1, 2, 3, 4)
    await memory.diary.edit(reflection.id, "- 🔴 little was told", thread="t")
    await reflected(memory, 5, 6, 7, 8)
    await memory.forget(message_ids=["m5"], thread="t")
    assert next(entry.text for entry in (await memory.diary.get(thread="t")).active) == "- 🔴 little was told"
    await memory.forget(message_ids=["m2"], thread="t")
    assert await noted(memory) == {6, 7, 8}
    await covered_once(memory)


async def test_a_deleted_observation(memory: Memory) -> None:
    await told(memory, [1, 2, 3, 4])
    first = (await memory.diary.get(thread="t")).active[0]
    await memory.diary.delete(first.id, thread="t")
    await memory.forget(message_ids=["m1"], thread="t")
    assert await noted(memory) == {3, 4}


async def test_the_rest_of_a_deleted_entry_is_left_out_only_as_long_as_it_is_there(memory: Memory) -> None:
    reflection = await reflected(memory, 1, 2)
    await memory.diary.delete(reflection.id, thread="t")
    await memory.forget(message_ids=["m1", "m2"], thread="t")
    assert (await memory.diary.get(thread="t")).entries == ()


async def test_a_copy_of_some_messages(memory: Memory) -> None:
    reflection = await reflected(memory, 1, 2, 3, 4)
    await memory.diary.delete(reflection.id, thread="t")
    copy = await memory.threads.clone("t", message_ids=["m1", "m2"])
    if memory.config is not None and memory.config.scope == "thread":  # otherwise the copies are raw
        assert (await memory.diary.observe(thread=copy.id)).text.strip() == ""


async def test_words_that_were_only_added_let_a_reflection_give_way(memory: Memory) -> None:
    reflection = await reflected(memory, 1, 2, 3, 4)
    await memory.diary.edit(reflection.id, "- 🔴 much was told then\n- 🔴 and more", thread="t")
    await memory.forget(message_ids=["m1"], thread="t")
    assert await noted(memory) == {2, 3, 4}


@pytest.mark.parametrize("corrected", ["- 🔴 Much was told.", "- 🟡 much, was “told”", "* MUCH was\n  told!"])
async def test_changed_spelling_does_not_count_as_removed_words(memory: Memory, corrected: str) -> None:
    reflection = await reflected(memory, 1, 2, 3, 4)
    await memory.diary.edit(reflection.id, corrected, thread="t")
    await memory.forget(message_ids=["m1"], thread="t")
    assert await noted(memory) == {2, 3, 4}


async def test_one_of_two_equal_words_counts_as_a_removed_word(memory: Memory) -> None:
    reflection = await reflected(memory, 1, 2, 3, 4)
    await memory.diary.edit(reflection.id, "- 🔴 much was told\n- 🔴 and much more", thread="t")
    await memory.diary.edit(reflection.id, "- 🔴 much was told\n- 🔴 and more", thread="t")
    await memory.forget(message_ids=["m1"], thread="t")
    assert await noted(memory) == set()


async def test_only_a_changed_message_is_noted_again(memory: Memory) -> None:
    reflection = await reflected(memory, 1, 2, 3, 4)
    await memory.diary.delete(reflection.id, thread="t")
    await memory.messages.update("m1", thread="t", text=f"{word(11)} instead")
    assert await noted(memory) == {11}
    await covered_once(memory)
