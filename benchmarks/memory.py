"""What observational memory costs: its own CPU, the turns that wait for it, the tokens it asks for.

    python benchmarks/memory.py [--only cpu|loop|threads|waiting|tokens] [--quick]

Actor, Observer and Reflector are fakes in this process, and nothing goes over a network. CPU is user and system time
of the whole process (``process_time``), the threads of SQLite included, the fakes' own thinking not. Agents with and
without memory take turns, turn by turn, so that each finds the processor's caches full of the others' data; "in a row"
one agent has all its turns before the next. What memory itself costs is the difference to the first line. The ratios
are what may be compared between machines. All thresholds are the defaults. Waiting and tokens are measured in virtual
time, where a model takes its latency and all else takes none, so they are the same on every machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from _conversation import QUESTION, Actor, Keepers, cpu_time, observational, question, text
from _memory_tokens import show_tokens
from _memory_waiting import show_waiting
from _virtual_time import run_in_virtual_time

from diarist import Agent, Memory, Message, Tool
from diarist.storage.sqlite import SQLiteStorage

CYCLE = 48
"""Turns of 500 tokens between two full windows: from 6,000 tokens to 30,000."""
SAVED_AT_ONCE = 100


@dataclass
class Contestant:
    """An agent, its memory if it has one, and the CPU seconds of its turns."""

    name: str
    agent: Agent
    memory: Memory | None
    taken: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    async def turn(self, number: int, *, thread: str = "t") -> float:
        began = cpu_time()
        await self.agent.generate(question(number), thread=thread if self.memory else None)
        if self.memory is not None:
            await self.memory.settled()
        return cpu_time() - began

    async def measured(self, column: str | None, number: int) -> None:
        taken = await self.turn(number)
        if column is not None:
            self.taken.setdefault(column, []).append(taken)

    async def fill(self, first: int, last: int, thread: str = "t") -> None:
        """Bring the thread to turn ``last``, faster than by talking."""
        if self.memory is None:
            return
        for start in range(first, last, SAVED_AT_ONCE):
            said = [Message.user(question(n)) for n in range(start, min(start + SAVED_AT_ONCE, last))]
            answers = [Message.assistant(text(380, -1 - n)) for n in range(len(said))]
            both = [message for pair in zip(said, answers, strict=True) for message in pair]
            await self.memory.messages.save(both, thread=thread)
        if self.memory.config is not None:
            await self.memory.diary.observe(thread=thread)


def contestants(folder: Path, *, steps: int = 0, tools: list[Tool] | None = None) -> list[Contestant]:
    def agent(memory: Memory | None) -> Agent:
        return Agent(
            model=Actor(steps=steps), instructions="Be brief.", memory=memory, tools=tools or [], max_steps=200
        )

    history = Memory(storage=SQLiteStorage(folder / "history.db"))
    diary = observational(SQLiteStorage(folder / "diary.db"), Keepers())
    return [
        Contestant("no memory", agent(None), None),
        Contestant("message history", agent(history), history),
        Contestant("observational memory", agent(diary), diary),
    ]


def table(found: list[Contestant], columns: list[str]) -> None:
    print(f"{'':24}" + "".join(f"{column:>18}" for column in columns))
    for one in found:
        cells = "".join(f"{median(one.taken[c]) * 1e3:>9.2f}{mean(one.taken[c]) * 1e3:>9.2f}" for c in columns)
        print(f"{one.name:24}{cells}")
    without, with_diary = found[0].taken, found[-1].taken
    own = "".join(f"{(median(with_diary[c]) - median(without[c])) * 1e3:>9.2f}{'':9}" for c in columns)
    print(f"{'of that memory itself':24}{own}")


async def cpu(folder: Path, quick: bool) -> None:
    """CPU of a turn early and late in a thread; the whole cycle of a window at turns 300 and 10,000."""
    found = contestants(folder)
    last = 1_000 if quick else 10_000
    spans = {"turn 10": (6, 15), "turn 300": (276, 276 + CYCLE), f"turn {last:,}": (last - 24, last - 24 + CYCLE)}
    done = 1
    for name, (start, end) in spans.items():
        for one in found:
            await one.fill(done, start) if start > 100 else None
        for number in range(start if start > 100 else done, end):
            gc.collect()
            for one in found:
                await one.measured(name if number >= start else None, number)
        done = end
        if name == "turn 300":
            done += CYCLE
            for one in found:
                for number in range(end, done):
                    await one.measured("300, in a row", number)
    columns = ["turn 10", "turn 300", "300, in a row", list(spans)[-1]]
    print("CPU of a turn, ms: median and mean (with its share of the Observer's and Reflector's work)")
    table(found, columns)
    diary = found[-1].taken
    print(f"the dearest quarter of the turns, without an Observer's call: {_upper(diary[columns[-1]]):.2f} ms\n")
    for one in found:
        await one.agent.close()
        if one.memory:
            await one.memory.close()


def _upper(taken: list[float]) -> float:
    return sorted(taken)[len(taken) * 3 // 4] * 1e3


async def loop(folder: Path, quick: bool) -> None:
    """A run of 100 steps whose tool returns 2,000 tokens each time."""
    found = contestants(folder, steps=100, tools=[Tool(name="look", description="Look.", function=_look)])
    for number in range(1 if quick else 3):
        for one in found:
            gc.collect()
            one.taken.setdefault("a step", []).append(await one.turn(number, thread=f"loop {number}") / 101)
    print("CPU of a step of 101, with tool results of 2,000 tokens, ms: median and mean")
    table(found, ["a step"])
    print()
    for one in found:
        if one.memory:
            await one.memory.close()


def _look(at: int) -> str:
    return text(2_000, at)


async def threads(folder: Path, quick: bool) -> None:
    """Turns of 200 threads at once, which have said 10,000 tokens each."""
    count, turns = (40, 2) if quick else (200, 5)
    print(f"{count} threads at once, {turns} turns each: turns in a second, and CPU of a turn in ms")
    costs: list[float] = []
    for one in contestants(folder):
        names = [f"thread {number}" for number in range(count)]
        if one.memory is not None:
            rows = [
                message for n in range(20) for message in (Message.user(question(n)), Message.assistant(text(380, n)))
            ]
            for name in names:
                await one.memory.messages.save([Message(role=m.role, parts=m.parts) for m in rows], thread=name)
        gc.collect()
        began, clock = cpu_time(), time.perf_counter()
        await asyncio.gather(*(_talk(one, name, turns) for name in names))
        if one.memory is not None:
            await one.memory.settled()
        used, passed = cpu_time() - began, time.perf_counter() - clock
        costs.append(used / (count * turns) * 1e3)
        print(f"{one.name:24}{count * turns / passed:>9,.0f}{costs[-1]:>9.2f}")
        if one.memory is not None:
            await one.memory.close()
    print(f"{'of that memory itself':24}{'':9}{costs[-1] - costs[0]:>9.2f}\n")


async def _talk(one: Contestant, thread: str, turns: int) -> None:
    for number in range(turns):
        await one.agent.generate(question(number), thread=thread if one.memory else None)


PARTS: dict[str, Callable[[Path, bool], Coroutine[None, None, None]]] = {
    "cpu": cpu,
    "loop": loop,
    "threads": threads,
    "waiting": show_waiting,
    "tokens": show_tokens,
}
VIRTUAL = {"waiting", "tokens"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="shorter threads, fewer rounds")
    given = parser.parse_args()
    text(QUESTION, 0)
    for name, part in PARTS.items():
        if given.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                run = run_in_virtual_time if name in VIRTUAL else asyncio.run
                run(part(Path(folder), given.quick))


if __name__ == "__main__":
    main()
