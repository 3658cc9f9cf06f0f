"""What a turn costs memory does not grow with the thread."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from diarist import Agent, Memory, tool
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import WatchedStorage, answering, observational, talk, words


@pytest.mark.parametrize("observing", [True, False], ids=["om", "history"])
@pytest.mark.slow
async def test_turn_20_and_turn_300_cost_the_same(observing: bool) -> None:
    storage = WatchedStorage()
    memory = observational(storage, observation_tokens=60) if observing else Memory(storage=storage)
    agent = Agent(model=answering(), memory=memory)
    calls: list[Counter[str]] = []
    rows: list[int] = []
    for number in range(1, 301):
        before, read = storage.calls.copy(), storage.rows_read
        await talk(agent, 1, first=number)
        calls.append(storage.calls - before)
        rows.append(storage.rows_read - read)
    for name in calls[0]:
        early, late = (max(turn[name] for turn in part) for part in (calls[10:50], calls[250:]))
        assert late <= early, name
    assert max(rows[250:]) <= max(rows[10:50])
    assert max(rows[250:]) <= 40
    assert max(turn.total() for turn in calls[250:]) <= 60


async def test_a_late_step_of_a_tool_loop_reads_no_more_than_an_early_one() -> None:
    storage = WatchedStorage()
    memory = observational(storage, message_tokens=1_000)
    read: list[int] = []

    @tool
    async def look() -> str:
        """Look."""
        await memory.settled()
        read.append(storage.rows_read)
        return words("seen", 100)

    agent = Agent(
        model=ScriptedModel(*[ToolCall("look", {})] * 120, "done"), memory=memory, tools=[look], max_steps=130
    )
    await talk(agent, 1)
    steps = [late - early for early, late in pairwise(read)]
    assert max(steps[80:]) <= max(steps[:40]) <= 20
