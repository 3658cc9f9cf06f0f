"""Resources in SQL."""

from __future__ import annotations

from sqlalchemy import Connection, Text, bindparam, func, insert, select, union, update
from sqlalchemy.exc import IntegrityError

from diarist.exceptions import ConflictError
from diarist.storage.codec import OF_RESOURCE, decode_resource, encode_resource, page_of_resources
from diarist.storage.records import Page, Resource
from diarist.storage.sql.schema import logs, resources, working_memories

_BEHIND = OF_RESOURCE[:-1] + chr(ord(OF_RESOURCE[-1]) + 1)
_id = bindparam("resource", type_=Text())
_GET = select(resources.c.version, resources.c.body).where(resources.c.id == _id)
_INSERT = insert(resources)
_UPDATE = (
    update(resources)
    .where(resources.c.id == _id, resources.c.version == bindparam("expected"))
    .values(version=bindparam("next"), body=bindparam("new_body"))
)


def list_resources(connection: Connection, limit: int, after: str | None) -> Page[str]:
    of_keys = [
        select(func.substr(table.c.key, len(OF_RESOURCE) + 1).label("id")).where(
            table.c.key >= OF_RESOURCE, table.c.key < _BEHIND
        )
        for table in (working_memories, logs)
    ]
    found = union(select(resources.c.id), *of_keys).subquery()
    query = select(found.c.id).order_by(found.c.id).limit(limit + 1)
    if after is not None:
        query = query.where(found.c.id > after)
    return page_of_resources(list(connection.scalars(query)), limit)


def get_resource(connection: Connection, resource_id: str) -> Resource:
    row = connection.execute(_GET, {"resource": resource_id}).first()
    return Resource(id=resource_id) if row is None else decode_resource(resource_id, row.version, row.body)


def save_resource(connection: Connection, resource: Resource) -> Resource:
    body, version = encode_resource(resource), resource.version + 1
    if not _write(connection, resource, version, body):
        raise ConflictError(f"resource {resource.id!r} no longer has version {resource.version}")
    return decode_resource(resource.id, version, body)


def _write(connection: Connection, resource: Resource, version: int, body: str) -> bool:
    if resource.version:
        values = {"resource": resource.id, "expected": resource.version, "next": version, "new_body": body}
        return connection.execute(_UPDATE, values).rowcount == 1
    try:
        connection.execute(_INSERT, {"id": resource.id, "version": version, "body": body})
    except IntegrityError:
        return False
    return True
