"""Job queues that hand background work to worker processes."""

from __future__ import annotations

try:
    import procrastinate  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import psycopg  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError("PostgresQueue needs an extra of diarist: pip install 'diarist[queue]'") from error

from diarist.memory.queue.postgres import PostgresQueue

__all__ = ["PostgresQueue"]
