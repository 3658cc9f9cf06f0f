"""What it takes to write threads to a file and to read them back: time, and memory at its peak.

    python benchmarks/export.py [--messages 10000 100000]

One thread of so many messages lies in an SQLite file. Each line is a process of its own: its peak is what the
operating system says (``ru_maxrss``), less what it was when the storage was open and one page had been read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from diarist import Memory, Message
from diarist.storage import SQLiteStorage, Thread

TEXT = "The trains to Rome leave at nine, at noon and in the evening; track 4 is the one by the river. " * 3
BATCH = 1000


class Letters:
    """Counts quickly: what is measured here is not counting."""

    name = "letters"

    def count(self, text: str) -> int:
        return len(text) // 4


def memory_at(path: Path) -> Memory:
    return Memory(storage=SQLiteStorage(path), token_counter=Letters())


async def fill(path: Path, count: int) -> None:
    async with SQLiteStorage(path) as storage:
        for start in range(0, count, BATCH):
            run = await storage.begin_run(f"run{start}", Thread(id="long", resource_id="ada"))
            rows = [Message.user(f"{number}. {TEXT}", part_tokens=(70,)) for number in range(start, start + BATCH)]
            await storage.append_messages(run, rows, source="input")
            await storage.finish_run(run, "committed")


async def export(folder: Path) -> dict[str, float]:
    async with memory_at(folder / "memory.db") as memory:
        await memory.storage.list_messages("long", limit=500)
        before, started = peak(), time.perf_counter()
        with (folder / "all.jsonl").open("w", encoding="utf-8") as file:
            async for line in memory.threads.export_all():
                file.write(line)
        return {"seconds": time.perf_counter() - started, "mb": peak() - before}


async def bring_in(folder: Path) -> dict[str, float]:
    async with memory_at(folder / "copy.db") as memory:
        await memory.threads.list()
        before, started = peak(), time.perf_counter()
        with (folder / "all.jsonl").open(encoding="utf-8") as file:
            await memory.threads.import_all(file)
        return {"seconds": time.perf_counter() - started, "mb": peak() - before}


async def clone(folder: Path) -> dict[str, float]:
    async with memory_at(folder / "memory.db") as memory:
        await memory.storage.list_messages("long", limit=500)
        before, started = peak(), time.perf_counter()
        await memory.threads.clone("long")
        return {"seconds": time.perf_counter() - started, "mb": peak() - before}


JOBS = {"export": export, "import": bring_in, "clone": clone}


def peak() -> float:
    """Megabytes; Linux counts kilobytes, macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(asyncio.run(JOBS[options.job](options.folder))))
        return
    print(f"{'':10}{'messages':>10}{'seconds':>10}{'a second':>12}{'MB more':>10}")
    for count in options.messages:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(fill(Path(name) / "memory.db", count))
            for job in JOBS:
                done = subprocess.run(
                    [sys.executable, __file__, "--job", job, "--folder", name],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found = json.loads(done.stdout)
                rate = count / found["seconds"]
                print(f"{job:10}{count:>10,}{found['seconds']:>10.1f}{rate:>12,.0f}{found['mb']:>10.1f}", flush=True)


if __name__ == "__main__":
    main()
