"""How messages and cursors are written down in a vector store."""

from __future__ import annotations

from hashlib import blake2b

import orjson

from diarist.memory.observational.log.coverage import seq_of
from diarist.messages import Message
from diarist.storage.records import Thread
from diarist.vectors import Metadata
from diarist.vectors.filters import is_value


def metadata_of(thread: Thread, row: Message, chunk: int) -> Metadata:
    """What queries and removals ask for; no words of the message."""
    found: dict[str, str | int | float | bool] = {
        f"metadata.{key}": value for key, value in row.metadata.items() if is_value(value) and is_value(key)
    }
    found |= {
        "resource_id": thread.resource_id,
        "thread_id": thread.id,
        "message_id": row.id,
        "seq": seq_of(row),
        "chunk": chunk,
        "role": row.role,
    }
    if row.created_at is not None:
        found["created_at"] = row.created_at.timestamp()
    return found


def vector_id(thread_id: str, message_id: str, chunk: int) -> str:
    return blake2b(orjson.dumps([thread_id, message_id, chunk]), digest_size=16).hexdigest()


def cursor_id(thread_id: str) -> str:
    return f"thread:{thread_id}"
