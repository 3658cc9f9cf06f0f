"""Whatever the Observer or the Reflector does, the turn goes on, nothing is lost, and memory recovers."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Processor, Tool
from diarist.exceptions import AuthenticationError, ContextOverflowError, RateLimitError, StorageError
from diarist.memory.observational import engine as engine_module
from diarist.messages import utc_now
from diarist.processors import ProcessInputStepArgs, ProcessOutputResultArgs
from diarist.storage import SQLiteStorage, Storage, Thread
from diarist.storage.records import own_resource
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.scenarios.kit import (
    Recount,
    WatchedStorage,
    answering,
    failing,
    log_of,
    observational,
    observer,
    play,
    raw_rows,
    talk,
    told,
    ways,
    words,
)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


LOOP = "- 🟡 12:00 the same again and again and again\n" * 200


@pytest.mark.parametrize(
    "reply",
    [
        RuntimeError("bug"),
        RateLimitError("slow down"),
        AuthenticationError("no key"),
        ContextOverflowError("too long"),
        KeyError("choices"),
        "",
        "   \n",
        "<diary></diary>",
        Reply(text="half a no", error_after=ConnectionResetError("cut")),
        UnspeakableError(),
    ],
    ids=repr,
)
@ways
async def test_an_observer_that_fails(storage: Storage, reply: Any, buffer_tokens: float) -> None:
    model = answering()
    memory = observational(storage, observer_model=ScriptedModel(lambda _: reply), buffer_tokens=buffer_tokens)
    agent = Agent(model=model, memory=memory, input_processors=[Recount(storage)])
    await talk(agent, 3)
    played = await play(agent, words("turn-4", 30), thread="t")
    assert played.result is not None
    assert played.result.text == "Understood, noted."
    assert "turn-1" in model.requests[-1].text
    assert (await log_of(storage)).entries == ()
    assert len(await raw_rows(storage)) == 8
    await memory.settled()
    failures = await told(storage, "failed")
    assert failures
    assert all(data["error"] and data["willRetry"] for data in failures)
    assert (await log_of(storage)).entries == ()


@ways
async def test_an_observer_with_a_closed_client(storage: Storage, buffer_tokens: float) -> None:
    """A future that the Observer awaits is cancelled. This is not a cancellation of the turn."""

    async def lost(_: Any) -> str:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        return await gone

    memory = observational(storage, observer_model=ScriptedModel(lost), buffer_tokens=buffer_tokens)
    agent = Agent(model=answering(), memory=memory, input_processors=[Recount(storage)])
    await talk(agent, 4)
    await memory.settled()
    assert [data["error"] for data in await told(storage, "failed")]
    assert len(await raw_rows(storage)) == 8


async def test_prose_instead_of_notes_is_no_reason_to_lose_the_messages(storage: Storage) -> None:
    """Either the notes can be read, or the messages stay; here nothing in the answer is a note."""
    model = answering()
    agent = Agent(
        model=model,
        memory=observational(storage, observer_model=answering("I am sorry, I cannot help with that.")),
        input_processors=[Recount(storage)],
    )
    await talk(agent, 6)
    assert "turn-1" in model.requests[-1].text
    assert (await log_of(storage)).entries == ()


async def test_a_looping_observer_is_cut_and_used(storage: Storage) -> None:
    model = answering()
    agent = Agent(
        model=model,
        memory=observational(storage, observer_model=answering(LOOP)),
        input_processors=[Recount(storage)],
    )
    await talk(agent, 6)
    entries = (await log_of(storage)).entries
    assert entries
    assert all(entry.text.count("the same again") == 1 for entry in entries)
    assert "turn-1" not in model.requests[-1].text


async def test_an_observer_that_never_answers_is_given_up(storage: Storage) -> None:
    cancelled = asyncio.Event()

    async def hang(_: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    look = ToolCall("look")
    agent = Agent(
        model=ScriptedModel("One.", "Two.", look, look, look, "Three."),
        tools=[Tool(name="look", function=lambda: words("found", 30))],
        memory=observational(storage, observer_model=ScriptedModel(hang), observe_timeout=0.05, buffer_tokens=False),
        input_processors=[Recount(storage)],
    )
    await talk(agent, 2)
    played = await play(agent, words("turn-3", 60), thread="t")
    failed = played.data("observation-failed")
    assert len(failed) == 1, "a run does not wait twice"
    assert "0.05 s" in failed[0]["error"]
    assert cancelled.is_set()
    assert played.result is not None
    assert played.result.text == "Three."


async def test_a_turn_does_not_wait_for_the_cleanup_of_an_observer(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    closed = asyncio.Event()

    async def hang(_: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await closed.wait()
            raise OSError("the connection was dead")

    memory = observational(storage, observer_model=ScriptedModel(hang), observe_timeout=0.05, buffer_tokens=False)
    agent = Agent(model=ScriptedModel("One.", "Two.", "Three."), memory=memory, input_processors=[Recount(storage)])
    await talk(agent, 2)
    played = await asyncio.wait_for(play(agent, words("turn-3", 60), thread="t"), 20)
    assert len(played.data("observation-failed")) == 1
    assert "its cleanup continues in the background" in caplog.text
    closed.set()
    await asyncio.sleep(0.01)
    assert "the connection was dead" in caplog.text


async def test_a_background_observer_that_never_answers_blocks_no_turn(storage: Storage) -> None:
    """The run waits for it once, where the window is full, and no longer than a run may."""
    answer = asyncio.Event()

    async def hang(_: Any) -> str:
        await answer.wait()
        return "- 🟡 noted at last"

    look = ToolCall("look")
    memory = observational(storage, observer_model=ScriptedModel(hang), observe_timeout=0.05)
    agent = Agent(
        model=ScriptedModel("One.", "Two.", look, look, look, "Three.", "Four."),
        tools=[Tool(name="look", function=lambda: words("found", 30))],
        memory=memory,
        input_processors=[Recount(storage)],
    )
    await talk(agent, 2)
    result = await agent.generate(words("turn-3", 60), thread="t")
    assert result.text == "Three."
    assert await told(storage, "end") == []
    assert len(await told(storage, "failed")) == 1, "it says so once"
    answer.set()
    await memory.settled()
    assert (await log_of(storage)).buffered
    assert (await agent.generate("and?", thread="t")).text == "Four."
    assert "noted at last" in agent.model.requests[-1].text  # type: ignore[attr-defined]
    await raw_rows(storage)


@ways
async def test_a_failing_reflector_leaves_the_diary_as_it_is(storage: Storage, buffer_tokens: float) -> None:
    model = answering()
    memory = observational(storage, observation_tokens=25, reflector_model=failing(), buffer_tokens=buffer_tokens)
    agent = Agent(model=model, memory=memory, input_processors=[Recount(storage)])
    await talk(agent, 20)
    await memory.settled()
    log = await log_of(storage)
    assert log.generation == 0
    assert len(log.active) > 3
    assert model.requests[-1].text.count("note-") == len(log.active)
    assert {data["operationType"] for data in await told(storage, "failed")} == {"reflection"}


@ways
async def test_a_reflector_that_makes_it_longer_changes_nothing(storage: Storage, buffer_tokens: float) -> None:
    longer = ScriptedModel(lambda _: "- 🔴 " + words("more", 500))
    memory = observational(storage, observation_tokens=25, reflector_model=longer, buffer_tokens=buffer_tokens)
    agent = Agent(model=answering(), memory=memory, input_processors=[Recount(storage)])
    await talk(agent, 20)
    await memory.settled()
    assert longer.requests
    log = await log_of(storage)
    assert (log.generation, log.reflection) == (0, None)


# --- and it recovers -----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = utc_now()

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which memory backs off; the storage's own is another."""
    clock = Clock()
    monkeypatch.setitem(engine_module.Engine.__init__.__kwdefaults__, "clock", clock)
    return clock


