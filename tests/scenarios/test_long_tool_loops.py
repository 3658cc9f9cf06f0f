"""A long tool loop is observed while it runs, so that its prompt stays bounded."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Processor, Tool
from diarist.models.base import ModelRequest
from diarist.processors import ProcessLLMRequestArgs
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import (
    Recount,
    WordCounter,
    assert_well_formed,
    log_of,
    observational,
    play,
    raw_rows,
    told,
    ways,
    words,
)

STEPS, RESULT = 60, 2_000


class Watch(Processor[Any]):
    """Which runs the entries of the log belong to, before each call."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.runs: list[set[str | None]] = []

    async def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
        log = await log_of(self._storage)
        self.runs.append({entry.run_id for entry in log.entries})


@pytest.mark.slow
@ways
async def test_sixty_steps_of_two_thousand_tokens(storage: Storage, buffer_tokens: float) -> None:
    model = ScriptedModel(*[ToolCall("look", {"at": n}) for n in range(STEPS)], "All seen.", lambda _: "Yes.")
    watch = Watch(storage)
    memory = observational(storage, message_tokens=10_000, buffer_tokens=buffer_tokens)
    agent = Agent(
        model=model,
        tools=[Tool(name="look", function=lambda at: words(f"result-{at}", RESULT))],
        memory=memory,
        max_steps=STEPS + 1,
        input_processors=[Recount(storage), watch],
    )
    played = await play(agent, "look everywhere", thread="t")
    assert played.result is not None
    assert played.result.text == "All seen."
    sizes = [WordCounter().count(request.text) for request in model.requests]
    limit = 12_000 if buffer_tokens else 10_000  # from 1.2 times the threshold on a run waits
    assert max(sizes) < limit + RESULT + 1_000
    assert sum(sizes) < STEPS * limit
    await memory.settled()
    assert any(played.result.run_id in runs for runs in watch.runs), "entries of a live run carry it"
    log = await log_of(storage)
    assert {entry.run_id for entry in log.entries} == {None}
    assert len(log.entries) > 5
    for request in model.requests:
        assert_well_formed(request)
        assert "look everywhere" in request.text
    # The newest finished step is always there in full.
    for number, request in enumerate(model.requests[1:]):
        assert request.text.count(f"result-{number} ") >= RESULT - 1
    await raw_rows(storage)
    assert len(await storage.list_messages("t")) == STEPS + 2
    assert len(played.result.messages) == STEPS + 1
    await agent.generate("and?", thread="t")
    assert (await log_of(storage)).active[: len(log.active)] == log.active


@ways
async def test_a_loop_is_reflected_only_when_it_is_over(storage: Storage, buffer_tokens: float) -> None:
    """Entries that may still be taken back are never condensed with others."""
    model = ScriptedModel(*[ToolCall("look", {})] * 30, "Done.", lambda _: "Yes.")
    memory = observational(storage, observation_tokens=30, buffer_tokens=buffer_tokens)
    agent = Agent(
        model=model,
        tools=[Tool(name="look", function=lambda: words("found", 30))],
        memory=memory,
        max_steps=40,
        input_processors=[Recount(storage)],
    )
    await agent.generate("go", thread="t")
    await memory.settled()
    assert {data["operationType"] for data in await told(storage, "start")} == {"observation"}
    await agent.generate(words("more", 60), thread="t")
    await memory.settled()
    assert "reflection" in {data["operationType"] for data in await told(storage, "end")}
    await raw_rows(storage)


@ways
async def test_calls_that_are_approved_one_by_one_stay_with_their_results(
    storage: Storage, buffer_tokens: float
) -> None:
    calls = [ToolCall("pay", {"to": "ann"}), ToolCall("pay", {"to": "bob"})]
    model = ScriptedModel("Ready.", calls, "Both are paid.")
    memory = observational(storage, message_tokens=60, buffer_tokens=buffer_tokens)
    pay = Tool(name="pay", function=lambda to: f"{words('paid', 15)} {to}", needs_approval=True)
    agent = Agent(model=model, tools=[pay], memory=memory)
    await agent.generate(words("before", 30), thread="t")
    pending = (await agent.generate(words("pay", 40), thread="t")).pending
    for call in pending:
        await memory.settled()
        await agent.resume({call.call_id: True}, thread="t")
    await memory.settled()
    assert "is not known" not in model.requests[-1].text, "the first call had a result"
    rows = await storage.list_messages("t")
    log = await log_of(storage)
    covered = [
        {row.id for row in rows for s in e.sources if s.first_seq <= (row.seq or 0) <= s.last_seq} for e in log.entries
    ]
    called = next(row for row in rows if row.role == "assistant" and row.tool_parts)
    for results in (row for row in rows if row.role == "tool"):
        assert all((results.id in ids) == (called.id in ids) for ids in covered)


@ways
async def test_each_prompt_of_a_long_turn_has_the_date(storage: Storage, buffer_tokens: Any) -> None:
    """The first note of a day has it; that message may leave the window during a later turn."""

    left = [0]

    def answer(_: ModelRequest) -> Any:
        left[0] -= 1
        return ToolCall("look") if left[0] else "Done."

    model = ScriptedModel(answer, name="actor")
    memory = observational(storage, message_tokens=200, buffer_tokens=buffer_tokens)
    look = Tool(name="look", function=lambda: words("found", 30))
    agent = Agent(model=model, tools=[look], memory=memory, max_steps=100)
    for question in ("What can I book?", "And what if I have ten days?"):
        left[0] = 25
        await agent.generate(question, thread="t")
        await memory.settled()
    dated = ["Today is " in request.prompt.text for request in model.requests]
    assert len(dated) > 40
    assert all(dated)
    notes = [message.sent for message in await memory.messages.list(thread="t") if message.role == "user"]
    assert all(note is not None and "Today is " in note.text for note in notes)
