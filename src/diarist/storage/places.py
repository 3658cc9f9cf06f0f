"""The order of what a search finds, as numbers that rise with time, and cursors into it."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import NamedTuple

import orjson

from diarist.exceptions import InputError
from diarist.storage.codec import END

POSITIONS_PER_SECOND = 1 << 24
"""How many messages may have been said in the same second. The year 9999 stays below 2**63."""

_YEAR_ONE = 62_135_596_800
"""Seconds from the first moment that a time stamp can have to 1970."""


class Place(NamedTuple):
    """A message's place: its position, and for equal positions a number made of its thread."""

    position: int
    tie: int


NEWEST = Place(END, 0)
"""Before the first message of all."""


def first_position(micros: int) -> int:
    """The first position of the second in which the moment lies; ``micros`` since 1970."""
    return (micros // 1_000_000 + _YEAR_ONE) * POSITIONS_PER_SECOND


def moves(position: int, micros: int | None) -> bool:
    """Whether a message that was said at ``micros`` cannot stay at ``position``; without a time it can."""
    return micros is not None and first_position(micros) != position - position % POSITIONS_PER_SECOND


def hash63(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def encode_place(place: Place) -> str:
    return urlsafe_b64encode(orjson.dumps(list(place))).decode().rstrip("=")


def decode_place(cursor: str | None) -> Place:
    """Where a page begins; None begins with the newest. Raises InputError."""
    if cursor is None:
        return NEWEST
    try:
        position, tie = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not all(type(number) is int and 0 <= number <= END for number in (position, tie)):
            raise ValueError("not a place")
    except (ValueError, TypeError) as error:
        raise InputError(f"not a cursor of search_messages: {cursor!r}") from error
    return Place(position, tie)
