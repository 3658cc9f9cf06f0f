"""Mastra's SQLite or libSQL database, as lines of our own format.

Read are ``mastra_threads``, ``mastra_messages`` (ordered by ``createdAt``), ``mastra_resources`` and
``mastra_observational_memory``. Its observations become one entry of a diary, which covers the messages up to
``lastObservedAt``.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, cast

import orjson

from diarist.exceptions import InputError
from diarist.memory.conversations.building import Builder
from diarist.memory.moving.lines import Item, Moved, WholeResource, Working, first_line, last_line, to_line
from diarist.memory.moving.mastra_content import read_content
from diarist.memory.observational.log.coverage import digest_rows
from diarist.memory.observational.log.transitions import cycle_id
from diarist.messages import Json, Message, Role, ToolPart
from diarist.storage.records import Observation, ObservationLog, Scope, Source, Thread
from diarist.tokens import default_counter

_MAGIC = b"SQLite format 3\0"
_OURS = {"mastra", "workingMemory"}
"""Keys of a thread's metadata that are Mastra's own."""


def is_mastra(path: Path) -> bool:
    """Whether it is an SQLite file. Raises InputError for one that is not Mastra's."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return False
    try:
        with closing(_connect(path)) as connection:
            tables = _tables(connection)
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not {"mastra_threads", "mastra_messages"} <= tables:
        raise InputError(f"{path} is an SQLite database, and not Mastra's: it has no table mastra_threads")
    return True


async def mastra_lines(path: Path | str, *, on_note: Callable[[str], None] | None = None) -> AsyncIterator[str]:
    """The threads of a database of Mastra's, as ``import_threads`` takes them.

    Args:
        path: The file; nothing in it is changed.
        on_note: Called at the end with what was left out, one sentence each.

    Raises:
        InputError: It cannot be read.
    """
    if not is_mastra(Path(path)):
        raise InputError(f"{path} is no SQLite database")
    try:
        with closing(_connect(Path(path))) as connection:
            database = _Database(connection)
            yield first_line()
            moved = Moved()
            for item in database.items():
                moved.threads += isinstance(item, Thread)
                moved.messages += isinstance(item, Message)
                moved.resources += isinstance(item, WholeResource)
                yield to_line(item)
            yield last_line(moved)
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    for text, count in database.notes.items():
        if on_note is not None:
            on_note(f"{text}: {count}")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    return connection


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


