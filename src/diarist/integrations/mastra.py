"""Converts Mastra's SQLite or libSQL database to lines of diarist's export format.

It reads ``mastra_threads``, ``mastra_messages`` (ordered by ``createdAt``), ``mastra_resources`` and
``mastra_observational_memory``. The newest observations become one diary entry, which covers the messages up to
``lastObservedAt``.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

from diarist.exceptions import InputError
from diarist.integrations.conversations.loading import elements_of, fields_of
from diarist.integrations.mastra_content import read_content, read_json
from diarist.memory.observational.log.coverage import as_digest, hash_row, join_sources
from diarist.memory.observational.log.transitions import cycle_id
from diarist.memory.transfer.format import DiaryLogs, Item, WholeResource, WorkingText, check_message, lines_of
from diarist.messages import Json, Message, Part, Role, ToolPart, as_text, parse_time, too_deep
from diarist.storage.records import Observation, ObservationLog, Source, Thread, own_resource
from diarist.tokens import default_counter

__all__ = ["mastra_lines"]

_MAGIC = b"SQLite format 3\0"
_READ = {"mastra_threads", "mastra_messages", "mastra_resources", "mastra_observational_memory"}
_OURS = {"mastra", "workingMemory"}
"""Metadata keys of threads that Mastra itself writes."""
_KNOWN = {"lastObservedAt", "lastObservedMessageCursor"}
"""Keys of Mastra's observational memory in the metadata of threads that are not reported as left out."""
_SAID_BY_USERS = ("user", "user-message")
"""Signals with these types are messages that users sent while the agent was working."""
_EPOCH = datetime.fromtimestamp(0, UTC)


