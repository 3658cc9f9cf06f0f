"""A database of Mastra's becomes threads of ours. The tables are made as its SQLite store makes them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory
from diarist.exceptions import InputError
from diarist.memory import mastra_lines
from diarist.messages import FilePart, ReasoningPart, SourcePart, TextPart, ToolPart
from diarist.storage import InMemoryStorage
from tests.memory.diary_kit import keeping_diary
from tests.scenarios.kit import answering

TABLES = """
CREATE TABLE mastra_threads (id TEXT PRIMARY KEY NOT NULL, "resourceId" TEXT NOT NULL, title TEXT NOT NULL,
    metadata TEXT, "createdAt" TEXT NOT NULL, "updatedAt" TEXT NOT NULL);
CREATE TABLE mastra_messages (id TEXT PRIMARY KEY NOT NULL, thread_id TEXT NOT NULL, content TEXT NOT NULL,
    role TEXT NOT NULL, type TEXT NOT NULL, "createdAt" TEXT NOT NULL, "resourceId" TEXT);
CREATE TABLE mastra_resources (id TEXT PRIMARY KEY NOT NULL, "workingMemory" TEXT, metadata TEXT,
    "createdAt" TEXT NOT NULL, "updatedAt" TEXT NOT NULL);
CREATE TABLE mastra_observational_memory (id TEXT PRIMARY KEY NOT NULL, "lookupKey" TEXT NOT NULL, scope TEXT NOT NULL,
    "resourceId" TEXT, "threadId" TEXT, "activeObservations" TEXT NOT NULL, "originType" TEXT NOT NULL, config TEXT,
    "generationCount" INTEGER NOT NULL, "lastObservedAt" TEXT, "totalTokensObserved" INTEGER NOT NULL,
    "observationTokenCount" INTEGER NOT NULL, "createdAt" TEXT NOT NULL, "updatedAt" TEXT NOT NULL);
"""


class Mastra:
    """Writes a database as Mastra would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path)
        self.connection.executescript(TABLES)
        self.minute = 0

    def thread(self, name: str, resource: str = "ada", **metadata: Any) -> None:
        self._insert("mastra_threads", name, resource, f"About {name}", json.dumps(metadata), self.now(), self.now())

    def message(self, name: str, thread: str, role: str, content: Any, *, type: str = "v2") -> str:
        text = content if isinstance(content, str) else json.dumps(content)
        moment = self.now()
        self._insert("mastra_messages", name, thread, text, role, type, moment, "ada")
        return moment

    def says(self, name: str, thread: str, text: str, role: str = "user") -> str:
        parts = [{"type": "step-start"}, {"type": "text", "text": text}]
        return self.message(name, thread, role, {"format": 2, "parts": parts, "content": text})

    def resource(self, name: str, working: str, **metadata: Any) -> None:
        self._insert("mastra_resources", name, working, json.dumps(metadata), self.now(), self.now())

    def observed(self, key: str, text: str, until: str, *, generation: int = 0) -> None:
        scope, _, name = key.partition(":")
        thread, resource = (name, "ada") if scope == "thread" else (None, name)
        self._insert(
            "mastra_observational_memory", f"{key}-{generation}", key, scope, resource, thread, text, "initial", "{}",
            generation, until, 120, 9, until, until,
        )  # fmt: skip

    def now(self) -> str:
        self.minute += 1
        return f"2026-03-02T10:{self.minute:02}:00.000Z"

    def _insert(self, table: str, *values: Any) -> None:
        with self.connection:
            self.connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


@pytest.fixture
def mastra(tmp_path: Path) -> Iterator[Mastra]:
    made = Mastra(tmp_path / "mastra.db")
    yield made
    made.connection.close()


async def brought_in(mastra: Mastra, memory: Memory | None = None) -> Memory:
    memory = memory or Memory(storage=InMemoryStorage())
    await memory.import_threads(mastra_lines(mastra.path))
    return memory


