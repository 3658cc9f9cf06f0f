"""What one process was told, another one knows: from the same file, whatever happened to the first."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from diarist import Agent
from diarist.storage import SQLiteStorage
from tests.scenarios.kit import Recount, answering, log_of, observational, raw_rows

CHILD = """
import asyncio, os, sys
from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.storage import SQLiteStorage
from tests.scenarios.kit import answering, observational, talk

async def main(path, ending):
    agent = Agent(model=answering(), memory=observational(SQLiteStorage(path)))
    await agent.generate("My name is Ada and I live in Trieste.", thread="t", resource="ada")
    for number in range(8):
        await agent.generate(f"turn-{number} " * 30, thread="t", resource="ada")
    if ending == "abrupt":
        os._exit(0)
    await agent.memory.close()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("ending", ["orderly", "abrupt"])
async def test_the_next_process_goes_on(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "memory.db"
    arguments = [sys.executable, "-c", CHILD, str(path), ending]
    await asyncio.to_thread(subprocess.run, arguments, check=True, cwd=Path(__file__).parents[2])
    async with SQLiteStorage(path) as storage:
        before = await log_of(storage)
        assert before.entries
        model = answering()
        memory = observational(storage)
        agent = Agent(model=model, memory=memory, input_processors=[Recount(storage)])
        await agent.generate("Who am I?", thread="t", resource="ada")
        assert "note-1" in model.requests[-1].text
        assert "turn-7" in model.requests[-1].text
        await memory.settled()
        after = await log_of(storage)
        assert after.active[: len(before.active)] == before.active
        told = [(entry.cycle_id, entry.text) for entry in after.entries]
        assert told[: len(before.entries)] == [(entry.cycle_id, entry.text) for entry in before.entries]  # chunks too
        assert len(await memory.messages.list(thread="t")) == 20
        await raw_rows(storage)


async def test_extractive_notes_tell_what_was_said(tmp_path: Path) -> None:
    """With the Observer that needs no model, the words themselves come back."""
    model = answering()
    async with SQLiteStorage(tmp_path / "memory.db") as storage:
        agent = Agent(model=model, memory=observational(storage, observer_model="extractive"))
        await agent.generate("My name is Ada and my sister Bea lives in Trieste.", thread="t")
        for number in range(8):
            await agent.generate(f"I paid {number}00 euros for lamp {number}. " * 4, thread="t")
    async with SQLiteStorage(tmp_path / "memory.db") as storage:
        agent = Agent(model=model, memory=observational(storage, observer_model="extractive"))
        await agent.generate("Where does my sister live?", thread="t")
        system = [message.text for message in model.requests[-1].prompt if message.role == "system"]
        assert "sister Bea lives in Trieste" in "".join(system)
        await raw_rows(storage)
