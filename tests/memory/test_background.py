"""Work beside the turns, in one event loop and in several."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory
from diarist.exceptions import StorageError
from diarist.memory.background import Background
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel
from tests.processes import run_python
from tests.scenarios.kit import answering, observational, talk

here = contextvars.ContextVar("here", default="nowhere")


class Work:
    """Begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.done = 0

    async def __call__(self) -> None:
        self.began.set()
        await self.go.wait()
        self.done += 1


async def test_one_job_of_a_name_at_a_time() -> None:
    background, work = Background(), Work()
    assert background.start("a", work)
    assert not background.start("a", work)
    assert background.start("b", work)
    assert background.running("a")
    work.go.set()
    await background.settled()
    assert work.done == 2
    assert not background.running("a")
    assert background.start("a", work)
    await background.settled()
    assert work.done == 3


async def test_a_job_that_waits_for_something_cancelled_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def waits() -> None:
        lost = asyncio.get_running_loop().create_future()
        lost.cancel()
        await lost

    background = Background()
    background.start("a", waits)
    await background.settled()
    assert "background work a failed" in caplog.text


async def test_waiting_has_an_end() -> None:
    background, work = Background(), Work()
    background.start("a", work)
    await background.wait("a", 0)
    await background.wait("a", -1)
    await background.wait("nobody")
    assert background.running("a")
    work.go.set()
    await background.wait("a")
    assert not background.running("a")


async def test_a_cancelled_waiter_does_not_cancel_the_work() -> None:
    background, work = Background(), Work()
    background.start("a", work)
    waiting = asyncio.create_task(background.wait("a"))
    await work.began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert background.running("a")
    work.go.set()
    await background.settled()
    assert work.done == 1


async def test_settled_waits_for_work_started_during_the_wait() -> None:
    background, second = Background(), Work()

    async def first() -> None:
        background.start("second", second)
        second.go.set()

    background.start("first", first)
    await background.settled()
    assert second.done == 1


async def test_what_a_job_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()

    async def fail() -> None:
        raise ValueError("a bug")

    background.start("a", fail)
    await background.settled()
    assert "background work a failed" in caplog.text
    assert "a bug" in caplog.text
    assert not background.running("a")


async def test_an_outage_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()

    async def fail() -> None:
        raise StorageError("the server is away")

    background.start("a", fail)
    await background.settled()
    logged = [(record.levelname, record.message, record.exc_info) for record in caplog.records]
    assert logged == [("WARNING", "background work a failed: the server is away", None)]


async def test_a_job_does_not_see_the_context_variables_of_its_caller() -> None:
    background, seen = Background(), list[str]()

    async def look() -> None:
        seen.append(here.get())

    token = here.set("in a turn")
    background.start("a", look)
    await background.settled()
    here.reset(token)
    assert seen == ["nowhere"]


async def test_a_loop_waits_for_the_job_of_another() -> None:
    background = Background()
    began, go, ended = threading.Event(), threading.Event(), list[str]()

    async def work() -> None:
        began.set()
        await asyncio.to_thread(go.wait)
        ended.append("work")

    async def other_loop() -> None:
        background.start("a", work)
        await background.settled()

    thread = threading.Thread(target=lambda: asyncio.run(other_loop()))
    thread.start()
    await asyncio.to_thread(began.wait)
    assert not background.start("a", work)
    waiting = asyncio.create_task(background.settled())
    await background.wait("a", 0)
    assert not waiting.done()
    go.set()
    await waiting
    assert ended == ["work"]
    await asyncio.to_thread(thread.join)


def test_jobs_end_with_their_loop() -> None:
    background, works = Background(), list[Work]()

    async def begin() -> None:
        works.append(Work())
        background.start("a", works[-1])
        await works[-1].began.wait()

    asyncio.run(begin())
    assert not background.running("a")
    asyncio.run(begin())
    asyncio.run(background.settled())
    assert [work.done for work in works] == [0, 0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_job_on_a_closed_loop_counts_as_dead() -> None:
    background = Background()
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        background.start("a", Work())

    loop.run_until_complete(begin())
    job = asyncio.all_tasks(loop)
    loop.close()
    assert not background.running("a")
    asyncio.run(background.settled())
    for task in job:  # so that nobody complains of it
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_work_on_a_closed_loop_touches_no_other_loop() -> None:
    began = asyncio.Event()

    async def hangs(_: object) -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    async def leave_behind() -> None:
        memory = observational(InMemoryStorage(), observer_model=ScriptedModel(hangs), buffer_tokens=20)
        await talk(Agent(model=answering(), memory=memory), 1)
        await began.wait()

    errors: list[dict[str, object]] = []

    async def go_on() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        gc.collect()
        for _ in range(10):
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_behind())
    loop.close()
    asyncio.run(go_on())
    assert errors == []


_SCRIPT = """
import sys
from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel

config = ObservationalMemoryConfig(
    model="extractive", observation=ObservationConfig(message_tokens=400, buffer_tokens=50)
)
memory = Memory(
    storage=SQLiteStorage(sys.argv[1]), observational_memory=config, embedder="wordllama", generate_title=True
)
agent = Agent(model=ScriptedModel(*["word " * 200] * 20), memory=memory)
for turn in range(4):
    agent.generate_sync("I live in Rome. " * 60, thread="t")
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_a_program_that_ends_amid_background_work_ends_quietly(tmp_path: Path, attempt: int) -> None:
    assert run_python(_SCRIPT, tmp_path / "memory.db") == "done\n"


_FORK = """
import asyncio, os, warnings
from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel

