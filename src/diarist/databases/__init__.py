"""SQL databases: SQLite, libSQL and PostgreSQL, each through its own driver. See ``base``."""
