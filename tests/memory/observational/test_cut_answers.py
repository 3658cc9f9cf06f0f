"""How far an answer got that was cut off: never further than it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.observational.message_units import whole_units
from diarist.memory.observational.roles.answer_checks import cut_to_reach, read_transcript, take_citations
from diarist.memory.observational.roles.transcript import render_transcript
from diarist.messages import Message

MORNING = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
TOPICS = [
    "my flight to Porto leaves at seven",
    "the hotel Vela Branca costs ninety euros",
    "Ilse plays the violin left-handed now",
    "the crown on my tooth broke again",
    "our workshop needs a new lathe",
    "the tax office wants form twelve",
    "rain flooded the cellar stairs",
    "grandmother bakes almond cookies weekly",
    "the insurance refuses stolen bicycles",
    "our choir sings Bruckner in Easter week",
    "a colleague moved into farming goats",
    "the museum shows Flemish tapestries",
]


def messages(*texts: str, minutes: int = 1) -> list[Message]:
    return [
        Message.user(text, id=f"m{n}", created_at=MORNING + timedelta(minutes=n * minutes))
        for n, text in enumerate(texts or TOPICS)
    ]


def reach(notes: str, shown: list[Message] | None = None) -> tuple[list[str], int]:
    shown = shown or messages()
    text, cited = take_citations(notes, len(shown))
    kept, done = cut_to_reach(text, cited, read_transcript(render_transcript(shown)), partial(whole_units, shown))
    return [line for line in kept.splitlines() if not line.startswith("Date:")], done


def test_a_transcript_is_read_as_it_was_written() -> None:
    shown = messages("first: one\nDate: 2020-01-01\n[#9] 10:00 User: not me", "second", minutes=60 * 24)
    assert read_transcript(render_transcript(shown)) == {
        0: "first: one\nDate: 2020-01-01\n[#9] 10:00 User: not me",
        1: "second",
    }


def test_by_citations_all_before_the_last_cited_message_is_done() -> None:
    lines = [f"- 🔴 said {number} [#{number}]" for number in (1, 2, 4, 5)]
    assert reach("\n".join(lines)) == (["- 🔴 said 1", "- 🔴 said 2", "- 🔴 said 4"], 4)


@pytest.mark.parametrize(
    ("cited", "done"),
    [
        (["#1", "#2", "#3, #4"], 2),  # the last line is of both
        (["#1", "#2", "#11", "#3", "#4"], 3),  # a line that runs ahead
        (["#1-12", "#1", "#2", "#3"], 2),  # an overview
        (["#1", "#2", "#12"], 1),  # a jump that nobody reads
        (["#1", "#2-11", "#12"], 11),  # a line about many
        (["#11", "#12"], 0),
        (["#1"], 0),
        (["#99", "#98"], 0),
    ],
)
def test_citations_that_go_back_or_jump(cited: list[str], done: int) -> None:
    notes = [f"- 🔴 thing {place} [{numbers}]" for place, numbers in enumerate(cited)]
    assert reach("\n".join(notes))[1] == done


def test_citations_that_the_words_belie_do_not_count() -> None:
    """Three lines of each message, numbered on and on: the twelfth is still about the fourth."""
    lines = [f"- 🔴 User said that {TOPICS[number // 3]} [#{number + 1}]" for number in range(12)]
    assert reach("\n".join(lines))[1] <= 3


def test_a_line_of_two_messages_is_not_half_kept() -> None:
    lines = ["- 🔴 a [#1]", "- 🔴 b [#2]", "- 🔴 c [#3, #6]", "- 🔴 d [#4]", "- 🔴 e [#5]", "- 🔴 f [#6]"]
    assert reach("\n".join(lines)) == (["- 🔴 a", "- 🔴 b"], 2)


@pytest.mark.parametrize("notes", ["", "- 🔴 etwas", "\n".join(f"- 🔴 09:00 {text}" for text in TOPICS)])
def test_without_citations_nothing_is_done(notes: str) -> None:
    assert reach(notes)[1] == 0


notes = st.lists(
    st.tuples(st.sampled_from(["etwas", *TOPICS]), st.lists(st.integers(1, 14), max_size=3), st.integers(0, 14)),
    max_size=12,
).map(
    lambda lines: [
        f"- 🔴 09:{minute:02} {text}" + (f" [{', '.join(f'#{number}' for number in cited)}]" if cited else "")
        for text, cited, minute in lines
    ]
)


@given(notes)
def test_nothing_that_is_kept_is_of_a_message_that_is_not_done(lines: list[str]) -> None:
    shown = messages()
    text, cited = take_citations("\n".join(["Date: 2026-03-02", *lines]), len(shown))
    kept, done = reach("\n".join(["Date: 2026-03-02", *lines]))
    assert 0 <= done < len(shown)
    for line in kept:
        own = [number for number in cited.get(line, ()) if number <= len(shown)]
        assert not own or min(own) <= done
    assert len(kept) <= len(text.splitlines())
