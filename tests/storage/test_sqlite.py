"""SQLite keeps the contract, also between processes, and says clearly what is wrong with a file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from diarist import Memory
from diarist.exceptions import ConfigError, SchemaError, StorageError
from diarist.messages import Message, TextPart
from diarist.storage import ObservationLog, SQLiteStorage, Storage, Thread
from diarist.storage.codec import encode_log
from diarist.storage.records import Observation, Source
from diarist.testing import StorageConformance
from tests.processes import run_python

TRIP = Thread(id="trip", resource_id="ada")


class TestSQLiteStorage(StorageConformance):
    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Storage]:
        async with SQLiteStorage(tmp_path / "memory.db") as storage:
            yield storage

    @pytest.fixture
    async def second_storage(self, storage: Storage) -> AsyncIterator[Storage]:
        async with SQLiteStorage(storage.location) as second:
            yield second


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that holds the write lock of a database that diarist made."""
    asyncio.run(_create(path))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


async def _create(path: Path) -> None:
    async with SQLiteStorage(path) as storage:
        await storage.create_thread(TRIP)


async def _thread_ids(path: Path) -> set[str]:
    async with SQLiteStorage(path) as storage:
        return {thread.id for thread in (await storage.list_threads()).items}


async def test_a_thread_can_be_deleted_after_another_program_has_rewritten_the_file(path: Path) -> None:
    async with SQLiteStorage(path) as storage, SQLiteStorage(path) as other:
        for id in ("trip", "work"):
            await storage.create_thread(Thread(id=id, resource_id="ada"))
            await other.purge()
        assert await storage.delete_thread("trip")


async def test_default_file_lies_in_the_working_directory_of_construction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = SQLiteStorage()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with storage:
        assert storage.location == str(tmp_path / "memory.db")
    assert (tmp_path / "memory.db").is_file()


@pytest.mark.parametrize("path", [":memory:", "", "file::memory:?cache=shared"])
def test_memory_is_refused_with_a_hint(path: str) -> None:
    with pytest.raises(ConfigError, match="InMemoryStorage"):
        SQLiteStorage(path)


@pytest.mark.parametrize(
    ("path", "named"),
    [("sqlite:///memory.db", "'sqlite://…'"), ("postgresql://ada:secret@db/app", "'postgresql://…'"), (None, "None")],
)
def test_what_is_no_path_is_refused(path: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=f"such as 'memory.db', not {named};"):
        SQLiteStorage(path)


async def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot open .*; choose another path"):
        await SQLiteStorage(tmp_path / ("x" * 300)).open()
    with pytest.raises(ConfigError, match="needs the path of a file"):
        SQLiteStorage(tmp_path / "a\0b")


@pytest.mark.parametrize("wrong", [-1, "30", None, float("inf")])
def test_an_impossible_busy_timeout_is_refused(path: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="busy_timeout must be a number of seconds from 0 on, not "):
        SQLiteStorage(path, busy_timeout=wrong)


def test_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "memory.db"
    with pytest.raises(StorageError, match=r"folder .*new does not exist; create it"):
        asyncio.run(_create(path))
    path.parent.mkdir()
    asyncio.run(_create(path))


async def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"is a folder; name a file in it, such as .*memory\.db"):
        await SQLiteStorage(tmp_path).get_thread("trip")


def test_file_that_is_no_database(path: Path) -> None:
    path.write_text("these are my notes, and they are longer than a header of SQLite " * 20)
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"memory\.db: file is not a database; .*move it away"):
        asyncio.run(_create(path))
    assert path.read_bytes() == before


def test_storage_recovers_once_the_cause_is_gone(path: Path) -> None:
    path.write_text("not a database " * 100)
    storage = SQLiteStorage(path)
    with pytest.raises(StorageError):
        asyncio.run(storage.create_thread(TRIP))
    path.unlink()
    asyncio.run(storage.create_thread(TRIP))
    asyncio.run(storage.close())


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_nothing_is_written_to_a_file_that_is_no_longer_there(path: Path, how: str) -> None:
    storage = SQLiteStorage(path)
    asyncio.run(storage.create_thread(TRIP))
    away = path.rename(path.with_name("away.db"))
    if how == "replaced":
        path.touch()
    with pytest.raises(StorageError, match=r"memory\.db was moved, deleted or replaced.*start the program again"):
        asyncio.run(storage.update_thread("trip", title="lost"))
    away.rename(path)
    assert asyncio.run(storage.update_thread("trip", title="stored")).title == "stored"
    path.unlink()
    asyncio.run(storage.close())
    assert asyncio.run(storage.get_thread("trip")) is None
    asyncio.run(storage.close())


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    storage = SQLiteStorage(folder / "memory.db")
    asyncio.run(storage.create_thread(TRIP))
    away = folder.rename(tmp_path / "away")
    folder.touch()
    with pytest.raises(StorageError, match=r"memory\.db was moved, deleted or replaced"):
        asyncio.run(storage.update_thread("trip", title="lost"))
    folder.unlink()
    away.rename(folder)
    assert asyncio.run(storage.update_thread("trip", title="stored")).title == "stored"
    asyncio.run(storage.close())


