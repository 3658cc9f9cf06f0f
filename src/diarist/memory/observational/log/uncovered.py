"""Reading the rows of a thread that no entry covers."""

from __future__ import annotations

from collections.abc import Sequence

from diarist.memory.observational.log.coverage import Coverage, seq_of
from diarist.messages import Message
from diarist.storage.base import Storage

_READINGS = 3


async def uncovered_rows(
    storage: Storage, coverage: Coverage, thread_id: str, *, before: int | None = None, run_id: str | None = None
) -> list[Message]:
    """The rows that ``coverage`` does not have, in order, without system rows; covered ones are hardly read.

    Args:
        before: Only rows with a ``seq`` below this.
        run_id: A live run whose own rows are seen.
    """
    rows: list[Message] = []
    for after, end in holes_to_read(coverage, before):
        rows += await storage.list_messages(thread_id, after=after, before=end, run_id=run_id)
    return only_uncovered(rows, coverage)


def holes_to_read(coverage: Coverage, before: int | None = None) -> list[tuple[int, int | None]]:
    """Where the rows are that ``coverage`` does not have, as the row before them and the row behind them.

    While a run is live, its question stays uncovered before a long stretch of notes on its steps. So what lies
    between two holes is left out, where there are few; what is not is for ``only_uncovered``.
    """
    holes = coverage.holes(before)
    return holes if len(holes) <= _READINGS else [(holes[0][0], holes[-1][1])]


def only_uncovered(rows: Sequence[Message], coverage: Coverage) -> list[Message]:
    """Of the rows that were read in ``holes_to_read`` those that nobody has observed; system rows never are."""
    found = [row for row in rows if row.role != "system"]
    if len(coverage.ranges) < _READINGS:  # each hole was read by itself
        return found
    return [row for row in found if seq_of(row) not in coverage]
