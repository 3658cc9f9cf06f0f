"""Full-text search on SQLite: what a query takes among 100,000 messages of one resource, and what the index costs.

    python benchmarks/search.py [--messages 100000] [--rounds 5]

The words are drawn by Zipf's law from 50,000, some 40 to a message; every tenth message is Japanese. Every line with
a ratio was measured in turns with the line it is compared to. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median

from diarist import Message
from diarist.storage import Run, SQLiteStorage, Thread

THREADS, BATCH, TURNS = 50, 1000, 200
START = datetime(2025, 1, 1, tzinfo=UTC)
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]

dice = random.Random(20260302)
WORDS = ["".join(dice.choices(SYLLABLES, k=2 + n % 3)) + (str(n) if n > 2000 else "") for n in range(50_000)]
WEIGHTS = list(accumulate(1 / (n + 1) for n in range(len(WORDS))))
KANJI = [chr(code) for code in range(0x4E00, 0x4E00 + 1500)]


def text(number: int) -> str:
    if number % 10 == 9:
        return "".join(dice.choices(KANJI, k=80))
    return " ".join(dice.choices(WORDS, cum_weights=WEIGHTS, k=40))


def said(number: int) -> Message:
    return Message.user(text(number), created_at=START + timedelta(minutes=number))


async def begin(storage: SQLiteStorage, name: str, number: int) -> Run:
    return await storage.begin_run(f"{name}-{number}", Thread(id=f"{name}-{number % THREADS}", resource_id="ada"))


async def fill(storage: SQLiteStorage, messages: int) -> None:
    for first in range(0, messages, BATCH):
        run = await begin(storage, "old", first // BATCH)
        await storage.append_messages(run, [said(n) for n in range(first, min(first + BATCH, messages))])
        await storage.finish_run(run, "committed")


async def turns(storage: SQLiteStorage, name: str, rows: list[Message]) -> None:
    """Turns as an agent stores them: a run, a question, an answer, the end."""
    for number in range(TURNS):
        run = await begin(storage, name, number)
        await storage.append_messages(run, [rows[2 * number]], source="input")
        await storage.append_messages(run, [rows[2 * number + 1]])
        await storage.finish_run(run, "committed")


async def bulk(storage: SQLiteStorage, name: str, rows: list[Message]) -> None:
    run = await begin(storage, name, 0)
    await storage.append_messages(run, rows)
    await storage.finish_run(run, "committed")


async def then_search(
    work: Callable[..., Awaitable[object]], storage: SQLiteStorage, name: str, rows: list[Message]
) -> None:
    """Do the work, then search, which indexes the new messages."""
    await work(storage, name, rows)
    await storage.search_messages("nowhere", resource_id="ada")


async def timed(work: Callable[..., Awaitable[object]], *args: object) -> float:
    start = time.perf_counter()
    await work(*args)
    return time.perf_counter() - start


# --- what the index costs --------------------------------------------------------------------------------------


async def costs(folder: Path, rounds: int) -> None:
    taken: dict[tuple[str, bool], list[float]] = {}
    paths = {indexed: folder / f"costs-{indexed}.db" for indexed in (True, False)}
    async with SQLiteStorage(paths[True]) as one, SQLiteStorage(paths[False]) as two:
        for number in range(rounds + 1):
            for work, count in ((turns, 2 * TURNS), (bulk, BATCH)):
                rows = [said(number * BATCH + n) for n in range(count)]
                for storage, indexed in ((one, True), (two, False)):
                    job = partial(then_search, work) if indexed else work
                    seconds = await timed(job, storage, f"{work.__name__}-{number}", rows)
                    if number:  # the first round is for caches
                        taken.setdefault((work.__name__, indexed), []).append(seconds)
    print("\n| storing | and a search | storing alone | ratio |\n|---|---|---|---|")
    for job, name, each in (("turns", "a turn of 2 messages, ms", TURNS), ("bulk", "a message among 1,000, ms", BATCH)):
        mine, none = (median(taken[job, indexed]) / each * 1000 for indexed in (True, False))
        print(f"| {name} | {mine:.2f} | {none:.2f} | {mine / none:.2f} |")
    mine, none = (paths[indexed].stat().st_size / 1e6 for indexed in (True, False))
    print(f"| file, MB | {mine:.1f} | {none:.1f} | {mine / none:.2f} |")


# --- what a query takes ----------------------------------------------------------------------------------------


async def queries(folder: Path, messages: int, rounds: int) -> None:
    path = folder / "queries.db"
    async with SQLiteStorage(path) as storage:
        seconds = await timed(fill, storage, messages)
        indexing = await timed(partial(storage.search_messages, "nowhere", resource_id="ada"))
        megabytes = path.stat().st_size / 1e6
        print(
            f"{messages:,} messages made up and stored in {seconds:.0f} s, {megabytes:.0f} MB;"
            f" the first search indexed them in {indexing:.0f} s"
        )
        print("\n| query | messages that have it | first 20, ms | reading all texts, ms | ratio |")
        print("|---|---|---|---|---|")
        for name, query in (
            ("a rare word", WORDS[40_000]),
            ("a common word", WORDS[0]),
            ("two common words", f"{WORDS[0]} {WORDS[1]}"),
            ("a common and a rare word", f"{WORDS[0]} {WORDS[20_000]}"),
            ("two characters of Japanese", KANJI[0] + KANJI[1]),
            ("a word that is nowhere", "nowhere"),
        ):
            search = partial(storage.search_messages, query, resource_id="ada")
            mine = median([await timed(search) for _ in range(rounds + 1)][1:]) * 1000
            number, naive = look(path, query)
            print(f"| {name} | {number:,} | {mine:.1f} | {naive * 1000:.0f} | {mine / (naive * 1000):.3f} |")


def look(path: Path, query: str) -> tuple[int, float]:
    """How many messages have the words, and the seconds that SQLite takes to look for them in all texts."""
    words = query.split()
    connection = sqlite3.connect(path)
    count = "SELECT count(*) FROM diarist_search_index WHERE diarist_search_index MATCH ?"
    (number,) = connection.execute(count, [" AND ".join(f'"{word}"' for word in words)]).fetchone()
    where = " AND ".join("parts LIKE ?" for _ in words)
    start = time.perf_counter()
    connection.execute(f"SELECT count(*) FROM diarist_messages WHERE {where}", [f"%{w}%" for w in words]).fetchone()
    seconds = time.perf_counter() - start
    connection.close()
    return number, seconds


async def main(messages: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await queries(Path(folder), messages, rounds)
        await costs(Path(folder), rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    asyncio.run(main(options.messages, options.rounds))