@ways
async def test_after_an_outage_the_rest_is_worked_off(storage: Storage, clock: Clock, buffer_tokens: float) -> None:
    down = True
    recovered = observer()

    async def answer(request: Any) -> Any:
        if down:
            return RateLimitError("slow down")
        return await first_text(recovered, request)

    notes = ScriptedModel(answer)
    model = answering()
    memory = observational(storage, observer_model=notes, buffer_tokens=buffer_tokens)
    agent = Agent(model=model, memory=memory, input_processors=[Recount(storage)])
    await talk(agent, 10)
    await memory.settled()
    assert 1 <= len(notes.requests) <= 2, "the key backs off"
    assert len(await raw_rows(storage)) == 20
    down = False
    await talk(agent, 1, first=11)
    assert len(notes.requests) <= 2, "not before its time"
    clock.now += timedelta(minutes=11)
    await talk(agent, 1, first=12)
    log = await log_of(storage)
    assert log.entries
    assert log.observer_failures.count == 0
    assert "turn-1 " not in model.requests[-1].text
    await memory.settled()
    await raw_rows(storage)


async def first_text(model: ScriptedModel, request: Any) -> str:
    return "".join([chunk.payload.text async for chunk in model.stream(request) if chunk.type == "text-delta"])


# --- a storage of logs that fails -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["save_log", "append_event", "acquire_lease", "release_lease"])
async def test_what_memory_alone_needs_may_fail(method: str) -> None:
    class Failing(WatchedStorage):
        async def around(self, name: str, call: Any) -> Any:
            if name == method:
                raise StorageError("the disk is full")
            return await call()

    storage = Failing()
    model = answering()
    agent = Agent(model=model, memory=observational(storage), input_processors=[Recount(storage)])
    await talk(agent, 6)
    assert len(await storage.list_messages("t")) == 12
    await raw_rows(storage)


