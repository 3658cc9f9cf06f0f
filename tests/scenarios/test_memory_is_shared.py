"""One memory, or one storage, serves as many agents as you like."""

from __future__ import annotations

from diarist import Agent, Memory
from diarist.storage import Storage
from tests.scenarios.kit import Recount, answering, log_of, observational, raw_rows, talk


async def test_two_agents_of_one_memory_know_the_same_thread(storage: Storage) -> None:
    one, two = answering("I am One."), answering("I am Two.")
    memory = observational(storage)
    first = Agent(model=one, memory=memory, instructions="You are One.", input_processors=[Recount(storage)])
    second = Agent(model=two, memory=memory, instructions="You are Two.", input_processors=[Recount(storage)])
    for number in range(5):
        await talk(first, 1, first=2 * number)
        await talk(second, 1, first=2 * number + 1)
    assert any("I am One." in request.text for request in two.requests)  # later requests have notes in its place
    assert "note-1" in one.requests[-1].text
    assert "note-1" in two.requests[-1].text
    assert "You are One." not in two.requests[-1].text
    await raw_rows(storage)


async def test_two_memories_of_one_storage(storage: Storage) -> None:
    one, two = answering(), answering()
    await talk(Agent(model=one, memory=observational(storage)), 6)
    other = observational(storage)
    await talk(Agent(model=two, memory=other, input_processors=[Recount(storage)]), 4, first=7)
    assert "note-1" in two.requests[0].text
    await raw_rows(storage)


async def test_from_history_to_observational_memory(storage: Storage) -> None:
    """A thread that grew without a diary gets one, in pieces, when memory is switched on."""
    await talk(Agent(model=answering(), memory=Memory(storage=storage)), 30)
    model = answering()
    memory = observational(storage)
    agent = Agent(model=model, memory=memory, input_processors=[Recount(storage)])
    await talk(agent, 1, first=31)
    assert "turn-1 " not in model.requests[-1].text
    await memory.settled()
    log = await log_of(storage)
    assert len(log.entries) >= 8
    assert max(entry.message_tokens for entry in log.entries) < 150
    await raw_rows(storage)


async def test_and_back(storage: Storage) -> None:
    await talk(Agent(model=answering(), memory=observational(storage)), 8)
    model = answering()
    await talk(Agent(model=model, memory=Memory(storage=storage, last_messages=6)), 1, first=9)
    assert model.requests[-1].text.count("turn-6") == 30
    assert "note-1" not in model.requests[-1].text
