"""A run that breaks off keeps what it had finished, and never keeps its thread from the next run."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, CancelSignal, Memory, Message, Processor, Tool, concurrency
from diarist.exceptions import (
    BadRequestError,
    ConflictError,
    ModelConnectionError,
    ProcessorError,
    StorageError,
    ThreadBusyError,
)
from diarist.memory import run_lifecycle
from diarist.messages import TextPart
from diarist.processors import ProcessAPIErrorArgs, ProcessInputArgs, ProcessOutputResultArgs
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.scenarios.kit import (
    Recount,
    WatchedStorage,
    answering,
    ids_sent,
    log_of,
    observational,
    raw_rows,
    talk,
    told,
    ways,
    words,
)

MakeMemory = Callable[[Storage], Memory]
both = pytest.mark.parametrize("make", [lambda storage: Memory(storage=storage), observational], ids=["history", "om"])


class Guard(Processor[Any]):
    """Judges the whole answer at its end."""

    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None: ...


def tools() -> list[Tool]:
    return [Tool(name="look", function=lambda: "seen")]


async def texts(memory: Memory) -> list[str]:
    return [row.text for row in await memory.messages.list(thread="t")]


@both
@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "failed"])
async def test_a_run_that_ends_before_its_input_is_stored_leaves_no_thread(
    storage: Storage, make: MakeMemory, cancelled: bool
) -> None:
    signal = CancelSignal()

    class Check(Processor[Any]):
        async def process_input(self, args: ProcessInputArgs[Any]) -> None:
            if cancelled:
                signal.cancel()
                await asyncio.Event().wait()
            raise ValueError("broken")

    memory = make(storage)
    agent = Agent(model=ScriptedModel(lambda _: "Hello."), memory=memory)
    with nullcontext() if cancelled else pytest.raises(ProcessorError):
        await agent.generate("go", thread="t", resource="ada", processors=[Check()], cancel=signal)
    assert (await memory.threads.list(resource="ada")).items == []
    await agent.generate("go", thread="t", resource="ada")
    assert await texts(memory) == ["go", "Hello."]


@both
@pytest.mark.parametrize(
    "failure", [ModelConnectionError("cut"), Reply(text="half a", error_after=ModelConnectionError("cut"))]
)
async def test_a_failing_provider(storage: Storage, make: MakeMemory, failure: Any) -> None:
    memory = make(storage)
    model = ScriptedModel(["Step one.", ToolCall("look")], failure, lambda _: "Now it works.")
    agent = Agent(model=model, memory=memory, tools=tools())
    with pytest.raises(ModelConnectionError):
        await agent.generate("go", thread="t")
    assert await texts(memory) == ["go", "Step one."]
    assert (await memory.messages.list(thread="t"))[1].tool_parts[0].result == "seen"
    await agent.generate("again", thread="t")
    assert await texts(memory) == ["go", "Step one.", "again", "Now it works."]
    assert len(ids_sent(model.requests[-1])) == 3


@both
async def test_a_guard_that_never_spoke(storage: Storage, make: MakeMemory) -> None:
    """No guard has judged the finished steps, so only the input is kept."""
    memory = make(storage)
    model = ScriptedModel(["Step one.", ToolCall("look")], ModelConnectionError("cut"))
    agent = Agent(model=model, memory=memory, tools=tools(), output_processors=[Guard()])
    with pytest.raises(ModelConnectionError):
        await agent.generate("go", thread="t")
    assert await texts(memory) == ["go"]


@ways
async def test_notes_of_unjudged_steps_go_with_them(storage: Storage, buffer_tokens: float) -> None:
    memory = observational(storage, buffer_tokens=buffer_tokens)
    model = ScriptedModel(*[["said " * 30, ToolCall("look")]] * 8, ModelConnectionError("cut"))
    agent = Agent(model=model, memory=memory, tools=tools(), output_processors=[Guard()], max_steps=20)
    with pytest.raises(ModelConnectionError):
        await agent.generate("go", thread="t")
    await memory.settled()
    assert await told(storage, "end")
    assert (await log_of(storage)).entries == ()
    assert await texts(memory) == ["go"]


@ways
async def test_notes_of_finished_steps_stay_with_them(storage: Storage, buffer_tokens: float) -> None:
    memory = observational(storage, buffer_tokens=buffer_tokens)
    model = ScriptedModel(*[["said " * 30, ToolCall("look")]] * 8, ModelConnectionError("cut"), lambda _: "Yes.")
    agent = Agent(model=model, memory=memory, tools=tools(), max_steps=20, input_processors=[Recount(storage)])
    with pytest.raises(ModelConnectionError):
        await agent.generate("go", thread="t")
    await memory.settled()
    assert (await log_of(storage)).entries
    assert len(await texts(memory)) == 9
    await raw_rows(storage)
    await agent.generate("and?", thread="t")


@both
async def test_a_processor_that_fails_at_the_end(storage: Storage, make: MakeMemory) -> None:
    class Broken(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            raise ValueError("bug")

    memory = make(storage)
    agent = Agent(model=answering(), memory=memory, output_processors=[Broken()])
    with pytest.raises(ProcessorError, match="bug"):
        await agent.generate("go", thread="t")
    assert await texts(memory) == ["go"]


# --- cancelled -----------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("by_signal", [True, False])
async def test_cancelled_in_the_second_step(storage: Storage, make: MakeMemory, by_signal: bool) -> None:
    called = asyncio.Event()

    async def hang(_: Any) -> str:
        called.set()
        await asyncio.Event().wait()
        return "never"

    memory = make(storage)
    cancel = CancelSignal()
    agent = Agent(model=ScriptedModel(["Step one.", ToolCall("look")], hang), memory=memory, tools=tools())
    run = asyncio.create_task(agent.generate("go", thread="t", cancel=cancel))
    await called.wait()
    if by_signal:
        cancel.cancel("enough")
        assert (await run).stopped_by == "cancelled"
    else:
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert await texts(memory) == ["go", "Step one."]


class Yielding(WatchedStorage):
    """Each call lets others run before it begins and after it is done, so that a cancellation can hit both."""

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(0)
        result = await call()
        await asyncio.sleep(0)
        return result


@pytest.mark.parametrize("make", [Memory, observational], ids=["history", "om"])
async def test_cancelled_at_any_moment(make: Callable[..., Memory]) -> None:
    """Wherever the cancellation hits, the thread is free at once, and holds whole steps in order."""
    whole = ["go", "Step one.", "Done."]
    seen: set[int] = set()
    for moment in range(400):
        storage = Yielding()
        memory = make(storage=storage, thread_wait=0)
        agent = Agent(
            model=ScriptedModel(["Step one.", ToolCall("look")], "Done.", lambda _: "Yes."),
            memory=memory,
            tools=[Tool(name="look", function=_look)],
        )
        run = asyncio.create_task(agent.generate("go", thread="t"))
        for _ in range(moment):
            await asyncio.sleep(0)
        finished = run.done()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        rows = await storage.list_messages("t")
        assert [row.text for row in rows] == whole[: len(rows)]
        seen.add(len(rows))
        agent = Agent(model=answering(), memory=memory)
        await agent.generate("next", thread="t")
        await raw_rows(storage)
        if finished:
            break
    assert finished
    assert seen >= {0, 1, 2, 3}


async def _look() -> str:
    return "seen"


# --- crashes -------------------------------------------------------------------------------------------

CHILD = """
import asyncio, sys
from diarist import Agent, Memory, Processor, Tool
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import observational
from tests.scenarios.test_what_was_finished_is_kept import Guard

