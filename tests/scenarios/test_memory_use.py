"""The memory of a process that serves many turns stays flat."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Processor, Tool
from diarist.memory.observational.engine import RunMemory
from diarist.models.base import ModelRequest
from diarist.run_context import RunContext
from diarist.storage import SQLiteStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.memory.semantic.kit import TopicEmbedder
from tests.scenarios.kit import observational, reflector


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def runs_alive() -> int:
    """Return the number of run objects that are still referenced, without collecting garbage."""
    return sum(isinstance(each, RunContext | RunMemory) for each in gc.get_objects())


class Block(Processor[Any]):
    def process_input(self, args: Any) -> None:
        if "block" in args.message_list.messages[-1].text:
            args.abort("no")


def tool_with_a_limit() -> Tool:
    async def look() -> str:
        await asyncio.sleep(0)
        return "seen"

    return Tool(name="look", description="Look.", function=look, timeout=60)


async def say(agent: Agent[Any], text: str) -> None:
    await agent.generate(text, thread="t", resource="ada")


async def read(agent: Agent[Any], text: str) -> None:
    async with agent.stream(text, thread="t", resource="ada") as stream:
        async for _ in stream:
            pass


async def block(agent: Agent[Any], text: str) -> None:
    await agent.generate(f"block {text}", thread="t", resource="ada")


def answer(request: ModelRequest) -> Any:
    return [ToolCall("look")] if request.prompt.messages[-1].role == "user" else "seen"


MEMORIES: dict[str, Callable[[Storage], Memory]] = {
    "history": lambda storage: Memory(storage=storage),
    "read only": lambda storage: Memory(storage=storage, read_only=True),
    "observed while the run waits": lambda storage: observational(storage, buffer_tokens=False),
    "observed beside the run": lambda storage: observational(storage, buffer_tokens=0.2),
    "titles": lambda storage: Memory(storage=storage, generate_title=True),
    "working memory": lambda storage: Memory(storage=storage, working_memory=True),
    "semantic recall": lambda storage: Memory(storage=storage, semantic_recall=True, embedder=TopicEmbedder()),
}


@pytest.mark.parametrize(
    "turn", [say, pytest.param(read, marks=pytest.mark.slow), pytest.param(block, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.slow
async def test_a_run_that_has_ended_is_gone_at_once(kind: str, turn: Any, tmp_path: Path) -> None:
    """A run holds its whole window, so it must not wait for the garbage collector. Only runs that fail or are cancelled
    do, since an error holds the frames it passed."""
    storage = SQLiteStorage(tmp_path / "memory.db")
    memory = MEMORIES[kind](storage)
    agent = Agent(model=ScriptedModel(answer), memory=memory, tools=[tool_with_a_limit()], input_processors=[Block()])
    async with memory:
        await say(agent, "word " * 60)
        await memory.settled()
        before = runs_alive()
        with without_collector():
            for number in range(4):
                await turn(agent, f"{number} {'word ' * 60}")
                await memory.settled()
            await asyncio.sleep(0)
            alive = runs_alive()
    assert alive <= before


def long_notes(lines: int) -> ScriptedModel:
    """Return a model that writes ``lines`` new lines of a hundred characters at each call."""
    numbers = count()

    def write(_: ModelRequest) -> str:
        noted = "\n".join(f"- 🟡 09:15 note {next(numbers)}: {'word ' * 18}" for _ in range(lines))
        return f"<diary>\nDate: 2026-03-02\n{noted}\n</diary>"

    return ScriptedModel(write, name="observer")


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
async def test_caches_of_long_notes_do_not_grow(tmp_path: Path) -> None:
    """Caches of rendered, parsed and counted notes have a limit in bytes."""
    storage = SQLiteStorage(tmp_path / "memory.db")
    observe, reflect = long_notes(300), reflector()
    memory = observational(storage, observer_model=observe, reflector_model=reflect, buffer_tokens=False)
    model = ScriptedModel(lambda _: "yes " * 60)
    agent = Agent(model=model, memory=memory)
    sizes: list[int] = []
    async with memory:
        for number in range(30):
            await say(agent, f"{number} {'word ' * 60}")
            for each in (model, observe, reflect):
                each.requests.clear()
            if number in (14, 29):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    assert sizes[1] - sizes[0] < 3_000_000
