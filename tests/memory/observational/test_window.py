"""A window that grows knows the same sizes as one that begins with all its rows."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.message_units import observable_units, tokens_of
from diarist.memory.observational.window import Window
from diarist.messages import Message, Role, TextPart, ToolPart
from diarist.prompting import build_prompt
from diarist.storage import InMemoryStorage, Observation, ObservationLog
from diarist.storage.records import Source
from tests.memory.observational.harness import NOON, FakeObserver, FakeReflector, WordCounter

KINDS = ("user", "answer", "finished call", "open call", "result")


def row(seq: int, kind: str) -> Message:
    texts = TextPart(text="word " * (seq % 4 + 1))
    call = ToolPart(call_id=f"c{seq // 3}", name="look", args={}, state="call")
    done = ToolPart(call_id=f"c{seq // 3}", name="look", args={}, state="result", result="found it")
    parts = {"open call": [texts, call], "finished call": [texts, done], "result": [done]}.get(kind, [texts])
    role: Role = "user" if kind == "user" else "tool" if kind == "result" else "assistant"
    return Message(id=f"m{seq}", role=role, parts=list(parts), seq=seq, created_at=NOON)


def log_of(noted: list[tuple[int, int, str]]) -> ObservationLog:
    entries = [
        Observation(
            id=f"o{number}",
            text="x",
            tokens=1,
            sources=(Source(thread_id="t", first_seq=first, last_seq=first + more, digest="0"),),
            message_tokens=1,
            message_count=1,
            observed_at=NOON,
            cycle_id=f"c{number}",
            state="active" if state == "active" else "buffered",
        )
        for number, (first, more, state) in enumerate(noted)
    ]
    return ObservationLog(key="thread:t", scope="thread", resource_id="ada", entries=tuple(entries))


def window_of(log: ObservationLog) -> Window:
    engine = Engine(
        storage=InMemoryStorage(),
        observer=FakeObserver(),
        reflector=FakeReflector(),
        config=ObservationalMemoryConfig(),
        counter=WordCounter(),
    )
    return Window(engine.diary("t", "ada", None), log, None)


noted_ranges = st.lists(
    st.tuples(st.integers(1, 20), st.integers(0, 5), st.sampled_from(("active", "buffered"))), max_size=3
)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=25), noted_ranges, st.data())
def test_its_sizes_are_those_of_its_rows(kinds: list[str], noted: list[tuple[int, int, str]], data: st.DataObject):
    rows = [row(seq, kind) for seq, kind in enumerate(kinds, 1)]
    log = log_of(noted)
    growing = window_of(log)
    left = list(rows)
    while left:
        count = data.draw(st.integers(1, len(left)))
        growing.add(left[:count])
        left = left[count:]
        if data.draw(st.booleans()):  # a prompt was made of the rows
            build_prompt((), growing.rows, reuse=True)
        pinned = {known.id for known in growing.rows if data.draw(st.integers(0, 5)) == 0}
        whole = window_of(log)
        whole.add([row(known.seq or 0, kinds[(known.seq or 0) - 1]) for known in growing.rows])
        assert growing.sizes(pinned) == whole.sizes(pinned)
        covered = {
            known.id
            for known in growing.rows
            if any(first <= (known.seq or 0) <= first + more for first, more, _ in noted)
        }
        units = [unit for unit in observable_units(growing.rows, pinned) if not covered & {one.id for one in unit}]
        assert growing.sizes(pinned).fresh_tokens == tokens_of(chain.from_iterable(units))
