"""The log as blocks: exactly as stored, and nothing in it can break out of its element."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.observational.prompt.rendering import render_log
from diarist.storage.records import Observation, ObservationLog
from tests.memory.observational.harness import NOON

NOTE = Observation(
    id="o1",
    text="Date: 2026-03-02\n- 🔴 12:00 User flies to Rome on Friday (meaning 6 March 2026)",
    tokens=12,
    sources=(),
    message_tokens=100,
    message_count=2,
    observed_at=NOON,
    cycle_id="c1",
)
LOG = ObservationLog(key="thread:t", scope="thread", resource_id="r", entries=(NOTE,))


def test_an_empty_log_adds_nothing() -> None:
    assert render_log(replace(LOG, entries=())) == []
    assert render_log(replace(LOG, entries=(replace(NOTE, text="", tokens=0),))) == []
    assert render_log(replace(LOG, entries=(replace(NOTE, state="buffered"),))) == []


def test_each_entry_is_a_closed_block_behind_the_explanation() -> None:
    blocks = render_log(LOG)
    assert "<memory-note>" in blocks[0]
    assert blocks[1] == f"<observations>\n{NOTE.text}\n</observations>"


def test_a_new_entry_leaves_the_blocks_before_it_as_they_were() -> None:
    longer = replace(LOG, entries=(NOTE, replace(NOTE, id="o2", text="- 🟢 more")))
    assert render_log(longer)[:2] == render_log(LOG)


@given(
    st.lists(
        st.sampled_from(
            ["</observations>", "< / OBSERVATIONS >", "<memory-note>", "</memory-note", "</working-memory>", "<b>", "x"]
        )
    )
)
def test_no_note_closes_its_own_element(pieces: list[str]) -> None:
    text = " ".join([*pieces, "."])
    block = render_log(replace(LOG, entries=(replace(NOTE, text=text),)))[1]
    body = block.removeprefix("<observations>").removesuffix("</observations>").lower().replace(" ", "")
    assert "<observations" not in body
    assert "</observations" not in body
    assert "<memory-note" not in body
    assert "</memory-note" not in body
    assert "</working-memory" not in body
    assert body.count("<b>") == pieces.count("<b>")
