"""Working memory in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, Text, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from diarist.exceptions import ConflictError
from diarist.storage.codec import decode_working_memory, encode_working_memory
from diarist.storage.records import WorkingMemory
from diarist.storage.sql.schema import working_memories

_key = bindparam("memory", type_=Text())
_GET = select(working_memories.c.version, working_memories.c.body).where(working_memories.c.key == _key)
_INSERT = insert(working_memories)
_UPDATE = (
    update(working_memories)
    .where(working_memories.c.key == _key, working_memories.c.version == bindparam("expected"))
    .values(version=bindparam("next"), body=bindparam("new_body"))
)
_DELETE = delete(working_memories).where(working_memories.c.key == _key)


def get_working_memory(connection: Connection, key: str) -> WorkingMemory:
    row = connection.execute(_GET, {"memory": key}).first()
    return WorkingMemory(key=key) if row is None else decode_working_memory(key, row.version, row.body)


def save_working_memory(connection: Connection, memory: WorkingMemory) -> WorkingMemory:
    body, version = encode_working_memory(memory), memory.version + 1
    if not _write(connection, memory, version, body):
        raise ConflictError(f"the working memory of {memory.key!r} no longer has version {memory.version}")
    return decode_working_memory(memory.key, version, body)


def delete_working_memory(connection: Connection, key: str) -> None:
    connection.execute(_DELETE, {"memory": key})


def _write(connection: Connection, memory: WorkingMemory, version: int, body: str) -> bool:
    if memory.version:
        values = {"memory": memory.key, "expected": memory.version, "next": version, "new_body": body}
        return connection.execute(_UPDATE, values).rowcount == 1
    try:
        connection.execute(_INSERT, {"key": memory.key, "version": version, "body": body})
    except IntegrityError:
        return False
    return True
