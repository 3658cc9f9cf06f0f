"""Storage in a MongoDB database, using only atomic changes of single documents."""

from __future__ import annotations

try:
    import pymongo  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ImportError as error:
    raise ImportError("MongoDB needs an extra of diarist: pip install 'diarist[mongodb]'") from error

from diarist.storage.mongodb.storage import MongoDBStorage

__all__ = ["MongoDBStorage"]
