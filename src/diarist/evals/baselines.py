"""Selections of messages and sentences without any judgement, as large as an Observer's notes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diarist.evals.evidence import full_text
from diarist.memory.observational.roles.transcript import speaker
from diarist.messages import Message
from diarist.tokens import TokenCounter

_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Piece:
    """A message, or a sentence of one: its batch, its message, its number among the sentences of the message."""

    batch: int
    message: int
    number: int
    line: str
    tokens: int


def messages_of(batches: Sequence[Sequence[Message]], counter: TokenCounter) -> list[Piece]:
    """Return each message with its speaker's name as one piece."""
    pieces: list[Piece] = []
    for batch, messages in enumerate(batches):
        for message in messages:
            line = f"{speaker(message)}: {full_text(message)}\n"
            pieces.append(Piece(batch, len(pieces), 0, line, counter.count(line)))
    return pieces


def sentences_of(batches: Sequence[Sequence[Message]], counter: TokenCounter) -> list[Piece]:
    """Return each sentence as a line of a diary."""
    pieces: list[Piece] = []
    place = 0
    for batch, messages in enumerate(batches):
        for message in messages:
            place += 1
            for number, text in enumerate(split_sentences(full_text(message))):
                line = f"- {speaker(message)} said: {text}\n"
                pieces.append(Piece(batch, place, number, line, counter.count(line)))
    return pieces


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences at their ends and at line breaks, without any other rule."""
    return [sentence for sentence in _SENTENCE.split(text) if sentence.strip()]


Order = Callable[[list[Piece]], list[Piece]]

WHOLE: dict[str, Order] = {
    "raw tail": lambda pieces: pieces[::-1],
    "head and tail": lambda pieces: [p for pair in zip(pieces, pieces[::-1], strict=True) for p in pair],
    "random messages": lambda pieces: random.Random(0).sample(pieces, len(pieces)),
}
"""Orders of the messages of a conversation. The first ones that fit are kept."""

BY_BATCH: dict[str, Order] = {
    "first sentences": lambda pieces: sorted(pieces, key=lambda piece: piece.number),
    "longest sentences": lambda pieces: sorted(pieces, key=lambda piece: -len(piece.line)),
}
"""Orders of the sentences of a batch. The first ones that fit are kept."""


def fill(pieces: Sequence[Piece], room: int) -> list[Piece]:
    """Return the pieces that fit into ``room`` tokens, tried in the given order, in the order of the conversation."""
    chosen: dict[tuple[int, int, int], Piece] = {}
    for piece in pieces:
        place = piece.batch, piece.message, piece.number
        if piece.tokens <= room and place not in chosen:
            chosen[place] = piece
            room -= piece.tokens
    return [chosen[place] for place in sorted(chosen)]
