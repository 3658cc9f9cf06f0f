"""What stands raw in front of the model, and which of it may be observed. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from diarist.counting import message_tokens
from diarist.memory.observational.log.coverage import seq_of
from diarist.messages import Message, ToolPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The sizes that decisions are made of, in tokens.

    Attributes:
        message_tokens: All raw rows, with the blocks that memory sent along.
        fresh_tokens: Those of them that may be observed and no buffered chunk covers.
        chunks: Tokens of the raw rows that each buffered chunk covers, of those that may be activated, oldest first.
        held_chunks: The same of those behind them that may not be activated yet.
        foreign_tokens: Tokens of the messages of other threads that buffered chunks cover (resource scope).
        opening: The thread begins with this run, and the model has not answered yet: no prompt extends another.
        buffered_tokens: Tokens of the notes of all of them.
        observation_tokens: The active entries of the log as this run sees it.
        reflectable: There are entries that a reflection could replace and has not given up on.
        reflection_waits: A finished reflection waits, of ``reflection_tokens``, for entries of
            ``reflection_input_tokens``.
        observing, reflecting: A job of this process works on it in the background.
        observer_ready, reflector_ready: The role does not back off after a failure.
        may_wait: The run has not used up its time for waiting.
        cold: The provider's cache of this conversation is lost anyway.
    """

    message_tokens: int
    fresh_tokens: int = 0
    chunks: tuple[int, ...] = ()
    held_chunks: tuple[int, ...] = ()
    foreign_tokens: int = 0
    opening: bool = False
    buffered_tokens: int = 0
    observation_tokens: int = 0
    reflectable: bool = False
    reflection_waits: bool = False
    reflection_tokens: int = 0
    reflection_input_tokens: int = 0
    observing: bool = False
    reflecting: bool = False
    observer_ready: bool = True
    reflector_ready: bool = True
    may_wait: bool = True
    cold: bool = False


def tokens_of(rows: Iterable[Message]) -> int:
    return sum(map(message_tokens, rows))


def stand_in(first: Message) -> Message:
    """A user's message to stand before ``first``, where a conversation begins with the assistant: some
    providers refuse that."""
    text = "(The conversation begins with the assistant.)"
    return Message.user(text, id=f"{first.id}-opening", created_at=first.created_at)


def observable_units(raw: Sequence[Message], pinned: Collection[str]) -> list[list[Message]]:
    """The raw rows that may be observed, in order.

    Rows that must not be parted, a call and the results that came in rows of their own, form one unit with what
    stands between them; every other unit is one row. Left out are units with a pinned row, and everything from the
    first tool call on that may still get its result.
    """
    tools = _tool_parts(raw)
    if not tools:
        return [[row] for row in raw if row.id not in pinned]
    answers = _answers(raw, tools)
    units: list[list[Message]] = []
    joined_until = -1
    for index, row in enumerate(raw[: _first_pending(raw, tools)]):
        if index <= joined_until:
            units[-1].append(row)
        else:
            units.append([row])
        if index in answers:
            joined_until = max(joined_until, answers[index])
    return [unit for unit in units if not any(row.id in pinned for row in unit)]


def is_unit(rows: Sequence[Message]) -> bool:
    """Whether none of these rows, which stand together, may be parted from the others."""
    answers = _answers(rows, _tool_parts(rows))
    end = 0
    for index in range(len(rows)):
        if index > end:
            return False
        end = max(end, answers.get(index, index))
    return True


def _tool_parts(raw: Sequence[Message]) -> list[tuple[int, ToolPart]]:
    """The tool parts with the places of their rows."""
    return [(index, part) for index, row in enumerate(raw) for part in row.parts if isinstance(part, ToolPart)]


def _answers(raw: Sequence[Message], tools: Sequence[tuple[int, ToolPart]]) -> dict[int, int]:
    """Places of rows whose pending calls are answered by a later row, and the place of the last such row."""
    calls: dict[str, int] = {}
    answers: dict[int, int] = {}
    for index, part in tools:
        if part.state == "call":
            calls[part.call_id] = index
        elif raw[index].role == "tool" and part.call_id in calls:
            answers[calls.pop(part.call_id)] = index
    return answers


def _first_pending(raw: Sequence[Message], tools: Sequence[tuple[int, ToolPart]]) -> int:
    """The place of the first row with a call that may still be answered: a new user turn closes it."""
    last_user = next((index for index in range(len(raw) - 1, -1, -1) if raw[index].role == "user"), -1)
    done = {part.call_id for index, part in tools if raw[index].role == "tool" and part.state != "call"}
    pending = (index for index, part in tools if _pending(part) and part.call_id not in done)
    return next((index for index in pending if index > last_user), len(raw))


def _pending(part: ToolPart) -> bool:
    return part.state == "call" and not part.provider_executed


def free_chunks(
    chunks: Sequence[Sequence[Message]], raw: Sequence[Message], pinned: Collection[str], message_tokens: int
) -> int:
    """How many of the oldest buffered chunks may be activated.

    None that covers a pinned row, nor any behind it; and none of the newest two turns, unless the others do not
    bring the raw rows below ``message_tokens``: one turn may be long.

    Args:
        chunks: The raw rows that each chunk covers.
    """
    if not chunks:
        return 0
    opens = [row for row in raw if row.role == "user"]
    newest = opens[-2] if len(opens) > 1 else raw[0]
    first = next((row for row in raw if row.id in pinned), None)
    unpinned = next((n for n, rows in enumerate(chunks) if first and _has_any(rows, pinned, first)), len(chunks))
    older = next((n for n, rows in enumerate(chunks) if not _ends_before(rows, newest)), len(chunks))
    enough = older < unpinned and tokens_of(raw) - tokens_of(chain.from_iterable(chunks[:older])) < message_tokens
    return older if enough else unpinned


def _has_any(rows: Sequence[Message], pinned: Collection[str], first: Message) -> bool:
    """Whether a pinned row, of which ``first`` is the first, is among these."""
    return not _ends_before(rows, first) and any(row.id in pinned for row in rows)


def _ends_before(rows: Sequence[Message], row: Message) -> bool:
    return seq_of(rows[-1]) < seq_of(row)


def newest_half(rows: Sequence[Message], pinned: Collection[str], *, cuts: int) -> list[Message]:
    """The newest rows that have a half, a quarter, ... of the tokens, beginning with a user's message.

    Pinned rows stay, in any case. ``cuts`` says how many times to halve; 0 only looks to the beginning.
    """
    kept = _newest_share(rows, pinned, 2**cuts) if cuts else rows
    first = next((index for index, row in enumerate(kept) if row.role == "user" or row.id in pinned), len(kept))
    kept = list(kept[first:])
    return kept if not kept or kept[0].role == "user" else [stand_in(kept[0]), *kept]


def _newest_share(rows: Sequence[Message], pinned: Collection[str], divisor: int) -> list[Message]:
    sizes = list(map(message_tokens, rows))
    room = sum(sizes) / divisor
    start = len(rows) - bisect_right(list(accumulate(reversed(sizes))), room)
    return [*(row for row in rows[:start] if row.id in pinned), *rows[start:]]
