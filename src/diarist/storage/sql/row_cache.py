"""Cache of messages, so that a reader fetches only messages added since the last read.

Consecutive turns read nearly the same messages. A thread has a stamp that changes whenever existing messages change.
While the stamp is the same, messages of ended runs are unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import cast

from diarist.messages import Json, Message, Part, SentBlock, TextPart, ToolPart
from diarist.storage.codec import MessageRow, decode_message

_OF_A_ROW = 1_200
"""Estimated size of a row without its text, in bytes: ids, times and their objects."""


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A cached row. It returns a separate message to each reader, who may modify it.

    Attributes:
        size: Approximate size in bytes.
        plain: The decoded content if it is quick to copy; ``row`` then omits the content.
    """

    row: MessageRow
    size: int
    plain: Message | None

    @staticmethod
    def of(row: MessageRow, *, thread_id: str, resource_id: str) -> tuple[KnownRow, Message]:
        """Return the cached row, and a first message from it."""
        message = decode_message(row, thread_id=thread_id, resource_id=resource_id)
        size = _OF_A_ROW + sum(map(getsizeof, (row.parts, row.metadata, row.sent)))
        if not _is_plain(message):
            return KnownRow(row, size, None), message
        known = KnownRow(row._replace(parts="", sent=None), size, message)
        return known, known.message(thread_id, resource_id)

    def message(self, thread_id: str, resource_id: str) -> Message:
        known = self.plain
        if known is None:
            return decode_message(self.row, thread_id=thread_id, resource_id=resource_id)
        sent = known.sent
        parts = known.parts
        if len(parts) == 1 and isinstance(said := parts[0], TextPart):  # the usual case
            own: list[Part] = [TextPart(text=said.text)]
        else:
            own = [_own(cast(TextPart | ToolPart, part)) for part in parts]
        return Message(
            id=known.id,
            role=known.role,
            parts=own,
            created_at=known.created_at,
            thread_id=thread_id,
            resource_id=resource_id,
            run_id=known.run_id,
            metadata={},
            seq=known.seq,
            part_tokens=known.part_tokens,
            sent=sent and SentBlock(text=sent.text, tokens=sent.tokens, made_from=dict(sent.made_from)),
        )


def _own(part: TextPart | ToolPart) -> TextPart | ToolPart:
    if isinstance(part, TextPart):
        return TextPart(text=part.text)
    return ToolPart(
        call_id=part.call_id,
        name=part.name,
        args=part.args.copy(),
        state=part.state,
        result=part.result,
        provider_executed=part.provider_executed,
    )


def _is_plain(message: Message) -> bool:
    """Return True for text and tool calls without nested lists or dictionaries."""
    note = message.sent.made_from.values() if message.sent else ()
    return not message.metadata and all(map(_is_flat, message.parts)) and not _nested(note)


def _is_flat(part: Part) -> bool:
    if type(part) is ToolPart:
        return part.provider_data is None and not _nested((part.result, *part.args.values()))
    return type(part) is TextPart and part.provider_data is None


def _nested(values: Iterable[Json]) -> bool:
    return any(isinstance(value, dict | list) for value in values)


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
        return self.rows[-1].row.seq if self.rows else self.after

    def between(self, after: int, before: int) -> Sequence[KnownRow]:
        """Return the rows with ``after < seq < before``."""
        if after <= self.after and before > self.upto:
            return self.rows
        return self.rows[bisect_right(self.rows, after, key=_seq_of) : bisect_left(self.rows, before, key=_seq_of)]


def _seq_of(row: KnownRow) -> int:
    return row.row.seq