class _Database:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.notes: Counter[str] = Counter()
        self._connection = connection
        self._tables = _tables(connection)
        self._times = Builder(zone=UTC, scope="mastra")
        self._covered: dict[str, list[Source]] = {}
        """By resource: what its diary covers."""

    def items(self) -> Iterator[Item]:
        for row in self._rows("mastra_threads", "id", "resourceId", "title", "metadata", "createdAt"):
            yield from self._thread(row)
        for row in self._rows("mastra_resources", "id", "workingMemory", "metadata"):
            yield self._resource(row["id"], row["workingMemory"], _object(row["metadata"]))
        for resource_id in list(self._covered):
            yield self._resource(resource_id, None, {})

    def _thread(self, row: sqlite3.Row) -> Iterator[Item]:
        metadata = _object(row["metadata"])
        thread = Thread(
            id=row["id"],
            resource_id=row["resourceId"] or row["id"],
            title=row["title"] or "",
            metadata={key: value for key, value in metadata.items() if key not in _OURS},
            created_at=self._time(row["createdAt"]) or datetime.fromtimestamp(0, UTC),
        )
        yield thread
        if metadata.get("workingMemory"):
            yield Working(_as_text(metadata["workingMemory"]))
        own, shared = self._diary(f"thread:{thread.id}"), self._diary(f"resource:{thread.resource_id}")
        own_until = self._time(own["lastObservedAt"]) if own else None
        shared_until = _observed_in(metadata, self._time) or (self._time(shared["lastObservedAt"]) if shared else None)
        own_count = shared_count = 0
        for number, message in enumerate(self._messages(thread.id, self._note), 1):
            own_count = number if _is_until(message, own_until) else own_count
            shared_count = number if _is_until(message, shared_until) else shared_count
            yield message
        if own and own_count:
            yield self._log(own, "thread", thread.resource_id, [self._source(thread.id, own_count)])
        if shared and shared_count:
            self._covered.setdefault(thread.resource_id, []).append(self._source(thread.id, shared_count))

    def _resource(self, resource_id: str, working: str | None, metadata: dict[str, Json]) -> WholeResource:
        sources = self._covered.pop(resource_id, [])
        diary = self._diary(f"resource:{resource_id}") if sources else None
        logs = (self._log(diary, "resource", resource_id, sources),) if diary else ()
        return WholeResource(id=resource_id, working_memory=working or "", metadata=metadata, logs=logs)

    # -- messages

    def _messages(self, thread_id: str, note: Callable[[str], None]) -> Iterator[Message]:
        """In order. Results that follow their calls in messages of their own are put where they belong."""
        waiting: Message | None = None
        for row in self._rows("mastra_messages", "id", "content", "role", "createdAt", thread=thread_id):
            parts, metadata = read_content(row["content"], note)
            if row["role"] == "tool":
                _answer(waiting, [part for part in parts if isinstance(part, ToolPart)], note)
                continue
            if waiting is not None:
                yield waiting
            waiting = None
            if row["role"] not in ("user", "assistant"):
                note(f"messages of the role {row['role']!r}, left out")
            elif not parts:
                note("empty messages, left out")
            else:
                waiting = Message(
                    id=row["id"],
                    role=cast(Role, row["role"]),
                    parts=parts,
                    created_at=self._time(row["createdAt"]),
                    metadata=metadata,
                )
        if waiting is not None:
            yield waiting

    # -- observations

    def _diary(self, key: str) -> sqlite3.Row | None:
        """The newest generation of a diary that says anything."""
        if "mastra_observational_memory" not in self._tables:
            return None
        return self._connection.execute(
            "SELECT * FROM mastra_observational_memory WHERE lookupKey = ? AND activeObservations <> ''"
            " ORDER BY generationCount DESC LIMIT 1",
            [key],
        ).fetchone()

    def _log(self, row: sqlite3.Row, scope: Scope, resource_id: str, sources: list[Source]) -> ObservationLog:
        key, text = str(row["lookupKey"]), str(row["activeObservations"])
        cycle = cycle_id(key, "observation", sources)
        entry = Observation(
            id=f"obs_{cycle}",
            text=text,
            tokens=default_counter().count(text),
            sources=tuple(sources),
            message_tokens=int(row["totalTokensObserved"] or 0) if "totalTokensObserved" in row.keys() else 0,  # noqa: SIM118
            message_count=sum(source.last_seq for source in sources),
            observed_at=self._time(row["lastObservedAt"]) or datetime.fromtimestamp(0, UTC),
            cycle_id=cycle,
        )
        return ObservationLog(key=key, scope=scope, resource_id=resource_id, entries=(entry,))

    def _source(self, thread_id: str, count: int) -> Source:
        again = self._messages(thread_id, lambda _: None)  # what is left out has been told
        digest = digest_rows(islice(again, count))
        return Source(thread_id=thread_id, first_seq=1, last_seq=count, digest=digest)

    # -- values

    def _rows(self, table: str, *columns: str, thread: str | None = None) -> Iterator[sqlite3.Row]:
        """Columns that an older database does not have are null; JSON in SQLite's binary form becomes text."""
        if table not in self._tables:
            return
        there = {row["name"] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}
        names = [
            f'CASE typeof("{name}") WHEN \'blob\' THEN json("{name}") ELSE "{name}" END AS "{name}"'
            if name in there
            else f'NULL AS "{name}"'
            for name in columns
        ]
        of_thread = "" if thread is None else "WHERE thread_id = ?"
        order = '"createdAt", rowid' if "createdAt" in there else "rowid"
        query = f'SELECT {", ".join(names)} FROM "{table}" {of_thread} ORDER BY {order}'
        yield from self._connection.execute(query, [] if thread is None else [thread])

    def _time(self, value: Json) -> datetime | None:
        return self._times.time(value, "createdAt")

    def _note(self, text: str) -> None:
        self.notes[text] += 1


def _answer(message: Message | None, results: list[ToolPart], note: Callable[[str], None]) -> None:
    calls = {part.call_id: part for part in (message.tool_parts if message is not None else ())}
    for result in results:
        call = calls.get(result.call_id)
        if call is None:
            note("tool results without their call, left out")
        else:
            call.result, call.state = result.result, result.state


def _is_until(message: Message, moment: datetime | None) -> bool:
    return moment is not None and message.created_at is not None and message.created_at <= moment


def _observed_in(metadata: dict[str, Json], time: Callable[[Json], datetime | None]) -> datetime | None:
    """Until when a thread was observed for the diary of its resource."""
    om: Any = metadata
    for name in ("mastra", "om", "lastObservedAt"):
        om = cast("dict[str, Any]", om).get(name) if isinstance(om, dict) else None
    return time(om)


def _object(text: str | None) -> dict[str, Json]:
    try:
        value: Json = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