READ_ONLY = """
import asyncio, os, sys
from diarist.exceptions import StorageError
from diarist.storage import SQLiteStorage, Thread

folder, folder_mode = sys.argv[1], int(sys.argv[2], 8)
storage = SQLiteStorage(os.path.join(folder, "memory.db"))

async def write(id):
    async with storage:
        await storage.create_thread(Thread(id=id, resource_id="ada"))

asyncio.run(write("one"))
os.chmod(storage.location, 0o444)
os.chmod(folder, folder_mode)
if os.getuid() == 0:
    os.setuid(65534)  # modes do not bind root
try:
    asyncio.run(write("two"))
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize("folder_mode", ["555", "777"])
def test_read_only_file(folder_mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        said = run_python(READ_ONLY, folder, folder_mode)
        assert f"{folder}/memory.db" in said
        assert f"make the file and the folder {folder} writable" in said or "readable and writable" in said


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from diarist.exceptions import StorageError
from diarist.storage import SQLiteStorage, Thread

async def create(id):
    await storage.create_thread(Thread(id=id, resource_id="ada"))

async def main():
    await create("one")
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{storage.location}-wal").stat().st_size, -1))
    try:
        await create("two")
    except StorageError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    await create("two")
    await storage.close()

storage = SQLiteStorage(sys.argv[1])
asyncio.run(main())
"""


def test_a_limit_of_the_file_system_is_named_and_may_be_lifted(path: Path) -> None:
    assert "memory.db: disk I/O error; check the disk and its limits" in run_python(LIMITED, path)


async def test_readers_do_not_wait_for_a_writer(path: Path, writer: sqlite3.Connection) -> None:
    writer.execute("UPDATE diarist_threads SET title = 'uncommitted'")
    async with SQLiteStorage(path, busy_timeout=0) as storage:
        found = await storage.get_thread("trip")
        assert found is not None
        assert found.title == ""


async def test_a_writer_waits_for_another(path: Path, writer: sqlite3.Connection) -> None:
    async with SQLiteStorage(path) as storage:
        job = asyncio.create_task(storage.update_thread("trip", title="new"))
        await storage.get_thread("trip")
        assert not job.done()
        writer.execute("COMMIT")
        assert (await job).title == "new"


async def test_a_writer_gives_up_after_busy_timeout(path: Path, writer: sqlite3.Connection) -> None:
    async with SQLiteStorage(path, busy_timeout=0.01) as storage:
        with pytest.raises(StorageError, match=r"cannot update thread in .*memory\.db.*busy_timeout"):
            await storage.update_thread("trip", title="new")
        writer.execute("ROLLBACK")
        assert (await storage.update_thread("trip", title="new")).title == "new"


async def test_a_write_that_was_cancelled_while_it_waited_never_happens(path: Path, writer: sqlite3.Connection) -> None:
    async with SQLiteStorage(path) as storage:
        job = asyncio.create_task(storage.update_thread("trip", title="unwanted"))
        await storage.get_thread("trip")
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        writer.execute("COMMIT")
        assert (await storage.update_thread("trip", metadata={"a": 1})).title == ""


