"""Reading the rows of a thread that no entry covers."""

from __future__ import annotations

from diarist.memory.observational.log.coverage import Coverage, seq_of
from diarist.messages import Message
from diarist.storage.base import Storage

_READINGS = 3


async def uncovered_rows(
    storage: Storage, coverage: Coverage, thread_id: str, *, before: int | None = None, run_id: str | None = None
) -> list[Message]:
    """The rows that ``coverage`` does not have, in order, without system rows; covered ones are hardly read.

    While a run is live, its question stays uncovered before a long stretch of notes on its steps. So what lies
    between two holes is left out, where there are few.

    Args:
        before: Only rows with a ``seq`` below this.
        run_id: A live run whose own rows are seen.
    """
    holes = coverage.holes(before)
    if len(holes) > _READINGS:
        holes = [(holes[0][0], holes[-1][1])]
    rows: list[Message] = []
    for after, end in holes:
        rows += await storage.list_messages(thread_id, after=after, before=end, run_id=run_id)
    return [row for row in rows if row.role != "system" and seq_of(row) not in coverage]
