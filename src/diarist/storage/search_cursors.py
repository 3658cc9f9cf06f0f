"""Positions that order search results by time, and cursors that point to them."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from diarist.checks import LARGEST
from diarist.storage.codec import decode_cursor, encode_cursor

POSITIONS_PER_SECOND = 1 << 24
"""Maximum number of messages in the same second. Positions in the year 9999 stay below 2**63."""

_YEAR_ONE = 62_135_596_800
"""Seconds from the earliest ``datetime`` to 1970."""


class Place(NamedTuple):
    """Sort key of a message: its position, then a number derived from its thread."""

    position: int
    tie: int


NEWEST = Place(LARGEST, 0)
"""The place before the newest message."""


def first_position(micros: int) -> int:
    """Return the first position of the second that contains ``micros`` (microseconds since 1970)."""
    return (micros // 1_000_000 + _YEAR_ONE) * POSITIONS_PER_SECOND


def moves(position: int, micros: int | None) -> bool:
    """Return True if a message needs another position because its time is now ``micros``; False if that is None."""
    return micros is not None and first_position(micros) != position - position % POSITIONS_PER_SECOND


def hash63(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def encode_place(place: Place) -> str:
    return encode_cursor(*place)


def decode_place(cursor: str | None) -> Place:
    """Return the place at which a page begins; None means the newest message. Raises InputError."""
    return NEWEST if cursor is None else Place(*decode_cursor(cursor, "search_messages", int, int))
