"""An update of working memory counts with its run: nothing of it is seen before, and nothing is lost beside others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Message, Processor
from diarist.exceptions import ProcessorError, StorageError
from diarist.memory import MessageHistory
from diarist.models.base import ModelRequest
from diarist.processors import ProcessOutputResultArgs, ProcessToolResultArgs
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage
from diarist.testing import ScriptedModel
from tests.processes import run_at_once
from tests.scenarios.kit import WatchedStorage, WordCounter, answering
from tests.scenarios.test_what_was_finished_is_kept import expire_runs
from tests.scenarios.working_kit import SCHEMA, TEMPLATE, newest, remembering, say, shown, update
from tests.storage.backends import OPENED, Backend
from tests.storage.backends import backend as backend
from tests.storage.backends import mongodb_url as mongodb_url


class Guard(Processor[Any]):
    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        """Judges, and lets everything pass."""


async def test_the_update_is_visible_only_after_the_run_succeeded(storage: Storage) -> None:
    memory = remembering(storage)
    seen: list[Any] = []

    async def look(_: ModelRequest) -> str:
        seen.append(await memory.working.get(resource="ada"))
        other = answering()
        await say(Agent(model=other, memory=memory), thread="another")
        seen.append(shown(other.requests[0]))
        return "ok"

    await say(Agent(model=ScriptedModel(update("# Ada"), look), memory=memory))
    assert seen == ["", TEMPLATE]
    assert await memory.working.get(resource="ada") == "# Ada"


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_run_that_fails_keeps_the_updates_of_the_steps_that_it_keeps(storage: Storage, guarded: bool) -> None:
    memory = remembering(storage)
    model = ScriptedModel(update("# Ada"), RuntimeError("the provider is down"), "ok")
    agent = Agent(model=model, memory=memory, output_processors=[Guard()] if guarded else [])
    with pytest.raises(RuntimeError):
        await say(agent)
    assert len(await memory.messages.list(thread="t")) == (1 if guarded else 2)
    assert await memory.working.get(resource="ada") == ("" if guarded else "# Ada")
    assert (await storage.get_working_memory("resource:ada")).updates == ()


async def test_a_step_that_breaks_off_leaves_no_update(storage: Storage) -> None:
    class Break(Processor[Any]):
        def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> None:
            if args.step_number == 2:
                raise RuntimeError("the judge is out")

    memory = remembering(storage)
    model = ScriptedModel(update("# One"), update("# One"), update("# Two"), "ok")
    agent = Agent(model=model, memory=memory, processors=[Break()])
    with pytest.raises(ProcessorError):
        await say(agent)
    assert "# Two" not in repr([message.to_dict() for message in await memory.messages.list(thread="t")])
    assert await memory.working.get(resource="ada") == "# One"


CHILD = """
import asyncio, os, sys
from diarist import Agent, Processor
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel
from tests.scenarios.test_working_memory_and_runs import Guard
from tests.scenarios.working_kit import remembering, say, update

class Dying(SQLiteStorage):
    async def finish_run(self, run, state, **messages):
        numbers = await super().finish_run(run, state, **messages)
        os._exit(0)

async def main(path, where, guarded):
    storage = Dying(path) if where == "after the commit" else SQLiteStorage(path)
    die = "ok" if where == "after the commit" else lambda request: os._exit(0)
    agent = Agent(
        model=ScriptedModel(update("# Ada"), die),
        memory=remembering(storage),
        output_processors=[Guard()] if guarded == "True" else [],
    )
    await say(agent)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("where", ["in the second step", "after the commit"])
async def test_a_crash(tmp_path: Path, where: str, guarded: bool) -> None:
    path = tmp_path / "memory.db"
    child = [sys.executable, "-c", CHILD, str(path), where, str(guarded)]
    await asyncio.to_thread(subprocess.run, child, check=True, cwd=Path(__file__).parents[2])
    async with SQLiteStorage(path) as storage:
        memory = remembering(storage)
        if where == "in the second step":
            assert await memory.working.get(resource="ada") == "", "the run is live, as far as anybody knows"
            expire_runs(path)
            await memory.messages.save([Message.user("hello")], thread="t", resource="ada")  # ends the dead run
        kept = where == "after the commit" or not guarded
        assert await memory.working.get(resource="ada") == ("# Ada" if kept else "")
        assert (await storage.get_working_memory("resource:ada")).updates == ()
        model = answering()
        await say(Agent(model=model, memory=memory))
        assert newest(model.requests[0]) == ("# Ada" if kept else TEMPLATE)
        assert ("# Ada" in repr([message.to_dict() for message in await memory.messages.list(thread="t")])) is kept, (
            "it counts as the messages do"
        )


async def test_runs_beside_each_other_are_merged(storage: Storage) -> None:
    memory = remembering(storage, schema={"type": "object"})
    everybody = asyncio.Barrier(6)

    async def run(number: int) -> None:
        async def together(_: ModelRequest) -> Any:
            await everybody.wait()
            return update({f"key-{number}": number, "shared": {str(number): True}})

        await say(Agent(model=ScriptedModel(together, "ok"), memory=memory), thread=f"t{number}")

    await asyncio.gather(*(run(number) for number in range(6)))
    expected = {f"key-{number}": number for number in range(6)}
    whole = await memory.working.get(resource="ada")
    assert whole == {**expected, "shared": {str(number): True for number in range(6)}}


