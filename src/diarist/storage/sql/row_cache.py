"""Cache of messages, so that a reader fetches only messages added since the last read.

Consecutive turns read nearly the same messages. A thread has a stamp that changes whenever existing messages change.
While the stamp is the same, messages of ended runs are unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from sys import getsizeof
from typing import NamedTuple, cast

from diarist.messages import Json, Message, SentBlock, TextPart, ToolPart
from diarist.storage.codec import MessageRow, decode_message

_OF_A_ROW = 1_200
"""Estimated size of a row without its text, in bytes: ids, times and their objects."""


class KnownRow(NamedTuple):
    """A cached message. Each reader gets one of its own, and may modify it.

    Attributes:
        size: Approximate size in bytes.
        kept: The message if it is quick to copy, else its row.
    """

    seq: int
    size: int
    kept: Message | MessageRow

    def message(self, thread_id: str, resource_id: str) -> Message:
        kept = self.kept
        if isinstance(kept, MessageRow):
            return decode_message(kept, thread_id=thread_id, resource_id=resource_id)
        sent = kept.sent
        return Message(
            id=kept.id,
            role=kept.role,
            parts=[
                TextPart(text=part.text) if isinstance(part, TextPart) else _copied(cast(ToolPart, part))
                for part in kept.parts
            ],
            created_at=kept.created_at,
            thread_id=thread_id,
            resource_id=resource_id,
            run_id=kept.run_id,
            metadata={},
            seq=kept.seq,
            part_tokens=kept.part_tokens,
            sent=sent and SentBlock(text=sent.text, tokens=sent.tokens, made_from=dict(sent.made_from)),
        )


def known_row(row: MessageRow, *, thread_id: str, resource_id: str) -> tuple[KnownRow, Message]:
    """Return the cached row, and a first message from it."""
    message = decode_message(row, thread_id=thread_id, resource_id=resource_id)
    size = _OF_A_ROW + sum(map(getsizeof, (row.parts, row.metadata, row.sent)))
    if not _is_flat(message):
        return KnownRow(row.seq, size, row), message
    known = KnownRow(row.seq, size, message)
    return known, known.message(thread_id, resource_id)


def _is_flat(message: Message) -> bool:
    """Return True for text and tool calls without nested lists or dictionaries."""
    values: list[Json] = list(message.sent.made_from.values()) if message.sent else []
    for part in message.parts:
        if not isinstance(part, TextPart | ToolPart) or part.provider_data is not None:
            return False
        if isinstance(part, ToolPart):
            values += [part.result, *part.args.values()]
    return not message.metadata and not any(isinstance(value, dict | list) for value in values)


def _copied(part: ToolPart) -> ToolPart:
    return ToolPart(
        call_id=part.call_id,
        name=part.name,
        args=part.args.copy(),
        state=part.state,
        result=part.result,
        provider_executed=part.provider_executed,
    )


@dataclass(frozen=True, slots=True)
class Known:
    """All cached rows of a thread after ``after``, valid for one stamp of the thread."""

    stamp: int
    after: int
    rows: Sequence[KnownRow]

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return sum([row.size for row in self.rows])

    @property
    def upto(self) -> int:
        return self.rows[-1].seq if self.rows else self.after

    def between(self, after: int, before: int) -> Sequence[KnownRow]:
        """Return the rows with ``after < seq < before``."""
        if after <= self.after and before > self.upto:
            return self.rows
        seq = attrgetter("seq")
        return self.rows[bisect_right(self.rows, after, key=seq) : bisect_left(self.rows, before, key=seq)]
