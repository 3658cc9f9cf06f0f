"""``diarist export``, ``import`` and ``migrate``: out of a database, into another one, and up to date."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner, Result

from diarist import Memory, Message
from diarist.cli.app import app
from diarist.integrations.conversations import FORMATS
from diarist.storage import SQLiteStorage
from diarist.storage.postgres import PostgresStorage
from diarist.vectors import SQLiteVectorStore
from tests.conversations.test_mastra import Mastra
from tests.loopback.libsql_server import LibSQLServer
from tests.loopback.mongodb_server import MongoDBServer
from tests.storage.old_versions import back_to


def run(*arguments: str | Path, status: int = 0, given: bytes | None = None) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def database(folder: Path) -> Path:
    asyncio.run(_fill(folder / "memory.db"))
    return folder / "memory.db"


async def _fill(path: Path) -> None:
    async with Memory(storage=SQLiteStorage(path)) as memory:
        for name, resource in (("trip", "ada"), ("work", "bob")):
            await memory.messages.save([Message.user(f"hello {name}")], thread=name, resource=resource)


def threads(address: Path | str) -> dict[str, list[str]]:
    async def read() -> dict[str, list[str]]:
        storage = PostgresStorage(address) if "://" in str(address) else SQLiteStorage(address)  # type: ignore[arg-type]
        async with Memory(storage=storage) as memory:
            found = (await memory.threads.list()).items
            return {thread.id: [row.text for row in await memory.messages.list(thread=thread.id)] for thread in found}

    return asyncio.run(read())


def test_out_and_in_again(database: Path, folder: Path) -> None:
    assert run("export", database, "all.jsonl").stderr == "Exported 2 threads, 2 messages.\n"
    assert [path.name for path in folder.glob("*.part")] == []
    assert run("import", "all.jsonl", "copy.db").stderr == "Imported 2 messages, 2 threads.\n"
    assert threads(folder / "copy.db") == threads(database) == {"trip": ["hello trip"], "work": ["hello work"]}
    run("export", "copy.db", "again.jsonl")
    assert Path("again.jsonl").read_bytes() == Path("all.jsonl").read_bytes()


def test_a_database_of_diarist_is_to_be_exported_first(database: Path, folder: Path) -> None:
    refused = run("import", database, "copy.db", status=2)
    assert refused.stderr == (
        f"Error: {database} is a database of diarist itself: export it with 'diarist export', and import the file\n"
    )
    assert list(folder.iterdir()) == [database]


def test_from_sqlite_to_postgresql(database: Path, postgres_url: str) -> None:
    run("export", database, "all.jsonl")
    run("import", "all.jsonl", postgres_url)
    assert threads(postgres_url) == threads(database)
    assert "version" in run("migrate", postgres_url).stdout


def test_from_sqlite_to_a_libsql_server_and_on_to_mongodb(database: Path, folder: Path) -> None:
    run("export", database, "all.jsonl")
    with LibSQLServer(folder / "server.db") as libsql, MongoDBServer() as mongodb:
        run("import", "all.jsonl", libsql.url)
        assert "nothing to do" in run("migrate", libsql.url).stdout
        run("export", libsql.url, "from_libsql.jsonl")
        run("import", "from_libsql.jsonl", f"{mongodb.url}/elsewhere")
        run("export", f"{mongodb.url}/elsewhere", "from_mongodb.jsonl")
        assert "no tables" in run("migrate", mongodb.url, status=2).stderr
    assert Path("from_mongodb.jsonl").read_bytes() == Path("all.jsonl").read_bytes()


def test_only_a_thread_or_a_resource_and_to_standard_output(database: Path) -> None:
    for arguments in (["--thread", "trip"], ["--resource", "ada"]):
        lines = [orjson.loads(line) for line in run("export", database, "-", *arguments).stdout.splitlines()]
        assert [line["id"] for line in lines if line["type"] == "thread"] == ["trip"]
    assert run("export", database, "trip.jsonl", "--thread", "trip").stderr == "Exported 1 thread, 1 message.\n"
    assert run("import", "trip.jsonl", "trip.db").stderr == "Imported 1 message, 1 thread.\n"


@pytest.mark.parametrize(
    ("option", "says"), [("--thread", "no thread 'nope'"), ("--resource", "no thread of resource 'nope'")]
)
def test_missing_threads_are_not_exported(database: Path, option: str, says: str) -> None:
    Path("all.jsonl").write_text("mine")
    assert says in run("export", database, "all.jsonl", option, "nope", status=2).stderr
    assert Path("all.jsonl").read_text() == "mine"
    assert run("export", database, "-", option, "nope", status=2).stdout == ""
    assert sorted(path.name for path in database.parent.iterdir()) == ["all.jsonl", "memory.db"]


@pytest.mark.parametrize(
    "target", ["memory.db", "./memory.db", "link.db", "memory.db-wal", "memory.db-shm", "sub/../memory.db-journal"]
)
@pytest.mark.parametrize("source", ["memory.db", "link.db"])
def test_a_database_is_not_exported_over_itself(database: Path, source: str, target: str) -> None:
    Path("sub").mkdir()
    Path("link.db").symlink_to(database)
    before = database.read_bytes()
    assert "belongs to the database itself" in run("export", source, target, status=2).stderr
    assert database.read_bytes() == before
    assert sorted(path.name for path in database.parent.iterdir()) == ["link.db", "memory.db", "sub"]


def test_an_export_leaves_other_files_alone(database: Path) -> None:
    Path("all.jsonl.part").write_text("mine")
    run("export", database, "all.jsonl")
    assert Path("all.jsonl.part").read_text() == "mine"
    assert sorted(path.name for path in database.parent.iterdir()) == ["all.jsonl", "all.jsonl.part", "memory.db"]


def test_from_standard_input(database: Path, folder: Path) -> None:
    run("import", "-", "other.db", given=run("export", database, "-").stdout.encode())
    assert threads(folder / "other.db") == threads(database)
    run("import", "-", "mastra.db", given=_mastra(folder).read_bytes())
    assert threads(folder / "mastra.db") == {"rome": ["hello"]}
    chat = orjson.dumps([{"role": "user", "content": "Hello."}])
    assert "add --thread" in run("import", "-", "chat.db", given=chat, status=2).output
    run("import", "-", "chat.db", "--thread", "a", given=chat)
    assert threads(folder / "chat.db") == {"a": ["Hello."]}


def _mastra(folder: Path) -> Path:
    with_mastra = Mastra(folder / "of-mastra.db")
    with_mastra.thread("rome")
    with_mastra.says("m1", "rome", "hello")
    return with_mastra.path


def test_a_folder_is_no_target(database: Path) -> None:
    Path("folder").mkdir()
    result = run("export", database, "folder", status=2)
    assert result.stderr == "Error: folder is a folder; name a file in it, such as folder/memory.jsonl\n"
    assert list(Path("folder").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "ctrl_c"),
    [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)],
)
def test_an_export_that_is_stopped_leaves_nothing(
    database: Path, folder: Path, number: signal.Signals, ctrl_c: signal.Handlers
) -> None:
    async def fill() -> None:
        async with Memory(storage=SQLiteStorage(database)) as memory:
            await memory.messages.save([Message.user(f"hello {count}") for count in range(10_000)], thread="long")

    asyncio.run(fill())
    with subprocess.Popen(
        [sys.executable, "-m", "diarist", "export", str(database), "all.jsonl"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    ) as process:
        while process.poll() is None and not any(part.stat().st_size for part in folder.glob("all.jsonl.*.part")):
            time.sleep(0.001)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "Error: interrupted\n")
    assert not list(folder.glob("all.jsonl*"))


def test_a_pipe_is_written_to(database: Path) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    run("export", database, "pipe")
    with open(reader, "rb") as read:
        assert read.read().count(b"\n") == 6
    assert Path("pipe").is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device without space")
def test_a_full_disk_is_said(database: Path) -> None:
    assert "Error: [Errno 28] No space left on device" in run("export", database, "/dev/full", status=1).output


def test_existing_messages(database: Path) -> None:
    run("export", database, "all.jsonl")
    assert "already" in run("import", "all.jsonl", database, status=1).stderr
    result = run("import", "all.jsonl", database, "--skip-existing")
    assert (
        result.stderr == "Nothing was imported: the database already has all of the data.\n"
        "Skipped, since the database has them: 2 threads\n"
    )
    run("export", database, "trip.jsonl", "--thread", "trip")
    assert "has them: 1 thread\n" in run("import", "trip.jsonl", database, "--skip-existing").stderr


def test_a_file_of_conversations(folder: Path) -> None:
    chats = [{"title": name, "messages": [{"role": "user", "content": f"about {name}"}]} for name in ("Rome", "Oslo")]
    Path("chats.json").write_text(json.dumps(chats))
    run("import", "chats.json", "memory.db", "--resource", "ada")
    found = threads(folder / "memory.db")
    assert sorted(texts[0] for texts in found.values()) == ["about Oslo", "about Rome"]
    again = run("import", "chats.json", "memory.db", "--resource", "ada")
    assert again.stderr.endswith("Nothing was imported: the database already has all of the data.\n")
    chats[0]["messages"].append({"role": "user", "content": "more"})  # type: ignore[attr-defined]
    Path("chats.json").write_text(json.dumps(chats))
    grown = run("import", "chats.json", "memory.db", "--resource", "ada")
    assert grown.stderr.endswith("Imported 1 message, 1 thread.\n")
    run("import", "chats.json", "one.db", "--select", "2", "--thread", "oslo")
    assert threads(folder / "one.db") == {"oslo": ["about Oslo"]}
    assert "--select" in run("import", "chats.json", "one.db", "--thread", "oslo", status=2).stderr


def test_a_thread_begins_with_the_first_message_that_has_a_time_and_instructions_are_counted(folder: Path) -> None:
    dated = {"role": "user", "content": "hello", "created_at": "2026-03-01T10:00:00Z"}
    Path("chat.json").write_text(json.dumps([{"role": "system", "content": "Be kind."}, dated]))
    assert "Note: chat: messages of the role 'system', left out: 1" in run("import", "chat.json", "memory.db").stderr
    (thread,) = Memory(storage=SQLiteStorage("memory.db")).sync.threads.list().items
    assert thread.created_at == datetime(2026, 3, 1, 10, tzinfo=UTC)


def test_an_editor_may_have_put_a_byte_order_mark_before_an_export(database: Path) -> None:
    run("export", "memory.db", "all.jsonl")
    Path("all.jsonl").write_bytes(b"\xef\xbb\xbf" + Path("all.jsonl").read_bytes())
    assert "2 messages, 2 threads" in run("import", "all.jsonl", "other.db").stderr


CALL = {"id": "c", "type": "function", "function": {"name": "book", "arguments": "{}"}}
BOOKING = [
    {"role": "user", "content": "Book a seat"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "seat 14C"},
    {"role": "assistant", "content": "Booked."},
]
WAITING = "messages at the end that wait for a tool's result, left out until the file has it: 1"


def test_a_call_without_its_result_is_imported_when_the_file_has_the_result(folder: Path) -> None:
    Path("chat.json").write_text(json.dumps(BOOKING[:2]))
    assert WAITING in run("import", "chat.json", "memory.db").stderr
    assert list(threads(folder / "memory.db").values()) == [["Book a seat"]]
    Path("chat.json").write_text(json.dumps(BOOKING))
    assert run("import", "chat.json", "memory.db").stderr.endswith("Imported 2 messages, 1 thread.\n")
    assert "seat 14C" in run("export", "memory.db", "-").stdout


def test_a_call_that_was_never_answered_holds_no_later_message_back(folder: Path) -> None:
    Path("chat.json").write_text(json.dumps([BOOKING[0], BOOKING[1], BOOKING[3]]))
    told = run("import", "chat.json", "memory.db").stderr
    assert (WAITING in told, "tool calls without a result: 1" in told) == (False, True)
    assert list(threads(folder / "memory.db").values()) == [["Book a seat", "", "Booked."]]


def test_a_conversation_of_nothing_but_waiting_calls_is_refused(folder: Path) -> None:
    Path("chat.json").write_text(json.dumps([BOOKING[1]]))
    refused = run("import", "chat.json", "memory.db", status=2)
    assert "holds no messages besides calls that wait for a tool's result" in refused.stderr
    assert not Path("memory.db").exists()


def test_a_session_of_claude_code_that_grows_is_stored_once(folder: Path) -> None:
    def line(number: int, type: str, *content: dict[str, object], **more: str) -> str:
        moment = f"2026-05-04T09:10:{number:02}Z"
        message = {"role": type, "content": content, **more}
        return json.dumps({"type": type, "uuid": f"u{number}", "timestamp": moment, "message": message}) + "\n"

    def use(id: str) -> dict[str, object]:
        return {"type": "tool_use", "id": id, "name": "Bash", "input": {}}

    def result(id: str) -> dict[str, object]:
        return {"type": "tool_result", "tool_use_id": id, "content": f"result of {id}"}

    session = [
        line(1, "user", {"type": "text", "text": "Run the tests."}),
        line(2, "assistant", {"type": "thinking", "thinking": "Which ones?"}, id="m1"),
        line(3, "assistant", {"type": "text", "text": "I run both."}, id="m1"),
        line(4, "assistant", use("t1"), id="m1"),
        line(5, "user", result("t1")),
        line(6, "assistant", use("t2"), id="m1"),
        line(7, "user", result("t2")),
        line(8, "assistant", {"type": "text", "text": "All green."}, id="m2"),
    ]
    Path("whole.jsonl").write_text("".join(session))
    run("import", "whole.jsonl", "whole.db", "--thread", "s")
    for end in range(1, len(session) + 1):
        Path("session.jsonl").write_text("".join(session[:end]))
        run("import", "session.jsonl", "grown.db", "--thread", "s")
    grown, whole = threads(folder / "grown.db"), threads(folder / "whole.db")
    assert grown == whole == {"s": ["Run the tests.", "I run both.", "", "", "All green."]}
    exported = run("export", "grown.db", "-").stdout
    assert [exported.count(f"result of {id}") for id in ("t1", "t2")] == [1, 1]


PARENTS = {
    "u1": "",
    "a1": "u1",
    "u2": "a1",
    "a2": "u2",
    "a3": "u2",
    "v2": "a1",
    "b2": "v2",
    "u3": "b2",
    "w1": "",
    "c1": "w1",
}
"""The messages of a conversation with edited questions and repeated answers, and the message before each."""


def edited_chat(last: str) -> str:
    """Return an export of ChatGPT that shows the branch up to ``last``."""
    mapping = {
        id: {
            "parent": parent,
            "message": {
                "id": id,
                "author": {"role": "assistant" if id[0] in "abc" else "user"},
                "content": {"parts": [id]},
            },
        }
        for id, parent in PARENTS.items()
    }
    return json.dumps([{"id": "c", "title": "Rome", "current_node": last, "mapping": mapping}])


def test_a_conversation_edited_after_an_import_goes_back(folder: Path) -> None:
    for shown in (["u2", "a2"], ["v2", "b2", "u3"], ["u2", "a3"], ["v2"], ["v2", "b2"], ["u2", "a2"]):
        Path("chats.json").write_text(edited_chat(shown[-1]))
        first, again = (run("import", "chats.json", "memory.db").stderr for _ in range(2))
        assert threads(folder / "memory.db") == {"c": ["u1", "a1", *shown]}
        assert "edited since" not in again
    assert "Note: Rome: edited since an earlier import; the earlier branch is superseded\n" in first
    Path("chats.json").write_text(edited_chat("v2"))
    run("observe", "chats.json", "--storage", "memory.db")
    assert threads(folder / "memory.db") == {"c": ["u1", "a1", "v2"]}


def test_a_chat_keeps_its_messages_when_its_first_tool_call_comes(folder: Path) -> None:
    chat: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    Path("chat.json").write_text(json.dumps(chat))
    run("import", "chat.json", "memory.db", "--thread", "t")
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat += [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
        {"role": "assistant", "content": "done"},
    ]
    Path("chat.json").write_text(json.dumps(chat))
    run("import", "chat.json", "memory.db", "--thread", "t")
    assert [text for text in threads(folder / "memory.db")["t"] if text] == ["hi", "hello", "look", "done"]


def test_superseded_messages_are_not_imported_again(folder: Path) -> None:
    chat = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    Path("chat.json").write_text(json.dumps(chat[:2]))
    run("import", "chat.json", "memory.db", "--thread", "t")

    async def go_back() -> None:
        async with Memory(storage=SQLiteStorage("memory.db")) as memory:
            first, *_ = await memory.messages.list(thread="t")
            await memory.threads.rewind("t", to=first.id)

    asyncio.run(go_back())
    assert "Nothing was imported" in run("import", "chat.json", "memory.db", "--thread", "t").stderr
    Path("chat.json").write_text(json.dumps(chat))
    run("observe", "chat.json", "--storage", "memory.db", "--thread", "t")
    assert threads(folder / "memory.db") == {"t": ["one", "three"]}


def test_an_edited_conversation_with_messages_of_its_own_is_continued(folder: Path) -> None:
    async def reply() -> None:
        async with Memory(storage=SQLiteStorage("memory.db")) as memory:
            await memory.messages.save([Message.user("mine")], thread="c")

    Path("chats.json").write_text(edited_chat("a2"))
    run("import", "chats.json", "memory.db")
    asyncio.run(reply())
    Path("chats.json").write_text(edited_chat("v2"))
    assert "the thread cannot go back" in run("import", "chats.json", "memory.db").stderr
    assert threads(folder / "memory.db") == {"c": ["u1", "a1", "u2", "a2", "mine", "v2"]}


def test_an_edited_first_question_is_added_at_the_end(folder: Path) -> None:
    Path("chats.json").write_text(edited_chat("a1"))
    run("import", "chats.json", "memory.db")
    Path("chats.json").write_text(edited_chat("c1"))
    assert "the thread cannot go back" in run("import", "chats.json", "memory.db").stderr
    assert threads(folder / "memory.db") == {"c": ["u1", "a1", "w1", "c1"]}


def test_notes_about_the_file_name_no_conversation(folder: Path) -> None:
    chats = [{"title": name, "messages": [{"role": "user", "content": name}]} for name in ("Rome", "Oslo")]
    lines = [json.dumps(chat) for chat in (chats[0], {"title": "Empty", "messages": []}, chats[1])]
    Path("chats.jsonl").write_text("\n".join([*lines[:2], "{cut", lines[2]]))
    told = run("import", "chats.jsonl", "memory.db", "--skip-broken-lines").stderr.splitlines()
    assert "Note: lines that are not JSON, left out: 1 (first: line 3)" in told
    assert "Note: conversations without messages, left out: 1" in told


def test_a_conversation_begins_when_its_first_message_was_sent(folder: Path) -> None:
    chats = [
        {"title": day, "messages": [{"role": "user", "content": "hello", "created_at": f"{day}T10:00:00Z"}]}
        for day in ("2026-03-02", "2026-01-02", "3026-01-02")
    ]
    Path("chats.json").write_text(json.dumps(chats))
    run("import", "chats.json", "memory.db", "--resource", "ada")

    async def begun() -> list[tuple[str, datetime | None]]:
        async with Memory(storage=SQLiteStorage("memory.db")) as memory:
            return [(found.title, found.created_at) for found in (await memory.threads.list(resource="ada")).items]

    ahead, *found = asyncio.run(begun())
    assert found == [
        ("2026-03-02", datetime(2026, 3, 2, 10, tzinfo=UTC)),
        ("2026-01-02", datetime(2026, 1, 2, 10, tzinfo=UTC)),
    ]
    assert ahead[1] is not None
    assert ahead[1] <= datetime.now(UTC), "no conversation begins in the future"


def test_a_note_about_many_conversations_is_one_line(folder: Path) -> None:
    chats = [{"title": name, "messages": [{"role": "user", "content": name}]} for name in ("Rome", "Oslo", "Bern")]
    chats[1]["messages"].append({"role": "user", "content": "more", "created_at": "2026-03-02T10:00:00Z"})  # type: ignore[attr-defined]
    Path("chats.json").write_text(json.dumps(chats))
    told = run("import", "chats.json", "memory.db").stderr.splitlines()
    assert told == [
        "Note: Rome and 1 more: no message has a time stamp",
        "Note: Oslo: undated messages: 1",
        "Imported 4 messages, 3 threads.",
    ]


def test_broken_messages_can_be_left_out(folder: Path) -> None:
    Path("chat.json").write_text(json.dumps([{"role": "user", "content": "hello"}, {"role": "nobody"}]))
    refused = run("import", "chat.json", "memory.db", status=2)
    assert refused.stderr.endswith("; --skip-broken-lines leaves such lines out\n")
    told = run("import", "chat.json", "memory.db", "--skip-broken-lines")
    assert "broken lines or messages, left out: 1 (first: item 2)" in told.stderr
    assert list(threads(folder / "memory.db").values()) == [["hello"]]


@pytest.mark.parametrize(
    "options", [("--thread", "x"), ("--select", "1"), ("--timezone", "UTC"), ("--format", "plain")]
)
def test_options_of_conversations_are_refused_for_other_files(database: Path, options: tuple[str, str]) -> None:
    mastra = Mastra(database.parent / "mastra.db")
    mastra.thread("trip")
    mastra.connection.close()
    run("export", database, "all.jsonl")
    for file in ("all.jsonl", "mastra.db"):
        result = run("import", file, "copy.db", *options, status=2)
        assert f"{options[0]} applies to conversations only" in result.stderr
        assert not Path("copy.db").exists()


def test_conversations_skip_no_threads(folder: Path) -> None:
    Path("chat.json").write_text(json.dumps([{"role": "user", "content": "hello"}]))
    result = run("import", "chat.json", "memory.db", "--skip-existing", status=2)
    assert "--skip-existing applies to exports of diarist and databases of Mastra only" in result.stderr
    assert not Path("memory.db").exists()


def test_the_formats_are_listed() -> None:
    for command in ("import", "observe"):
        shown = "".join(run(command, "--help").stdout.split())
        assert all(name in shown for name in FORMATS)


BOBS = (
    '{"type":"thread","id":"t","resource_id":"bob","title":"","metadata":{},"created_at":"2026-03-01T00:00:00+00:00"}'
)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('{"hello": 1}', ()),
        ('{"type":"diarist","version":1}\n{"type":"nonsense"}', ()),
        ('{"type":"diarist","version":1}\n', ()),
        ('{"type":"diarist","version":1}\n', ("--thread", "x")),
        ('[{"role": "user", "content": "hello"}]', ("--timezone", "Mars/Base")),
        (f'{{"type":"diarist","version":1}}\n{BOBS}', ("--resource", "ada")),
    ],
)
@pytest.mark.parametrize("place", ["new.db", "link.db"])
def test_a_refused_import_leaves_no_new_database(folder: Path, text: str, options: tuple[str, ...], place: str) -> None:
    Path("link.db").symlink_to("behind_the_link.db")
    Path("file").write_text(text)
    run("import", "file", place, *options, status=2)
    assert sorted(path.name for path in folder.iterdir()) == ["file", "link.db"]


def test_a_refused_import_leaves_an_old_database(database: Path) -> None:
    Path("file").write_text('{"hello": 1}')
    run("import", "file", database, status=2)
    assert len(threads(database)) == 2


def test_what_came_in_before_a_failure_stays(database: Path, folder: Path) -> None:
    run("export", database, "all.jsonl")
    lines = Path("all.jsonl").read_text().splitlines(keepends=True)
    Path("all.jsonl").write_text("".join(lines[:-1]))
    run("import", "all.jsonl", "copy.db", status=2)
    assert len(threads(folder / "copy.db")) == 1


def test_mastras_database(folder: Path) -> None:
    mastra = Mastra(folder / "mastra.db")
    mastra.thread("trip")
    mastra.says("m1", "trip", "I fly to Rome.")
    mastra.message("m2", "trip", "system", "Be kind.")
    mastra.connection.close()
    assert "Note: messages of the role 'system', left out: 1" in run("import", "mastra.db", "memory.db").stderr
    assert threads(folder / "memory.db") == {"trip": ["I fly to Rome."]}


def test_bad_names_are_said(folder: Path) -> None:
    assert "does not exist" in run("export", "nothing.db", "all.jsonl", status=2).stderr
    assert "does not exist" in run("import", "nothing.jsonl", "memory.db", status=2).stderr
    assert "postgresql://" in run("migrate", "mysql://somewhere/db", status=2).stderr
    assert "does not exist" in run("migrate", "nothing.db", status=2).stderr
    assert list(folder.iterdir()) == []


def test_what_cannot_be_opened_is_said(folder: Path) -> None:
    Path("notes.db").write_text("not a database")
    assert "cannot open " + str(folder / "notes.db") in run("migrate", "notes.db", status=1).stderr
    said = run("migrate", "postgresql://localhost:1/x", status=1).stderr
    assert "cannot read version in postgresql://localhost:1/x" in said


def test_migrating_says_what_it_did(database: Path) -> None:
    assert "nothing to do" in run("migrate", database).stdout
    with sqlite3.connect(database) as connection:
        ((newest,),) = connection.execute("SELECT version FROM diarist_schema WHERE name = 'storage'")
        connection.executescript(";".join(back_to(newest - 1)))
    connection.close()
    said = run("migrate", database).stdout
    assert f"migrated the tables from version {newest - 1} to {newest}" in said
    assert threads(database)["trip"] == ["hello trip"]


def test_a_newer_database_is_refused(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE diarist_schema SET version = 99")
    connection.close()
    result = run("migrate", database, status=1)
    assert "version 99" in result.stderr
    assert "upgrade diarist" in result.stderr


def test_an_empty_database_gets_its_tables(folder: Path) -> None:
    sqlite3.connect(folder / "app.db").execute("CREATE TABLE mine (id)").connection.close()
    assert "created the tables" in run("migrate", "app.db").stdout


def test_the_tables_of_vectors_are_looked_at_too(database: Path) -> None:
    assert "the tables of vectors" not in run("migrate", database).stdout
    asyncio.run(_with_vectors(database))
    assert "the tables of vectors have version 1, nothing to do" in run("migrate", database).stdout
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE diarist_schema SET version = 99 WHERE name = 'vectors'")
    connection.close()
    assert "upgrade diarist" in run("migrate", database, status=1).output


async def _with_vectors(path: Path) -> None:
    async with SQLiteVectorStore(path) as store:
        await store.create_index("x", dimension=2)


def test_a_pipe_can_be_imported(database: Path) -> None:
    run("export", database, "out.jsonl")
    os.mkfifo("pipe")
    with subprocess.Popen(["cp", "out.jsonl", "pipe"]):
        assert "Imported" in run("import", "pipe", "other.db").stderr
    assert threads(database.parent / "other.db") == threads(database)


def test_an_empty_device_is_an_empty_file(folder: Path) -> None:
    assert run("import", "/dev/null", "memory.db", status=2).stderr == "Error: /dev/null: the file is empty\n"
