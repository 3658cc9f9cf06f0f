"""The raw rows of a thread: what no entry of the log covers, as one run sees it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from diarist.counting import ensure_counted
from diarist.memory.observational.log.coverage import Coverage, seq_of
from diarist.memory.observational.log.uncovered import uncovered_rows
from diarist.memory.observational.window import stand_in
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter

_OPENER_PAGE = 20
_OPENER_ROWS = 200


class RawRows:
    """Raw rows in order, without system rows; the run's own once they were added.

    Args:
        run_id: The run that sees its own rows; None outside of any run.

    Attributes:
        all: The rows.
        coverage: What the entries that this run renders cover.
    """

    def __init__(self, storage: Storage, counter: TokenCounter, *, thread_id: str, run_id: str | None) -> None:
        self.all: list[Message] = []
        self.coverage = Coverage((), thread_id)
        self._storage = storage
        self._counter = counter
        self._thread_id = thread_id
        self._run_id = run_id
        self._opener: Message | None = None
        self._opened_for: str | None = None

    async def load(self, found: list[Message] | None = None) -> None:
        """Read the raw rows, unless they were ``found``. Where the notes cover the thread it is not read."""
        known = {row.id: row for row in self.all}
        rows = found
        if rows is None:
            rows = await uncovered_rows(self._storage, self.coverage, self._thread_id, run_id=self._run_id)
        self.all = [known.get(row.id, row) for row in rows] if known else rows
        ensure_counted(self.all, self._counter)
        await self.find_opener()

    def add(self, messages: Sequence[Message]) -> None:
        """Take in rows that were just stored; a row with a known id replaces the old one."""
        fresh = [m for m in messages if m.role != "system" and seq_of(m) not in self.coverage]
        if not fresh:
            return
        ensure_counted(fresh, self._counter)
        ids = {message.id for message in fresh}
        self.all = sorted([*[row for row in self.all if row.id not in ids], *fresh], key=seq_of)

    def remove(self, messages: Sequence[Message]) -> None:
        gone = {message.id for message in messages}
        self.all = [row for row in self.all if row.id not in gone]

    async def cover(self, entries: Sequence[Observation]) -> None:
        """Let these entries stand for the rows that they cover; rows that nothing covers any more are raw again."""
        before, self.coverage = self.coverage, Coverage(entries, self._thread_id)
        if self.coverage >= before:
            self.all = [row for row in self.all if seq_of(row) not in self.coverage]
        else:
            await self.load()

    def covered_by(self, entry: Observation) -> list[Message]:
        """The raw rows that an entry which is not rendered yet would stand for."""
        return self.within(Coverage([entry], self._thread_id))

    def within(self, coverage: Coverage) -> list[Message]:
        """The raw rows that lie in it."""
        pieces = (
            self.all[bisect_left(self.all, first, key=seq_of) : bisect_right(self.all, last, key=seq_of)]
            for first, last in coverage.ranges
        )
        return [row for piece in pieces for row in piece]

    def window(self) -> list[Message]:
        """The messages for the prompt: all raw rows, beginning with a user's message.

        Where the notes end in the middle of a turn, the message that opened the turn stands in front once
        more. Where there is none, a short stand-in does.
        """
        if not self.all or self.all[0].role == "user":
            return list(self.all)
        known = self._opener if self._opened_for == self.all[0].id else None
        return [known or stand_in(self.all[0]), *self.all]

    async def find_opener(self) -> None:
        """Find the user's message before the first raw row, where the notes end in the middle of a turn."""
        if not self.all or self.all[0].role == "user" or self.all[0].id == self._opened_for:
            return
        self._opener, self._opened_for = None, self.all[0].id
        before = seq_of(self.all[0])
        for _ in range(_OPENER_ROWS // _OPENER_PAGE):
            page = await self._storage.list_messages(
                self._thread_id, before=before, limit=_OPENER_PAGE, newest_first=True, run_id=self._run_id
            )
            page.sort(key=seq_of)
            self._opener = next((row for row in reversed(page) if row.role == "user"), None)
            if self._opener is not None or len(page) < _OPENER_PAGE:
                return
            before = seq_of(page[0])
