"""Answers of models, tidy and clumsy."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.memory.observational.roles.parsing import escape_tags, parse_notes

NOTES = "Date: 2026-03-02\n- 🔴 09:12 User stated that they live in Turku\n  - 🟡 09:13 User asked about ferries"
TAGS = ["diary", "observations", "current-task", "suggested-response", "think", "transcript", "earlier-notes"]


def test_a_tidy_answer() -> None:
    notes = parse_notes(
        f"<diary>\n{NOTES}\n</diary>\n<current-task>\nFind a ferry\n</current-task>\n"
        "<suggested-response>\nOffer two.\n</suggested-response>"
    )
    assert (notes.text, notes.current_task, notes.suggested_response) == (NOTES, "Find a ferry", "Offer two.")


@pytest.mark.parametrize(
    "answer",
    [
        f"<diary>\n{NOTES}",
        f"<DIARY>\n{NOTES}\n</Diary>",
        f"```text\n<diary>\n{NOTES}\n</diary>\n```",
        f"Here you go:\n\n<observations>\n{NOTES}\n</observations>\nHope this helps!",
        f"<think>\nThe user lives somewhere.\n- a thought\n</think>\n<diary>\n{NOTES}\n</diary>",
        f"<diary></diary>\n{NOTES}",
        f"<current-task>none\n{NOTES}",
        NOTES,
        f"Sure, these are the notes.\n{NOTES}\nThat is all.",
        NOTES.replace("Date: 2026-03-02", "## **Date: 2026-03-02**"),
        f"<diary>\n{NOTES}</diary>",
    ],
)
def test_clumsy_answers_give_the_same_notes(answer: str) -> None:
    assert parse_notes(answer).text == NOTES


@pytest.mark.parametrize("opening", ["<think>\n", "", "<thinking>\n"])
def test_a_draft_in_the_thoughts_is_no_note(opening: str) -> None:
    closing = "</thinking>" if "ing" in opening else "</think>"
    draft = "Draft:\n<diary>\n- 🔴 User lives in Oslo\n</diary>\n<current-task>\nFind Oslo\n</current-task>\nNo, Turku."
    notes = parse_notes(
        f"{opening}{draft}\n{closing}\n<diary>\n{NOTES}\n</diary>\n<current-task>\nFind a ferry\n</current-task>"
    )
    assert (notes.text, notes.current_task) == (NOTES, "Find a ferry")


@pytest.mark.parametrize(
    "quoting",
    [
        "- 🔴 09:12 User's prompt begins:\n  <thinking>\n  {steps}\n  </thinking>",
        "- 🟡 09:12 User asked how to hide the tag <think>",
        "- 🟡 09:12 The tool answered:\n  <notes>VIP</notes>\n  <think>",
        "- 🟡 09:12 User asked about\n  </think>\n  <diary>",
    ],
)
def test_notes_that_quote_tags_lose_nothing_after_them(quoting: str) -> None:
    fact = "- 🔴 09:13 User is allergic to nuts"
    notes = parse_notes(f"<diary>\nDate: 2026-03-02\n{quoting}\n{fact}\n</diary>\n<current-task>\nx\n</current-task>")
    assert notes.text.splitlines()[0] == "Date: 2026-03-02"
    assert notes.text.splitlines()[-1] == fact
    assert len(notes.text.splitlines()) == 2 + len(quoting.splitlines())
    assert notes.current_task == "x"


@pytest.mark.parametrize(
    "heading", ["Datum: 2026-03-02", "日期：2026-03-02", "## 2026-03-02", "**Fecha:** 2026-03-02", "date: 2026-03-02"]
)
def test_a_day_is_a_heading_in_any_language(heading: str) -> None:
    assert parse_notes(f"<diary>\n{heading}\n- 🔴 a\n</diary>").text == "Date: 2026-03-02\n- 🔴 a"


def test_a_detail_with_a_date_is_no_heading() -> None:
    notes = (
        "Date: 2026-03-02\n- 🔴 09:12 User booked a flight\n  - Date: 2026-07-04\n    Date: 2020-01-01\n- 🔴 09:15 b"
    )
    assert parse_notes(f"<diary>\n{notes}\n</diary>").text == notes


def test_notes_that_are_indented_as_a_whole_stand_at_the_margin() -> None:
    indented = "\n".join(f"    {line}" for line in NOTES.splitlines())
    assert parse_notes(f"  <diary>\n{indented}\n  </diary>").text == NOTES


def test_a_refusal_with_reasons_is_no_diary() -> None:
    assert parse_notes("I can't do that:\n- it has medical data\n- it may be private").text == ""


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\n"])
def test_a_note_goes_on_behind_a_break(mark: str) -> None:
    text = f"- 🔴 09:10 User lives at 1 Main St{mark}Springfield, Illinois\n- 🟢 09:11 tea"
    wanted = text if mark == "\n" else text.replace(mark, " ")
    assert parse_notes(f"<diary>\n{text}\n</diary>").text == wanted
    if mark != "\n":  # in JSON each line is a note
        assert parse_notes(json.dumps({"diary": text})).text == wanted


def test_prose_behind_a_blank_line_is_no_note() -> None:
    assert parse_notes(f"<diary>\nThe notes:\n{NOTES}\n\nHope this helps!\n</diary>").text == NOTES


def test_several_blocks_are_joined() -> None:
    assert parse_notes("<diary>\n- a\n</diary>\ntalk\n<diary>\n- b\n</diary>").text == "- a\n- b"


def test_everything_on_one_line() -> None:
    notes = parse_notes("<diary>- 🔴 a</diary><current-task>b</current-task><suggested-response>c</suggested-response>")
    assert (notes.text, notes.current_task, notes.suggested_response) == ("- 🔴 a", "b", "c")


def test_labels_instead_of_tags() -> None:
    notes = parse_notes(f"{NOTES}\n\n**Current task:** Find a ferry\nSuggested response: none")
    assert (notes.text, notes.current_task, notes.suggested_response) == (NOTES, "Find a ferry", "")


@pytest.mark.parametrize("nothing", ["none", "None.", "N/A", "-"])
def test_nothing_is_open_if_the_task_is_none(nothing: str) -> None:
    assert parse_notes(f"<diary>\n- a\n</diary>\n<current-task>{nothing}</current-task>").current_task == ""


@pytest.mark.parametrize(
    "section",
    ["", "<current-task></current-task>", "<current-task>  </current-task>", "<current-task>Unknown.</current-task>"],
)
def test_a_missing_task_is_unknown(section: str) -> None:
    assert parse_notes(f"<diary>\n- a\n</diary>\n{section}").current_task is None


@pytest.mark.parametrize("answer", ["", "I cannot help with that.", "<diary>\n\n</diary>", "<think>\n- hm"])
def test_answers_without_notes_are_empty(answer: str) -> None:
    assert parse_notes(answer).text == ""


def test_a_tag_inside_a_line_is_text() -> None:
    notes = parse_notes("<diary>\n- 🟡 User asked what </diary> and <b> mean here\n- 🟢 b\n</diary>")
    assert notes.text == "- 🟡 User asked what &lt;/diary> and <b> mean here\n- 🟢 b"


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
tags = st.builds(
    lambda left, slash, name, right: f"<{left}{slash}{name}{right}>",
    st.sampled_from(["", " "]),
    st.sampled_from(["", "/", "/ "]),
    st.sampled_from([*TAGS, "Diary", "THINK"]),
    st.sampled_from(["", " "]),
)
answers = st.lists(words | tags | st.sampled_from(["\n", "\n- ", "```", "Date: ", "<", "</", "&lt;"])).map("".join)


@given(answers)
def test_any_answer_is_read_and_no_tag_survives(answer: str) -> None:
    notes = parse_notes(answer)
    for text in (notes.text, notes.current_task or "", notes.suggested_response or ""):
        assert not re.search(rf"<\s*/?\s*({'|'.join(TAGS)})\s*>", text, re.IGNORECASE)


@given(
    st.lists(st.integers(), min_size=1), st.sampled_from(["<diary>\n{}\n</diary>", "<diary>\n{}", "{}", "```\n{}\n```"])
)
def test_lines_are_kept_in_order(numbers: list[int], frame: str) -> None:
    text = "\n".join(f"- 🟡 line {number}" for number in numbers)
    assert parse_notes(frame.format(text)).text == text


@given(answers)
def test_escaping_twice_changes_nothing_more(text: str) -> None:
    once = escape_tags(text)
    assert escape_tags(once) == once


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["< ", "</ ", "<diary>", "Date:  ", "\n```", "- <diary> ", "🔴 09:12 a - ", "[ ] ", "### "]
)
def test_long_nonsense_takes_no_time(piece: str) -> None:
    parse_notes(piece * 50_000)
    parse_notes(piece + " " * 200_000 + "x")


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("<thread-title>\n**Hotel in Porto**\n</thread-title>", "Hotel in Porto"),
        ('<thread-title>: "Hotel in Porto"', "Hotel in Porto"),
        ("Thread title: Hotel in\u00a0Porto", "Hotel in Porto"),
        ("<thread-title>Hotel in\0 Porto</thread-title>", "Hotel in Porto"),
        ("<thread-title>none</thread-title>", None),
        ("<thread-title></thread-title>", None),
        (f"<thread-title>{'x' * 500}</thread-title>", "x" * 100),
    ],
)
def test_a_title_is_one_short_line(answer: str, title: str | None) -> None:
    notes = parse_notes(f"<diary>\n- 🔴 a\n</diary>\n{answer}")
    assert (notes.text, notes.thread_title) == ("- 🔴 a", title)


NAMES = {
    "diary": ["diary", "Diary", "observations", "notes"],
    "task": ["current-task", "current_task", "Current Task", "currentTask"],
    "response": ["suggested-response", "suggested_response", "SUGGESTED-RESPONSE"],
}
HEADINGS = {
    "diary": ["### Diary", "## Observations:", "**Notes**"],
    "task": ["### Current Task", "**Current task:**", "# Current task:"],
    "response": ["### Suggested Response", "**Suggested response**:", "## suggested_response"],
}
ATTRIBUTES = ["", ' lang="en"', " id='1'", " n=3", ' a="x y" b=2 ']
words_of_notes = st.lists(
    st.sampled_from(
        ["User", "stated", "pays", "80", "EUR", "at", "12:30", "tomorrow", "<b>", "a-b", "(meaning", "2026)"]
    ),
    min_size=3,
    max_size=8,
).map(" ".join)
some_notes = st.lists(
    st.tuples(st.sampled_from("🔴🟡🟢✅"), st.integers(0, 23), st.integers(0, 59), words_of_notes),
    min_size=1,
    max_size=4,
).map(lambda notes: [f"- {mark} {hour:02}:{minute:02} {text}" for mark, hour, minute, text in notes])
diaries = st.lists(some_notes, min_size=1, max_size=3).map(
    lambda days: [(f"Date: 2026-03-{day:02}", notes) for day, notes in enumerate(days, 1)]
)


@given(diaries, words_of_notes, words_of_notes, st.data())
def test_a_diary_is_read_however_it_is_written(
    days: list[tuple[str, list[str]]], task: str, response: str, data: st.DataObject
) -> None:
    """All on a line or not, with any tags, headings for tags, notes behind their headings."""

    def one_of(options: list[str]) -> str:
        return data.draw(st.sampled_from(options))

    def tag(section: str, *, closing: bool = False) -> str:
        attributes = "" if closing else one_of(ATTRIBUTES)
        left, right = data.draw(st.sampled_from([("<", ">"), ("< ", " >"), ("&lt;", "&gt;"), ("\\<", "\\>")]))
        return f"{left}{'/' if closing else ''}{one_of(NAMES[section])}{attributes}{right}"

    on_one_line = data.draw(st.booleans())
    line_end = " " if on_one_line else "\n"
    lines: list[str] = []
    for heading, notes in days:
        joint = " " if on_one_line else one_of([" ", "\n"])
        lines.append(f"{one_of(['', '## ', '**']) if not on_one_line else ''}{heading}{joint}{line_end.join(notes)}")
    body = line_end.join(lines)
    near = one_of(["", " ", "" if on_one_line else "\n"])
    if data.draw(st.booleans()) or on_one_line:
        text = f"{tag('diary')}{near}{body}{near}{tag('diary', closing=True)}"
        hints = [
            f"{tag(name)}{near}{said}{near}{tag(name, closing=True)}"
            for name, said in (("task", task), ("response", response))
        ]
        text += line_end.join(["", *hints])
    else:
        text = f"{one_of(HEADINGS['diary'])}\n{body}\n\n{one_of(HEADINGS['task'])}\n{task}\n\n"
        text += f"{one_of(HEADINGS['response'])}\n{response}"
    text = f"```\n{text}\n```" if not on_one_line and data.draw(st.booleans()) else text

    notes = parse_notes(text)
    assert notes.text.splitlines() == [line for heading, notes in days for line in (heading, *notes)]
    assert (notes.current_task, notes.suggested_response) == (task, response)


@given(diaries, words_of_notes, st.sampled_from(["text", "lines", "days", "by day", "objects"]), st.booleans())
def test_a_diary_in_json_is_read(days: list[tuple[str, list[str]]], task: str, form: str, fenced: bool) -> None:
    lines = [line for heading, notes in days for line in (heading, *notes)]
    objects = [
        {"date": heading.split()[1], "time": note[4:9], "priority": note[2], "text": note[10:]}
        for heading, notes in days
        for note in notes
    ]
    diary = {
        "text": "\n".join(lines),
        "lines": lines,
        "days": [{"date": heading.split()[1], "notes": notes} for heading, notes in days],
        "by day": {heading.split()[1]: notes for heading, notes in days},
        "objects": objects,
    }[form]
    text = json.dumps({"diary": diary, "currentTask": task, "suggested_response": "none"})
    notes = parse_notes(f"Here it is:\n```json\n{text}\n```" if fenced else text)
    assert notes.text.splitlines() == lines
    assert (notes.current_task, notes.suggested_response) == (task, "")


@pytest.mark.parametrize(
    "answer",
    [
        f"<diary>\nHere are the notes:\n{NOTES}\n\nThis was a talk about ferries.\n</diary>",
        f"<diary>\nThe user talked about where they live.\n{NOTES}\n</diary>",
        NOTES.replace("- 🔴", "🔴"),
        f"<diary>\n{NOTES}\n- 🟡 [ ]\n- 🟢 09:14 [ ] [#N]\n- 🟡 09:15 User asked [question] [#2]\n</diary>",
        f"<diary>\n{NOTES.replace('stated that they live in Turku', 'stated [that they live in Turku]')}\n</diary>",
    ],
)
def test_neither_prose_nor_places_get_into_the_diary(answer: str) -> None:
    assert parse_notes(answer).text == NOTES


def test_a_note_that_goes_on_at_the_margin_is_kept() -> None:
    text = "Date: 2026-03-02\n- 🔴 09:12 User stated that they\nlive in Turku"
    assert parse_notes(f"<diary>\n{text}\n</diary>").text == text


@pytest.mark.parametrize(
    "answer",
    [
        "<diary>\nDate: 2026-03-02\n- 🟡 09:12 The tool answered: <notes>VIP</notes>\n- 🔴 09:13 fact\n</diary>",
        "<diary>\nDate: 2026-03-02\n- 🟡 09:12 User asked about </thinking> tags\n- 🔴 09:13 fact\n</diary>",
        "<diary>\nDate: 2026-03-02\n- 🟡 09:12 User's list: - ✅ milk - 🔴 eggs\n- 🔴 09:13 fact\n</diary>",
        "<diary>\nDate: 2026-03-02\n- 🟡 09:12 User wrote Date: 2026-07-04 on it\n- 🔴 09:13 fact\n</diary>",
        "<diary>\nDate: 2026-03-02 10:37\n- 🟡 09:12 User's notes: fine\n- 🔴 09:13 fact\n</diary>",
    ],
)
def test_a_note_that_looks_like_the_frame_stays_one_note(answer: str) -> None:
    notes = parse_notes(answer).text.splitlines()
    assert len(notes) == 3
    assert notes[-1] == "- 🔴 09:13 fact"


@pytest.mark.parametrize(
    ("answer", "text", "task", "whole"),
    [
        (f"<diary>\n{NOTES}\n- 🟡 09:14 User as", NOTES, None, False),
        (f"<diary>\n{NOTES}\n", NOTES, None, False),
        (f"{NOTES}\n- 🟡 09:14 User as", NOTES, None, False),
        (f"<diary>\n{NOTES}\n</diary>\n<current-task>Find a fer", NOTES, None, True),
        (f"<diary>\n{NOTES}</diary><current-task>Find</current-task><suggested-response>Off", NOTES, "Find", True),
        (f"<diary>\n{NOTES}\n</diary>\n<diary>\n- 🔴 09:15 User", NOTES, None, False),
        (f"{NOTES}\n\n### Current Task\nFind\n### Suggested Response\nOff", NOTES, "Find", True),
        (f"{NOTES}\nCurrent task: Find a f", NOTES, None, True),
        ('{"diary": ["Date: 2026-03-02", "- 🔴 09:12 a", "- 🟡 half', "Date: 2026-03-02\n- 🔴 09:12 a", None, False),
    ],
)
def test_the_complete_part_of_a_cut_answer_is_read(answer: str, text: str, task: str | None, whole: bool) -> None:
    notes = parse_notes(answer, cut=True)
    assert (notes.text, notes.current_task, notes.suggested_response, notes.whole) == (text, task, None, whole)
