"""Observed messages leave the prompt and the diary takes their place; no message is lost or told twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from diarist import Agent, Tool
from diarist.storage import InMemoryStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.properties import examples
from tests.scenarios.kit import (
    Recount,
    answering,
    log_of,
    observational,
    observer,
    raw_rows,
    reflector,
    talk,
    ways,
    words,
)


async def test_the_diary_takes_their_place(storage: Storage) -> None:
    model = answering()
    agent = Agent(model=model, memory=observational(storage), instructions="Be kind.")
    await talk(agent, 5)
    prompt = model.requests[-1].text
    assert "turn-1" not in prompt
    assert prompt.count("turn-5") == 30
    assert "note-1" in prompt
    assert prompt.startswith("[system]\nBe kind.\n[system]\n")
    assert prompt.index("note-1") < prompt.index("turn-5")


async def test_below_the_threshold_everything_is_raw_and_nothing_is_added(storage: Storage) -> None:
    model = answering()
    agent = Agent(model=model, memory=observational(storage))
    await talk(agent, 2)
    assert [m.role for m in model.requests[-1].prompt] == ["user", "assistant", "user"]
    assert model.requests[-1].text.count("turn-1") == 30


async def test_older_messages_leave_first_even_if_their_note_was_removed(storage: Storage) -> None:
    """Their note goes with a forgotten message, and leaves too few tokens for a note by themselves."""
    model = answering()
    memory = observational(storage, message_tokens=200, await_background=True)
    agent = Agent(model=model, memory=memory)
    await talk(agent, 4, size=40)  # a note of each turn waits
    rows = await memory.messages.list(thread="t")
    await memory.forget(message_ids=[rows[0].id], thread="t")
    await talk(agent, 1, size=4, first=5)
    await talk(agent, 1, size=60, first=6)  # to the threshold
    thread = [row.id for row in await memory.messages.list(thread="t")]
    sent = [m.message_id for m in model.requests[-1].prompt if m.message_id is not None]
    assert sent == thread[-1 - len(sent) : -1]  # all but the answer to it
    assert len(sent) < 5


@ways
@pytest.mark.parametrize("settles", [True, False])
async def test_every_row_is_in_the_prompt_or_in_one_entry(
    storage: Storage, buffer_tokens: float, settles: bool
) -> None:
    recount = Recount(storage)
    memory = observational(storage, observation_tokens=30, buffer_tokens=buffer_tokens, await_background=settles)
    agent = Agent(model=answering(), memory=memory, input_processors=[recount])
    await talk(agent, 25)
    await memory.settled()
    await raw_rows(storage)
    assert recount.prompts == 25
    assert recount.covered > 100
    assert (await log_of(storage)).generation > 1


def look(size: int) -> str:
    """Look something up."""
    return words("found", size)


turns = st.lists(
    st.tuples(st.integers(1, 150), st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=3), max_size=5)),
    min_size=1,
    max_size=10,
)


@settings(max_examples=examples(25), deadline=None)
@given(
    turns=turns,
    message_tokens=st.integers(10, 200),
    observation_tokens=st.integers(10, 80),
    keep=st.sampled_from([0.5, 0.8, 1.0]),
    noted=st.integers(4, 12),
    buffer=st.sampled_from([False, 0.1, 0.4]),
    settles=st.booleans(),
)
async def test_exactly_once_in_any_conversation(
    turns: list[tuple[int, list[list[int]]]],
    message_tokens: int,
    observation_tokens: int,
    keep: float,
    noted: int,
    buffer: float,
    settles: bool,
) -> None:
    """Turns of any size with tool loops of any length, under any thresholds."""
    storage = InMemoryStorage()
    script: list[Any] = []
    for _, steps in turns:
        script += [[ToolCall("look", {"size": size}) for size in step] for step in steps]
        script.append("Done.")
    model = ScriptedModel(*script)
    memory = observational(
        storage,
        message_tokens=message_tokens,
        observation_tokens=observation_tokens,
        buffer_activation=keep,
        buffer_tokens=buffer,
        await_background=settles,
        observer_model=observer(noted),
        reflector_model=reflector(),
    )
    agent = Agent(
        model=model,
        memory=memory,
        tools=[Tool(function=look, name="look")],
        max_steps=20,
        input_processors=[Recount(storage)],
    )
    for number, (size, _) in enumerate(turns):
        before = await storage.list_messages("t")
        result = await agent.generate(words(f"turn-{number}", size), thread="t")
        added = (await storage.list_messages("t"))[len(before) :]
        assert [row.id for row in added[1:]] == [message.id for message in result.messages]
        await raw_rows(storage)
    await memory.settled()
    await raw_rows(storage)
    event(f"observations: {min(len(await generations(storage)), 5)}")


async def generations(storage: Storage) -> list[str]:
    """Cycle ids of everything that was ever noted."""
    logs = [*await storage.list_generations("thread:t"), await log_of(storage)]
    return list({entry.cycle_id for log in logs for entry in log.entries})


@pytest.mark.parametrize("turns_played", [1, 8])
async def test_the_diary_of_a_thread_can_be_read(storage: Storage, turns_played: int) -> None:
    memory = observational(storage)
    agent = Agent(model=answering(), memory=memory)
    await talk(agent, turns_played)
    log = await memory.diary.get(thread="t")
    assert log.key == "thread:t"
    assert bool(log.active) is (turns_played == 8)
    assert log.tokens == sum(entry.tokens for entry in log.active)
