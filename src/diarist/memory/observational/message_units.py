"""Units: raw rows that must stay together, such as a tool call and its result. Selection of the units for the Observer,
and their batches. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, chain, groupby, islice

from diarist.counting import message_tokens
from diarist.memory.observational.decide import Limits
from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.rows import seq_of, stand_in
from diarist.messages import Message, ToolPart


def tokens_of(rows: Iterable[Message]) -> int:
    return sum(map(message_tokens, rows))


def may_join(rows: Iterable[Message]) -> bool:
    """Return False if each row is a unit of its own that may be observed. A row with a cached prompt form is one."""
    return any([_waits(row) for row in rows if row.rendered is None])


def _waits(row: Message) -> bool:
    """Return True if the row has a call without a result, or a result for an earlier row."""
    return row.role == "tool" or any([isinstance(part, ToolPart) and part.state == "call" for part in row.parts])


def observable_units(raw: Sequence[Message], pinned: Collection[str] = ()) -> list[list[Message]]:
    """Return the raw rows that may be observed, in order, as units.

    A tool call, its results in later rows, and the rows in between form one unit; every other row is a unit of its own.
    Leaves out units with a pinned row, and all rows from the first pending tool call on.
    """
    tools = _tool_parts(raw)
    answers = _answers(raw, tools)
    # A new user message closes the pending calls before it.
    last_user = next((index for index in range(len(raw) - 1, -1, -1) if raw[index].role == "user"), -1)
    done = {part.call_id for index, part in tools if raw[index].role == "tool" and part.state != "call"}
    pending = (
        index
        for index, part in tools
        if index > last_user and part.state == "call" and not part.provider_executed and part.call_id not in done
    )
    units: list[list[Message]] = []
    joined_until = -1
    for index, row in enumerate(raw[: next(pending, len(raw))]):
        if index <= joined_until:
            units[-1].append(row)
        else:
            units.append([row])
        if index in answers:
            joined_until = max(joined_until, answers[index])
    return [unit for unit in units if not any(row.id in pinned for row in unit)] if pinned else units


def whole_units(rows: Sequence[Message], count: int) -> int:
    """Return the largest number of rows, at most ``count``, that does not split a unit."""
    answers = _answers(rows, _tool_parts(rows))
    end = whole = 0
    for index in range(count):
        end = max(end, answers.get(index, index))
        whole = index + 1 if end <= index else whole
    return whole


def _tool_parts(raw: Sequence[Message]) -> list[tuple[int, ToolPart]]:
    """Return the tool parts with the indexes of their rows."""
    return [(index, part) for index, row in enumerate(raw) for part in row.parts if isinstance(part, ToolPart)]


def _answers(raw: Sequence[Message], tools: Sequence[tuple[int, ToolPart]]) -> dict[int, int]:
    """Map the index of each row with tool calls to the index of the last row with a result of one of them."""
    calls: dict[str, int] = {}
    answers: dict[int, int] = {}
    for index, part in tools:
        if part.state == "call":
            calls[part.call_id] = index
        elif raw[index].role == "tool" and part.call_id in calls:
            answers[calls.pop(part.call_id)] = index
    return answers


def free_chunks(
    chunks: Sequence[Sequence[Message]], raw: Sequence[Message], pinned: Collection[str], message_tokens: int
) -> int:
    """Return how many of the oldest buffered chunks may be activated.

    The first chunk that covers a pinned row must wait, and so must all chunks after it. Chunks of the newest two turns
    also wait if activating the older chunks is enough to bring the raw rows below ``message_tokens``.

    Args:
        chunks: The raw rows that each chunk covers.
    """
    if not chunks:
        return 0
    newest = next(islice((row for row in reversed(raw) if row.role == "user"), 1, None), raw[0])
    unpinned = older = len(chunks)  # numbers of chunks before the first pinned chunk, and before the newest turns
    for count in range(len(chunks) - 1, -1, -1):
        rows = chunks[count]
        if seq_of(rows[-1]) >= seq_of(newest):
            older = count
        if any([row.id in pinned for row in rows]):
            unpinned = count
    enough = older < unpinned and tokens_of(raw) - tokens_of(chain.from_iterable(chunks[:older])) < message_tokens
    return older if enough else unpinned


def newest_half(rows: Sequence[Message], pinned: Collection[str], *, halvings: int) -> list[Message]:
    """Return the newest half (or quarter, and so on) of the rows by tokens, beginning with a user message.

    Pinned rows always stay.

    Args:
        halvings: How many times to halve the rows. 0 leaves out only the rows before the first user message.
    """
    kept = rows
    if halvings:
        sizes = list(map(message_tokens, rows))
        start = len(rows) - bisect_right(list(accumulate(reversed(sizes))), sum(sizes) / 2**halvings)
        kept = [*(row for row in rows[:start] if row.id in pinned), *rows[start:]]
    first = next((index for index, row in enumerate(kept) if row.role == "user" or row.id in pinned), len(kept))
    kept = list(kept[first:])
    return kept if not kept or kept[0].role == "user" else [stand_in(kept[0]), *kept]


# --- selection and batches ---------------------------------------------------------------------------------


def select_rows(raw: Sequence[Message], units: Sequence[Sequence[Message]], limits: Limits) -> list[Sequence[Message]]:
    """Return the oldest units that bring the raw rows down to ``retained_tokens``; all units if they are too few."""
    need = tokens_of(raw) - limits.retained_tokens
    sums = accumulate(tokens_of(unit) for unit in units)
    return list(units[: next((count for count, size in enumerate(sums, start=1) if size >= need), len(units))])


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
    units: Sequence[Sequence[Message]], limit: int, run_id: str | None, *, least: float = 0
) -> list[list[Message]]:
    """Split units into batches of about ``limit`` tokens, one per call of the Observer.

    Larger units are not split.

    Args:
        run_id: A run that may still be discarded; its rows never share a batch with others.
        least: Batches with fewer tokens are joined with the batch before or after.
    """
    batches: list[list[Message]] = []
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
            batches[-1] += piece
            sizes[-1] += size
    if len(batches) > 1 and sizes[-1] < least and (batches[-2][-1].run_id == run_id) is owner:
        rest = batches.pop()
        batches[-1] += rest
    return batches
