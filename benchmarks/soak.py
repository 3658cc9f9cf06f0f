"""Memory growth of a process over many turns.

    python benchmarks/soak.py [--only SHAPE] [--turns 3000] [--why] [--against CHECKOUT]

Each shape runs in a process of its own, with SQLite files in a temporary folder; actor, Observer and Reflector are
fakes in the same process that keep no requests. *Held* is the RSS at the end, after a garbage collection and after
the C library has returned freed memory (``malloc_trim``, Linux with glibc). The slope is that of
a straight line through the second half of the run. ``--why`` prints allocations of that half that are still held
(``tracemalloc``; takes several times as long, and its RSS says nothing). ``--against`` prints another row for each
shape, from another checkout of diarist, which must have the same interfaces.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import linear_regression

from _conversation import Actor, Keepers, NoteTaker, observational, question, text

from diarist import Agent, Memory, Tool
from diarist.storage import InMemoryStorage, SQLiteStorage

SAMPLES = 20
TURNS_OF_A_THREAD = 10

Turn = Callable[[int], Awaitable[object]]


def keepers() -> Keepers:
    """Models for a diary that keep no requests."""
    return Keepers(NoteTaker("observer", "transcript", share=0.2), NoteTaker("reflector", "old-notes", share=0.4))


def agent(memory: Memory | None, **options: object) -> Agent:
    return Agent(model=Actor(), instructions="Be brief.", memory=memory, **options)  # pyright: ignore[reportArgumentType]


def in_one_thread(agent: Agent) -> Turn:
    return lambda turn: agent.generate(question(turn), thread="t")


def in_many_threads(agent: Agent) -> Turn:
    """Ten turns in each thread, fifty threads at a time."""

    def talk(turn: int) -> Awaitable[object]:
        block, place = divmod(turn, 50 * TURNS_OF_A_THREAD)
        return agent.generate(question(turn), thread=f"t{block * 50 + place % 50}", resource=f"r{place % 50}")

    return talk


def without_memory(folder: Path) -> tuple[Turn, Memory | None]:
    bare = agent(None)
    return lambda turn: bare.generate(question(turn)), None


def history(folder: Path) -> tuple[Turn, Memory | None]:
    memory = Memory(storage=SQLiteStorage(folder / "memory.db"))
    return in_one_thread(agent(memory)), memory


def history_of_many(folder: Path) -> tuple[Turn, Memory | None]:
    memory = Memory(storage=SQLiteStorage(folder / "memory.db"))
    return in_many_threads(agent(memory)), memory


def diary(folder: Path) -> tuple[Turn, Memory | None]:
    memory = observational(SQLiteStorage(folder / "memory.db"), keepers())
    return in_one_thread(agent(memory)), memory


def diary_of_many(folder: Path) -> tuple[Turn, Memory | None]:
    memory = observational(SQLiteStorage(folder / "memory.db"), keepers())
    return in_many_threads(agent(memory)), memory


def diary_in_steps(folder: Path) -> tuple[Turn, Memory | None]:
    """Four tool calls before each answer."""
    memory = observational(SQLiteStorage(folder / "memory.db"), keepers())
    look = Tool(name="look", description="Look.", function=_look)
    worker = Agent(model=Actor(steps=4), instructions="Be brief.", memory=memory, tools=[look])
    return in_one_thread(worker), memory


def diary_of_new_agents(folder: Path) -> tuple[Turn, Memory | None]:
    """A new agent for each request, as in a web server; memory and storage are shared."""
    memory = observational(SQLiteStorage(folder / "memory.db"), keepers())
    return lambda turn: agent(memory).generate(question(turn), thread=f"t{turn % 50}"), memory


def diary_in_memory(folder: Path) -> tuple[Turn, Memory | None]:
    """The storage is in this process, so the slope includes the conversation itself."""
    memory = observational(InMemoryStorage(), keepers())
    return in_one_thread(agent(memory)), memory


def _look(at: int) -> str:
    return text(300, at)


SHAPES: dict[str, Callable[[Path], tuple[Turn, Memory | None]]] = {
    "no memory": without_memory,
    "history, one thread": history,
    "history, many threads": history_of_many,
    "diary, one thread": diary,
    "diary, many threads": diary_of_many,
    "diary, tool steps": diary_in_steps,
    "diary, an agent a turn": diary_of_new_agents,
    "diary, in memory": diary_in_memory,
}


async def soak(shape: str, turns: int, why: bool) -> None:
    """Print RSS at some points of the run, and the slope."""
    with tempfile.TemporaryDirectory() as folder:
        talk, memory = SHAPES[shape](Path(folder))
        places, sizes, before = list[int](), list[float](), None
        for turn in range(turns):
            await talk(turn)
            if (turn + 1) % max(1, turns // SAMPLES) == 0:
                if memory is not None:
                    await memory.settled()
                places.append(turn + 1)
                sizes.append(rss())
            if why and turn == turns // 2:
                tracemalloc.start(8)
                before = tracemalloc.take_snapshot()
        half = len(places) // 2
        slope, _ = linear_regression(places[half:], sizes[half:])
        shown = [sizes[0], sizes[half // 2], sizes[half], sizes[-1]]
        shown.append(held())
        print(f"{shape:26}" + "".join(f"{size / 1e6:>10.1f}" for size in shown) + f"{slope / 1e3:>11.2f}", flush=True)
        if before is not None:
            gc.collect()
            for line in tracemalloc.take_snapshot().compare_to(before, "traceback")[:12]:
                print(f"  {line.size_diff / 1e3:>+9.1f} KB {line.count_diff:>+7}")
                print("\n".join(f"      {each.strip()}" for each in line.traceback.format(4)))
        if memory is not None:
            await memory.close()


def held() -> float:
    """RSS after a garbage collection and after freed memory went back to the system."""
    gc.collect()
    if sys.platform == "linux" and (give_back := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        give_back(0)
    return rss()


def rss() -> float:
    """Bytes of this process in memory."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True, text=True)
    return int(said.stdout) * 1024.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SHAPES)
    parser.add_argument("--turns", type=int, default=3_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the turns")
    parser.add_argument("--why", action="store_true", help="print the allocations that grew")
    parser.add_argument("--against", metavar="CHECKOUT")
    given = parser.parse_args()
    turns = max(SAMPLES, given.turns // 10 if given.quick else given.turns)
    if given.only:
        asyncio.run(soak(given.only, turns, given.why))
        return
    places = "".join(f"{f'at {turns * share // 20:,}':>10}" for share in (1, 6, 11, 20))
    print(f"{'RSS, MB':26}{places}{'held':>10}{'KB a turn':>11}", flush=True)
    sources = [
        Path(__file__).parent.parent / "src",
        *([Path(given.against).resolve() / "src"] if given.against else []),
    ]
    for shape in SHAPES:
        command = [sys.executable, __file__, "--only", shape, "--turns", str(turns), *(["--why"] * given.why)]
        for source in sources:
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(source)})


if __name__ == "__main__":
    main()
