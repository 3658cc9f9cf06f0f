"""Leases in SQL. A released lease keeps its row, so that its token goes on rising."""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, Text, bindparam, delete, insert, or_, select, update

from diarist.database import now
from diarist.storage.records import Lease
from diarist.storage.sql.schema import leases

_name = bindparam("lease", type_=Text())
_owner = bindparam("who", type_=Text())
_until = now() + bindparam("ttl", type_=BigInteger)
_held = (
    (leases.c.name == _name)
    & (leases.c.owner == _owner)
    & (leases.c.token == bindparam("fence"))
    & (leases.c.expires_at > now())
)

_CLAIM = (
    update(leases)
    .where(leases.c.name == _name, or_(leases.c.expires_at <= now(), leases.c.owner == _owner))
    .values(owner=_owner, token=leases.c.token + 1, expires_at=_until)
    .returning(leases.c.token)
)
_KNOWN = select(leases.c.token).where(leases.c.name == _name)
_INSERT = insert(leases).values(expires_at=_until)
_RENEW = update(leases).where(_held).values(expires_at=_until)
_RELEASE = update(leases).where(_held).values(expires_at=0)

_DELETE = delete(leases).where(leases.c.name == _name)


def acquire_lease(connection: Connection, name: str, owner: str, ttl: int) -> Lease | None:
    """``ttl`` is in microseconds here, as below."""
    token = connection.scalar(_CLAIM, {"lease": name, "who": owner, "ttl": ttl})
    if token is not None:
        return Lease(name=name, owner=owner, token=token)
    if connection.scalar(_KNOWN, {"lease": name}) is not None:
        return None
    connection.execute(_INSERT, {"name": name, "owner": owner, "token": 1, "ttl": ttl})
    return Lease(name=name, owner=owner, token=1)


def renew_lease(connection: Connection, lease: Lease, ttl: int) -> bool:
    return connection.execute(_RENEW, {**_keys(lease), "ttl": ttl}).rowcount == 1


def release_lease(connection: Connection, lease: Lease) -> None:
    connection.execute(_RELEASE, _keys(lease))


def delete_lease(connection: Connection, name: str) -> bool:
    return connection.execute(_DELETE, {"lease": name}).rowcount > 0


def _keys(lease: Lease) -> dict[str, str | int]:
    return {"lease": lease.name, "who": lease.owner, "fence": lease.token}
