"""Vectors of messages, also where the embedder refuses some of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby

from diarist.exceptions import AuthenticationError
from diarist.messages import Message
from diarist.models.embedders import Embedder, embed_texts
from diarist.models.entry import may_pass

HARMLESS = "Hello."
"""A text that every embedder takes."""

Piece = tuple[Message, int, str]
"""A message, the number of a chunk of it, and the chunk's text."""
Made = tuple[Message, int, list[float]]
"""A message, the number of a chunk of it, and the chunk's vector."""

logger = logging.getLogger("diarist")


async def embed_pieces(embedder: Embedder, thread_id: str, pieces: Sequence[Piece]) -> list[Made]:
    """The vectors of chunks, but for those of messages that the embedder refuses: they would be refused for ever.

    A message is refused if it fails alone while a harmless text goes through; that is logged, with the message's id.
    Whatever may pass, or concerns all texts, is raised instead.

    Raises ConfigError, ModelError, and what else an embedder raises.
    """
    try:
        return await _embed(embedder, pieces)
    except Exception as error:
        if _concerns_all(error):
            raise
    made: list[Made] = []
    for _, group in groupby(pieces, key=lambda piece: piece[0].id):
        made += await _embed_alone(embedder, thread_id, list(group))
    return made


async def _embed(embedder: Embedder, pieces: Sequence[Piece]) -> list[Made]:
    vectors = await embed_texts(embedder, [text for _, _, text in pieces])
    return [(row, number, vector) for (row, number, _), vector in zip(pieces, vectors, strict=True)]


async def _embed_alone(embedder: Embedder, thread_id: str, pieces: Sequence[Piece]) -> Iterable[Made]:
    try:
        return await _embed(embedder, pieces)
    except Exception as error:
        if _concerns_all(error):
            raise
        await embed_texts(embedder, [HARMLESS])  # it raises where the embedder is out of order altogether
        logger.warning(
            "message %r of thread %r is not found by meaning: the embedder %s refused it: %r",
            pieces[0][0].id,
            thread_id,
            embedder.name,
            error,
        )
        return ()


def _concerns_all(error: Exception) -> bool:
    """Whether it says nothing about the text: it may pass by itself, or needs another key."""
    return may_pass(error) or isinstance(error, AuthenticationError | OSError)
