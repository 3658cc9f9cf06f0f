"""Which rows go to the Observer, and in how many calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, groupby

from diarist.memory.observational.limits import Limits
from diarist.memory.observational.log.coverage import Coverage, seq_of
from diarist.memory.observational.log.refusals import narrow
from diarist.memory.observational.window import tokens_of
from diarist.messages import Message
from diarist.storage.records import Source

_OVERSHOOT = 0.95


def select_rows(raw: Sequence[Message], units: Sequence[Sequence[Message]], limits: Limits) -> list[list[Message]]:
    """The oldest units that bring the raw rows down to ``retained_tokens``, all units if that is too few.

    What stays should begin with a user's message. So the rest of a turn is taken along while that is not
    much (0.95 of what stays); else the turn is left whole, if without it the rows are below their
    threshold; else the turn is cut.
    """
    if not units:
        return []
    total = tokens_of(raw)
    need = total - limits.retained_tokens
    sums = list(accumulate(tokens_of(unit) for unit in units))
    enough = next((count for count, taken in enumerate(sums, start=1) if taken >= need), len(units))
    clean = _clean_cuts(raw, units)
    for count in range(enough, len(units) + 1):
        if sums[count - 1] - need > _OVERSHOOT * limits.retained_tokens:
            break
        if clean[count - 1]:
            return [list(unit) for unit in units[:count]]
    for count in range(enough - 1, 0, -1):
        below = total - sums[count - 1] < limits.message_tokens
        if clean[count - 1] and below and sums[count - 1] >= limits.least_tokens:
            return [list(unit) for unit in units[:count]]
    return [list(unit) for unit in units[:enough]]


def leave_newest(units: Sequence[Sequence[Message]], raw: Sequence[Message], tokens: int) -> list[list[Message]]:
    """The oldest units without which at least ``tokens`` of raw rows remain."""
    room = tokens_of(raw) - tokens
    return [
        list(unit)
        for unit, taken in zip(units, accumulate(tokens_of(unit) for unit in units), strict=True)
        if taken <= room
    ]


def split_at_chunks(units: Sequence[Sequence[Message]], waiting: Coverage) -> list[list[Sequence[Message]]]:
    """The units in pieces, parted where a chunk that waits stands between them.

    Chunks become notes oldest first. One that covered rows on both sides of another could not be put in order
    with it: newer rows would leave the prompt before older ones.
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
    """One list of rows per call of the Observer, of about ``limit`` tokens each.

    A unit that is larger is not cut. What would be a call for less than ``least`` tokens goes along with the
    call before or after it. Rows of the run ``run_id``, which may still be discarded, never share a call with
    others; nor does what was ``refused`` too often, of which there are smaller and smaller calls.
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
    return [list(chain.from_iterable(part)) for batch in batches for part, _ in narrow(batch, refused)]


def _clean_cuts(raw: Sequence[Message], units: Sequence[Sequence[Message]]) -> list[bool]:
    """For each number of units taken: whether the first row that stays is a user's (or none stays)."""
    taken: set[str] = set()
    first = 0
    clean: list[bool] = []
    for unit in units:
        taken |= {row.id for row in unit}
        while first < len(raw) and raw[first].id in taken:
            first += 1
        clean.append(first == len(raw) or raw[first].role == "user")
    return clean