async def test_an_unreadable_diary_costs_the_notes_and_no_turn(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    model = answering()
    agent = Agent(model=model, memory=observational(storage))
    await talk(agent, 6)
    await agent.memory.settled()  # else it may be saved over once more
    assert await storage.get_log("thread:t") is not None
    with sqlite3.connect(tmp_path / "memory.db") as file:
        wide = 'replace(body, \'"scope":"thread"\', \'"scope":"wide"\')'
        file.execute(f"UPDATE diarist_logs SET stamp = 1, body = {wide}")
    played = await play(agent, words("turn-7", 20), thread="t")
    assert played.result is not None
    assert "turn-6" in model.requests[-1].text
    assert "'thread:t' is damaged, or was written by a newer diarist" in played.data("observation-failed")[0]["error"]
    with pytest.raises(StorageError, match="scope"):
        await storage.get_log("thread:t")
    await storage.close()


async def test_a_diary_with_overrides_of_an_earlier_version_opens(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    agent = Agent(model=answering(), memory=observational(storage))
    await talk(agent, 6)
    await agent.memory.settled()
    log = await storage.get_log("thread:t")
    with sqlite3.connect(tmp_path / "memory.db") as file:
        earlier = """replace(body, '"suppressed":', '"overrides":{"message_tokens":5},"suppressed":')"""
        file.execute(f"UPDATE diarist_logs SET stamp = 1, body = {earlier}")
        assert file.execute("SELECT body LIKE '%overrides%' FROM diarist_logs").fetchone() == (1,)
    assert await storage.get_log("thread:t") == log
    played = await play(agent, words("turn-7", 20), thread="t")
    assert played.data("status")[-1]["windows"]["active"]["messages"]["threshold"] == 100
    await agent.memory.settled()
    await storage.close()


async def test_a_failing_diary_stops_no_edit_of_stored_messages() -> None:
    class Failing(WatchedStorage):
        down = False

        async def around(self, name: str, call: Any) -> Any:
            if name == "get_log" and self.down:
                raise StorageError("the log cannot be reached")
            return await call()

    class Rate(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
            storage.down = args.step_number == 1
            if args.step_number == 1:
                args.message_list.input[0].metadata["rated"] = 5

    storage = Failing()
    agent = Agent(
        model=ScriptedModel(ToolCall("look"), ToolCall("look"), "Done."),
        tools=[Tool(name="look", function=lambda: words("found", 30))],
        memory=observational(storage),
        input_processors=[Rate()],
    )
    assert (await agent.generate("go", thread="t")).text == "Done."
    assert (await storage.list_messages("t"))[0].metadata == {"rated": 5}


async def test_without_enough_to_observe_the_observer_is_not_called_at_every_turn(storage: Storage) -> None:
    notes = observer()
    agent = Agent(model=answering(), memory=observational(storage, observer_model=notes))
    for _ in range(3):
        await agent.generate(words("huge", 400), thread="t")
    assert len(notes.requests) <= 4


def test_the_memory_of_a_broken_file_is_an_error_of_the_caller(tmp_path: Any) -> None:
    (tmp_path / "memory.db").write_text("this is no database, but it is long enough to be looked at" * 20)
    agent = Agent(model=answering(), memory=Memory(storage=SQLiteStorage(tmp_path / "memory.db")))
    with pytest.raises(StorageError, match=r"memory\.db"):
        agent.generate_sync("hello", thread="t")


@ways
@pytest.mark.parametrize("blocked", [False, True])
async def test_notes_that_cannot_be_closed_are_closed_by_the_next_run(blocked: bool, buffer_tokens: float) -> None:
    """The end of the run does not depend on it: its caller gets the result."""

    class Failing(WatchedStorage):
        full = False

        async def around(self, name: str, call: Any) -> Any:
            if name == "save_log" and self.full:
                raise StorageError("the disk is full")
            self.full |= name == "finish_run"
            return await call()

    class Block(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            if blocked:
                storage.full = True
                args.abort("no")

    storage = Failing()
    memory = observational(storage, buffer_tokens=buffer_tokens)
    agent = Agent(
        model=ScriptedModel(*[ToolCall("look")] * 8, "Done.", lambda _: "Yes."),
        tools=[Tool(name="look", function=lambda: words("found", 40))],
        memory=memory,
        max_steps=20,
        output_processors=[Block()],
    )
    await storage.create_thread(Thread(id="t", resource_id=own_resource("t")))
    result = await agent.generate("go", thread="t")
    assert (result.tripwire is not None) is blocked
    await memory.settled()
    assert {entry.run_id for entry in (await log_of(storage)).entries} == {result.run_id}
    agent = Agent(model=answering(), memory=memory)
    await agent.generate("next, on a disk that is still full", thread="t")
    storage.full = False
    await agent.generate("next", thread="t")
    await raw_rows(storage)
    assert bool((await log_of(storage)).entries) is not blocked
