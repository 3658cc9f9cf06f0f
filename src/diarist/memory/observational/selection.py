"""Selection of the rows for the Observer, and their batches. Pure.

If the Observer's model refuses a batch again and again, the batch is halved to find the refused messages; these are
then skipped, so that observation goes on. The log stores the sources of refused calls, so all processes narrow a batch
the same way, and refusals in one thread of a resource do not affect the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain, groupby

from diarist.memory.observational.decide import OVERSHOOT, Limits
from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.observational.message_units import is_unit, tokens_of
from diarist.memory.rows import seq_of
from diarist.messages import Message
from diarist.storage.records import ObservationLog, Source

PATIENCE = 3
"""Number of refusals after which a batch is first halved; each further refusal halves it again. Also the number of
refusals after which a single unit is given up."""

_Unit = Sequence[Message]


def select_rows(raw: Sequence[Message], units: Sequence[Sequence[Message]], limits: Limits) -> list[list[Message]]:
    """Return the oldest units that bring the raw rows down to ``retained_tokens``; all units if they are too few.

    The remaining rows should begin with a user message. So the rest of a turn is included if it is small (at most 0.95
    of ``retained_tokens``). Otherwise the whole turn is left out, if the rows still get below their threshold; if not,
    the turn is split.
    """
    if not units:
        return []
    total = tokens_of(raw)
    need = total - limits.retained_tokens
    sums = list(accumulate(tokens_of(unit) for unit in units))
    enough = next((count for count, size in enumerate(sums, start=1) if size >= need), len(units))
    taken: set[str] = set()
    first = 0
    clean: list[bool] = []  # for each number of units taken: the first remaining row is a user message, or none remains
    for unit in units:
        taken |= {row.id for row in unit}
        while first < len(raw) and raw[first].id in taken:
            first += 1
        clean.append(first == len(raw) or raw[first].role == "user")
    for count in range(enough, len(units) + 1):
        if sums[count - 1] - need > OVERSHOOT * limits.retained_tokens:
            break
        if clean[count - 1]:
            return [list(unit) for unit in units[:count]]
    for count in range(enough - 1, 0, -1):
        below = total - sums[count - 1] < limits.message_tokens
        if clean[count - 1] and below and sums[count - 1] >= limits.least_tokens:
            return [list(unit) for unit in units[:count]]
    return [list(unit) for unit in units[:enough]]


def split_at_chunks(units: Sequence[Sequence[Message]], waiting: Coverage) -> list[list[Sequence[Message]]]:
    """Split the units at the rows that a buffered chunk covers.

    Chunks are activated oldest first. An entry with rows on both sides of another chunk would break that order: newer
    rows would leave the prompt before older ones.
    """
    pieces: list[list[Sequence[Message]]] = []
    for unit in units:
        if not pieces or waiting.end_before(seq_of(unit[0])) > seq_of(pieces[-1][-1][-1]):
            pieces.append([])
        pieces[-1].append(unit)
    return pieces


def split_batches(
    units: Sequence[Sequence[Message]],
    limit: int,
    run_id: str | None,
    *,
    least: float = 0,
    refused: Sequence[Source] = (),
) -> list[list[Message]]:
    """Split units into batches of about ``limit`` tokens, one per call of the Observer.

    Larger units are not split.

    Args:
        run_id: A run that may still be discarded; its rows never share a batch with others.
        least: Batches with fewer tokens are joined with the batch before or after.
        refused: Refused sources; batches that were refused too often are halved.
    """
    batches: list[list[Sequence[Message]]] = []
    sizes: list[int] = []
    owner = False
    for unit in units:
        for own, rows in groupby(unit, key=lambda row: row.run_id == run_id):
            piece = list(rows)
            size = tokens_of(piece)
            full = bool(sizes) and sizes[-1] + size > limit and sizes[-1] >= least
            if not batches or own is not owner or full:
                batches.append([])
                sizes.append(0)
                owner = own
            batches[-1].append(piece)
            sizes[-1] += size
    if len(batches) > 1 and sizes[-1] < least and (batches[-2][-1][-1].run_id == run_id) is owner:
        rest = batches.pop()
        batches[-1] += rest
    return [list(chain.from_iterable(part)) for batch in batches for part in _narrow(batch, refused)]


# --- refused messages ----------------------------------------------------------------------------------------


def _narrow(units: Sequence[_Unit], refused: Sequence[Source]) -> list[list[_Unit]]:
    """Split a batch into pieces, in order: each group of units that was refused too often is halved.

    Without refusals, there is only one piece.
    """
    pieces: list[list[_Unit]] = []
    for among, group in groupby(units, key=lambda unit: _too_often(unit, refused)):
        together = list(group)
        half = (len(together) + 1) // 2 if among else len(together)
        pieces += [part for part in (together[:half], together[half:]) if part]
    return pieces


def is_suspect(rows: Sequence[Message], refused: Sequence[Source]) -> bool:
    """Return True if these rows were refused too often, so that the batch was made smaller."""
    return bool(_too_often(rows, refused))


def is_given_up(rows: Sequence[Message], sources: Sequence[Source], refused: Sequence[Source]) -> bool:
    """Return True if these rows are a single unit that was refused too often when it was sent alone."""
    return is_unit(rows) and all(refused.count(source) >= PATIENCE for source in sources)


def without_covered(log: ObservationLog) -> ObservationLog:
    """Drop the refusals of rows that the log now covers."""
    refused = log.observer_failures.refused
    covered = {thread_id: Coverage(log.entries, thread_id) for thread_id in {source.thread_id for source in refused}}
    left = tuple(s for s in refused if not covered[s.thread_id].covers(s.first_seq, s.last_seq))
    return log if left == refused else replace(log, observer_failures=replace(log.observer_failures, refused=left))


def _too_often(unit: _Unit, refused: Sequence[Source]) -> tuple[int, ...]:
    """Return the indexes of the refusals that include a unit; empty if there are fewer than ``PATIENCE``."""
    thread_id, first, last = unit[0].thread_id, seq_of(unit[0]), seq_of(unit[-1])
    among = tuple(
        place
        for place, source in enumerate(refused)
        if source.thread_id == thread_id and source.first_seq <= last and first <= source.last_seq
    )
    return among if len(among) >= PATIENCE else ()
