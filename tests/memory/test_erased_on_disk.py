"""What is forgotten has left the files when the call returns, whatever becomes of the process then."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor, tool
from diarist.databases import sqlite as sqlite_database
from diarist.exceptions import NotFoundError
from diarist.processors import CostGuard, StorageLedger
from diarist.storage import SQLiteStorage, Storage
from diarist.storage.libsql import LibSQLStorage
from diarist.storage.mongodb import MongoDBStorage
from diarist.storage.postgres import PostgresStorage
from diarist.storage.records import Resource, WorkingMemory
from diarist.testing import ScriptedModel, ToolCall
from diarist.vectors import SQLiteVectorStore
from tests.loopback.libsql_server import LibSQLServer
from tests.memory.diary_kit import keeping_diary, word
from tests.memory.diary_kit import told as diary_of
from tests.memory.semantic.kit import TopicEmbedder, memory_with
from tests.storage.backends import mongodb_url

__all__ = ["mongodb_url"]

SECRETS = ("zanzibar", "quokka", "xylophone")
"""Of an erased message, of an answer to it, and of a thread's title."""

DIES = """
import asyncio, os, signal, sys
from diarist import Agent, Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.memory import WorkingMemoryConfig
from diarist.models.embedders import Embedder
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel

class Lengths(Embedder):
    name, dimension = "lengths", 2
    async def embed(self, texts, *, purpose="document"):
        return [[1.0, float(len(text))] for text in texts]

async def main(path, erase):
    memory = Memory(
        storage=SQLiteStorage(path),
        observational_memory=ObservationalMemoryConfig(
            model="extractive", observation=ObservationConfig(message_tokens=200, buffer_tokens=50)
        ),
        working_memory=WorkingMemoryConfig(),
        semantic_recall=True,
        embedder=Lengths(),
    )
    model = ScriptedModel(lambda request: "Noted in the quokka." if "card" in request.text else "Oh.")
    agent = Agent(model=model, memory=memory)
    for number in range(6):
        await agent.generate(f"My card number {number} is zanzibar-{number}. " * 20, thread="t", resource="ada")
        await agent.generate(f"It rains in Rome, day {number}.", thread="other", resource="bob")
    await memory.settled()
    await memory.diary.observe(thread="t")
    await memory.diary.reflect(thread="t", guidance="keep all")
    await memory.threads.update("t", title="The xylophone")
    await memory.working.update("Her card is zanzibar.", resource="ada")
    receipt = await eval(erase, {"memory": memory})
    print(*receipt.left_on_disk, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


def killed(*arguments: object) -> str:
    """Run it to its end by ``kill -9``; returns what it printed."""
    done = subprocess.run([sys.executable, "-c", DIES, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip()


def files_with(words: tuple[str, ...], folder: Path) -> dict[str, list[str]]:
    found = {file.name: file.read_bytes() for file in folder.iterdir()}
    return {name: said for name, data in found.items() if (said := [word for word in words if word.encode() in data])}


@pytest.mark.slow
@pytest.mark.parametrize("erase", ["memory.forget(resource='ada')", "memory.threads.delete('t')"])
def test_nothing_is_left_when_the_process_is_killed_right_after(tmp_path: Path, erase: str) -> None:
    assert killed(tmp_path / "memory.db", erase) == ""
    words = SECRETS if "resource" in erase else SECRETS[1:]  # the thread's resource keeps its working memory
    assert files_with(words, tmp_path) == {}
    assert files_with(("Rome",), tmp_path)  # it looks into the right files


async def test_the_statements_of_the_docs_remove_the_id_of_a_resource(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/howto/forget-messages.md"
    statements = page.read_text().split("```sql\n")[1].split("```")[0].replace("ada", "zanzibar")
    storage = SQLiteStorage(tmp_path / "memory.db")
    async with keeping_diary(storage, scope="resource") as memory:
        for owner in ("zanzibar", "bob"):
            guard = CostGuard(1, scope="resource", ledger=StorageLedger(storage), price=lambda model, usage: 0.1)
            agent = Agent(model=ScriptedModel("Yes."), memory=memory, input_processors=[guard])
            await agent.generate("Hello.", thread=f"of-{owner}", resource=owner)
            await memory.diary.observe(thread=f"of-{owner}")
            await storage.save_working_memory(WorkingMemory(key=f"resource:{owner}", text="Likes tea."))
            await storage.save_resource(Resource(id=owner, metadata={"seat": "12A"}))
        await memory.forget(resource="zanzibar")
        assert files_with(("zanzibar",), tmp_path)
        with closing(sqlite3.connect(tmp_path / "memory.db")) as connection:
            connection.executescript(statements)
        assert await storage.purge() == ()
        assert files_with(("zanzibar",), tmp_path) == {}
        assert (await storage.get_working_memory("resource:bob")).text == "Likes tea."
        assert await memory.diary.events(resource="bob")
        with pytest.raises(NotFoundError, match="there is no resource 'zanzibar'"):
            await memory.diary.get(resource="zanzibar")


def open_files_with(word: str, folder: Path) -> list[str]:
    """The files with a word, while they are in use."""
    return list(files_with((word,), folder))


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Memory]:
    async with Memory(storage=SQLiteStorage(tmp_path / "memory.db")) as memory:
        yield memory


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that has the file open."""
    connection = sqlite3.connect(tmp_path / "memory.db", isolation_level=None)
    yield connection
    connection.close()


