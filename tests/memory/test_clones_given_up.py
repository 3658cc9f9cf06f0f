"""A clone that fails late leaves nothing: no copy, nothing in the diary of its resource."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from diarist import Agent, Memory
from diarist.exceptions import StorageError
from diarist.storage import Observation
from tests.memory.diary_kit import everything, keeping_diary, message, told, word
from tests.memory.test_cancelled_manual_observation import STEPS, Halting, cancelled_if_reached, when
from tests.scenarios.kit import WatchedStorage, answering


async def entries(memory: Memory) -> list[tuple[Observation, ...]]:
    """Of the diary, by generation."""
    logs = [*await memory.diary.history(thread="t"), await memory.diary.get(thread="t")]
    return [log.entries for log in logs]


async def threads(memory: Memory) -> list[str]:
    return [thread.id for thread in (await memory.threads.list()).items]


@pytest.mark.slow
@when
@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("method", [*STEPS, "rewrite_generation", "list_generations"])
async def test_cancelled_where_the_diary_is_the_resources(method: str, call: int, after: bool) -> None:
    storage = Halting()
    memory = keeping_diary(storage, scope="resource", thread_wait=0)
    await told(memory, [1, 2, 3, 4])
    await memory.diary.reflect(thread="t", guidance="keep all")
    before = await entries(memory)
    storage.halt_call = call
    if await cancelled_if_reached(storage, method, after, memory.threads.clone("t", new_thread="copy")):
        assert await entries(memory) == before
        assert await threads(memory) == ["t"]
    else:
        assert len(await memory.messages.list(thread="copy")) == 4
        sources = [{source.thread_id for entry in log for source in entry.sources} for log in await entries(memory)]
        assert sources == [{"t"}] * 2


class BreakingOff(WatchedStorage):
    """Its connection breaks at these calls, by name and number, after they were done."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks: set[tuple[str, int]] = set()

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        number = self.calls[name]
        done = await call()
        if (name, number) in self.breaks:
            raise StorageError("the connection broke")
        return done

    def breaks_at(self, *calls: tuple[str, int]) -> None:
        self.calls.clear()
        self.breaks = set(calls)


async def test_a_later_thread_of_its_id_is_remembered() -> None:
    storage = BreakingOff()
    memory = keeping_diary(storage, scope="resource")
    await told(memory, [1, 2, 3, 4])
    await memory.diary.reflect(thread="t", guidance="keep all")
    before = await entries(memory)
    storage.breaks_at(("get_thread", 4))
    with pytest.raises(StorageError, match="broke"):
        await memory.threads.clone("t", new_thread="copy")
    assert (await entries(memory), await threads(memory)) == (before, ["t"])
    await memory.messages.save([message(5)], thread="copy", resource="ada")
    model = answering()
    await Agent(model=model, memory=memory).generate("go on", thread="copy", resource="ada")
    assert word(5) in model.requests[-1].text


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_a_commit_with_a_lost_reply(scope: Literal["thread", "resource"]) -> None:
    """The connection breaks at the commit, which has happened, and once more when that is looked up."""
    storage = BreakingOff()
    memory = keeping_diary(storage, scope=scope)
    await told(memory, [1, 2])
    before = await everything(storage)
    storage.breaks_at(("finish_run", 1), ("get_run", 1))
    with pytest.raises(StorageError, match="broke"):
        await memory.threads.clone("t", new_thread="copy")
    assert await everything(storage) == before
    await memory.threads.clone("t", new_thread="copy")
    assert len(await memory.messages.list(thread="copy")) == 2
