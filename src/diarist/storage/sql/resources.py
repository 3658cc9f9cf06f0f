"""Resources and working memory in SQL."""

from __future__ import annotations

from diarist.checks import check_whole
from diarist.databases.base import Connection
from diarist.exceptions import ConflictError
from diarist.storage.codec import (
    OF_RESOURCE,
    after_resource,
    decode_resource,
    decode_working_memory,
    encode_resource,
    encode_working_memory,
    page_of_resources,
)
from diarist.storage.records import Page, Resource, WorkingMemory

_LIST = """
SELECT id FROM (
    SELECT id FROM diarist_resources
    UNION SELECT substr(key, :start) FROM diarist_working_memories WHERE key >= :first AND key < :behind
    UNION SELECT substr(key, :start) FROM diarist_logs WHERE key >= :first AND key < :behind
) AS found WHERE id > :after ORDER BY id LIMIT :most
"""


async def list_resources(connection: Connection, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
    limit, after = check_whole("limit", limit, least=1), after_resource(cursor)
    rows = await connection.fetch(
        _LIST if after is not None else _LIST.replace("WHERE id > :after ", ""),
        start=len(OF_RESOURCE) + 1,
        first=OF_RESOURCE,
        behind=OF_RESOURCE[:-1] + chr(ord(OF_RESOURCE[-1]) + 1),
        after=after,
        most=limit + 1,
    )
    return page_of_resources([row[0] for row in rows], limit)


async def get_resource(connection: Connection, resource_id: str) -> Resource:
    row = await connection.first("SELECT version, body FROM diarist_resources WHERE id = :id", id=resource_id)
    return Resource(id=resource_id) if row is None else decode_resource(resource_id, *row)


async def save_resource(connection: Connection, resource: Resource) -> Resource:
    body = encode_resource(resource)
    if not await _save(connection, "diarist_resources", "id", resource.id, resource.version, body):
        raise ConflictError(f"resource {resource.id!r} no longer has version {resource.version}")
    return decode_resource(resource.id, resource.version + 1, body)


async def get_working_memory(connection: Connection, key: str) -> WorkingMemory:
    row = await connection.first("SELECT version, body FROM diarist_working_memories WHERE key = :key", key=key)
    return WorkingMemory(key=key) if row is None else decode_working_memory(key, *row)


async def save_working_memory(connection: Connection, memory: WorkingMemory) -> WorkingMemory:
    body = encode_working_memory(memory)
    if not await _save(connection, "diarist_working_memories", "key", memory.key, memory.version, body):
        raise ConflictError(f"the working memory of {memory.key!r} no longer has version {memory.version}")
    return decode_working_memory(memory.key, memory.version + 1, body)


async def _save(connection: Connection, table: str, column: str, key: str, version: int, body: str) -> bool:
    """Save a body as the next version. Returns False if the stored version is another one."""
    if version:
        statement = f"UPDATE {table} SET version = :next, body = :body WHERE {column} = :key AND version = :version"
    else:
        statement = f"INSERT INTO {table} ({column}, version, body) VALUES (:key, :next, :body) ON CONFLICT DO NOTHING"
    return await connection.execute(statement, key=key, version=version, next=version + 1, body=body) > 0


async def delete_working_memory(connection: Connection, key: str) -> None:
    await connection.execute("DELETE FROM diarist_working_memories WHERE key = :key", key=key)
