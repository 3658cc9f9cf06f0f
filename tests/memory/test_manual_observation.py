"""Condensing a diary by hand: it waits its turn, and says what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diarist import Memory
from diarist.exceptions import ThreadBusyError
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, Lease, SQLiteStorage
from diarist.testing import ScriptedModel
from tests.memory.diary_kit import keeping_diary, told, word
from tests.scenarios.kit import answering, failing, words


class Process:
    """A memory on a storage of its own over one file, with a Reflector that can be held up."""

    def __init__(self, path: Path, *, thread_wait: float = 30.0) -> None:
        self.storage = Refused(path)
        self.gate, self.asked = asyncio.Event(), asyncio.Event()
        self.reflector = ScriptedModel(self._reflect, name="reflector")
        self.memory = keeping_diary(self.storage, reflector_model=self.reflector, thread_wait=thread_wait)

    async def _reflect(self, request: ModelRequest) -> str:
        self.asked.set()
        await self.gate.wait()
        return f"- 🔴 condensed {'again ' if 'condensed' in request.text else ''}{word(1)}"


class Refused(SQLiteStorage):
    """Tells when another owner held a lease."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.refused = asyncio.Event()

    async def acquire_lease(self, name: str, owner: str, *, ttl: float) -> Lease | None:
        lease = await super().acquire_lease(name, owner, ttl=ttl)
        if lease is None:
            self.refused.set()
        return lease


@pytest.fixture
async def first(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path / "memory.db")
    async with process.memory:
        await told(process.memory, range(1, 5))
        yield process


async def test_it_waits_for_another_process_and_goes_on_with_what_that_made(first: Process, tmp_path: Path) -> None:
    second = Process(tmp_path / "memory.db")
    second.gate.set()
    async with second.memory:
        before = asyncio.create_task(first.memory.diary.reflect(thread="t", guidance="keep all"))
        await first.asked.wait()
        after = asyncio.create_task(second.memory.diary.reflect(thread="t", guidance="keep all"))
        await second.storage.refused.wait()
        assert not after.done()
        first.gate.set()
        assert (await before).text == f"- 🔴 condensed {word(1)}"
        log = await after
    assert log.text == f"- 🔴 condensed again {word(1)}"
    assert log.generation == 2
    assert "condensed" in second.reflector.requests[0].text


async def test_it_waits_no_longer_than_thread_wait(first: Process, tmp_path: Path) -> None:
    second = Process(tmp_path / "memory.db", thread_wait=0.01)
    async with second.memory:
        before = asyncio.create_task(first.memory.diary.reflect(thread="t", guidance="keep all"))
        await first.asked.wait()
        with pytest.raises(ThreadBusyError, match=r"'t'.*0\.01 s of thread_wait"):
            await second.memory.diary.reflect(thread="t")
        assert second.reflector.requests == []
        first.gate.set()
        assert (await before).generation == 1


@pytest.mark.parametrize("reflector", [failing(), answering("- 🔴 " + words("long", 50))], ids=["fails", "is no use"])
async def test_what_fails_by_hand_is_not_tried_again(reflector: ScriptedModel) -> None:
    memory: Memory = keeping_diary(InMemoryStorage(), reflector_model=reflector)
    await told(memory, [1, 2])
    heard: list[Any] = []
    with pytest.raises(Exception, match=r"down|hardly shortened"):
        await memory.diary.reflect(thread="t", on_event=heard.append)
    kept = (await memory.diary.events(thread="t"))[-1]
    assert heard[-1].type == kept.type == "data-om-observation-failed"
    assert heard[-1].data["operationType"] == "reflection"
    assert heard[-1].data["willRetry"] is kept.data["willRetry"] is False