async def test_newer_schema_is_refused(path: Path) -> None:
    await _create(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE diarist_schema SET version = 99")
    connection.close()
    with pytest.raises(SchemaError, match=r"version 99 .* supports version \d"):
        await SQLiteStorage(path).open()


async def test_an_application_may_keep_its_own_tables_in_the_file(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE messages (id TEXT)")
        connection.execute("PRAGMA user_version = 7")
    await _create(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (7,)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    connection.close()


USE = """
import asyncio, os, sys
from diarist.storage import SQLiteStorage, Thread

storage = SQLiteStorage(sys.argv[1])

def create(id):
    asyncio.run(storage.create_thread(Thread(id=id, resource_id="ada")))
"""


def test_an_unclosed_storage_is_cleaned_up_at_exit(path: Path) -> None:
    run_python(f"{USE}\ncreate('a')\ncreate('b')", path)
    assert [file.name for file in path.parent.iterdir()] == ["memory.db"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_child_of_a_fork_opens_connections_of_its_own(path: Path) -> None:
    fork = "create('parent')\nif os.fork(): os.wait(); create('after')\nelse: create('child'); os._exit(0)"
    run_python(f"import warnings; warnings.simplefilter('ignore')  # newer versions warn of fork\n{USE}\n{fork}", path)
    assert asyncio.run(_thread_ids(path)) == {"parent", "child", "after"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_what_a_forked_child_writes_outlives_the_parent(path: Path) -> None:
    fork = """
import warnings; warnings.simplefilter("ignore")  # newer versions warn of fork
create("parent")
has_written, has_closed = os.pipe(), os.pipe()
if os.fork():
    os.close(has_written[1])  # so that reading ends if the child fails
    os.read(has_written[0], 1)
    asyncio.run(storage.close())
    os.write(has_closed[1], b".")
    os.wait()
else:
    create("child")
    os.write(has_written[1], b".")
    os.read(has_closed[0], 1)
    create("late")
    os._exit(0)
"""
    run_python(f"{USE}\n{fork}", path)
    assert asyncio.run(_thread_ids(path)) == {"parent", "child", "late"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_fork_while_other_threads_write_leaves_parent_and_child_able_to_write(path: Path) -> None:
    fork = """
import threading, warnings; warnings.simplefilter("ignore")
create("first")
is_done = False

def work():
    while not is_done:
        asyncio.run(storage.append_event("key", "written", {}))

writer = threading.Thread(target=work)
writer.start()
for number in range(20):
    if not (child := os.fork()):
        create(f"child-{number}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
is_done = True
writer.join()
"""
    run_python(f"{USE.replace('sys.argv[1])', 'sys.argv[1], busy_timeout=5)')}\n{fork}", path)
    assert {f"child-{number}" for number in range(20)} <= asyncio.run(_thread_ids(path))


def test_importing_the_package_loads_no_database_library() -> None:
    script = "import sys, diarist.storage; print('asyncpg' in sys.modules, 'sqlite3' in sys.modules)"
    assert run_python(script) == "False False\n"


async def test_messages_are_readable_with_the_sqlite_shell(path: Path) -> None:
    async with SQLiteStorage(path) as storage:
        run = await storage.begin_run("run", TRIP)
        await storage.append_messages(run, [Message.user("Grüße")])
        await storage.finish_run(run, "committed")
    connection = sqlite3.connect(path)
    row = connection.execute("SELECT thread_id, seq, role, parts FROM diarist_messages").fetchone()
    connection.close()
    assert row == ("trip", 1, "user", '[{"type":"text","text":"Grüße"}]')


def files_with(word: bytes, folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if word in file.read_bytes()]


@pytest.mark.parametrize("again", [False, True])
async def test_no_word_of_a_deleted_thread_is_left_in_the_file(tmp_path: Path, again: bool) -> None:
    """``again``: the first deletion was interrupted, and the thread is forgotten a second time."""
    path = tmp_path / "memory.db"
    memory = Memory(storage=SQLiteStorage(path))
    await memory.messages.save([Message.user(f"my zanzibarsecret{n}") for n in range(3)], thread="t")
    if again:
        await memory.storage.delete_thread("t")
        await memory.forget(thread="t")
    else:
        await memory.threads.delete("t")
    await memory.close()
    assert files_with(b"zanzibarsecret", tmp_path) == []


async def test_a_subclass_decides_what_its_messages_say(path: Path) -> None:
    class Encrypted(SQLiteStorage):
        async def list_messages(self, *args: Any, **options: Any) -> list[Message]:
            rows = await super().list_messages(*args, **options)
            return [replace(row, parts=[TextPart(text=f"open {row.text}")]) for row in rows]

    async with Encrypted(path) as storage:
        run = await storage.begin_run("run", TRIP)
        await storage.append_messages(run, [Message.user("sesame")])
        await storage.finish_run(run, "committed")
        _, [row] = await storage.log_and_messages("thread:trip", "trip", lambda _: [(0, None)])
        assert row.text == "open sesame"


async def test_a_long_diary_that_grows_is_not_written_whole_each_time(path: Path) -> None:
    """However many bytes its characters have. The log of the file grows by what is written."""
    noon = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)

    def entry(number: int) -> Observation:
        return Observation(
            id=f"o{number}",
            text=f"- 🟡 茶 {number} " * 100,
            tokens=300,
            sources=(Source(thread_id="trip", first_seq=number, last_seq=number, digest="d"),),
            message_tokens=900,
            message_count=1,
            observed_at=noon,
            cycle_id=f"c{number}",
        )

    entries = tuple(map(entry, range(60)))
    log = ObservationLog(key="thread:trip", scope="thread", resource_id="ada", entries=entries)
    async with SQLiteStorage(path) as storage:
        for _ in range(2):
            log = await storage.save_log(log, expected_version=log.version)
        before, whole = os.path.getsize(f"{path}-wal"), len(encode_log(log).encode())  # noqa: ASYNC240
        for number in range(60, 65):
            grown = replace(log, entries=(*log.entries, entry(number)))
            log = await storage.save_log(grown, expected_version=log.version)
        assert os.path.getsize(f"{path}-wal") - before < 2.5 * whole  # noqa: ASYNC240
        await storage.close()
    async with SQLiteStorage(path) as storage:
        assert await storage.get_log("thread:trip") == log
