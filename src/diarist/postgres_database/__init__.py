"""Transactions on PostgreSQL, through asyncpg."""

from __future__ import annotations

try:
    import asyncpg  # noqa: F401  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport]
    import greenlet  # noqa: F401  # pyright: ignore[reportUnusedImport]  # SQLAlchemy needs it for any such driver
except ImportError as error:
    raise ImportError("PostgreSQL needs an extra of diarist: pip install 'diarist[postgres]'") from error

from diarist.postgres_database.database import PostgresDatabase

__all__ = ["PostgresDatabase"]
