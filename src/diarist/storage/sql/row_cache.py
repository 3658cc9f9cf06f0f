"""Cache of the messages at the end of threads, so that a turn decodes only messages added since the last turn.

A thread has a stamp that changes whenever existing messages change. While the stamp is the same, messages of ended runs
are unchanged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from sys import getsizeof

from diarist.messages import Message
from diarist.storage.codec import MessageRow

_OF_A_ROW, _FORMS = 1_500, 2
"""Estimated bytes of a message without its texts. The second: the number of forms in which a text is kept, that is, in
the message and in its JSON for requests."""


@dataclass(frozen=True, slots=True)
class KnownRows:
    """All messages of ended runs after ``after``, valid for one stamp of the thread. Readers share the messages.

    Attributes:
        size: Approximate size in bytes.
    """

    stamp: int
    after: int
    messages: list[Message]
    size: int

    @property
    def upto(self) -> int:
        """The ``seq`` up to which the messages are known."""
        return (self.messages[-1].seq or 0) if self.messages else self.after

    def between(self, after: int, before: int) -> list[Message]:
        """Return the messages with ``after < seq < before``."""
        if after <= self.after and before > self.upto:
            return self.messages
        seq = attrgetter("seq")
        first, last = bisect_right(self.messages, after, key=seq), bisect_left(self.messages, before, key=seq)
        return self.messages[first:last]


def size_of_rows(rows: Sequence[MessageRow]) -> int:
    """Return the approximate size of messages in memory, in bytes."""
    return sum([_OF_A_ROW + _FORMS * (len(row.parts) + len(row.metadata)) + getsizeof(row.sent) for row in rows])
