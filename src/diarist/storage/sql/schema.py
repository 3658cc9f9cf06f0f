"""The tables and their versions. All names start with ``diarist_``, since an application may use the same database.

JSON is stored as text and returned unchanged: a JSON type would reject NUL and lone surrogates, which occur in tool
results. Times are microseconds since 1970, UTC.
"""

from __future__ import annotations

from diarist.databases.base import Connection, Schema
from diarist.storage.codec import from_json, to_json
from diarist.storage.records import WorkingMemory
from diarist.storage.sql.resources import save_working_memory

# The columns of ``MessageRow``, and the thread.
_MESSAGE = """thread_id {key} NOT NULL REFERENCES diarist_threads (id) ON DELETE CASCADE, seq BIGINT NOT NULL,
        id {key} NOT NULL, run_id {key} NOT NULL REFERENCES diarist_runs (id) ON DELETE CASCADE,
        role TEXT NOT NULL, source TEXT NOT NULL, created_at BIGINT, parts TEXT NOT NULL, metadata TEXT NOT NULL,
        part_tokens TEXT, sent TEXT"""
# threads.created_by: the run that created the thread; the thread is visible only if that run's messages are.
# threads.indexed_seq: messages up to this number are in the search index, if their run has ended.
# threads.stamp: a random number, replaced when existing messages change. See ``KnownRows``.
# runs: if a run creates a thread and is discarded, its row remains; it has the final state and the token.
# logs.stamp: a random number, replaced with the body, so that readers can cache it.
_TABLES = (
    """CREATE TABLE diarist_threads (
        id {key} NOT NULL PRIMARY KEY, resource_id {key} NOT NULL, title TEXT NOT NULL, metadata TEXT NOT NULL,
        created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, last_seq BIGINT NOT NULL, created_by {key},
        stamp BIGINT DEFAULT 0 NOT NULL, indexed_seq BIGINT DEFAULT 0 NOT NULL
    )""",
    "CREATE INDEX diarist_threads_by_time ON diarist_threads (created_at, id)",
    "CREATE INDEX diarist_threads_by_resource ON diarist_threads (resource_id, created_at, id)",
    """CREATE TABLE diarist_thread_metadata (
        thread_id {key} NOT NULL REFERENCES diarist_threads (id) ON DELETE CASCADE,
        key {key} NOT NULL, value TEXT NOT NULL, PRIMARY KEY (thread_id, key)
    )""",
    """CREATE TABLE diarist_runs (
        id {key} NOT NULL PRIMARY KEY, thread_id {key} NOT NULL, resource_id {key} NOT NULL, state TEXT NOT NULL,
        token BIGINT NOT NULL, guarded BOOLEAN NOT NULL, expires_at BIGINT NOT NULL, created_at BIGINT NOT NULL,
        ended_at BIGINT, CONSTRAINT diarist_runs_token UNIQUE (thread_id, token)
    )""",
    "CREATE UNIQUE INDEX diarist_runs_one_live ON diarist_runs (thread_id) WHERE state = 'live'",
    f"""CREATE TABLE diarist_messages (
        {_MESSAGE}, PRIMARY KEY (thread_id, seq), CONSTRAINT diarist_messages_id UNIQUE (thread_id, id)
    )""",
    "CREATE INDEX diarist_messages_by_run ON diarist_messages (run_id)",
    """CREATE TABLE diarist_resources (
        id {key} NOT NULL PRIMARY KEY, version BIGINT NOT NULL, body TEXT NOT NULL
    )""",
    """CREATE TABLE diarist_logs (
        key {key} NOT NULL PRIMARY KEY, version BIGINT NOT NULL, generation BIGINT NOT NULL, body TEXT NOT NULL,
        stamp BIGINT DEFAULT 0 NOT NULL
    )""",
    """CREATE TABLE diarist_log_history (
        key {key} NOT NULL, generation BIGINT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (key, generation)
    )""",
    """CREATE TABLE diarist_leases (
        name {key} NOT NULL PRIMARY KEY, owner TEXT NOT NULL, token BIGINT NOT NULL, expires_at BIGINT NOT NULL
    )""",
    "CREATE TABLE diarist_event_logs (key {key} NOT NULL PRIMARY KEY, last_seq BIGINT NOT NULL)",
    """CREATE TABLE diarist_events (
        key {key} NOT NULL REFERENCES diarist_event_logs (key) ON DELETE CASCADE, seq BIGINT NOT NULL,
        type TEXT NOT NULL, data TEXT NOT NULL, created_at BIGINT NOT NULL, PRIMARY KEY (key, seq)
    )""",
)
# Migrations create the following tables as well. To change one, first copy its old text for the migration that creates
# it: the migration that changes the table would otherwise find the change in it already.
_WORKING_MEMORIES = """CREATE TABLE IF NOT EXISTS diarist_working_memories (
    key {key} NOT NULL PRIMARY KEY, version BIGINT NOT NULL, body TEXT NOT NULL
)"""
# Ids of forgotten messages, so that they are not stored again when a client sends its whole conversation again.
_FORGOTTEN = """CREATE TABLE IF NOT EXISTS diarist_forgotten (
    thread_id {key} NOT NULL REFERENCES diarist_threads (id) ON DELETE CASCADE, id {key} NOT NULL,
    seq BIGINT NOT NULL, rank BIGINT NOT NULL, role TEXT NOT NULL, PRIMARY KEY (thread_id, id)
)"""
# superseded: the messages that are not on the active branch of their thread; see ``Superseded``. They leave
# diarist_messages, so that no other statement can find them.
# branch_changes: where the active branch ended before a live run changed it.
_BRANCHES = (
    f"""CREATE TABLE IF NOT EXISTS diarist_superseded (
        {_MESSAGE}, parent BIGINT NOT NULL, PRIMARY KEY (thread_id, seq)
    )""",
    """CREATE TABLE IF NOT EXISTS diarist_branch_changes (
        run_id {key} NOT NULL PRIMARY KEY REFERENCES diarist_runs (id) ON DELETE CASCADE, earlier BIGINT NOT NULL
    )""",
)
# One row per indexed message, deleted together with the message. Rows are added and deleted, never changed.
# position: rises with the message's time in seconds, then with the order of storing.
# owner: derived from the resource's id, and not unique; the thread's row has the resource itself.
# tie: derived from the thread's id; orders messages of several threads with the same position.
# terms: the message's search terms; an array in PostgreSQL, elsewhere text separated by spaces.
_SEARCH = """CREATE TABLE diarist_search (
    thread_id {key} NOT NULL, seq BIGINT NOT NULL, position BIGINT NOT NULL, owner BIGINT NOT NULL, tie BIGINT NOT NULL,
    terms {terms} NOT NULL, PRIMARY KEY (thread_id, seq),
    FOREIGN KEY (thread_id, seq) REFERENCES diarist_messages (thread_id, seq) ON DELETE CASCADE
)"""
# SQLite's index uses our terms unchanged: they are separated by spaces and case-folded already. A term starting with @
# cannot come from a text. Code that adds rows to diarist_search adds them here as well.
_SEARCH_IN_SQLITE = (
    _SEARCH.replace("{terms}", "TEXT"),
    "CREATE UNIQUE INDEX diarist_search_by_position ON diarist_search (position)",
    """CREATE VIRTUAL TABLE diarist_search_index USING fts5(
        terms, content='diarist_search', content_rowid='position', detail=none, columnsize=0,
        tokenize="ascii tokenchars '@'"
    )""",
    """CREATE TRIGGER diarist_search_removed AFTER DELETE ON diarist_search BEGIN
        INSERT INTO diarist_search_index (diarist_search_index, rowid, terms)
        VALUES ('delete', old.position, old.terms);
    END""",
)
_SEARCH_IN_POSTGRESQL = (
    _SEARCH.replace("{terms}", 'TEXT[] COLLATE "C"'),
    "CREATE INDEX diarist_search_by_position ON diarist_search (owner, position)",
    "CREATE INDEX diarist_search_by_term ON diarist_search USING gin (terms)",
)