warnings.simplefilter("ignore", DeprecationWarning)  # newer versions warn of fork
began, go = asyncio.Event(), asyncio.Event()

async def note(request):
    began.set()
    await go.wait()
    return "- 🟡 I live in Rome."

config = ObservationalMemoryConfig(
    model=ScriptedModel(note), observation=ObservationConfig(message_tokens=400, buffer_tokens=50)
)
memory = Memory(storage=InMemoryStorage(), observational_memory=config)
agent = Agent(model=ScriptedModel(lambda request: "Noted."), memory=memory)

async def main():
    await agent.generate("I live in Rome. " * 60, thread="t")
    await began.wait()
    if os.fork() == 0:
        memory.sync.settled()
        print("child settled", flush=True)
        os._exit(0)
    print("status of the child:", os.wait()[1])
    go.set()
    await memory.settled()

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_the_child_of_a_fork_does_not_wait_for_work_of_its_parent() -> None:
    assert run_python(_FORK) == "child settled\nstatus of the child: 0\n"


async def test_a_job_on_a_stopped_loop_blocks_no_other_loop() -> None:
    """As where a program runs a loop for each request, and keeps the loop."""
    background, work = Background(), Work()
    other = asyncio.new_event_loop()

    async def begin() -> None:
        background.start("a", work)

    await asyncio.to_thread(other.run_until_complete, begin())
    await background.settled()
    assert not background.running("a")
    mine = Work()
    assert background.start("a", mine)
    work.go.set()
    await asyncio.to_thread(other.run_until_complete, asyncio.sleep(0))
    await asyncio.to_thread(other.run_until_complete, asyncio.sleep(0))
    assert (background.running("a"), work.done) == (True, 1)
    mine.go.set()
    await background.settled()
    other.close()


def test_a_run_that_begins_while_its_loop_ends_does_not_hold_the_thread() -> None:
    begun = asyncio.Event()

    class Late(InMemoryStorage):
        async def begin_run(self, *args: Any, **options: Any) -> Any:
            run = await super().begin_run(*args, **options)
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()
            return run

    memory = Memory(storage=Late(), thread_wait=0)

    async def main() -> None:
        work = asyncio.create_task(memory.messages.save("Lost", thread="t"))
        await begun.wait()
        del work

    asyncio.run(main())
    asyncio.run(memory.messages.save("Next", thread="t"))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_that_ends_while_its_loop_ends_is_over(after: bool, caplog: pytest.LogCaptureFixture) -> None:
    ending = asyncio.Event()

    class Late(InMemoryStorage):
        async def finish_run(self, *args: Any, **options: Any) -> Any:
            is_late = not ending.is_set()
            ending.set()
            done = await super().finish_run(*args, **options) if after or not is_late else []
            if is_late:
                await asyncio.Event().wait()  # until the loop ends
            return done

    memory = Memory(storage=Late(), thread_wait=0)

    async def main() -> None:
        work = asyncio.create_task(memory.messages.save("Stored", thread="t"))
        await ending.wait()
        del work

    asyncio.run(main())
    asyncio.run(memory.messages.save("Next", thread="t"))
    assert [row.text for row in memory.sync.messages.list(thread="t")] == ["Stored", "Next"]
    assert caplog.records == []


@pytest.mark.slow
def test_notes_are_made_although_each_call_has_a_loop_of_its_own() -> None:
    class Late(InMemoryStorage):
        late = True

        async def acquire_lease(self, *args: Any, **options: Any) -> Any:
            lease = await super().acquire_lease(*args, **options)
            if self.late:
                self.late = False
                await asyncio.Event().wait()  # until the loop ends
            return lease

    storage = Late()
    agent = Agent(model=answering(), memory=observational(storage))
    for number in range(5):
        asyncio.run(talk(agent, 1, first=number))
    assert not storage.late
    assert agent.memory
    assert agent.memory.sync.diary.get(thread="t").active


def test_a_lease_that_is_released_while_its_loop_ends_is_free() -> None:
    releasing = asyncio.Event()

    class Late(InMemoryStorage):
        async def release_lease(self, *args: Any) -> None:
            if not releasing.is_set():
                releasing.set()
                await asyncio.Event().wait()  # until the loop ends
            await super().release_lease(*args)

    memory = observational(Late())

    async def turn() -> None:
        await talk(Agent(model=answering(), memory=memory), 1)
        await releasing.wait()

    asyncio.run(turn())
    asyncio.run(memory.messages.save("I fly to Rome.", thread="t"))
    assert asyncio.run(memory.diary.observe(thread="t")).active


async def test_a_wait_for_this_loop_does_not_wait_for_others() -> None:
    background, other, held = Background(), asyncio.new_event_loop(), threading.Event()
    thread = threading.Thread(target=other.run_forever)
    thread.start()

    async def hold() -> None:
        await asyncio.to_thread(held.wait)

    async def start() -> None:
        background.start("theirs", hold)

    try:
        asyncio.run_coroutine_threadsafe(start(), other).result()
        done = asyncio.Event()
        background.start("ours", done.wait)
        asyncio.get_running_loop().call_soon(done.set)
        await background.settled(here=True)
        assert not background.running("ours")
        assert background.running("theirs")
    finally:
        held.set()
        await background.settled()
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()