def is_mastra(path: Path) -> bool:
    """Return True for an SQLite file of Mastra, False for a file that is no SQLite database.

    Raises InputError for other SQLite databases, and if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return False
        # If there is no write-ahead log, all tables are in the file, and opening it as immutable creates no log.
        immutable = not Path(f"{path.resolve()}-wal").exists()
        with closing(_connect(path, immutable=immutable)) as connection:
            tables = _tables(connection)
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not {"mastra_threads", "mastra_messages"} <= tables:
        if "diarist_threads" in tables:
            raise InputError(
                f"{path} is a database of diarist itself: export it with 'diarist export', and import the file"
            )
        raise InputError(f"{path} is an SQLite database, but not one of Mastra: it has no table mastra_threads")
    return True


async def mastra_lines(path: Path | str, *, on_note: Callable[[str], None] | None = None) -> AsyncIterator[str]:
    """Yield the threads of a Mastra database as lines for ``memory.threads.import_all``.

    Args:
        path: The file. It is opened read-only.
        on_note: Called at the end, once for each kind of content that was left out or changed, with a sentence that
            names the kind and its count.

    Raises:
        InputError: The file cannot be read.
    """
    if not is_mastra(Path(path)):
        raise InputError(f"{path} is not an SQLite database")
    try:
        with closing(_connect(Path(path))) as connection:
            database = _Database(connection)
            async for line in lines_of(database.items()):
                yield line
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    for text, count in database.notes.items():
        if on_note is not None:
            on_note(f"{text}: {count}")


def _connect(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable={immutable:d}", uri=True)
    connection.row_factory = sqlite3.Row
    return connection


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


class _Database:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.notes: Counter[str] = Counter()
        self._connection = connection
        self._tables = _tables(connection)
        self._diaries = {str(row["lookupKey"]) for row in self._rows("mastra_observational_memory", "lookupKey")}
        self._diary = cache(self._read_diary)
        self._read: set[str] = set()
        """Keys of the diaries that belong to a thread or resource."""
        self._covered: defaultdict[str, list[Source]] = defaultdict(list)
        """For each resource: the messages that its diary covers."""

    async def items(self) -> AsyncIterator[Item]:
        for item in chain(self._threads(), self._resources()):
            yield item
        # Report rows that belong to no thread, and tables that diarist cannot import.
        (homeless,) = self._connection.execute(
            "SELECT count(*) FROM mastra_messages WHERE thread_id IS NULL OR thread_id = ''"
        ).fetchone()
        counts = {
            "messages that name no thread, left out": homeless,
            "diaries of missing threads, left out": len(self._diaries - self._read),
        }
        for table in sorted(self._tables - _READ):
            if table.startswith("mastra_"):
                (counts[f"rows of {table}, left out"],) = self._connection.execute(
                    f'SELECT count(*) FROM "{table}"'
                ).fetchone()
        self.notes.update({text: count for text, count in counts.items() if count})

    def _threads(self) -> Iterator[Item]:
        for row in self._rows("mastra_threads", "id", "resourceId", "title", "metadata", "createdAt"):
            yield from self._thread(row)
        messages = self._select("mastra_messages", "thread_id", "resourceId", "createdAt")
        for row in self._connection.execute(
            'SELECT thread_id AS id, min("resourceId") AS "resourceId", NULL AS title, NULL AS metadata,'
            f' min("createdAt") AS "createdAt" FROM ({messages}) AS message'
            " WHERE thread_id <> '' AND NOT EXISTS (SELECT 1 FROM mastra_threads WHERE id = message.thread_id)"
            " GROUP BY thread_id ORDER BY 5, 1"
        ):
            self._note("threads without a row of their own, made from their messages")
            yield from self._thread(row)

    def _thread(self, row: sqlite3.Row) -> Iterator[Item]:
        metadata = self._object(row["metadata"], "metadata of threads")
        thread = Thread(
            id=row["id"],
            resource_id=row["resourceId"] or own_resource(row["id"]),
            title=row["title"] or "",
            metadata={key: value for key, value in metadata.items() if key not in _OURS},
            created_at=self._time(row["createdAt"]) or _EPOCH,
        )
        yield thread
        if metadata.get("workingMemory"):
            yield WorkingText(as_text(metadata["workingMemory"]))
        known = fields_of(fields_of(metadata.get("mastra")).get("om"))
        for name in sorted(known.keys() - _KNOWN):
            self._note(f"{name} in the metadata of threads, left out")
        until = parse_time(known.get("lastObservedAt"), UTC)
        own, shared = self._diary(f"thread:{thread.id}"), self._diary(f"resource:{thread.resource_id}")
        noted: list[Source] = []
        noted_shared: list[Source] = []
        for seq, (message, observed) in enumerate(self._messages(thread.id), 1):
            source = Source(thread_id=thread.id, first_seq=seq, last_seq=seq, digest=as_digest(hash_row(message)))
            if own is not None and own.covers(message, observed, None):
                noted.append(source)
            if shared is not None and shared.covers(message, observed, until):
                noted_shared.append(source)
            yield message
        if own is not None:
            yield DiaryLogs((own.log(thread.resource_id, join_sources(noted)),))
        self._covered[thread.resource_id] += join_sources(noted_shared)

    def _resources(self) -> Iterator[WholeResource]:
        there: set[str] = set()
        for row in self._rows("mastra_resources", "id", "workingMemory", "metadata"):
            metadata = self._object(row["metadata"], "metadata of resources")
            working = as_text(row["workingMemory"] or "")
            yield WholeResource(
                id=row["id"], working_memory=working, metadata=metadata, logs=self._shared_logs(row["id"])
            )
            there.add(f"resource:{row['id']}")
        for key in sorted(self._diaries - there):
            kind, _, resource_id = key.partition(":")
            if kind == "resource" and (logs := self._shared_logs(resource_id)):
                yield WholeResource(id=resource_id, logs=logs)

    def _shared_logs(self, resource_id: str) -> tuple[ObservationLog, ...]:
        diary = self._diary(f"resource:{resource_id}")
        return () if diary is None else (diary.log(resource_id, self._covered[resource_id]),)

    # -- messages

    def _messages(self, thread_id: str) -> Iterator[tuple[Message, bool | None]]:
        """Yield messages in order. Each comes with True if Mastra marked it as observed, False if as not observed, and
        None if it has no mark.

        Tool results in separate messages are added to their calls.
        """
        waiting: tuple[Message, bool | None] | None = None
        columns = self._select("mastra_messages", "id", "content", "role", "type", "createdAt")
        query = f'{columns} WHERE thread_id = ? ORDER BY "createdAt", rowid'
        for row in self._connection.execute(query, [thread_id]):
            found = self._message(row)
            if found is None:
                continue
            message = found[0]
            if message.role == "tool":
                message.parts = _late(message, waiting[0] if waiting else None)
                if not message.parts:
                    continue
            if waiting is not None:
                yield waiting
            waiting = found
        if waiting is not None:
            yield waiting

    def _message(self, row: sqlite3.Row) -> tuple[Message, bool | None] | None:
        note, said_at = self._note, self._time(row["createdAt"])
        try:
            content = read_content(row["content"], note, is_json=row["type"] == "v2")
            role, parts = row["role"], content.parts
            if role == "signal":
                signal = fields_of(content.metadata.get("signal")).get("type", row["type"])
                if signal not in _SAID_BY_USERS:
                    note(f"signals of the type {signal!r}, left out")
                    return None
                role = "user"
            if role not in ("user", "assistant", "tool"):
                note(f"messages of the role {role!r}, left out")
                return None
            if role == "tool":
                results: list[Part] = [part for part in parts if isinstance(part, ToolPart) and part.state != "call"]
                for _ in range(len(parts) - len(results)):
                    note("parts of a tool's message that are not results, left out")
                parts = results
            if not parts:
                note("empty messages, left out")
                return None
            message = Message(
                id=str(row["id"]),
                role=cast(Role, role),
                parts=parts,
                created_at=said_at,
                metadata=content.metadata,
            )
            check_message(message)
            if any(too_deep(value) for part in message.tool_parts for value in (part.args, part.result)):
                raise InputError("a tool's arguments or result are nested too deeply")
        except InputError as error:
            note(f"messages that cannot be stored ({error}), left out")
            return None
        return message, content.observed

    # -- observations

    def _read_diary(self, key: str) -> _Diary | None:
        """Return the newest observations of a thread or resource, or None."""
        if key not in self._diaries:
            return None
        self._read.add(key)
        query = 'SELECT * FROM mastra_observational_memory WHERE "lookupKey" = ? ORDER BY "generationCount", rowid'
        rows = self._connection.execute(query, [key]).fetchall()
        written = [row for row in rows if row["activeObservations"]]
        for _ in written[:-1]:
            self._note("earlier generations of diaries, left out")
        newest = dict(rows[-1])
        observed = self._list(newest, "observedMessageIds")
        if self._list(newest, "bufferedObservationChunks"):
            self._note("buffered observations, left out")
        if newest.get("bufferedReflection"):
            self._note("buffered reflections, left out")
        return _Diary(key, dict(written[-1]), frozenset(map(str, observed))) if written else None

    # -- values

    def _rows(self, table: str, *columns: str) -> Iterable[sqlite3.Row]:
        if table not in self._tables:
            return ()
        order = '"createdAt", rowid' if "createdAt" in self._columns(table) else "rowid"
        return self._connection.execute(f"{self._select(table, *columns)} ORDER BY {order}")

    def _select(self, table: str, *columns: str) -> str:
        """Return a SELECT in which columns that an older database lacks are null."""
        there = {*self._columns(table), "rowid"}
        names = [f'"{name}"' if name in there else f'NULL AS "{name}"' for name in columns]
        return f'SELECT {", ".join(names)} FROM "{table}"'

    def _columns(self, table: str) -> set[str]:
        return {row["name"] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def _object(self, cell: object, what: str) -> dict[str, Json]:
        try:
            value = read_json(cell or "{}")
        except ValueError:
            value = cell
        if value is not None and not isinstance(value, dict):
            self._note(f"{what} that are not JSON objects, left out")
        return fields_of(value)

    def _list(self, row: Mapping[str, Any], name: str) -> list[Any]:
        try:
            return elements_of(read_json(row.get(name) or "[]"))
        except ValueError:
            self._note(f"{name} of diaries that are not JSON, left out")
            return []

    def _time(self, value: Json) -> datetime | None:
        moment = parse_time(value, UTC)
        if moment is None and value is not None:
            self._note("unreadable times, left out")
        return moment

    def _note(self, text: str) -> None:
        self.notes[text] += 1


def _late(message: Message, before: Message | None) -> list[Part]:
    """Add a tool's results to their calls in the previous message; return the remaining results."""
    calls = {part.call_id: part for part in before.tool_parts} if before and before.role == "assistant" else {}
    late: list[Part] = []
    for result in message.tool_parts:
        call = calls.get(result.call_id)
        if call is None:
            late.append(result)
        else:
            call.result, call.state = result.result, result.state
    return late