async def _create(connection: Connection) -> None:
    for statement in (*_TABLES, _WORKING_MEMORIES, _FORGOTTEN):
        await connection.execute(statement)
    await _create_branches(connection)
    await _create_search(connection)


async def _create_branches(connection: Connection) -> None:
    """Migrate to version 8, in which threads have branches."""
    for statement in _BRANCHES:
        await connection.execute(statement)


async def _create_search(connection: Connection) -> None:
    for statement in _SEARCH_IN_SQLITE if connection.dialect == "sqlite" else _SEARCH_IN_POSTGRESQL:
        await connection.execute(statement)


async def _move_working_memory(connection: Connection) -> None:
    """Migrate to version 4, which stores working memory, for threads as well, in a table of its own."""
    await connection.execute(_WORKING_MEMORIES)
    for id, stored in await connection.fetch("SELECT id, body FROM diarist_resources"):
        body = from_json(stored)
        if text := body.pop("working_memory", ""):
            await save_working_memory(connection, WorkingMemory(key=f"resource:{id}", text=text))
        await connection.execute("UPDATE diarist_resources SET body = :body WHERE id = :id", id=id, body=to_json(body))


async def _add_stamps(connection: Connection) -> None:
    """Migrate to version 5, which adds stamps, so that readers can cache rows."""
    for table in ("diarist_threads", "diarist_logs"):
        await connection.execute(f"ALTER TABLE {table} ADD COLUMN stamp BIGINT NOT NULL DEFAULT 0")


async def _renew_search(connection: Connection) -> None:
    """Migrate to version 7, in which searches fill the search index: begin with an empty one."""
    if connection.dialect == "sqlite":
        await connection.execute("DROP TABLE IF EXISTS diarist_search_index")
    await connection.execute("DROP TABLE IF EXISTS diarist_search")
    await _create_search(connection)
    await connection.execute("ALTER TABLE diarist_threads ADD COLUMN indexed_seq BIGINT NOT NULL DEFAULT 0")


async def _nothing(connection: Connection) -> None:
    """Migrate to version 2 or 3, which changed only the search index; version 7 creates it."""


SCHEMA = Schema(
    name="storage",
    version=8,
    create=_create,
    migrations={
        1: _nothing,
        2: _nothing,
        3: _move_working_memory,
        4: _add_stamps,
        5: lambda connection: connection.execute(_FORGOTTEN),
        6: _renew_search,
        7: _create_branches,
    },
)