async def test_threads_messages_and_working_memory(mastra: Mastra) -> None:
    mastra.thread("trip", kind="travel", workingMemory="# Trip\n- to Rome", mastra={"om": {}})
    mastra.says("m1", "trip", "I fly to Rome.")
    mastra.says("m2", "trip", "Noted.", "assistant")
    mastra.resource("ada", "# User\n- Ada", plan="pro")
    memory = await brought_in(mastra)
    thread = await memory.thread("trip", resource="ada")
    assert (thread.title, thread.metadata) == ("About trip", {"kind": "travel"})
    rows = await memory.messages(thread="trip")
    assert [(row.id, row.role, row.text) for row in rows] == [
        ("m1", "user", "I fly to Rome."),
        ("m2", "assistant", "Noted."),
    ]
    assert str(rows[0].created_at) == "2026-03-02 10:03:00+00:00"
    assert (await memory.storage.get_resource("ada")).metadata == {"plan": "pro"}
    assert (await memory.storage.get_working_memory("resource:ada")).text == "# User\n- Ada"
    assert (await Memory(storage=memory.storage, working_memory=True).working_memory(resource="ada")) == (
        "# User\n- Ada"
    )


async def test_every_kind_of_part_of_format_2(mastra: Mastra) -> None:
    call = {"toolCallId": "c1", "toolName": "book", "args": {"to": "Rome"}}
    mastra.thread("trip")
    mastra.message("m1", "trip", "user", {"format": 2, "parts": [
        {"type": "text", "text": "Book it."},
        {"type": "file", "mimeType": "image/png", "data": "aGk="},
        {"type": "file", "mimeType": "image/png", "data": "data:image/png;base64,aGk="},
        {"type": "file", "mediaType": "image/png", "url": "https://example.com/a.png"},
    ], "experimental_attachments": [{"url": "https://example.com/b.pdf", "contentType": "application/pdf"}],
        "metadata": {"from": "web"}})  # fmt: skip
    mastra.message("m2", "trip", "assistant", {"format": 2, "parts": [
        {"type": "reasoning", "reasoning": "", "details": [{"type": "text", "text": "Think.", "signature": "x"}]},
        {"type": "tool-invocation", "toolInvocation": {**call, "state": "result", "result": {"ok": True}}},
        {"type": "tool-invocation", "toolInvocation": {"toolCallId": "c2", "toolName": "pay", "state": "call"}},
        {"type": "tool-seat", "toolCallId": "c3", "state": "output-error", "input": {"row": 1}, "errorText": "full"},
        {"type": "source", "source": {"url": "https://example.com", "title": "Here", "id": "s"}},
        {"type": "data-om-observation-start", "data": {}},
        {"type": "hologram"},
        {"type": "text", "text": "Booked."},
    ]})  # fmt: skip
    notes: list[str] = []
    memory = Memory(storage=InMemoryStorage())
    await memory.import_threads(mastra_lines(mastra.path, on_note=notes.append))
    user, assistant = await memory.messages(thread="trip")
    assert user.metadata == {"from": "web"}
    assert user.parts == [
        TextPart(text="Book it."),
        FilePart(media_type="image/png", data=b"hi"),
        FilePart(media_type="image/png", data=b"hi"),
        FilePart(media_type="image/png", url="https://example.com/a.png"),
        FilePart(media_type="application/pdf", url="https://example.com/b.pdf"),
    ]
    assert assistant.parts == [
        ReasoningPart(text="Think."),
        ToolPart(call_id="c1", name="book", args={"to": "Rome"}, state="result", result={"ok": True}),
        ToolPart(call_id="c2", name="pay", args={}, state="call"),
        ToolPart(call_id="c3", name="seat", args={"row": 1}, state="error", result="full"),
        SourcePart(url="https://example.com", title="Here", id="s"),
        TextPart(text="Booked."),
    ]
    assert notes == ["parts of the unknown type 'hologram', left out: 1"]