def look(reader: sqlite3.Connection) -> None:
    """Begin to read the file as it is."""
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM diarist_messages").fetchone()[0] > 0


async def told(memory: Memory, *texts: str) -> None:
    await memory.messages.save(
        [Message.user(text, id=f"m{n}") for n, text in enumerate(texts)], thread="t", resource="ada"
    )


ERASURES: dict[str, Callable[[Memory], Awaitable[object]]] = {
    "a message": lambda memory: memory.forget(message_ids=["m0"], thread="t"),
    "a thread": lambda memory: memory.forget(thread="t"),
    "a resource": lambda memory: memory.forget(resource="ada"),
    "the old words of a message": lambda memory: memory.messages.update("m0", thread="t", text="something else"),
}


@pytest.mark.parametrize("erase", ERASURES.values(), ids=ERASURES)
async def test_every_erasure(memory: Memory, tmp_path: Path, erase: Callable[[Memory], Awaitable[object]]) -> None:
    await told(memory, "My card is zanzibar.", "It rains.")
    await erase(memory)
    assert open_files_with("zanzibar", tmp_path) == []


@pytest.mark.parametrize("seed", [13, 14, 27])
async def test_copies_that_a_page_keeps_of_rows_that_were_moved(memory: Memory, tmp_path: Path, seed: int) -> None:
    """SQLite overwrites a row where it lies, and not where it lay."""
    chance = random.Random(seed)
    await told(memory, *(f"s{n:04d}x {'talk ' * chance.choice([10, 60, 150, 300])}" for n in range(60)))
    left, gone = list(range(60)), list[int]()
    for _ in range(5):
        some = chance.sample(left, 8)
        left, gone = [n for n in left if n not in some], [*gone, *some]
        await memory.forget(message_ids=[f"m{n}" for n in some], thread="t")
        assert [n for n in gone if open_files_with(f"s{n:04d}x", tmp_path)] == []


async def test_vectors_in_a_file_of_their_own(tmp_path: Path) -> None:
    vectors = SQLiteVectorStore(tmp_path / "vectors.db")
    async with memory_with(TopicEmbedder(), storage=SQLiteStorage(tmp_path / "memory.db"), vector=vectors) as memory:
        await memory.messages.save([Message.user("Rome and pizza")], thread="t", resource="ada-lovelace")
        await memory.settled()
        assert "vectors.db-wal" in open_files_with("ada-lovelace", tmp_path)
        await memory.forget(resource="ada-lovelace")
        assert open_files_with("ada-lovelace", tmp_path) == []


async def test_the_receipt_names_the_reader_that_keeps_pages_on_disk(
    memory: Memory, tmp_path: Path, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_database, "_FOR_READERS", 0.0)
    await told(memory, "My card is zanzibar.", "It rains.")
    look(reader)
    receipt = await memory.forget(message_ids=["m0"], thread="t")
    assert receipt.message_ids == ("m0",)
    assert len(receipt.left_on_disk) == 1
    assert "another program reads an older state" in receipt.left_on_disk[0]
    assert "memory.db-wal still holds deleted data" in receipt.left_on_disk[0]
    assert open_files_with("zanzibar", tmp_path) == ["memory.db-wal"]
    reader.execute("COMMIT")
    assert (await memory.forget(message_ids=["m0"], thread="t")).left_on_disk == ()
    assert open_files_with("zanzibar", tmp_path) == []


async def test_a_reader_that_ends_is_waited_for(
    memory: Memory, tmp_path: Path, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_database, "_FOR_READERS", 600.0)
    await told(memory, "My card is zanzibar.")
    look(reader)
    forgetting = asyncio.create_task(memory.forget(thread="t"))
    while await memory.storage.get_thread("t") is not None:
        pass
    reader.execute("COMMIT")
    assert (await forgetting).left_on_disk == ()
    assert open_files_with("zanzibar", tmp_path) == []


