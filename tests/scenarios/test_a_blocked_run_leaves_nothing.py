"""A blocked run leaves nothing: no rows, no thread that it would have created, no note of it, no word."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, DataChunk, Memory, Processor, Tool
from diarist.chunks import Chunk
from diarist.processors import (
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMRequestArgs,
    ProcessOutputResultArgs,
    ProcessOutputStepArgs,
    ProcessOutputStreamArgs,
)
from diarist.storage import Scope, SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import Recount, answering, log_of, observational, play, raw_rows, talk, told, ways, words
from tests.scenarios.working_kit import TEMPLATE, newest, remembering, update

MARK = "ultramarine"
"""A word that only the blocked run speaks of."""


class InInput(Processor[Any]):
    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        args.abort(f"no {MARK}")


class InInputStep(Processor[Any]):
    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        args.abort(f"no {MARK}")


class InLLMRequest(Processor[Any]):
    def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
        args.abort(f"no {MARK}")


class InOutputStream(Processor[Any]):
    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Chunk:
        if args.part.type == "text-delta":
            args.abort(f"no {MARK}")
        return args.part


class InOutputStep(Processor[Any]):
    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        args.abort(f"no {MARK}")


class InOutputResult(Processor[Any]):
    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        args.abort(f"no {MARK}")


HOOKS = [InInput, InInputStep, InLLMRequest, InOutputStream, InOutputStep, InOutputResult]


def blocked_by(processor: type[Processor[Any]]) -> dict[str, Any]:
    where = "output_processors" if processor.__name__.startswith("InOutput") else "input_processors"
    return {where: [processor()]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SQLiteStorage]:
    async with SQLiteStorage(path) as storage:
        yield storage


def content(path: Path) -> dict[str, list[Any]]:
    """All rows of all tables but the runs, leases and versions, which say nothing of what was said; the pages of the
    search index are among them."""
    with sqlite3.connect(path) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {
            name: database.execute(f'SELECT * FROM "{name}"').fetchall()
            for name in names
            if not any(word in name for word in ("runs", "leases", "schema", "sqlite_"))
        }
    database.close()
    return rows


def tells(path: Path, mark: str) -> list[str]:
    return [name for name, rows in content(path).items() if mark in repr(rows)]


def make(observing: bool, storage: SQLiteStorage) -> Memory:
    return observational(storage) if observing else Memory(storage=storage)


@pytest.mark.parametrize("observing", [True, False], ids=["om", "history"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_new_thread_is_not_there(
    storage: SQLiteStorage, path: Path, hook: type[Processor[Any]], observing: bool
) -> None:
    memory = make(observing, storage)
    agent = Agent(model=answering(f"It is {MARK}."), memory=memory, **blocked_by(hook))
    result = await agent.generate(f"{MARK}?", thread="t")
    assert result.tripwire is not None
    assert (await memory.threads.list()).items == []
    assert await storage.get_log("thread:t") is None
    assert await storage.list_events("thread:t") == []
    assert tells(path, MARK) == []


@pytest.mark.parametrize("observing", [True, False], ids=["om", "history"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_what_was_there_before_is_untouched(
    storage: SQLiteStorage, path: Path, hook: type[Processor[Any]], observing: bool
) -> None:
    memory = make(observing, storage)
    await talk(Agent(model=answering(), memory=memory), 4)
    rows, log = await storage.list_messages("t"), await log_of(storage)
    agent = Agent(model=answering(f"It is {MARK}."), memory=memory, **blocked_by(hook))
    result = await agent.generate(f"{MARK}?", thread="t")
    assert result.tripwire is not None
    assert await storage.list_messages("t") == rows
    await memory.settled()
    after = await log_of(storage)
    assert after.active[: len(log.active)] == log.active  # the turn may have observed what others had said
    assert tells(path, MARK) == []
    await talk(Agent(model=answering(), memory=memory, input_processors=[Recount(storage)] if observing else []), 6)
    await raw_rows(storage)
    assert tells(path, MARK) == []


def looping(steps: int) -> ScriptedModel:
    """Speaks of the mark in a long tool loop, then answers."""
    loop: list[Any] = [[words(MARK, 20), ToolCall("look", {"at": MARK})] for _ in range(steps)]
    return ScriptedModel(*loop, f"It is {MARK}.", lambda _: "Yes.")


def copying_observer() -> ScriptedModel:
    """Copies the last line that it is told, so that its notes speak of what they were made from."""
    return ScriptedModel(
        lambda request: (
            f"<diary>\nDate: 2026-03-02\n- 🔴 {MARK if MARK in request.text else 'harmless'}\n</diary>\n"
            f"<current-task>{MARK if MARK in request.text else 'harmless'}</current-task>"
        )
    )


@ways
@pytest.mark.parametrize("new_thread", [True, False])
async def test_steps_that_were_observed_within_the_run(
    storage: SQLiteStorage, path: Path, new_thread: bool, buffer_tokens: float
) -> None:
    """Awaited or not: what is still being observed when the run is blocked comes to nothing."""
    notes = copying_observer()
    memory = observational(storage, observer_model=notes, buffer_tokens=buffer_tokens)
    if not new_thread:
        await talk(Agent(model=answering(), memory=memory), 6)
    before = len(await storage.list_messages("t"))
    agent = Agent(
        model=looping(12),
        memory=memory,
        tools=[Tool(name="look", function=lambda at: words("found", 20))],
        max_steps=20,
        output_processors=[InOutputResult()],
    )
    played = await play(agent, f"{MARK}?", thread="t")
    assert played.result is not None
    assert played.result.tripwire is not None
    assert any(MARK in request.text for request in notes.requests), "the loop must be observed"
    await memory.settled()
    assert len(await storage.list_messages("t")) == before
    assert tells(path, MARK) == []
    if new_thread:
        assert (await memory.threads.list()).items == []
    model = answering()
    await talk(Agent(model=model, memory=memory, input_processors=[Recount(storage)]), 6, first=10)
    assert MARK not in "".join(request.text for request in model.requests)
    await raw_rows(storage)


@ways
async def test_a_failing_observer_leaves_no_word_either(
    storage: SQLiteStorage, path: Path, buffer_tokens: float
) -> None:
    """Neither the messages nor the text of the error are in a failure that is kept."""
    failing = ScriptedModel(lambda r: RuntimeError(f"no note on {MARK}") if MARK in r.text else "- 🟢 harmless")
    memory = observational(storage, observer_model=failing, buffer_tokens=buffer_tokens)
    await talk(Agent(model=answering(), memory=memory), 1, size=1)
    agent = Agent(
        model=looping(12),
        memory=memory,
        tools=[Tool(name="look", function=lambda at: words("found", 20))],
        max_steps=20,
        output_processors=[InOutputResult()],
    )
    await play(agent, f"{MARK}?", thread="t")
    await memory.settled()
    assert any(MARK in request.text for request in failing.requests)
    assert await told(storage, "failed")
    assert (await log_of(storage)).observer_failures.count > 0
    assert tells(path, MARK) == []


@ways
async def test_the_events_of_a_run_that_ended_well_are_kept_whole(storage: SQLiteStorage, buffer_tokens: float) -> None:
    memory = observational(storage, observer_model=copying_observer(), buffer_tokens=buffer_tokens)
    agent = Agent(
        model=looping(12),
        memory=memory,
        tools=[Tool(name="look", function=lambda at: words("found", 20))],
        max_steps=20,
    )
    await agent.generate("go", thread="t")
    await memory.settled()
    log = await log_of(storage)
    assert {data["cycleId"] for data in await told(storage, "end")} == {entry.cycle_id for entry in log.entries}


async def test_blocked_while_another_process_looks_on(storage: SQLiteStorage, path: Path) -> None:
    """Neither the rows nor the notes of a run are to be seen by others before it has ended well."""
    memory = observational(storage, observer_model=copying_observer())
    reached, go_on = asyncio.Event(), asyncio.Event()

    class Wait(Processor[Any]):
        async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            reached.set()
            await go_on.wait()
            args.abort("no")

    agent = Agent(
        model=looping(12),
        memory=memory,
        tools=[Tool(name="look", function=lambda at: words("found", 20))],
        max_steps=20,
        output_processors=[Wait()],
    )
    await talk(Agent(model=answering(), memory=memory), 1)
    run = asyncio.create_task(agent.generate(f"{MARK}?", thread="t"))
    await reached.wait()
    async with SQLiteStorage(path) as other:
        onlooker = observational(other)
        assert len(await onlooker.messages.list(thread="t")) == 2
        assert MARK not in str(asdict(await onlooker.diary.get(thread="t")))
        go_on.set()
        await run
        assert len(await onlooker.messages.list(thread="t")) == 2


async def test_a_data_chunk_of_a_blocked_run_is_not_kept(storage: SQLiteStorage, path: Path) -> None:
    class Write(Processor[Any]):
        def process_input(self, args: ProcessInputArgs[Any]) -> None:
            args.writer.custom(DataChunk("data-x", {"said": MARK}))

    agent = Agent(
        model=answering(),
        memory=observational(storage),
        input_processors=[Write()],
        output_processors=[InOutputResult()],
    )
    await agent.generate("go", thread="t")
    assert tells(path, MARK) == []


@pytest.mark.parametrize("scope", ["resource", "thread"])
@pytest.mark.parametrize("new_thread", [True, False])
@pytest.mark.parametrize("observing", [True, False], ids=["om", "history"])
async def test_an_update_of_working_memory(
    storage: SQLiteStorage, path: Path, observing: bool, new_thread: bool, scope: Scope
) -> None:
    memory = remembering(storage, observing=observing, scope=scope)
    if not new_thread:
        model = ScriptedModel(update("# Kept"), "ok")
        await Agent(model=model, memory=memory).generate("go", thread="t", resource="ada")
    seen: list[bool] = []

    def answer(_: Any) -> str:
        seen.append(bool(tells(path, MARK)))
        return f"It is {MARK}."

    model = ScriptedModel(update(f"# {MARK}"), update(f"# {MARK} and more"), answer)
    agent = Agent(model=model, memory=memory, output_processors=[InOutputResult()])
    result = await agent.generate(f"{MARK}?", thread="t", resource="ada")
    assert result.tripwire is not None
    assert seen == [True], "it must have been waiting in storage"
    assert tells(path, MARK) == []
    if not new_thread:
        assert await memory.working.get(thread="t") == "# Kept"
    later = answering()
    await Agent(model=later, memory=memory).generate("go", thread="t", resource="ada")
    assert newest(later.requests[0]) == (TEMPLATE if new_thread else "# Kept")
