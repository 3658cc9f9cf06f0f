"""A thread whose id was another's before is none of that one, however far its removal came."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import pytest

from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.memory.observational.jobs import Job
from diarist.storage import InMemoryStorage
from tests.memory.diary_kit import keeping_diary, message, told
from tests.scenarios.kit import answering


class Power(BaseException):
    """The process ends here."""


class Dying(InMemoryStorage):
    """Ends the process, once, as soon as a thread or messages are deleted."""

    dies_at: Literal["", "thread", "messages"] = ""

    async def delete_thread(self, thread_id: str) -> bool:
        done = await super().delete_thread(thread_id)
        self._die("thread")
        return done

    async def delete_messages(self, thread_id: str, ids: Sequence[str]) -> int:
        count = await super().delete_messages(thread_id, ids)
        self._die("messages")
        return count

    def _die(self, here: str) -> None:
        if self.dies_at == here:
            self.dies_at = ""
            raise Power


Begin = Callable[[Memory, list[str]], Awaitable[object]]


async def saved(memory: Memory, lines: list[str]) -> None:
    await memory.messages.save([message(5), message(6)], thread="t", resource="ada")


async def created_and_saved(memory: Memory, lines: list[str]) -> None:
    await memory.threads.create("t", resource="ada")
    await saved(memory, lines)


async def copied(memory: Memory, lines: list[str]) -> None:
    await memory.threads.clone("other", new_thread="t")


async def imported(memory: Memory, lines: list[str]) -> None:
    """As it was, with the moment at which it was made."""
    await memory.threads.import_all(lines)


async def talked(memory: Memory, lines: list[str]) -> None:
    await Agent(model=answering(), memory=memory).generate("hello", thread="t", resource="ada")


async def saved_for_another(memory: Memory, lines: list[str]) -> None:
    await memory.messages.save([message(5), message(6)], thread="t", resource="grace")


anew = pytest.mark.parametrize("begin", [saved, created_and_saved, copied, imported, talked, saved_for_another])


@pytest.fixture
def storage() -> Dying:
    return Dying()


@pytest.fixture
async def memory(storage: Dying) -> Memory:
    memory = keeping_diary(storage, scope="resource")
    await told(memory, [1, 2])
    await told(memory, [3, 4], thread="other")
    return memory


async def assert_kept(memory: Memory) -> None:
    """A turn of another thread finishes what was left of the removal, and the new thread loses nothing by that."""
    await Agent(model=answering(), memory=memory).generate("hello", thread="other", resource="ada")
    assert (await memory.diary.get(resource="ada")).tombstones == ()
    assert len(await memory.messages.list(thread="t")) == 2
    assert (await memory.diary.observe(thread="t")).active[-1].sources[-1].thread_id == "t"


@anew
async def test_the_thread_was_gone_and_the_diary_still_told_of_it(storage: Dying, memory: Memory, begin: Begin) -> None:
    """The process ended there: tombstones were left, which name rows by their places in the thread."""
    lines = [line async for line in memory.threads.export("t")]
    storage.dies_at = "thread"
    with pytest.raises(Power):
        await memory.forget(thread="t")
    assert (await memory.diary.get(resource="ada")).tombstones
    await begin(memory, lines)
    await assert_kept(memory)


@anew
async def test_a_message_was_gone_and_then_the_thread(storage: Dying, memory: Memory, begin: Begin) -> None:
    """The thread was removed whole, after the removal of a message that was cut short."""
    lines = [line async for line in memory.threads.export("t")]
    storage.dies_at = "messages"
    with pytest.raises(Power):
        await memory.forget(message_ids=["m1"], thread="t")
    await memory.threads.delete("t")
    await begin(memory, lines)
    await assert_kept(memory)


class Waiting:
    """A queue whose worker comes later, and runs each job once."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    async def submit(self, job: Job) -> None:
        self.jobs.append(job)

    async def run(self, work: Callable[[Job], Awaitable[bool]], *, concurrency: int, grace: float) -> None:
        for job in self.jobs:
            assert await work(job)


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_a_worker_does_not_note_words_of_another_resource(scope: Literal["thread", "resource"]) -> None:
    """The thread of a waiting job was deleted, and another resource created one with its id."""
    storage, queue = InMemoryStorage(), Waiting()
    small = ObservationConfig(message_tokens=100, buffer_tokens=20)
    diary = ObservationalMemoryConfig(scope=scope, model="extractive", observation=small)
    memory = Memory(storage=storage, observational_memory=diary, queue=queue)
    agent = Agent(model=answering(), memory=memory)
    for number in (1, 3):
        await agent.generate(message(number).text, thread="t", resource="ada")
    await memory.settled()
    assert [job for job in queue.jobs if not job.others]
    await memory.threads.delete("t")
    await memory.messages.save([message(number) for number in range(5, 9)], thread="t", resource="grace")
    await memory.run_worker()
    logs = [await storage.get_log(key) for key in ("thread:t", "resource:ada", "resource:grace")]
    assert not any(log.entries for log in logs if log is not None)
