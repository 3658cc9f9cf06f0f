"""Leases in SQL. Releasing a lease keeps its row, so that its token keeps rising."""

from __future__ import annotations

from dataclasses import asdict

from diarist.checks import checked
from diarist.databases.base import Connection
from diarist.storage.codec import ttl_micros
from diarist.storage.records import Lease

_HELD = "name = :name AND owner = :owner AND token = :token AND expires_at > {now}"


async def acquire_lease(connection: Connection, name: str, owner: str, *, ttl: float) -> Lease | None:
    checked(name, "the name of a lease")
    checked(owner, "the owner of a lease")
    token = await connection.value(
        "INSERT INTO diarist_leases (name, owner, token, expires_at) VALUES (:name, :owner, 1, {now} + :ttl)"
        " ON CONFLICT (name) DO UPDATE"
        " SET owner = excluded.owner, token = diarist_leases.token + 1, expires_at = excluded.expires_at"
        " WHERE diarist_leases.expires_at <= {now} OR diarist_leases.owner = excluded.owner RETURNING token",
        name=name,
        owner=owner,
        ttl=ttl_micros(ttl),
    )
    return None if token is None else Lease(name=name, owner=owner, token=token)


async def renew_lease(connection: Connection, lease: Lease, *, ttl: float) -> bool:
    statement = "UPDATE diarist_leases SET expires_at = {now} + :ttl WHERE " + _HELD
    values = {**asdict(lease), "ttl": ttl_micros(ttl)}
    return await connection.execute(statement, **values) == 1


async def release_lease(connection: Connection, lease: Lease) -> None:
    statement = "UPDATE diarist_leases SET expires_at = 0 WHERE " + _HELD
    await connection.execute(statement, **asdict(lease))


async def delete_lease(connection: Connection, name: str) -> bool:
    return await connection.execute("DELETE FROM diarist_leases WHERE name = :name", name=name) > 0
