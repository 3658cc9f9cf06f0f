"""Coverage is what the sources say, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.observational.log.coverage import Coverage, digest_rows, join_sources, sources_of
from diarist.messages import Message
from diarist.storage.records import Observation, Source
from tests.memory.observational.harness import NOON, user


def covering(*ranges: tuple[int, int], thread: str = "t") -> Coverage:
    sources = tuple(Source(thread_id=thread, first_seq=a, last_seq=b, digest="0") for a, b in ranges)
    entry = Observation(
        id="o", text="x", tokens=1, sources=sources, message_tokens=1, message_count=1, observed_at=NOON, cycle_id="c"
    )
    return Coverage([entry], "t")


ranges = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)).map(lambda r: (r[0], r[0] + r[1])), max_size=8)


@given(ranges, ranges)
def test_it_agrees_with_a_set_of_numbers(mine: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    rows = {seq for a, b in mine for seq in range(a, b + 1)}
    others = {seq for a, b in theirs for seq in range(a, b + 1)}
    coverage = covering(*mine)
    for seq in range(1, 55):
        assert (seq in coverage) is (seq in rows)
        assert coverage.end_before(seq) == max((r for r in rows if r < seq), default=0)
    assert (coverage >= covering(*theirs)) is (rows >= others)
    for end in range(1, 55):
        holes = [seq for after, before in coverage.holes(end) for seq in range(after + 1, before or 0)]
        assert holes == [seq for seq in range(1, end) if seq not in rows]
    assert coverage.holes()[-1] == (max(rows, default=0), None)


def test_other_threads_do_not_count() -> None:
    assert 1 not in covering((1, 5), thread="other")


def rows_at(*seqs: int) -> list[Message]:
    rows = [user(f"m{seq}", 1) for seq in seqs]
    for row, seq in zip(rows, seqs, strict=True):
        row.seq = seq
    return rows


def spans(sources: tuple[Source, ...]) -> list[tuple[int, int]]:
    return [(source.first_seq, source.last_seq) for source in sources]


def test_numbers_of_rows_that_are_gone_belong_to_the_row_behind_them() -> None:
    raw = rows_at(3, 4, 8)
    assert spans(sources_of(raw, raw, covering(), "t")) == [(1, 8)]


def test_a_range_stops_at_rows_that_stay_raw_and_at_rows_that_are_covered() -> None:
    raw = rows_at(11, 12, 13, 20)
    batch = [raw[0], raw[2], raw[3]]
    assert spans(sources_of(batch, raw, covering((1, 9), (15, 18)), "t")) == [(10, 11), (13, 13), (19, 20)]


@given(st.sets(st.integers(1, 40)), st.data())
def test_sources_cover_the_batch_and_no_other_row(present: set[int], data: st.DataObject) -> None:
    seqs = sorted(present)
    old = data.draw(st.sets(st.sampled_from(seqs)) if seqs else st.just(set[int]()))
    coverage = covering(*((seq, seq) for seq in old))
    raw = rows_at(*(seq for seq in seqs if seq not in old))
    batch = [row for row in raw if data.draw(st.booleans())]
    covered = {n for a, b in spans(sources_of(batch, raw, coverage, "t")) for n in range(a, b + 1)}
    assert covered & present == {row.seq for row in batch}


def test_joined_sources_have_the_digest_of_all_their_rows() -> None:
    rows = rows_at(*range(1, 10))
    sources = [
        Source(thread_id="t", first_seq=a, last_seq=b, digest=digest_rows(rows[a - 1 : b]))
        for a, b in [(5, 5), (1, 4), (7, 9)]
    ]
    whole, other = join_sources(sources)
    assert (whole.first_seq, whole.last_seq, whole.digest) == (1, 5, digest_rows(rows[:5]))
    assert other == sources[2]
    assert join_sources([whole, replace(other, thread_id="u", first_seq=6)]) == (
        whole,
        replace(other, thread_id="u", first_seq=6),
    )


def test_a_digest_changes_with_every_word_and_ignores_system_rows() -> None:
    rows = rows_at(1, 2)
    before = digest_rows(rows)
    assert digest_rows([*rows, Message.system("be brief")]) == before
    rows[0].parts[0].text = "other"  # type: ignore[union-attr]
    assert digest_rows(rows) != before
