"""A database of Mastra's becomes threads of ours. The tables are made as its SQLite store makes them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, Memory
from diarist.exceptions import InputError
from diarist.integrations.mastra import mastra_lines
from diarist.memory import WorkingMemoryConfig
from diarist.messages import FilePart, ReasoningPart, SourcePart, TextPart, ToolPart
from diarist.storage import InMemoryStorage
from tests.memory.diary_kit import keeping_diary
from tests.memory.jsonb_writer import to_jsonb
from tests.properties import examples
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
    "observationTokenCount" INTEGER NOT NULL, "createdAt" TEXT NOT NULL, "updatedAt" TEXT NOT NULL,
    "observedMessageIds" TEXT, "bufferedObservationChunks" TEXT, "bufferedReflection" TEXT);
CREATE TABLE mastra_scorers (id TEXT PRIMARY KEY NOT NULL);
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

    def observed(
        self, key: str, text: str, until: str | None, *, generation: int = 0, ids: Any = None, waiting: Any = None
    ) -> None:
        scope, _, name = key.partition(":")
        thread, resource = (name, "ada") if scope == "thread" else (None, name)
        self._insert(
            "mastra_observational_memory", f"{key}-{generation}", key, scope, resource, thread, text,
            "reflection" if generation else "initial", "{}", generation, until, 120, 9, until or "", until or "",
            ids and json.dumps(ids), waiting if isinstance(waiting, str | bytes) else json.dumps(waiting), None,
        )  # fmt: skip

    def execute(self, statement: str, *values: Any) -> None:
        with self.connection:
            self.connection.execute(statement, values)

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


async def brought_in(mastra: Mastra, memory: Memory | None = None, *, notes: Sequence[str] = ()) -> Memory:
    """Everything comes in, but what ``notes`` says."""
    memory = memory or Memory(storage=InMemoryStorage())
    told: list[str] = []
    await memory.threads.import_all(mastra_lines(mastra.path, on_note=told.append))
    assert told == list(notes)
    return memory


async def said(memory: Memory, thread: str = "trip") -> list[str]:
    return [row.text for row in await memory.messages.list(thread=thread)]


async def test_threads_messages_and_working_memory(mastra: Mastra) -> None:
    mastra.thread("trip", kind="travel", workingMemory="# Trip\n- to Rome", mastra={"om": {}})
    mastra.says("m1", "trip", "I fly to Rome.")
    mastra.says("m2", "trip", "Noted.", "assistant")
    mastra.resource("ada", "# User\n- Ada", plan="pro")
    memory = await brought_in(mastra)
    thread = await memory.threads.get("trip", resource="ada")
    assert (thread.title, thread.metadata) == ("About trip", {"kind": "travel"})
    rows = await memory.messages.list(thread="trip")
    assert [(row.id, row.role, row.text) for row in rows] == [
        ("m1", "user", "I fly to Rome."),
        ("m2", "assistant", "Noted."),
    ]
    assert str(rows[0].created_at) == "2026-03-02 10:03:00+00:00"
    assert (await memory.storage.get_resource("ada")).metadata == {"plan": "pro"}
    assert (await memory.storage.get_working_memory("resource:ada")).text == "# User\n- Ada"
    assert (await Memory(storage=memory.storage, working_memory=True).working.get(resource="ada")) == ("# User\n- Ada")


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
    await memory.threads.import_all(mastra_lines(mastra.path, on_note=notes.append))
    user, assistant = await memory.messages.list(thread="trip")
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
    memory = await brought_in(mastra, notes=["messages of the role 'system', left out: 1"])
    rows = await memory.messages.list(thread="trip")
    assert [row.id for row in rows] == ["m1", "m2", "m4", "m5"]
    assert rows[1].tool_parts == [ToolPart(call_id="c1", name="book", args={}, state="result", result="done")]
    assert rows[3].text == "Booked."


async def test_results_without_their_call_are_kept(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.says("m1", "trip", "Book it.")
    result = {"type": "tool-result", "toolCallId": "gone", "toolName": "book", "result": "AZ 204"}
    mastra.message("m2", "trip", "tool", [result], type="tool-result")
    memory = await brought_in(mastra)
    assert [row.role for row in await memory.messages.list(thread="trip")] == ["user", "tool"]
    model = answering()
    await Agent(model=model, memory=memory).generate("go on", thread="trip", resource="ada")
    assert "[Late result of book, call gone]\nAZ 204" in model.requests[0].text


async def test_of_a_tools_message_only_results_are_kept(mastra: Mastra) -> None:
    mastra.thread("trip")
    call = {"type": "tool-call", "toolCallId": "c", "toolName": "book", "args": {}}
    mastra.message("m1", "trip", "assistant", [call], type="tool-call")
    result = {"type": "tool-result", "toolCallId": "c", "toolName": "book", "result": "booked"}
    mastra.message("m2", "trip", "tool", [result, {"type": "text", "text": "and paid"}], type="tool-result")
    memory = await brought_in(mastra, notes=["parts of a tool's message that are not results, left out: 1"])
    (row,) = await memory.messages.list(thread="trip")
    assert [(part.name, part.result) for part in row.tool_parts] == [("book", "booked")]


async def test_messages_without_a_thread_row_are_a_thread(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.says("m1", "lost", "I fly to Oslo.")
    mastra.says("m2", "", "Nowhere.")
    memory = await brought_in(
        mastra,
        notes=[
            "threads without a row of their own, made from their messages: 1",
            "messages that name no thread, left out: 1",
        ],
    )
    lost = await memory.threads.get("lost", resource="ada")
    assert (lost.title, str(lost.created_at)) == ("", "2026-03-02 10:03:00+00:00")
    assert await said(memory, "lost") == ["I fly to Oslo."]


async def test_what_users_said_by_signals_is_theirs(mastra: Mastra) -> None:
    mastra.thread("trip")
    for name, kind, parts, more in (
        ("m1", "user", [{"type": "text", "text": "Stop."}], {}),
        ("m2", "user-message", [], {"contents": "Not Oslo."}),
        ("m3", "user-message", [], {"contents": {"role": "user", "content": [{"type": "text", "text": "Rome."}]}}),
        ("m4", "reactive", [{"type": "text", "text": "Mind the budget."}], {}),
    ):
        metadata = {"signal": {"type": kind, **more}}
        mastra.message(name, "trip", "signal", {"format": 2, "parts": parts, "metadata": metadata})
    memory = await brought_in(mastra, notes=["signals of the type 'reactive', left out: 1"])
    assert await said(memory) == ["Stop.", "Not Oslo.", "Rome."]
    assert {row.role for row in await memory.messages.list(thread="trip")} == {"user"}


async def test_contents_that_are_damaged(mastra: Mastra) -> None:
    """A character that JavaScript cut in two is no damage."""
    mastra.thread("trip")
    mastra.message("m1", "trip", "user", '{"format": 2, "parts": [{"type": "text", "text": "cut \\ud83d"}]}')
    mastra.message("m2", "trip", "user", '{"format": 2, "parts": [{"type": "te')
    mastra.message("m3", "trip", "user", {"format": 2, "parts": [{"type": "text", "text": 7}, 8, "plain"]})
    mastra.message(
        "m4", "trip", "assistant", {"format": 2, "parts": [{"type": "tool-invocation", "toolInvocation": 1}]}
    )
    mastra.message("m5", "trip", "user", {"format": 2, "parts": [{"type": "file", "data": {"url": 1}}]})
    mastra.message("m6", "trip", "user", {"format": 2, "parts": [{"type": "text", "text": "deep"}], "metadata": deep()})
    mastra.execute("UPDATE mastra_threads SET metadata = '{'")
    mastra.resource("ada", "")
    mastra.execute("UPDATE mastra_resources SET metadata = '[1]'")
    memory = await brought_in(
        mastra,
        notes=[
            "metadata of threads that are not JSON objects, left out: 1",
            "contents that are not JSON, imported as text: 1",
            "parts of the type 'text' without a text, left out: 1",
            "parts that are not objects, left out: 1",
            "unreadable files, left out: 1",
            "empty messages, left out: 1",
            "messages that cannot be stored (metadata['deep'] is not JSON (it is nested more than 100 deep); use texts,"
            " finite numbers, booleans, None, lists and dictionaries), left out: 1",
            "metadata of resources that are not JSON objects, left out: 1",
        ],
    )
    assert await said(memory) == ["cut \ufffd", '{"format": 2, "parts": [{"type": "te', "plain", ""]


def deep() -> dict[str, Any]:
    value: Any = "end"
    for _ in range(102):
        value = {"deep": value}
    return value


async def test_what_early_and_late_versions_write_elsewhere(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.message("m1", "trip", "assistant", {"format": 2, "reasoning": "Think.", "content": "Booked.", "parts": [],
        "toolInvocations": [{"state": "result", "toolCallId": "c1", "toolName": "book", "args": "Rome", "result": 1}],
    })  # fmt: skip
    mastra.message("m2", "trip", "assistant", {"format": 2, "parts": [
        {"type": "source-document", "sourceId": "s", "mediaType": "application/pdf", "filename": "guide.pdf"},
    ]})  # fmt: skip
    early, late = await (await brought_in(mastra)).messages.list(thread="trip")
    assert early.parts == [
        ReasoningPart(text="Think."),
        TextPart(text="Booked."),
        ToolPart(call_id="c1", name="book", args={"arguments": "Rome"}, state="result", result=1),
    ]
    assert late.parts == [SourcePart(url="", title="guide.pdf", id="s")]


async def test_order_is_by_time(mastra: Mastra) -> None:
    mastra.thread("trip")
    for name, moment in (
        ("third", "2026-03-02T11:30:00.000Z"),
        ("second", "2026-03-02T10:00:00.000Z"),
        ("first", "2026-03-02T09:00:00.000Z"),
        ("undated", "yesterday"),
    ):
        mastra.says(name, "trip", name)
        mastra.execute('UPDATE mastra_messages SET "createdAt" = ? WHERE id = ?', moment, name)
    memory = await brought_in(mastra, notes=["unreadable times, left out: 1"])
    assert await said(memory) == ["first", "second", "third", "undated"]
    times = [row.created_at for row in await memory.messages.list(thread="trip")]
    assert [moment and f"{moment:%H:%M}" for moment in times] == ["09:00", "10:00", "11:30", None]


async def test_what_diarist_has_nothing_for_is_counted(mastra: Mastra) -> None:
    mastra.execute("INSERT INTO mastra_scorers VALUES ('a'), ('b')")
    mastra.observed("thread:gone", "notes", mastra.now())
    mastra.thread("trip", mastra={"om": {"extracted": {"mood": "calm"}}})
    await brought_in(
        mastra,
        notes=[
            "extracted in the metadata of threads, left out: 1",
            "diaries of missing threads, left out: 1",
            "rows of mastra_scorers, left out: 2",
        ],
    )


async def test_observations_cover_what_was_observed(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.says("m1", "trip", "I fly to Rome.")
    until = mastra.says("m2", "trip", "Noted.", "assistant")
    mastra.says("m3", "trip", "On the aisle.")
    mastra.observed("thread:trip", "old notes", until)
    mastra.observed("thread:trip", "Date: Mar 2, 2026\n* 🔴 (10:02) User flies to Rome", until, generation=1)
    notes = ["earlier generations of diaries, left out: 1"]
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage()), notes=notes)
    log = await memory.diary.get(thread="trip")
    assert log.text == "Date: Mar 2, 2026\n* 🔴 (10:02) User flies to Rome"
    assert [row.id for row in (await memory.diary.sources(log.entries[0].id, thread="trip")).items] == ["m1", "m2"]
    model = answering()
    await Agent(model=model, memory=memory).generate("go on", thread="trip", resource="ada")
    await memory.settled()
    assert "User flies to Rome" in model.requests[0].text
    assert "On the aisle." in model.requests[0].text
    assert "I fly to Rome." not in model.requests[0].text


async def test_skipped_messages_are_counted_once_with_a_diary(mastra: Mastra) -> None:
    mastra.thread("trip")
    parts = [{"type": "hologram"}, {"type": "text", "text": "Hi."}]
    mastra.message("m0", "trip", "user", {"format": 2, "parts": parts})
    until = mastra.says("m1", "trip", "I fly to Rome.")
    mastra.observed("thread:trip", "old notes", until, waiting="{")
    mastra.observed("resource:ada", "old notes", until, waiting="{")
    mastra.execute("UPDATE mastra_observational_memory SET bufferedReflection = 'short notes'")
    await brought_in(
        mastra,
        notes=[
            "bufferedObservationChunks of diaries that are not JSON, left out: 2",
            "buffered reflections, left out: 2",
            "parts of the unknown type 'hologram', left out: 1",
        ],
    )


async def test_observations_of_a_resource(mastra: Mastra) -> None:
    for name in ("trip", "work"):
        mastra.thread(name)
        until = mastra.says(f"{name}-1", name, f"talk of {name}")
    mastra.says("trip-2", "trip", "later")
    mastra.observed("resource:ada", "* 🔴 User flies and works", until)
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage(), scope="resource"))
    (entry,) = (await memory.diary.get(thread="work")).entries
    assert {(source.thread_id, source.last_seq) for source in entry.sources} == {("trip", 1), ("work", 1)}


async def test_a_thread_was_observed_as_far_as_its_own_metadata_says(mastra: Mastra) -> None:
    """The diary of a resource says until when any thread was."""
    mastra.thread("trip", mastra={"om": {"lastObservedAt": "2026-03-02T10:03:30Z"}})
    for name in ("m1", "m2"):
        until = mastra.says(name, "trip", name)
    mastra.observed("resource:ada", "* 🔴 notes", until)
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage(), scope="resource"))
    assert (await memory.diary.get(thread="trip")).entries[0].sources[0].last_seq == 1


async def test_messages_of_buffered_observations_are_raw(mastra: Mastra) -> None:
    mastra.thread("trip", mastra={"om": {"currentTask": "fly"}})
    until = mastra.says("m1", "trip", "I fly to Rome.")
    mastra.says("m2", "trip", "talk m2", "assistant")
    chunks = [{"id": "a", "observations": "* 🔴 notes of m2", "messageIds": ["m2"], "lastObservedAt": until}]
    mastra.observed("thread:trip", "* 🔴 notes of m1", until, waiting=to_jsonb(chunks))
    left_out = ["currentTask in the metadata of threads, left out: 1", "buffered observations, left out: 1"]
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage()), notes=left_out)
    log = await memory.diary.get(thread="trip")
    assert [(entry.text, entry.message_count) for entry in log.entries] == [("* 🔴 notes of m1", 1)]


async def test_only_the_newest_generation_is_imported(mastra: Mastra) -> None:
    mastra.thread("trip")
    first = mastra.says("m1", "trip", "I fly to Rome.")
    second = mastra.says("m2", "trip", "On the aisle.")
    mastra.observed("thread:trip", "long notes", first)
    mastra.observed("thread:trip", "short notes", second, generation=2)
    notes = ["earlier generations of diaries, left out: 1"]
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage()), notes=notes)
    log = await memory.diary.get(thread="trip")
    (entry,) = log.entries
    assert (log.generation, entry.text, entry.kind, entry.message_count) == (2, "short notes", "reflection", 2)
    assert await memory.diary.history(thread="trip") == []


async def test_notes_outlive_their_messages(mastra: Mastra) -> None:
    """As where old messages are deleted to save room."""
    mastra.thread("trip")
    mastra.observed("thread:trip", "* 🔴 User flies to Rome", mastra.now())
    mastra.observed("resource:bob", "* 🔴 User flies to Oslo", mastra.now())
    mastra.says("m1", "trip", "On the aisle.")
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage()))
    model = answering()
    agent = Agent(model=model, memory=memory)
    for text in ("go on", "and on"):
        await agent.generate(text, thread="trip", resource="ada")
        assert "User flies to Rome" in model.requests[-1].text
    await memory.diary.observe(thread="trip")
    await memory.diary.reflect(thread="trip")
    lines = [line async for line in memory.threads.export_all()]
    again = keeping_diary(InMemoryStorage())
    await again.threads.import_all(lines)
    assert [line async for line in again.threads.export_all()] == lines
    assert "User flies to Oslo" in "".join(lines)


async def test_what_marks_in_a_message_say(mastra: Mastra) -> None:
    """A message that grew after it was observed stays raw; one that was observed to its end does not."""
    mark, text = {"type": "data-om-observation-end"}, {"type": "text", "text": "Looked."}
    mastra.thread("trip")
    for name, parts in (("grew", [text, mark, text]), ("whole", [text, mark, {"type": "step-start"}])):
        mastra.message(name, "trip", "assistant", {"format": 2, "parts": parts})
    until = mastra.says("m3", "trip", "And then?")
    mastra.message("later", "trip", "assistant", {"format": 2, "parts": [text, mark]})
    mastra.says("m5", "trip", "Hm.")
    mastra.says("named", "trip", "Hm.", "assistant")
    mastra.observed("thread:trip", "notes", until, ids=["named"])
    (entry,) = (await (await brought_in(mastra, keeping_diary(InMemoryStorage()))).diary.get(thread="trip")).entries
    assert [(source.first_seq, source.last_seq) for source in entry.sources] == [(2, 4), (6, 6)]


async def test_sqlites_binary_json(mastra: Mastra) -> None:
    """As the newest version writes it; SQLite itself reads it from 3.45 on."""
    mastra.thread("trip")
    mastra.thread("work")
    mastra.execute(
        "UPDATE mastra_threads SET metadata = ? WHERE id = 'trip'",
        to_jsonb({"kind": "travel", "workingMemory": "# Trip"}),
    )
    mastra.execute("UPDATE mastra_threads SET metadata = ? WHERE id = 'work'", b'{"kind": "text in a blob"}')
    mastra.resource("ada", "# Ada")
    mastra.execute("UPDATE mastra_resources SET metadata = ?", to_jsonb({"plan": "pro"}))
    until = mastra.says("m1", "trip", "")
    content = {"format": 2, "parts": [{"type": "text", "text": "I fly to “Rome”."}]}
    mastra.execute("UPDATE mastra_messages SET content = ?", to_jsonb(content))
    mastra.observed("thread:trip", "notes", until)
    memory = await brought_in(mastra, keeping_diary(InMemoryStorage()))
    assert (await memory.threads.get("trip")).metadata == {"kind": "travel"}
    assert (await memory.threads.get("work")).metadata == {"kind": "text in a blob"}
    assert (await memory.storage.get_resource("ada")).metadata == {"plan": "pro"}
    of_thread = Memory(storage=memory.storage, working_memory=WorkingMemoryConfig(scope="thread"))
    assert await of_thread.working.get(thread="trip") == "# Trip"
    assert await said(memory) == ["I fly to “Rome”."]
    assert [entry.text for entry in (await memory.diary.get(thread="trip")).entries] == ["notes"]


PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "reasoning", "tool-invocation", "file", "source", "data-x", "step-start", "?"])},
    optional={
        name: st.sampled_from(["word", "", 7, None, [], {"state": "result", "toolCallId": "c"}, ["x"], deep()])
        for name in ("text", "toolInvocation", "data", "source", "args", "details", "id")
    },
)
CONTENTS = (
    st.fixed_dictionaries(
        {"parts": st.lists(PARTS | st.sampled_from(["word", 7, None]), max_size=3)},
        optional={
            name: st.sampled_from(["word", None, [], {}, 7, deep()]) for name in ("content", "metadata", "reasoning")
        },
    )
    | st.lists(PARTS, max_size=2)
    | st.sampled_from(["word", 7, None, True, '{"parts"'])
)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "signal"]), CONTENTS), max_size=6))
def test_every_message_comes_in_or_is_counted(rows: list[tuple[str, Any]]) -> None:
    async def brought(folder: str) -> None:
        mastra = Mastra(Path(folder, "mastra.db"))
        mastra.thread("trip")
        for number, (role, content) in enumerate(rows):
            mastra.message(f"m{number}", "trip", role, content)
        mastra.connection.close()
        notes: list[str] = []
        memory = Memory(storage=InMemoryStorage())
        moved = await memory.threads.import_all(mastra_lines(mastra.path, on_note=notes.append))
        counted = [int(note.rpartition(": ")[2]) for note in notes if note.startswith(("messages", "empty", "signals"))]
        assert moved.messages + sum(counted) == len(rows)

    with TemporaryDirectory() as folder:
        asyncio.run(brought(folder))


async def test_an_older_database_has_fewer_tables_and_columns(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.says("m1", "trip", "hello")
    mastra.connection.executescript(
        "DROP TABLE mastra_resources; DROP TABLE mastra_observational_memory;"
        ' ALTER TABLE mastra_messages DROP COLUMN "resourceId"'
    )
    assert await said(await brought_in(mastra)) == ["hello"]


async def test_another_database_is_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE notes (id)")
    other.commit()
    other.close()
    (tmp_path / "text.db").write_text("hello")
    memory = Memory(storage=InMemoryStorage())
    for name, said in (
        ("other.db", "no table mastra_threads"),
        ("text.db", "not an SQLite database"),
        ("missing.db", "missing.db: cannot be read: "),
    ):
        with pytest.raises(InputError, match=said):
            await memory.threads.import_all(mastra_lines(tmp_path / name))


async def test_a_database_that_is_in_use_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mastra.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    mastra = Mastra(path)  # its tables are in the write-ahead log until it is closed
    mastra.thread("trip")
    mastra.says("m1", "trip", "hello")
    assert await said(await brought_in(mastra)) == ["hello"]
    mastra.connection.close()


async def test_a_refused_import_only_raises(mastra: Mastra) -> None:
    mastra.thread("trip")
    mastra.thread("other")
    memory = Memory(storage=InMemoryStorage())
    with pytest.raises(InputError, match="thread 'trip' belongs to resource 'ada', not 'bob'"):
        await memory.threads.import_all(mastra_lines(mastra.path), resource="bob")
