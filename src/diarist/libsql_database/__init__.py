"""Transactions on libSQL: a file through its driver, a server through its HTTP protocol."""

from __future__ import annotations

from diarist.libsql_database.database import LibSQLDatabase

__all__ = ["LibSQLDatabase"]
