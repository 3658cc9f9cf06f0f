"""The versions of the tables, and how those of one become those of the next."""

from __future__ import annotations

from sqlalchemy import Connection, select, text, update

from diarist.database import Schema
from diarist.storage.codec import from_json, to_json
from diarist.storage.records import WorkingMemory
from diarist.storage.sql.schema import metadata, resources, search, working_memories
from diarist.storage.sql.search_index import index_all, leave_out_live
from diarist.storage.sql.working_memory import save_working_memory


def add_search(connection: Connection) -> None:
    """Version 2 can search."""
    search.create(connection)
    index_all(connection)


def move_working_memory(connection: Connection) -> None:
    """Version 4 keeps working memory for threads as well, in a table of its own."""
    working_memories.create(connection, checkfirst=True)
    for row in connection.execute(select(resources.c.id, resources.c.body)).all():
        body = from_json(row.body)
        if text := body.pop("working_memory", ""):
            save_working_memory(connection, WorkingMemory(key=f"resource:{row.id}", text=text))
        connection.execute(update(resources).where(resources.c.id == row.id).values(body=to_json(body)))


def add_stamps(connection: Connection) -> None:
    """Version 5 knows what a reader has read already."""
    for table in ("diarist_threads", "diarist_logs"):
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN stamp BIGINT NOT NULL DEFAULT 0"))


SCHEMA = Schema(
    name="storage",
    version=5,
    tables=metadata,
    # From version 3 on a message is found once its run has ended, and not stored among what is found before.
    migrations={1: add_search, 2: leave_out_live, 3: move_working_memory, 4: add_stamps},
)
