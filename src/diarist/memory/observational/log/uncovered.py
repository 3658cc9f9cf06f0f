"""Reading the rows of a thread that no entry covers."""

from __future__ import annotations

from collections.abc import Sequence

from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.rows import seq_of
from diarist.messages import Message
from diarist.storage.base import Storage

_READINGS = 3


async def uncovered_rows(
    storage: Storage, coverage: Coverage, thread_id: str, *, before: int | None = None, run_id: str | None = None
) -> list[Message]:
    """Return the uncovered rows of a thread, in order, without system rows; reads few covered ones.

    Args:
        before: Only rows with a ``seq`` below this.
        run_id: A live run; its own rows are included.
    """
    rows: list[Message] = []
    for after, end in holes_to_read(coverage, before):
        rows += await storage.list_messages(thread_id, after=after, before=end, run_id=run_id)
    return only_uncovered(rows, coverage)


def holes_to_read(coverage: Coverage, before: int | None = None) -> list[tuple[int, int | None]]:
    """Return the ranges to read for uncovered rows, each as (row before, row after).

    While a run is live, its question stays uncovered before many observed steps, so a few gaps are read one by one.
    More gaps are read as one range, which ``only_uncovered`` then filters.
    """
    holes = coverage.holes(before)
    return holes if len(holes) <= _READINGS else [(holes[0][0], holes[-1][1])]


def only_uncovered(rows: Sequence[Message], coverage: Coverage) -> list[Message]:
    """Return the unobserved rows among those read with ``holes_to_read``, without system rows."""
    found = [row for row in rows if row.role != "system"]
    if len(coverage.ranges) < _READINGS:  # each gap was read on its own
        return found
    return [row for row in found if seq_of(row) not in coverage]
