"""Rows of threads as they were read last, so that the next reader reads only what came since.

A turn shows nearly the same rows as the one before. A thread has a stamp, which changes whenever rows change that
are there already; while it is the same, rows of runs that have ended are as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from diarist.messages import Message, SentBlock, TextPart
from diarist.storage.codec import MessageRow, decode_message

_OF_A_ROW = 500


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A row that makes any number of messages, each for whoever gets it to change.

    Attributes:
        size: In characters, about.
        plain: What it says, if a copy of it is quickly made. Then ``row`` does not hold it once more.
    """

    row: MessageRow
    size: int
    plain: Message | None

    @staticmethod
    def of(row: MessageRow, *, thread_id: str, resource_id: str) -> KnownRow:
        message = decode_message(row, thread_id=thread_id, resource_id=resource_id)
        size = _OF_A_ROW + len(row.parts) + len(row.sent or "")
        if _is_plain(message):
            return KnownRow(row._replace(parts="", sent=None), size, message)
        return KnownRow(row, size, None)

    def message(self, thread_id: str, resource_id: str) -> Message:
        known = self.plain
        if known is None:
            return decode_message(self.row, thread_id=thread_id, resource_id=resource_id)
        sent = known.sent
        return Message(
            id=known.id,
            role=known.role,
            parts=[TextPart(text=cast(TextPart, part).text) for part in known.parts],
            created_at=known.created_at,
            thread_id=thread_id,
            resource_id=resource_id,
            run_id=known.run_id,
            metadata={},
            seq=known.seq,
            part_tokens=known.part_tokens,
            sent=sent and SentBlock(text=sent.text, tokens=sent.tokens, made_from=dict(sent.made_from)),
        )


def _is_plain(message: Message) -> bool:
    """Whether it is nothing but text, and neither metadata nor the note sent along hold lists or dictionaries."""
    note = message.sent.made_from.values() if message.sent else ()
    return (
        not message.metadata
        and all(type(part) is TextPart and part.provider_data is None for part in message.parts)
        and not any(isinstance(value, dict | list) for value in note)
    )


@dataclass(frozen=True, slots=True)
class Known:
    """All rows of a thread behind ``after``, up to the last of them, as they are under a stamp of the thread."""

    stamp: int
    after: int
    rows: Sequence[KnownRow]

    @property
    def size(self) -> int:
        """In characters."""
        return sum(row.size for row in self.rows)

    @property
    def upto(self) -> int:
        return self.rows[-1].row.seq if self.rows else self.after