class _Diary:
    """The newest observations of a thread or a resource. Messages that only buffered observations cover stay raw.

    Args:
        key: ``thread:<id>`` or ``resource:<id>``.
        row: The row of the observations.
        observed: Ids of messages that are observed, whatever their time.
    """

    def __init__(self, key: str, row: Mapping[str, Any], observed: Collection[str]) -> None:
        self._key, self._row, self._observed = key, row, observed
        self._until = parse_time(row.get("lastObservedAt"), UTC)

    def covers(self, message: Message, observed: bool | None, until: datetime | None) -> bool:
        """Return True if the observations cover a message.

        Args:
            observed: The mark of observation in the message: True, False, or None without one.
            until: Time up to which the message's thread was observed, if known.
        """
        if observed is not None or message.id in self._observed:
            return observed is not False
        until, said = until or self._until, message.created_at
        return said is not None and until is not None and said <= until

    def log(self, resource_id: str, sources: Sequence[Source]) -> ObservationLog:
        """Return the diary, with the observations as its only entry. ``sources``: the messages that it covers."""
        text, kind = str(self._row["activeObservations"]), "observation"
        if self._row.get("originType") == "reflection":
            kind = "reflection"
        cycle = cycle_id(self._key, kind, sources, [str(self._row.get("id"))])
        entry = Observation(
            id=f"{'ref' if kind == 'reflection' else 'obs'}_{cycle}",
            text=text,
            tokens=default_counter().count(text),
            sources=tuple(sources),
            message_tokens=int(self._row.get("totalTokensObserved") or 0),
            message_count=sum(source.last_seq - source.first_seq + 1 for source in sources),
            observed_at=self._until or _EPOCH,
            kind=kind,
            state="active",
            cycle_id=cycle,
        )
        return ObservationLog(
            key=self._key,
            scope="thread" if self._key.startswith("thread:") else "resource",
            resource_id=resource_id,
            generation=int(self._row["generationCount"]),
            entries=(entry,),
        )