async def test_what_a_reader_kept_goes_with_later_writes(
    memory: Memory, tmp_path: Path, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_database, "_FOR_READERS", 0.0)
    await told(memory, "My card is zanzibar.", "It rains.")
    look(reader)
    await memory.forget(message_ids=["m0"], thread="t")
    reader.execute("COMMIT")
    for number in range(20):
        await memory.messages.save(f"It is day {number}.", thread="t", resource="ada")
    await memory.close()  # which is done when its threads are
    assert open_files_with("zanzibar", tmp_path) == []


async def test_a_file_that_is_too_large_to_be_rewritten(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_database, "REWRITTEN_UP_TO", 10_000)
    await told(memory, "My card is zanzibar.", "It rains.")
    receipt = await memory.forget(message_ids=["m0"], thread="t")
    assert [line for line in receipt.left_on_disk if "unused parts of its pages" in line] == [*receipt.left_on_disk]
    assert "run VACUUM on it" in receipt.left_on_disk[0]
    assert not (tmp_path / "memory.db-wal").read_bytes()


async def test_a_file_with_an_index_that_only_its_own_program_can_build(memory: Memory, tmp_path: Path) -> None:
    await told(memory, "My card is zanzibar.", "It rains.")
    with closing(sqlite3.connect(tmp_path / "memory.db")) as theirs:
        theirs.create_function("sound", 1, str, deterministic=True)
        theirs.executescript("CREATE TABLE names (name); CREATE INDEX by_sound ON names (sound(name))")
    receipt = await memory.forget(message_ids=["m0"], thread="t")
    assert "no such function: sound" in receipt.left_on_disk[0]
    assert [message.text for message in await memory.messages.list(thread="t")] == ["It rains."]
    assert not (tmp_path / "memory.db-wal").read_bytes()


async def test_a_blocked_run_leaves_nothing_in_the_log(
    memory: Memory, tmp_path: Path, reader: sqlite3.Connection
) -> None:
    """Once the background has come to it. A program that has the file open keeps it from being tidied up at the end."""

    class Blocks(Processor[Any]):
        def process_llm_request(self, args: Any) -> None:
            args.abort("no cards")

    await told(memory, "It rains.")
    assert reader.execute("SELECT count(*) FROM diarist_messages").fetchone() == (1,)
    agent = Agent(model=ScriptedModel("ok"), memory=memory, processors=[Blocks()])
    result = await agent.generate("My card is zanzibar.", thread="t", resource="ada")
    assert result.tripwire is not None
    await memory.close()
    assert open_files_with("zanzibar", tmp_path) == []
    assert (tmp_path / "memory.db-wal").exists()


async def test_what_a_live_run_had_loaded_goes_before_the_next_one(memory: Memory, tmp_path: Path) -> None:
    """A run that was live beside ``forget`` may still write down what it has read before."""
    diary = keeping_diary(memory.storage)
    await diary_of(diary, [1, 2])

    @tool
    async def forget_it() -> str:
        """Forget the message that the current task was taken from."""
        await diary.forget(message_ids=["m2"], thread="t")
        return "done"

    model = ScriptedModel(ToolCall("forget_it"), "ok", "ok")
    agent = Agent(model=model, tools=[forget_it], memory=diary)
    await agent.generate("forget it", thread="t", resource="ada")
    assert open_files_with(word(2), tmp_path) != []
    await agent.generate("and now?", thread="t", resource="ada")
    await diary.settled()
    assert open_files_with(word(2), tmp_path) == []


@pytest.fixture
def libsql_url(tmp_path: Path) -> Iterator[str]:
    with LibSQLServer(tmp_path / "server.db") as server:
        yield server.url


SERVERS = {
    "postgres": (PostgresStorage, "until it vacuums"),
    "mongodb": (MongoDBStorage, "files and oplog"),
    "libsql": (LibSQLStorage, "secure_delete"),
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> tuple[Storage, str]:
    kind, says = SERVERS[request.param]
    return kind(request.getfixturevalue(f"{request.param}_url")), says


async def test_the_receipt_says_what_a_server_keeps(server: tuple[Storage, str]) -> None:
    storage, says = server
    async with Memory(storage=storage) as memory:
        await told(memory, "My card is zanzibar.", "It rains.")
        receipt = await memory.forget(message_ids=["m0"], thread="t")
        assert [says in line for line in receipt.left_on_disk] == [True]
        assert receipt.left_on_disk[0].startswith(memory.storage.location)
