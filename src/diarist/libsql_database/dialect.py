"""SQLAlchemy's SQLite on libSQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.pool import QueuePool

NAME = "sqlite+diarist_libsql"


class LibSQLDialect(SQLiteDialect):
    driver = "diarist_libsql"
    default_paramstyle = "qmark"
    supports_statement_cache = True
    returns_native_bytes = True

    @classmethod
    def import_dbapi(cls) -> Any:
        from diarist.libsql_database import dbapi

        return dbapi

    @classmethod
    def get_pool_class(cls, url: Any) -> type[QueuePool]:
        return QueuePool

    def get_default_isolation_level(self, dbapi_conn: Any) -> Any:
        return "SERIALIZABLE"  # the only one; to ask takes a request


registry.register(NAME.replace("+", "."), __name__, LibSQLDialect.__name__)