async def test_messages_of_the_older_format(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.message("m0", "trip", "system", "You are kind.", type="text")
    mastra.message("m1", "trip", "user", "Book it.", type="text")
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "book", "args": {}}
    answer = {"type": "tool-result", "toolCallId": "c1", "toolName": "book", "result": "done"}
    mastra.message("m2", "trip", "assistant", [{"type": "text", "text": "Yes."}, call], type="tool-call")
    mastra.message("m3", "trip", "tool", [answer], type="tool-result")
    mastra.message("m4", "trip", "tool", [{**answer, "toolCallId": "gone"}], type="tool-result")
    mastra.message("m5", "trip", "assistant", '"Booked."', type="text")
    memory = await brought_in(mastra)
    rows = await memory.messages(thread="trip")
    assert [row.id for row in rows] == ["m1", "m2", "m5"]
    assert rows[1].tool_parts == [ToolPart(call_id="c1", name="book", args={}, state="result", result="done")]
    assert rows[2].text == "Booked."


async def test_observations_cover_what_was_observed(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.says("m1", "trip", "I fly to Rome.")
    until = mastra.says("m2", "trip", "Noted.", "assistant")
    mastra.says("m3", "trip", "On the aisle.")
    mastra.observed("thread:trip", "old notes", until)
    mastra.observed("thread:trip", "Date: Mar 2, 2026\n* 🔴 (10:02) User flies to Rome", until, generation=1)
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage()))
    log = await memory.observations(thread="trip")
    assert log.text == "Date: Mar 2, 2026\n* 🔴 (10:02) User flies to Rome"
    assert [row.id for row in (await memory.sources(log.entries[0].id, thread="trip")).items] == ["m1", "m2"]
    model = answering()
    await Agent(model=model, memory=memory).generate("go on", thread="trip", resource="ada")
    await memory.settled()
    assert "User flies to Rome" in model.requests[0].text
    assert "On the aisle." in model.requests[0].text
    assert "I fly to Rome." not in model.requests[0].text


async def test_what_is_left_out_is_counted_once_where_there_is_a_diary(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.message(
        "m0", "trip", "user", {"format": 2, "parts": [{"type": "hologram"}, {"type": "text", "text": "Hi."}]}
    )
    mastra.observed("thread:trip", "old notes", mastra.says("m1", "trip", "I fly to Rome."))
    notes: list[str] = []
    await Memory(storage=InMemoryStorage()).import_threads(mastra_lines(mastra.path, on_note=notes.append))
    assert notes == ["parts of the unknown type 'hologram', left out: 1"]


async def test_observations_of_a_resource(mastra: Mastra) -> None:
    for name in ("trip", "work"):
        mastra.thread(name)
        until = mastra.says(f"{name}-1", name, f"talk of {name}")
    mastra.says("trip-2", "trip", "later")
    mastra.observed("resource:ada", "* 🔴 User flies and works", until)
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage(), scope="resource"))
    (entry,) = (await memory.observations(thread="work")).entries
    assert {(source.thread_id, source.last_seq) for source in entry.sources} == {("trip", 1), ("work", 1)}


async def test_metadata_in_sqlites_binary_json(mastra: Mastra) -> None:
    if sqlite3.sqlite_version_info < (3, 45):
        pytest.skip("this SQLite does not know binary JSON")
    mastra.thread("trip")
    mastra.connection.execute("""UPDATE mastra_threads SET metadata = jsonb('{"kind": "travel"}')""")
    mastra.connection.commit()
    assert (await (await brought_in(mastra)).thread("trip")).metadata == {"kind": "travel"}


async def test_an_older_database_has_fewer_tables_and_columns(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.says("m1", "trip", "hello")
    mastra.connection.executescript(
        "DROP TABLE mastra_resources; DROP TABLE mastra_observational_memory;"
        ' ALTER TABLE mastra_messages DROP COLUMN "resourceId"'
    )
    assert [row.text for row in await (await brought_in(mastra)).messages(thread="trip")] == ["hello"]


async def test_another_database_is_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE notes (id)")
    other.commit()
    other.close()
    (tmp_path / "text.db").write_text("hello")
    memory = Memory(storage=InMemoryStorage())
    for name, said in (("other.db", "no table mastra_threads"), ("text.db", "no SQLite database")):
        with pytest.raises(InputError, match=said):
            await memory.import_threads(mastra_lines(tmp_path / name))