async def hang(request):
    print("in the model call", flush=True)
    await asyncio.Event().wait()

async def main(path, guarded):
    steps = [["said " * 30, ToolCall("look")]] * 8
    agent = Agent(
        model=ScriptedModel(*steps, hang),
        memory=observational(SQLiteStorage(path)),
        tools=[Tool(name="look", function=lambda: "seen")],
        output_processors=[Guard()] if guarded else [],
        max_steps=20,
    )
    await agent.generate("go", thread="t")

asyncio.run(main(sys.argv[1], sys.argv[2] == "True"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
async def test_a_killed_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool) -> None:
    """The next process waits until the dead run's time is up, then goes on from its finished steps."""
    path = tmp_path / "memory.db"
    child = await asyncio.to_thread(start, path, guarded)
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == "in the model call\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    async with SQLiteStorage(path) as storage:
        assert await storage.list_messages("t") == []
        model = answering("Yes.")
        memory = observational(storage)
        agent = Agent(model=model, memory=memory, input_processors=[Recount(storage)])
        begin, busy = storage.begin_run, 0

        async def begin_run(*args: Any, **kwargs: Any) -> Any:
            nonlocal busy
            try:
                return await begin(*args, **kwargs)
            except ThreadBusyError:
                busy += 1
                if busy == 3:
                    expire_runs(path)
                raise

        monkeypatch.setattr(storage, "begin_run", begin_run)
        await agent.generate("and?", thread="t")
        assert busy == 3
        rows = await texts(memory)
        assert rows[0] == "go"
        assert rows[-2:] == ["and?", "Yes."]
        assert len(rows) == (3 if guarded else 11)
        await raw_rows(storage)
        assert bool((await log_of(storage)).entries) is not guarded


def start(path: Path, guarded: bool) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", CHILD, str(path), str(guarded)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def expire_runs(path: Path) -> None:
    """What the clock does within a minute."""
    with sqlite3.connect(path) as database:
        database.execute("UPDATE diarist_runs SET expires_at = 0 WHERE state = 'live'")
    database.close()


async def test_a_run_that_lives_long_is_not_taken_for_dead(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lifecycle, "RUN_TTL", 0.3)
    beats = 0
    enough = asyncio.Event()
    heartbeat = storage.heartbeat

    async def counted(run: Any, *, ttl: float = 60.0) -> None:
        nonlocal beats
        await heartbeat(run, ttl=ttl)
        beats += 1
        if beats == 5:
            enough.set()

    monkeypatch.setattr(storage, "heartbeat", counted)

    async def slow(_: Any) -> str:
        async with asyncio.timeout(20):
            await enough.wait()
        return "At last."

    memory = observational(storage)
    agent = Agent(model=ScriptedModel(slow, lambda _: "Second."), memory=memory)
    first = asyncio.create_task(agent.generate("one", thread="t"))
    await asyncio.sleep(0)
    second = asyncio.create_task(agent.generate("two", thread="t"))
    await asyncio.gather(first, second)
    assert await texts(memory) == ["one", "At last.", "two", "Second."]


# --- a storage that fails ------------------------------------------------------------------------------


class Failing(WatchedStorage):
    fails = ""

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if name == self.fails:
            raise StorageError("the disk is full")
        return await call()


@both
@pytest.mark.parametrize("method", ["begin_run", "append_messages", "finish_run", "list_messages", "existing_ids"])
async def test_a_storage_that_fails_says_so_and_works_again_later(make: MakeMemory, method: str) -> None:
    storage = Failing()
    memory = make(storage)
    agent = Agent(model=answering(), memory=memory)
    await talk(agent, 2, size=3)
    storage.fails = method
    with pytest.raises(StorageError, match="disk is full"):
        await agent.generate(Message.user("lost?"), thread="t")
    storage.fails = ""
    await agent.generate("next", thread="t")
    rows = await texts(memory)
    assert rows[:4] == [words("turn-1", 3), "Understood, noted.", words("turn-2", 3), "Understood, noted."]
    assert rows[-2:] == ["next", "Understood, noted."]


@both
async def test_an_end_that_fails_once_keeps_the_answer(make: MakeMemory) -> None:
    class FailingOnce(Failing):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            self.fails = "finish_run" if self.calls["finish_run"] == 1 else ""
            return await super().around(name, call)

    storage = FailingOnce()
    memory = make(storage)
    agent = Agent(model=answering(), memory=memory)
    with pytest.raises(StorageError, match="disk is full"):
        await agent.generate("go", thread="t")
    assert await texts(memory) == ["go", "Understood, noted."]


async def test_a_call_whose_end_cannot_be_stored_does_not_wait_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "CLEANUP_GRACE", 0)
    answers = asyncio.Event()

    class Silent(WatchedStorage):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if name == "finish_run" and self.calls[name] == 1:
                raise StorageError("no answer")
            if name == "finish_run":
                await answers.wait()
            return await call()

    memory = Memory(storage=Silent())
    agent = Agent(model=answering(), memory=memory)
    async with asyncio.timeout(20):
        with pytest.raises(StorageError, match="no answer"):
            await agent.generate("go", thread="t")
    answers.set()
    await agent.generate("next", thread="t")
    assert await texts(memory) == ["go", "Understood, noted.", "next", "Understood, noted."]


