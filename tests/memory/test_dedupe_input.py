"""Which messages of an input a thread has already: the same as by the plain definition, at the cost of one look."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Memory, Message
from diarist.memory.dedupe_input import resent
from diarist.messages import TextPart, ToolPart
from diarist.storage import InMemoryStorage

Said = tuple[str, str]
"""Role and words; without words it is a step, for the role assistant one with a tool call."""

PAIR: list[Said] = [("user", "next"), ("assistant", "ok")]


def message(said: Said) -> Message:
    role, words = said
    if role == "assistant" and not words:
        return Message(role=role, parts=[ToolPart(call_id="c", name="look", args={}, state="result", result=1)])
    made: Any = {"role": role, "parts": [TextPart(text=words)]}
    return Message(**made)


async def stored(*said: Said, forgotten: Collection[int] = ()) -> InMemoryStorage:
    storage = InMemoryStorage()
    memory = Memory(storage=storage)
    await memory.messages.save([message(each) for each in [("user", "begin"), *said]], thread="t")
    rows = await memory.messages.list(thread="t")
    await memory.forget(message_ids=[row.id for place, row in enumerate(rows) if place in forgotten], thread="t")
    return storage


async def count_resent(storage: InMemoryStorage, *said: Said) -> int:
    history = [message(each) for each in said]
    found = await resent(storage, "t", [*history, Message.user("new")], set())
    assert found == {each.id for each in history[: len(found)]}
    return len(found)


def plainly(rows: Sequence[Said], history: Sequence[Said], forgotten: Collection[int]) -> int:
    """How many of the history the thread ends with, tried one after the other."""
    fitting = [n for n in range(1, len(history) + 1) if "assistant" in {role for role, _ in history[:n]}]
    return max((n for n in fitting if ends_with(rows, history[:n], forgotten)), default=0)


def ends_with(rows: Sequence[Said], messages: Sequence[Said], forgotten: Collection[int]) -> bool:
    @cache
    def fits(count: int, left: int, answered: bool) -> bool:
        """Whether so many of the messages are so many of the rows; ``answered``: an answer lies behind."""
        if not left or not count:
            return not left
        role, words = row = rows[count - 1]
        is_gap = count - 1 in forgotten
        may_lack = is_gap or (not answered if role == "user" else not words)
        may_be = messages[left - 1][0] == role if is_gap else messages[left - 1] == row
        return (may_be and fits(count - 1, left - 1, role == "assistant")) or (
            may_lack and fits(count - 1, left, answered and role != "user")
        )

    return fits(len(rows), len(messages), False)


said = st.sampled_from([*PAIR, ("user", "other"), ("assistant", "done"), ("assistant", "")])


@st.composite
def conversations(draw: st.DrawFn) -> list[Said]:
    some = st.lists(said, max_size=3)
    return draw(some) * draw(st.integers(0, 5)) + draw(some) + draw(some) * draw(st.integers(0, 5))


@settings(max_examples=300, deadline=None)
@given(
    rows=conversations(),
    before=conversations(),
    cut=st.integers(0, 20),
    after=st.lists(said, max_size=3),
    forgotten=st.sets(st.integers(0, 12), max_size=3),
)
async def test_the_longest_beginning_that_the_thread_ends_with(
    rows: list[Said], before: list[Said], cut: int, after: list[Said], forgotten: set[int]
) -> None:
    whole = [("user", "begin"), *rows]
    for gaps in (set[int](), forgotten):
        storage = await stored(*rows, forgotten=gaps)
        for history in (before, [*whole[cut:], *after], [*before, *whole[cut:]]):
            assert await count_resent(storage, *history) == plainly(whole, history, gaps)


STEPS: list[Said] = [("assistant", "")]


@pytest.mark.parametrize(
    ("stored_first", "sent_first", "again", "longer"),
    [
        ([("assistant", "ok")], [], PAIR, 2),
        ([("assistant", "ok")], [("user", "other"), ("assistant", "ok")], PAIR, 1),
        ([], [("user", "other")], STEPS, 1),
        ([("assistant", "ok")], [("user", "other"), ("assistant", "ok")], [*STEPS, *PAIR], 1),
        ([("user", "one")], [("user", "one"), ("user", "two")], PAIR, 1),
    ],
    ids=["more pairs", "another question", "steps without an answer", "steps between", "one question more"],
)
@pytest.mark.parametrize("forgotten", [[], [3]])
async def test_a_long_history_that_repeats_itself_is_looked_at_once(
    stored_first: list[Said], sent_first: list[Said], again: list[Said], longer: int, forgotten: list[int]
) -> None:
    """Twice the messages cost about twice the work, however far back the two differ, and where a client has more of
    them than the thread."""

    async def cost(times: int) -> int:
        storage, calls = await stored(*stored_first, *again * times, forgotten=forgotten), 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal calls
            calls += 1

        history = [*sent_first, *again * times * longer]
        sys.setprofile(count)
        try:
            found = await count_resent(storage, *history) > 0
            assert found is (longer > 1) or forgotten
        finally:
            sys.setprofile(None)
        return calls

    assert await cost(200) < 3 * await cost(100)