async def test_texts_of_runs_beside_each_other_are_merged(storage: Storage) -> None:
    memory = remembering(storage, template="- Name:\n- Allergy:")
    everybody = asyncio.Barrier(2)

    async def run(thread: str, text: str) -> None:
        async def together(_: ModelRequest) -> str:
            await everybody.wait()
            return "ok"

        await say(Agent(model=ScriptedModel(update(text), together), memory=memory), thread=thread)

    await asyncio.gather(run("one", "- Name: Ada\n- Allergy:"), run("two", "- Name:\n- Allergy: nuts"))
    assert await memory.working.get(resource="ada") == "- Name: Ada\n- Allergy: nuts"


WORKER = f"""
import asyncio
from diarist import Agent, Memory
from diarist.memory import WorkingMemoryConfig
from diarist.testing import ScriptedModel, ToolCall
{OPENED}

async def main(address, name):
    async with opened(address) as storage:
        memory = Memory(storage=storage, working_memory=WorkingMemoryConfig(schema={{"type": "object"}}))
        await memory.working.get(resource="ada")
        go()
        for number in range(5):
            call = ToolCall("update_working_memory", {{"memory": {{"tool": {{f"{{name}}-{{number}}": 1}}}}}})
            agent = Agent(model=ScriptedModel([call], "ok"), memory=memory)
            await agent.generate("hello", thread=name, resource="ada")
            await memory.working.update({{"hand": {{f"{{name}}-{{number}}": 1}}}}, resource="ada")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_processes_at_once_lose_nothing(backend: Backend) -> None:
    names = ["a", "b", "c", "d"]
    await asyncio.to_thread(run_at_once, WORKER, [[backend.address, name] for name in names])
    async with backend.storage() as storage:
        memory = remembering(storage, schema={"type": "object"})
        whole = await memory.working.get(resource="ada")
        assert isinstance(whole, dict)
        expected = {f"{name}-{number}": 1 for name in names for number in range(5)}
        assert json.loads(json.dumps(whole)) == {"tool": expected, "hand": expected}
        assert (await storage.get_working_memory("resource:ada")).updates == ()


async def test_a_resource_forgotten_during_the_work_stays_forgotten(storage: Storage) -> None:
    memory = remembering(storage)

    async def forget(_: ModelRequest) -> str:
        await memory.forget(resource="ada")
        return "ok"

    await say(Agent(model=answering(), memory=memory))
    with pytest.raises(StorageError, match="deleted"):
        await say(Agent(model=ScriptedModel(update("# Ada"), forget), memory=memory))
    assert "Ada" not in repr(await storage.get_working_memory("resource:ada"))
    assert await memory.working.get(resource="ada") == ""


class Failing(WatchedStorage):
    """Cannot keep working memory while ``down``."""

    down = True

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.down and name in ("get_working_memory", "save_working_memory"):
            raise StorageError("the disk is full")
        return await call()


async def test_lines_removed_by_hand_during_the_work_stay_gone(storage: Storage) -> None:
    memory = remembering(storage)
    await memory.working.update("- Lives in: Trieste", resource="ada")

    async def take_out(_: ModelRequest) -> str:
        await memory.working.update("", resource="ada")
        return "ok"

    model = ScriptedModel(update("- Lives in: Trieste\n- Likes: tea"), take_out)
    await say(Agent(model=model, memory=memory))
    assert await memory.working.get(resource="ada") == ""


async def test_a_turn_goes_on_where_it_cannot_be_read() -> None:
    storage = Failing()
    model = answering()
    result = await say(Agent(model=model, memory=remembering(storage)))
    assert result.text == "Understood, noted."
    assert model.requests[0].tools == [], "what cannot be read is not to be overwritten"
    storage.down = False
    await say(Agent(model=model, memory=remembering(storage)))
    assert len(model.requests[1].tools) == 1


async def test_an_update_that_cannot_be_stored_is_told() -> None:
    """The run has ended, and the answer is stored; but what the model was told is not true."""
    storage = Failing()
    storage.down = False

    class FillTheDisk(Processor[Any]):
        def process_tool_result(self, args: ProcessToolResultArgs[Any]) -> None:
            storage.down = True

    memory = remembering(storage)
    agent = Agent(model=ScriptedModel(update("# Ada")), memory=memory, processors=[FillTheDisk()], max_steps=1)
    with pytest.raises(StorageError, match="disk"):
        await say(agent)
    assert len(await memory.messages.list(thread="t")) == 2


async def test_messages_that_are_stored_elsewhere() -> None:
    """Whether an update counts is for the storage to say that knows the run."""
    history = MessageHistory(InMemoryStorage(), token_counter=WordCounter())
    memory = remembering(InMemoryStorage(), schema=SCHEMA)
    agent = Agent(model=answering(), memory=memory, input_processors=[history])
    with pytest.raises(Exception, match="own storage"):
        await say(agent)
