"""``kill -9`` in a turn that goes back leaves the old branch or the new one, whole."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from diarist import Agent, Memory
from diarist.exceptions import ThreadBusyError
from diarist.messages import new_id
from diarist.storage import Storage
from diarist.testing import ScriptedModel
from tests.storage.backends import OPENED, Backend
from tests.storage.backends import backend as backend
from tests.storage.backends import mongodb_url as mongodb_url

SAID = ["question-1", "answer-1", "question-2", "answer-2"]

# Sends its history once more, and stops for ever before or after the given step of storage.
CLIENT = f"""
import asyncio, json, sys
from diarist import Agent, Memory
from diarist.models.base import ModelRequest
from diarist.testing import ScriptedModel
{OPENED}

async def stop():
    print("here", flush=True)
    await asyncio.Event().wait()

async def main(address, step, when, given):
    storage = opened(address)
    begun, inner = storage.begin_run, getattr(storage, step)

    async def begin_run(*args, ttl, **more):  # a run that is expired as soon as its process is dead
        return await begun(*args, ttl=0.5, **more)

    async def stopped(*args, **more):
        if when == "before":
            await stop()
        result = await inner(*args, **more)
        await stop()
        return result

    storage.begin_run = begin_run
    setattr(storage, step, stopped)
    await Agent(model=ScriptedModel("never"), memory=Memory(storage=storage)).generate(json.loads(given), thread="t")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "when", "edits", "left"),
    [
        ("set_branch", "before", False, SAID),
        ("set_branch", "after", False, SAID),
        ("set_branch", "after", True, SAID),
        ("append_messages", "before", True, SAID),
        ("append_messages", "after", True, [*SAID[:2], "edited-2"]),
        ("finish_run", "before", False, SAID),
    ],
)
async def test_a_killed_turn(backend: Backend, step: str, when: str, edits: bool, left: list[str]) -> None:
    async with backend.storage() as storage:
        history: list[Any] = []
        agent = Agent(model=ScriptedModel("answer-1", "answer-2"), memory=Memory(storage=storage))
        for number in (1, 2):
            history.append({"role": "user", "content": f"question-{number}"})
            result = await agent.generate(list(history), thread="t")
            history.append({"role": "assistant", "content": result.text})
        given = [*history[:2], {"role": "user", "content": "edited-2"}] if edits else history[:-1]
        kill(backend.address, step, when, given)
        await storage.finish_run(await taken_over(storage), "discarded")
        assert [row.text for row in await storage.list_messages("t")] == left
        result = await Agent(model=ScriptedModel("again"), memory=Memory(storage=storage)).generate(given, thread="t")
        expected = [*SAID[:2], "edited-2" if edits else "question-2", "again"]
        assert [row.text for row in await storage.list_messages("t")] == expected
        superseded = [one.message.text for one in await storage.list_superseded("t")]
        assert superseded == (["question-2", "answer-2"] if edits else ["answer-2"])


def kill(address: str, step: str, when: str, given: list[Any]) -> None:
    command = [sys.executable, "-c", CLIENT, address, step, when, json.dumps(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)


async def taken_over(storage: Storage) -> Any:
    """Begin another run as soon as the killed one has expired."""
    thread = await storage.get_thread("t")
    assert thread is not None
    while True:
        try:
            return await storage.begin_run(new_id("run"), thread)
        except ThreadBusyError:
            await asyncio.sleep(0.05)
