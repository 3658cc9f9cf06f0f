"""Chunks of messages: cutting texts, embedding them, and their ids and metadata in a vector store."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import groupby

import orjson

from diarist.exceptions import AuthenticationError
from diarist.memory.rows import seq_of
from diarist.messages import Message
from diarist.models.embedders import Embedder, embed_texts
from diarist.models.fallbacks import is_transient
from diarist.storage.records import Thread
from diarist.vectors import Metadata
from diarist.vectors.filters import is_value

_BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"(?<=[.!?。！？])\s|\n"), re.compile(r"\s"))


def chunks_of(message: Message, length: int) -> list[str]:
    """Split the text of a user or assistant message into chunks of at most ``length`` characters.

    A chunk ends at the last paragraph, sentence or word end in its second half, in this order of preference. Tool calls
    and results have no chunks: full-text search finds them, not semantic recall.
    """
    text = message.text.strip() if message.role in ("user", "assistant") else ""
    text = text.encode("utf-8", "replace").decode()  # tokenizers reject lone surrogates
    chunks: list[str] = []
    while len(text) > length:
        breaks = ([match.start() for match in each.finditer(text, length // 2, length)] for each in _BREAKS)
        end = next((found[-1] for found in breaks if found), length)
        chunks.append(text[:end].strip())
        text = text[end:].strip()
    return [*chunks, text] if text else chunks


# --- embedding ---


HARMLESS = "Hello."
"""A text that every embedder accepts."""

TextChunk = tuple[Message, int, str]
"""A message, the number of a chunk in it, and the chunk's text."""
EmbeddedChunk = tuple[Message, int, list[float]]
"""A message, the number of a chunk in it, and the chunk's vector."""

logger = logging.getLogger("diarist")


async def embed_chunks(embedder: Embedder, thread_id: str, chunks: Sequence[TextChunk]) -> list[EmbeddedChunk]:
    """Embed chunks, leaving out messages that the embedder rejects.

    A message is rejected if it fails alone while a harmless text succeeds. Its id is logged, and it is not tried again.
    Temporary errors, and errors that concern all texts, are raised instead.

    Raises ConfigError, ModelError, and other errors of the embedder.
    """

    async def embed(some: Sequence[TextChunk]) -> list[EmbeddedChunk]:
        vectors = await embed_texts(embedder, [text for _, _, text in some])
        return [(row, number, vector) for (row, number, _), vector in zip(some, vectors, strict=True)]

    try:
        return await embed(chunks)
    except Exception as error:
        if _concerns_all(error):
            raise
    embedded: list[EmbeddedChunk] = []
    for message_id, group in groupby(chunks, key=lambda chunk: chunk[0].id):
        try:
            embedded += await embed(list(group))
        except Exception as error:
            if _concerns_all(error):
                raise
            await embed_texts(embedder, [HARMLESS])  # raises if the embedder fails for every text
            logger.warning(
                "message %r of thread %r cannot be found by meaning: the embedder %s rejected it: %r",
                message_id,
                thread_id,
                embedder.name,
                error,
            )
    return embedded


def _concerns_all(error: Exception) -> bool:
    """Return True for errors that do not depend on the text: temporary ones, and a wrong key."""
    return is_transient(error) or isinstance(error, AuthenticationError | OSError)


# --- ids and metadata in a vector store ---


def metadata_of(thread: Thread, row: Message, chunk: int) -> Metadata:
    """Return the metadata for queries and removals. It has no text of the message."""
    found: dict[str, str | int | float | bool] = {
        f"metadata.{key}": value for key, value in row.metadata.items() if is_value(value) and is_value(key)
    }
    found |= {"resource_id": thread.resource_id, "thread_id": thread.id, "message_id": row.id}
    found |= {"seq": seq_of(row), "chunk": chunk, "role": row.role}
    if row.created_at is not None:
        found["created_at"] = row.created_at.timestamp()
    return found


def vector_id(thread_id: str, message_id: str, chunk: int) -> str:
    return blake2b(orjson.dumps([thread_id, message_id, chunk]), digest_size=16).hexdigest()
