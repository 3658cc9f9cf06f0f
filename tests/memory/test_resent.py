"""Which messages of an input a thread has already: the same as by the plain definition, at the cost of one look."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Memory, Message
from diarist.memory.resent import resent
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


async def stored(*said: Said) -> InMemoryStorage:
    storage = InMemoryStorage()
    await Memory(storage=storage).save_messages([message(each) for each in [("user", "begin"), *said]], thread="t")
    return storage


async def count_resent(storage: InMemoryStorage, *said: Said) -> int:
    history = [message(each) for each in said]
    found = await resent(storage, "t", [*history, Message.user("new")], set())
    assert found == {each.id for each in history[: len(found)]}
    return len(found)


def plainly(rows: Sequence[Said], history: Sequence[Said]) -> int:
    """How many of the history the thread ends with, tried one after the other."""
    fitting = [n for n in range(1, len(history) + 1) if "assistant" in {role for role, _ in history[:n]}]
    return max((n for n in fitting if ends_with(rows, history[:n])), default=0)


def ends_with(rows: Sequence[Said], messages: Sequence[Said]) -> bool:
    left, answered = list(messages), False
    for row in reversed(rows):
        if not left:
            break
        role, words = row
        if left[-1] == row:
            left.pop()
            answered = role == "assistant"
        elif answered if role == "user" else words:
            return False
    return not left


said = st.sampled_from([*PAIR, ("user", "other"), ("assistant", "done"), ("assistant", "")])


@st.composite
def conversations(draw: st.DrawFn) -> list[Said]:
    some = st.lists(said, max_size=3)
    return draw(some) * draw(st.integers(0, 5)) + draw(some) + draw(some) * draw(st.integers(0, 5))


@settings(max_examples=200)
@given(rows=conversations(), before=conversations(), cut=st.integers(0, 20), after=st.lists(said, max_size=3))
async def test_the_longest_beginning_that_the_thread_ends_with(
    rows: list[Said], before: list[Said], cut: int, after: list[Said]
) -> None:
    storage = await stored(*rows)
    whole = [("user", "begin"), *rows]
    for history in (before, [*whole[cut:], *after], [*before, *whole[cut:]]):
        assert await count_resent(storage, *history) == plainly(whole, history)


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
async def test_a_long_history_that_repeats_itself_is_looked_at_once(
    stored_first: list[Said], sent_first: list[Said], again: list[Said], longer: int
) -> None:
    """Twice the messages cost about twice the work, however far back the two differ, and where a client has more of
    them than the thread."""

    async def cost(times: int) -> int:
        storage, calls = await stored(*stored_first, *again * times), 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal calls
            calls += 1

        history = [*sent_first, *again * times * longer]
        sys.setprofile(count)
        try:
            assert (await count_resent(storage, *history) > 0) is (longer > 1)
        finally:
            sys.setprofile(None)
        return calls

    assert await cost(200) < 3 * await cost(100)
