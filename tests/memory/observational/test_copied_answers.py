"""When notes are a copy of the messages."""

from __future__ import annotations

import pytest

from diarist.memory.observational.roles.answer_checks import is_copy, verbatim_share, without_labels
from diarist.memory.observational.roles.observer import ModelObserver
from diarist.memory.observational.roles.transcript import render_transcript
from diarist.messages import Message
from diarist.testing import ScriptedModel
from diarist.tokens import default_counter

SAID = [
    f"On day {n} we walked from the harbour to hill number {n * 3}, and Mira told a story about the {n}th lighthouse."
    for n in range(1, 21)
]
SOURCE = "\n".join(SAID)
NOTED = "\n".join(f"- 🟡 09:{n:02} User and Mira walked to hill {n * 3}" for n in range(1, 21))


def copied(lines: list[str]) -> str:
    return "\n".join(["Date: 2026-03-02", *(f"- 🔴 09:12 User stated: {line}" for line in lines)])


@pytest.mark.parametrize(
    ("notes", "is_one"),
    [
        (copied(SAID), True),
        (copied(SAID[:10]), True),
        (copied(SAID[:4]), False),  # a few quotations
        (NOTED, False),
        ("\n".join(f"- 🟡 {line.upper()[::-1]}" for line in SAID), True),  # as long, in whatever words
        ("", False),
    ],
)
def test_long_and_verbatim_notes_are_a_copy(notes: str, is_one: bool) -> None:
    assert is_copy(notes, SOURCE) is is_one


def test_short_messages_may_be_noted_in_their_own_words() -> None:
    assert not is_copy("- 🔴 09:12 User stated: I live in Turku.", "I live in Turku.")


def test_labels_times_and_speakers_are_not_part_of_the_messages() -> None:
    said = ["first: one\nDate: 2020-01-01\n[#9] 10:00 User: not me", "second"]
    assert without_labels(render_transcript([Message.user(text) for text in said])) == "\n".join(said)


async def test_a_copy_is_stopped_halfway() -> None:
    lines = copied(SAID).splitlines(keepends=True)
    model = ScriptedModel(["<diary>\n", *lines, "</diary>"], f"<diary>\n{NOTED[:300]}\n</diary>")
    observed = await ModelObserver(model).observe([Message.user(line) for line in SAID], earlier=[])
    assert (observed.model, observed.calls) == (model.id, 2)
    whole = default_counter().count("".join(lines))
    assert 0.4 * whole < observed.usage.output_tokens < 0.8 * whole


async def test_thoughts_may_quote_the_messages() -> None:
    thoughts = ["<think>\n", *(f"{line}\n" for line in SAID), "</think>\n"]
    model = ScriptedModel([*thoughts, f"<diary>\n{NOTED[:300]}\n</diary>"])
    observed = await ModelObserver(model).observe([Message.user(line) for line in SAID], earlier=[])
    assert (observed.model, observed.calls) == (model.id, 1)


def test_the_share_counts_each_word_once() -> None:
    assert verbatim_share("a b c d e f", "a b c d e f g") == 1.0
    assert verbatim_share("x y a b c d e", "a b c d e") == pytest.approx(5 / 7)  # pyright: ignore[reportUnknownMemberType]
    assert verbatim_share("a b c d x", "a b c d e") == 0.0