class Losing(WatchedStorage):
    """Loses the first reply to ``of``: the connection breaks after the database has done it."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.of = of

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        done = await call()
        if name == self.of and self.calls[name] == 1:
            raise StorageError("the connection was lost")
        return done


@both
@pytest.mark.parametrize("method", ["begin_run", "finish_run"])
async def test_a_lost_reply_is_no_failure(make: MakeMemory, method: str) -> None:
    memory = make(Losing(method))
    agent = Agent(model=answering(), memory=memory)
    result = await agent.generate("go", thread="t")
    assert result.text == "Understood, noted."
    assert [row.seq for row in result.messages] == [2]
    await agent.generate("next", thread="t")
    assert await texts(memory) == ["go", "Understood, noted.", "next", "Understood, noted."]


async def test_a_lost_reply_is_no_failure_after_a_later_write() -> None:
    class LosingLate(WatchedStorage):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            done = await call()
            if name == "finish_run" and self.calls[name] == 1:
                await memory.messages.save([Message.user("from elsewhere")], thread="t")
                raise StorageError("the connection was lost")
            return done

    memory = Memory(storage=LosingLate())
    result = await Agent(model=ScriptedModel("the answer"), memory=memory).generate("go", thread="t")
    assert (result.text, result.messages[0].seq) == ("the answer", 2)
    assert await texts(memory) == ["go", "the answer", "from elsewhere"]


@both
@pytest.mark.parametrize("done", [True, False])
async def test_a_blocked_run_ends_although_storing_its_end_fails_once(make: MakeMemory, done: bool) -> None:
    """Whether the database had done it or not."""

    class LosingOnce(WatchedStorage):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            breaks = name == "finish_run" and self.calls[name] == 1
            if done or not breaks:
                found = await call()
            if breaks:
                raise StorageError("the connection was lost")
            return found

    class Refuses(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            args.abort("no")

    memory = make(LosingOnce())
    result = await Agent(model=answering(), memory=memory, output_processors=[Refuses()]).generate("go", thread="t")
    assert result.tripwire is not None
    await Agent(model=answering(), memory=memory).generate("next", thread="t")
    assert await texts(memory) == ["next", "Understood, noted."]


async def test_an_answer_with_the_id_of_an_earlier_one_is_an_error(storage: Storage) -> None:
    class Names(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            for message in args.message_list.response:
                args.message_list.remove([message.id])
                args.message_list.add(replace(message, id="answer"), "response")

    memory = Memory(storage=storage, thread_wait=0)
    agent = Agent(model=answering(), memory=memory, output_processors=[Names()])
    await agent.generate("go", thread="t")
    with pytest.raises(ConflictError, match="answer"):
        await agent.generate("again", thread="t")
    await Agent(model=answering(), memory=memory).generate("next", thread="t")
    assert await texts(memory) == ["go", "Understood, noted.", "again", "next", "Understood, noted."]


async def test_cancelled_while_the_run_is_looked_for() -> None:
    """The reply to its beginning was lost."""
    asked = asyncio.Event()

    class LosingAndSlow(WatchedStorage):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            done = await call()
            if name == "begin_run" and self.calls[name] == 1:
                raise StorageError("the connection was lost")
            if name == "get_run" and self.calls[name] == 1:
                asked.set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            return done

    memory = Memory(storage=LosingAndSlow(), thread_wait=0)
    agent = Agent(model=answering(), memory=memory)
    turn = asyncio.create_task(agent.generate("go", thread="t"))
    await asked.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await agent.generate("next", thread="t")
    assert await texts(memory) == ["next", "Understood, noted."]


async def test_a_lost_reply_to_an_end_without_messages_is_no_failure() -> None:
    class Repair(Processor[Any]):
        def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> Any:
            args.message_list.remove([message.id for message in args.messages if message.text == "poison"])
            return {"retry": True}

    storage = Losing("nothing yet")
    memory = Memory(storage=storage)
    await memory.messages.save([Message.user("poison")], thread="t")
    storage.of = "finish_run"
    storage.calls.clear()
    agent = Agent(model=ScriptedModel(BadRequestError("no", status=400), "fine"), memory=memory, processors=[Repair()])
    assert (await agent.generate("go", thread="t")).text == "fine"
    assert await texts(memory) == ["go", "fine"]


async def test_a_repair_that_no_storage_takes_costs_no_answer(storage: Storage) -> None:
    class Sweeten(Processor[Any]):
        def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> Any:
            args.messages[0].created_at = datetime(2026, 1, 1)  # without a time zone
            return {"retry": True}

    memory = Memory(storage=storage)
    model = ScriptedModel("ok", BadRequestError("no", status=400), "the answer")
    agent = Agent(model=model, memory=memory, processors=[Sweeten()], output_processors=[Guard()])
    await agent.generate("poison", thread="t")
    assert (await agent.generate("go", thread="t")).text == "the answer"
    assert await texts(memory) == ["poison", "ok", "go", "the answer"]


async def test_a_repair_that_cannot_be_stored_costs_no_answer() -> None:
    """Of what was repaired, one message is forgotten while the run goes on; the other one is stored."""

    class Sweeten(Processor[Any]):
        def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> Any:
            for message in args.messages:
                message.parts = [TextPart(text=message.text.replace("poison", "honey"))]
            return {"retry": True}

    memory = Memory(storage=InMemoryStorage())

    async def forget() -> str:
        """Forget."""
        await memory.forget(message_ids=[row.id for row in await memory.messages.list(thread="t")][:1], thread="t")
        return "forgotten"

    model = ScriptedModel("ok", "ok", BadRequestError("no", status=400), ToolCall("forget"), "the answer")
    agent = Agent(model=model, memory=memory, processors=[Sweeten()], tools=[forget])
    await agent.generate("poison", thread="t")
    await agent.generate("more poison", thread="t")
    assert (await agent.generate("go", thread="t")).text == "the answer"
    assert await texts(memory) == ["ok", "more honey", "ok", "go", "", "the answer"]


@both
async def test_whatever_a_storage_raises_its_run_ends(make: MakeMemory) -> None:
    class Broken(WatchedStorage):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if name == "finish_run" and self.calls[name] <= 2:
                raise RuntimeError("a bug in a driver")
            return await call()

    memory = make(Broken())
    agent = Agent(model=answering(), memory=memory)
    with pytest.raises(RuntimeError, match="a bug in a driver"):
        await agent.generate("go", thread="t")
    await agent.generate("next", thread="t")
    assert await texts(memory) == ["go", "next", "Understood, noted."]


@both
async def test_a_last_step_that_cannot_be_stored_is_an_error(make: MakeMemory) -> None:
    """Who has a result knows that it is kept."""

    class LateFailing(Failing):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            self.fails = "finish_run" if self.calls["finish_run"] <= 2 else ""
            return await super().around(name, call)

    storage = LateFailing()
    memory = make(storage)
    agent = Agent(model=answering(), memory=memory)
    with pytest.raises(StorageError, match="disk is full"):
        await agent.generate("go", thread="t")
    assert await texts(memory) == ["go"]
    await agent.generate("next", thread="t")
    assert await texts(memory) == ["go", "next", "Understood, noted."]


@both
async def test_a_signal_while_messages_are_stored_ends_the_run_well(make: MakeMemory) -> None:
    """They are stored once, whether the reply was read or not."""

    class Signalling(WatchedStorage):
        async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            done = await call()
            if name == "append_messages" and self.calls[name] == 2:
                cancel.cancel("enough")
                await asyncio.sleep(0)
            return done

    cancel = CancelSignal()
    memory = make(Signalling())
    model = ScriptedModel(["Step one.", ToolCall("look")], "Done.")
    result = await Agent(model=model, memory=memory, tools=tools()).generate("go", thread="t", cancel=cancel)
    assert result.stopped_by == "cancelled"
    await Agent(model=answering(), memory=memory).generate("next", thread="t")
    assert await texts(memory) == ["go", "Step one.", "next", "Understood, noted."]
