"""Tidying up after something was forgotten."""

from __future__ import annotations

from sqlalchemy import Connection


def purge_index(connection: Connection) -> None:
    """Write SQLite's index of words anew: it keeps those of a removed row until it merges the piece they are in.

    PostgreSQL removes what is dead by itself (autovacuum).
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("INSERT INTO diarist_search_index (diarist_search_index) VALUES ('optimize')")
