"""Where the messages of a client leave the branch of a thread: the table of cases."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from diarist import Message
from diarist.memory.divergence import BranchPlace, Divergence, divergence
from diarist.messages import CUT_KEY, FilePart, Part, ReasoningPart, Role, TextPart, ToolPart
from diarist.storage import Forgotten


def said(text: str) -> list[Message]:
    """Messages in one letter each: a capital letter is a question, a small one an answer, ``*`` a step with a tool call
    and its result, ``>`` the result of the call alone."""
    return [_message(letter) for letter in text]


def _message(letter: str) -> Message:
    role: Role = "user" if letter.isupper() else "tool" if letter == ">" else "assistant"
    parts: list[Part] = [TextPart(text=letter)]
    if letter in "*>":
        parts = [ToolPart(call_id="call", name="look", args={"at": 1}, state="result", result="seen")]
    return Message(role=role, parts=parts)


def read(given: str, branch: str) -> tuple[str, str]:
    """Return the part of the branch that stays, and what is new."""
    found = divergence(said(given), said(branch))
    return branch[: found.keep], given[len(given) - found.new :]


CASES: list[tuple[str, str, str, str, str]] = [
    # what the client does; its messages; the branch; what stays; what is new
    ("sends all and something new", "AaBbC", "AaBb", "AaBb", "C"),
    ("asks the same again", "AaBbB", "AaBb", "AaBb", "B"),
    ("says the same as ever", "AaAaA", "AaAa", "AaAa", "A"),
    ("asks for another answer", "AaBbC", "AaBbCc", "AaBbC", ""),
    ("asks for an earlier answer again", "AaB", "AaBbCc", "AaB", ""),
    ("retries after a failure", "AaB", "AaB", "AaB", ""),
    ("retries after a failed step", "AaB", "AaB*", "AaB", ""),
    ("asks again for the answer to a repeated question", "AaB", "AaBBb", "AaB", ""),
    ("edits the last question", "AaBbX", "AaBbCc", "AaBb", "X"),
    ("edits an earlier question", "AaX", "AaBbCc", "Aa", "X"),
    ("has another answer than was stored", "AaBxC", "AaBb", "AaB", "xC"),
    ("has a first answer that was never stored", "AxB", "AaBb", "A", "xB"),
    ("lacks the beginning", "CcD", "AaBbCc", "AaBbCc", "D"),
    ("lacks the beginning, and the first question of the rest", "bCcD", "AaBbCc", "AaBbCc", "D"),
    ("lacks the beginning, and asks for another answer", "BbC", "AaBbCc", "AaBbC", ""),
    ("lacks the beginning, and edits", "BbX", "AaBbCc", "AaBb", "X"),
    ("keeps the first and the last", "AaDdE", "AaBbCcDd", "AaBbCcDd", "E"),
    ("keeps the first question and the last answer", "AdE", "AaBbCcDd", "AaBbCcDd", "E"),
    ("keeps the first exchange and the last answer", "AadE", "AaBbCcDd", "AaBbCcDd", "E"),
    ("keeps a first question without an answer, and the last answer", "AbC", "ABb", "ABb", "C"),
    ("lacks steps with tools", "AaBbC", "A*aB**b", "A*aB**b", "C"),
    ("has steps with tools", "A*aB", "A*a", "A*a", "B"),
    ("has steps with tools, and their results apart", "A*>aB", "A*a", "A*a", "B"),
    ("asks for another answer to a result", "A*>", "A*a", "A*", ""),
    ("has the result of a call without the call", "A>aB", "A*a", "A*a", "B"),
    ("has results without their calls, and edits", "A>aX", "A*aBb", "A*a", "X"),
    ("lacks the beginning, up to a call", ">aB", "A*a", "A*a", "B"),
    ("begins with a result", ">aB", "", "", ">aB"),
    ("lacks a question without an answer", "AaC", "AaB", "AaB", "C"),
    ("lacks a first question without an answer", "BbC", "ABb", "ABb", "C"),
    ("has compacted its history", "SBbC", "AaBb", "AaBb", "C"),
    ("has compacted its history, with an answer", "SsBbC", "AaBb", "AaBb", "C"),
    ("has compacted all but the last answer", "SbC", "AaBb", "AaBb", "SbC"),
    ("has compacted all of its history", "SsC", "AaBb", "AaBb", "SsC"),
    ("has compacted the middle", "AaSsDdE", "AaBbCcDd", "Aa", "SsDdE"),
    ("sends one message", "C", "AaBb", "AaBb", "C"),
    ("sends the last question alone", "B", "AaBb", "AaBb", "B"),
    ("sends questions only", "ABC", "AaBb", "AaBb", "ABC"),
    ("sends another conversation", "XxY", "AaBb", "AaBb", "XxY"),
    ("begins", "AaB", "", "", "AaB"),
    ("could have edited, or cut a history that repeats itself", "AaX", "AaBbAa", "AaBbAa", "X"),
]


@pytest.mark.parametrize(("given", "branch", "stays", "new"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_table(given: str, branch: str, stays: str, new: str) -> None:
    assert read(given, branch) == (stays, new)


@pytest.mark.parametrize(
    ("given", "branch", "known", "is_unknown"),
    [
        ("AaBbC", "AaBb", 2, False),
        ("AaX", "AaBb", 1, False),
        ("AaCcD", "AaBbCc", 2, False),
        ("AcD", "AaBbCc", 1, False),
        ("SBbC", "AaBb", 1, True),
        ("XxY", "AaBb", 0, True),
        ("C", "AaBb", 0, False),
    ],
)
def test_what_is_known(given: str, branch: str, known: int, is_unknown: bool) -> None:
    found = divergence(said(given), said(branch))
    assert (found.known, found.is_unknown) == (known, is_unknown)


def test_a_forgotten_message_may_be_kept_or_dropped_by_the_client() -> None:
    branch: list[BranchPlace] = [*said("Aa"), Forgotten(3, "x", "user"), Forgotten(4, "y", "assistant"), *said("Cc")]
    for given in ("AaBbCcD", "AaCcD", "AabCcD", "AaBCcD"):
        assert divergence(said(given), branch).new == 1
    assert divergence(said("AaBbC"), branch) == Divergence(5, 0, 2)
    at_the_end: list[BranchPlace] = [*said("Aa"), Forgotten(3, "x", "user")]
    assert divergence(said("AaB"), at_the_end) == Divergence(3, 1, 1)  # a new question


def test_results_stay_with_their_calls_when_one_of_them_is_forgotten() -> None:
    results = [ToolPart(call_id=id, name="look", args={}, state="result", result="seen") for id in ("c", "d")]
    first, second = (Message(role="tool", parts=[part]) for part in results)
    asked = Message(role="assistant", parts=[replace(part, state="call", result=None) for part in results])
    given = [Message.user("A"), asked, first, second]
    assert divergence(given, [given[0], asked, Forgotten(3, first.id, "tool"), second]) == Divergence(4, 0, 1)
    assert divergence(given, [given[0], Forgotten(2, asked.id, "assistant"), first, second]) == Divergence(4, 0, 1)


@pytest.mark.parametrize(
    "shown",
    [
        ["Found."],
        ["Let me look. ", "Not yet. ", "Found."],
        ["Let me look. Not yet. Found."],
        ["Let me look.\n\nNot yet.\n\nFound."],
    ],
    ids=["answer", "each", "joined", "joined as paragraphs"],
)
def test_a_client_may_have_only_the_texts_of_a_turn_with_tools(shown: list[str]) -> None:
    def step(text: str) -> Message:
        return replace(Message.assistant(text), parts=[TextPart(text=text), *_message("*").parts])

    branch = [*said("AaB"), step("Let me look. "), step("Not yet. "), Message.assistant("Found.")]
    history = [*said("AaB"), *map(Message.assistant, shown)]
    assert divergence([*history, *said("C")], branch) == Divergence(6, 1, 1 + len(shown))
    assert divergence([*history, *said("C")], [*branch, *said("Cc")]) == Divergence(7, 0, 1 + len(shown))  # regenerate
    assert divergence([*said("Aa"), *said("X")], branch) == Divergence(2, 1, 1)  # edit


def test_a_changed_or_stopped_message_may_be_any_of_its_role() -> None:
    branch = said("AaBb")
    assert divergence(said("AaXbC"), branch, changed={branch[2].id}).new == 1
    branch[3].metadata[CUT_KEY] = True
    assert divergence(said("AaBxC"), branch).new == 1


def test_ids_decide_where_the_caller_gives_them() -> None:
    branch = said("AaBb")
    again = said("XxB")
    for message, row in zip(again, branch, strict=False):
        message.id = row.id
    assert divergence(again, branch, by_id={message.id for message in again}) == Divergence(3, 0, 1)
    fresh = said("AaBbC")
    assert divergence(fresh, branch, by_id={message.id for message in fresh}).new == 5


def test_what_does_not_count_in_a_comparison() -> None:
    stored = [
        Message.user(" hello\r\nthere\n"),
        Message(
            role="assistant",
            parts=[
                ReasoningPart(text="hm", signature="s"),
                ToolPart(
                    call_id="c1", name="look", args={"a": 1, "b": 2}, state="result", result="x", provider_data={}
                ),
            ],
        ),
        Message(role="assistant", parts=[TextPart(text="Fine.", provider_data={"id": "i"})]),
    ]
    given = [
        Message.user("hello\nthere"),
        Message(role="assistant", parts=[ToolPart(call_id="n1", name="look", args={"b": 2, "a": 1})]),
        Message(role="tool", parts=[ToolPart(call_id="n1", name="", args={}, state="result", result="x")]),
        Message.assistant("Fine. "),
        Message.user("next"),
    ]
    assert divergence(given, stored) == Divergence(3, 1, 2)
    dot = Message(role="user", parts=[FilePart(media_type="image/png", data=b"dot")])
    branch = [Message.user(""), Message.assistant("a")]
    assert divergence([dot, Message.assistant("a"), Message.user("b")], branch).is_unknown


@pytest.mark.parametrize(
    ("branch", "given"),
    [("Aa", "Aa"), ("Aa*", "Aa"), ("Aa", "Ba"), ("AaBb", "AaBbAa")],
)
def test_a_long_history_that_repeats_itself_costs_what_its_length_does(branch: str, given: str) -> None:
    assert _calls(lambda: divergence(said(given * 200 + "X"), said(branch * 200))) < 3 * _calls(
        lambda: divergence(said(given * 100 + "X"), said(branch * 100))
    )


def _calls(work: Callable[[], object]) -> int:
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
