"""From a line of notes back to the messages that it was made from."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.observational.roles.answer_checks import cite, take_citations
from diarist.memory.observational.roles.observer import ModelObserver
from diarist.messages import Message
from diarist.storage.records import Observation
from diarist.testing import ScriptedModel

MORNING = datetime(2026, 3, 2, 9, 12, tzinfo=UTC)
MESSAGES = [
    Message.user("I live in Turku.", id="m1", created_at=MORNING),
    Message.assistant("Noted.", id="m2", created_at=MORNING),
    Message.user("And I sail.", id="m3", created_at=MORNING),
]


@pytest.mark.parametrize(
    ("line", "bare", "numbers"),
    [
        ("- 🔴 09:12 User lives in Turku [#1]", "- 🔴 09:12 User lives in Turku", (1,)),
        ("- 🔴 09:12 User lives in Turku [#1, #3].", "- 🔴 09:12 User lives in Turku.", (1, 3)),
        ("- 🔴 09:12 User lives in Turku [#2-4] [#9]", "- 🔴 09:12 User lives in Turku", (2, 3, 4, 9)),
        ("- 🔴 [#1] 09:12 User lives in Turku", "- 🔴 09:12 User lives in Turku", (1,)),
        ("  - 🟡 09:12 read [#5][#6]", "  - 🟡 09:12 read", (5, 6)),
        ("- 🟡 09:12 copied from the form [#N]", "- 🟡 09:12 copied from the form", ()),
    ],
)
def test_citations_are_taken_out_of_the_line(line: str, bare: str, numbers: tuple[int, ...]) -> None:
    text, cited = take_citations(line)
    assert text == bare
    assert cited == {bare: numbers}


@pytest.mark.parametrize("line", ["- 🟡 see [1]", "- 🟡 gate #3 is open", "- 🟡 [#3](https://a.example) is open", ""])
def test_a_bracket_that_is_no_citation_stays(line: str) -> None:
    assert take_citations(line) == (line, {})


@pytest.mark.parametrize(
    ("line", "bare", "numbers"),
    [
        ("- 🔴 User must close ticket [#4711] [#1]", "- 🔴 User must close ticket [#4711]", (1,)),
        ("- 🔴 User must close ticket [#4711].", "- 🔴 User must close ticket [#4711].", None),
        ("- 🔴 [#4711] is User's ticket [#3, #77]", "- 🔴 [#4711] is User's ticket", (3, 77)),
        ("- 🔴 [#2] [#4711] is User's ticket", "- 🔴 [#4711] is User's ticket", (2,)),
    ],
)
def test_a_number_that_no_message_has_is_no_citation(line: str, bare: str, numbers: tuple[int, ...] | None) -> None:
    assert take_citations(line, 3) == (bare, {} if numbers is None else {bare: numbers})


@given(st.text(alphabet="[]#0123456789,-– N.a\n", max_size=80))
def test_any_text_can_be_read(text: str) -> None:
    bare, cited = take_citations(text)
    assert len(cite(bare, cited, ["a", "b"])) == len(bare.splitlines())


async def test_the_observer_gives_the_messages_of_each_line() -> None:
    answer = (
        "<diary>\nDate: 2026-03-02\n- 🔴 09:12 User lives in Turku [#1]\n"
        "- 🔴 09:12 User sails [#3, #77]\n- 🟢 09:12 Small talk\n</diary>\n<current-task>Sail [#3]</current-task>"
    )
    observed = await ModelObserver(ScriptedModel(answer)).observe(MESSAGES, earlier=[])
    assert "#" not in observed.text
    assert observed.citations == ((), ("m1",), ("m3",), ())
    assert observed.current_task == "Sail"


async def test_repeated_lines_leave_with_their_citations() -> None:
    known = Observation(
        id="obs",
        text="Date: 2026-03-02\n- 🔴 09:12 User lives in Turku",
        tokens=20,
        sources=(),
        message_tokens=0,
        message_count=0,
        observed_at=MORNING,
        cycle_id="c",
    )
    answer = "Date: 2026-03-02\n- 🔴 09:12 User lives in Turku [#1]\n- 🔴 09:12 User sails [#3]"
    observed = await ModelObserver(ScriptedModel(answer)).observe(MESSAGES, earlier=[known])
    assert observed.text == "Date: 2026-03-02\n- 🔴 09:12 User sails"
    assert observed.citations == ((), ("m3",))


async def test_an_observer_that_cites_nothing_has_no_citations() -> None:
    observed = await ModelObserver(ScriptedModel("- 🔴 09:12 User sails")).observe(MESSAGES, earlier=[])
    assert observed.citations == ()
