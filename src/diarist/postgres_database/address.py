"""Addresses of PostgreSQL databases, and what is agreed with the server when a connection is opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
from sqlalchemy import URL
from sqlalchemy import exc as sa
from sqlalchemy.engine import make_url

from diarist.exceptions import ConfigError

CONNECT_TIMEOUT = 10
"""Seconds."""
IDLE_IN_TRANSACTION = 60
"""Seconds after which the server ends a transaction in which nothing happens."""
_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")


def parsed(url: str) -> URL:
    """Raises ConfigError."""
    try:
        found = make_url(url)
    except (sa.ArgumentError, ValueError, TypeError) as error:
        raise ConfigError(f"not a URL of a PostgreSQL database: {_example}") from error
    if found.drivername not in _SCHEMES:
        raise ConfigError(f"not a URL of a PostgreSQL database: it starts with {found.drivername}://; {_example}")
    return found


_example = "write postgresql://user:password@host:5432/name"  # never the URL itself, which may hold a password


def without_password(url: URL) -> str:
    """The address, for people."""
    query = {name: value for name, value in url.query.items() if name != "password"}
    hidden = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return hidden.render_as_string()


def check_schema_name(name: str) -> None:
    """Raises ConfigError for what PostgreSQL would cut off, refuse or take for something else."""
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= 63 or "\0" in name or name.startswith("pg_") or name == "$user" or not _is_unicode(name):
        raise ConfigError(
            "schema must be the name of a PostgreSQL schema, at most 63 bytes long and not starting with pg_,"
            f" and not {name!r}"
        )


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def connector(url: str, busy_timeout: float, schema: str | None) -> Callable[[], Awaitable[Any]]:
    """What opens connections of the driver's own kind. Parameters of the address are libpq's: the driver reads them."""
    settings = {
        "lock_timeout": str(max(1, int(busy_timeout * 1000))),
        # A machine that vanishes inside a transaction must not hold its locks for hours.
        "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION * 1000),
    }
    if schema is not None:
        settings["search_path"] = _quoted(schema)
    connect: Any = asyncpg.connect  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    dsn = "postgresql://" + url.partition("://")[2]
    return partial(connect, dsn, timeout=CONNECT_TIMEOUT, server_settings=settings)
