"""The versions of the tables, and how those of one become those of the next."""

from __future__ import annotations

from sqlalchemy import Connection

from diarist.database import Schema
from diarist.storage.sql.schema import metadata, search
from diarist.storage.sql.search_index import index_all


def add_search(connection: Connection) -> None:
    """Version 2 can search."""
    search.create(connection)
    index_all(connection)


SCHEMA = Schema(name="storage", version=2, tables=metadata, migrations={1: add_search})
