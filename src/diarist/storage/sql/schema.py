"""The tables. All names start with ``diarist_``, since the database may be an application's own."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    ARRAY,
    DDL,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    event,
    literal_column,
)

metadata = MetaData()

# Keys are compared and ordered by their bytes, whatever the language of the database.
Key = Text().with_variant(Text(collation="C"), "postgresql")
# Text that holds JSON. Not a JSON type: that would refuse NUL and lone surrogates, which do occur in
# tools' results, and nothing is asked of these columns but to come back unchanged.
Json = Text
# Microseconds since 1970, UTC.
Time = BigInteger


def new_stamp() -> int:
    """One that nothing had before."""
    return secrets.randbits(62)


threads = Table(
    "diarist_threads",
    metadata,
    Column("id", Key, primary_key=True),
    Column("resource_id", Key, nullable=False),
    Column("title", Text, nullable=False),
    Column("metadata", Json, nullable=False),
    Column("created_at", Time, nullable=False),
    Column("updated_at", Time, nullable=False),
    Column("last_seq", BigInteger, nullable=False, default=0),
    # The run that created it: while that run does not count, neither does the thread.
    Column("created_by", Key),
    # A random number for the rows as they are: another one once rows change that were there. See ``Known``.
    Column("stamp", BigInteger, nullable=False, server_default="0"),
    Index("diarist_threads_by_time", "created_at", "id"),
    Index("diarist_threads_by_resource", "resource_id", "created_at", "id"),
)

# What list_threads filters by: the canonical text of each value, since paths into JSON differ by database
# and a user's key may hold anything.
thread_metadata = Table(
    "diarist_thread_metadata",
    metadata,
    Column("thread_id", Key, ForeignKey(threads.c.id, ondelete="CASCADE"), primary_key=True),
    Column("key", Key, primary_key=True),
    Column("value", Text, nullable=False),
)

# A run outlives a thread that it created and discarded: it remembers how it ended, and its token.
runs = Table(
    "diarist_runs",
    metadata,
    Column("id", Key, primary_key=True),
    Column("thread_id", Key, nullable=False),
    Column("resource_id", Key, nullable=False),
    Column("state", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("guarded", Boolean, nullable=False),
    Column("expires_at", Time, nullable=False),
    Column("created_at", Time, nullable=False),
    Column("ended_at", Time),
    UniqueConstraint("thread_id", "token", name="diarist_runs_token"),
)
LIVE = runs.c.state == literal_column("'live'")
"""No bound value: for one SQLite plans a statement anew each time, and PostgreSQL does not use the index below."""
Index("diarist_runs_one_live", runs.c.thread_id, unique=True, sqlite_where=LIVE, postgresql_where=LIVE)

messages = Table(
    "diarist_messages",
    metadata,
    Column("thread_id", Key, ForeignKey(threads.c.id, ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("id", Key, nullable=False),
    Column("run_id", Key, ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("role", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("created_at", Time),
    Column("parts", Json, nullable=False),
    Column("metadata", Json, nullable=False),
    Column("part_tokens", Json),
    Column("sent", Json),
    UniqueConstraint("thread_id", "id", name="diarist_messages_id"),
    Index("diarist_messages_by_run", "run_id"),
)

resources = Table(
    "diarist_resources",
    metadata,
    Column("id", Key, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("body", Json, nullable=False),
)

working_memories = Table(
    "diarist_working_memories",
    metadata,
    Column("key", Key, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("body", Json, nullable=False),
)

logs = Table(
    "diarist_logs",
    metadata,
    Column("key", Key, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("body", Json, nullable=False),
    # A random number of the body, for readers that have read it already.
    Column("stamp", BigInteger, nullable=False, server_default="0"),
)

log_history = Table(
    "diarist_log_history",
    metadata,
    Column("key", Key, primary_key=True),
    Column("generation", BigInteger, primary_key=True),
    Column("body", Json, nullable=False),
)

leases = Table(
    "diarist_leases",
    metadata,
    Column("name", Key, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", Time, nullable=False),
)

event_logs = Table(
    "diarist_event_logs",
    metadata,
    Column("key", Key, primary_key=True),
    Column("last_seq", BigInteger, nullable=False),
)

events = Table(
    "diarist_events",
    metadata,
    Column("key", Key, ForeignKey(event_logs.c.key, ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("type", Text, nullable=False),
    Column("data", Json, nullable=False),
    Column("created_at", Time, nullable=False),
)


# --- full-text search --------------------------------------------------------------------------------------


class Terms(TypeDecorator[Collection[str]]):
    """What a message is found by: an array in PostgreSQL; elsewhere text with a space between."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(ARRAY(Text(collation="C")))
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: Collection[str] | None, dialect: Dialect) -> Any:
        terms = sorted(value or ())
        return terms if dialect.name == "postgresql" else " ".join(terms)

    def process_result_value(self, value: Any, dialect: Dialect) -> set[str]:
        return set(value if dialect.name == "postgresql" else value.split(" "))


# One row per message that counts, which goes with the message, whatever removes that. Rows are added and removed,
# never changed.
search = Table(
    "diarist_search",
    metadata,
    Column("thread_id", Key, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    # Rises with the second in which the message was said, then with the order of storing.
    Column("position", BigInteger, nullable=False),
    # Made of the resource's id. No proof of whose the message is: the thread's row has that.
    Column("owner", BigInteger, nullable=False),
    # Made of the thread's id: orders messages of several threads that have the same position.
    Column("tie", BigInteger, nullable=False),
    Column("terms", Terms, nullable=False),
    ForeignKeyConstraint(
        ["thread_id", "seq"], ["diarist_messages.thread_id", "diarist_messages.seq"], ondelete="CASCADE"
    ),
)
_by_position = "diarist_search_by_position"
Index(_by_position, search.c.position, unique=True).ddl_if(dialect="sqlite")  # it is the row's id in the index
Index(_by_position, search.c.owner, search.c.position).ddl_if(dialect="postgresql")  # nobody waits for another
Index("diarist_search_by_term", search.c.terms, postgresql_using="gin").ddl_if(dialect="postgresql")

# SQLite's index of words. It takes our terms as they are: everything but spaces is part of one, and case is
# folded already. A term starting with @ cannot come from a text. Whoever adds rows above adds them here.
for _statement in (
    """
    CREATE VIRTUAL TABLE diarist_search_index USING fts5(
        terms, content='diarist_search', content_rowid='position', detail=none, columnsize=0,
        tokenize="ascii tokenchars '@'"
    )
    """,
    """
    CREATE TRIGGER diarist_search_removed AFTER DELETE ON diarist_search BEGIN
        INSERT INTO diarist_search_index (diarist_search_index, rowid, terms)
        VALUES ('delete', old.position, old.terms);
    END
    """,
):
    event.listen(search, "after_create", DDL(_statement).execute_if(dialect="sqlite"))
