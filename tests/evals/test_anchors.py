"""The load-bearing pieces of a text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist.evals.anchors import Sources, find_anchors
from tests.properties import examples


def found(text: str) -> list[tuple[str, str]]:
    return [(anchor.kind, "|".join(anchor.readings)) for anchor in find_anchors(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it costs 2,5k", [("number", "2500")]),
        ("it costs 2500.00 euros", [("number", "2500")]),
        ("€1,234.56 or 1.234,56 €", [("number", "1234.56")]),
        ("it has 1,234 pages", [("number", "1234|1.234")]),
        ("it has 1 000 000 pages", [("number", "1000000")]),
        ("they raised 5 million", [("number", "5000000")]),
        ("約30万円", [("number", "300000")]),
        ("it takes 3-5 days", [("number", "3"), ("number", "5")]),
        ("on June 12", [("date", "--06-12")]),
        ("on the 12th of June, 2026", [("date", "2026-06-12")]),
        ("am 12. Juni 2026", [("date", "2026-06-12")]),
        ("am 12.06. geht es los", [("date", "--06-12")]),
        ("el 12 de junio", [("date", "--06-12")]),
        ("le 1er août 2026", [("date", "2026-08-01")]),
        ("2026年6月12日", [("date", "2026-06-12")]),
        ("on 2026-06-12", [("date", "2026-06-12")]),
        ("on 03/04/2026", [("date", "2026-03-04|2026-04-03")]),
        ("in May 2026", [("date", "2026-05")]),
        ("we may march on", []),
        ("at 3pm", [("time", "15:00")]),
        ("at 3:30", [("time", "03:30|15:30")]),
        ("um 14 Uhr", [("time", "14:00")]),
        ("at 09:30:15", [("time", "09:30")]),
        ("mail ada.l+x@mail.example.org.", [("email", "ada.l+x@mail.example.org")]),
        ("see https://example.org/a?b=1.", [("url", "https://example.org/a?b=1")]),
        ("edit src/app.py", [("path", "src/app.py")]),
        ("edit ~/notes/today and C:\\a\\b.txt", [("path", "~/notes/today"), ("path", "c:\\a\\b.txt")]),
        ("open report.pdf", [("path", "report.pdf")]),
        ("yes and/or no", []),
        ("run `pytest -k login`", [("code", "pytest -k login")]),
        ("$ make test", [("code", "make test")]),
        ("flight AZ 204", [("identifier", "az204")]),
        ("flight AZ-204", [("identifier", "az204")]),
        ("order QX72LM", [("identifier", "qx72lm")]),
        ("user_id and getUser", [("identifier", "user_id"), ("identifier", "getuser")]),
        ("version 1.2.3", [("identifier", "1.2.3")]),
        ("call +49 30 123456", [("identifier", "+4930123456")]),
        ("the 1st of 3km in the 80s", [("number", "1"), ("number", "3"), ("number", "80")]),
        ('she read "little women" twice', [("quote", "little women")]),
        ("er las „Der Zauberberg“", [("quote", "der zauberberg"), ("name", "zauberberg")]),
        ("Then Anna's dog went to Oslo", [("name", "anna|anna's"), ("name", "oslo")]),
        ("Hello! Nice to see you", []),
        ("", []),
    ],
)
def test_anchors_are_normalised(text: str, expected: list[tuple[str, str]]) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("budget 2500", "my budget is 2,5k"),
        ("on 2026-06-12", "see you on June 12"),
        ("on June 12", "on 12.06.2026"),
        ("at 15:30", "at 3:30 in the afternoon"),
        ("at 3:30", "at 3:30 pm"),
        ("for 3 years", "for three years"),
        ("flight AZ204", "flight AZ 204"),
        ("in Rome", "in rome"),
        ("in 2026", "on 12 June 2026"),
        ('called "Little  Women"', "it was Little Women, I think"),
        ("in app.py", "in src/app.py"),
    ],
)
def test_other_ways_of_writing_are_found(line: str, source: str) -> None:
    assert all(anchor in Sources([source]) for anchor in find_anchors(line))


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("budget 2500", "my budget is 2600"),
        ("on 2026-06-12", "on 12 June 2025"),
        ("on June 12", "on June 13"),
        ("at 15:30", "at 3:30 am"),
        ("for 3 years", "for four years"),
        ("flight AZ 205", "flight AZ 204"),
        ("in Rome", "in Romeo"),
        ("in src/app.py", "in src/main.py"),
    ],
)
def test_other_values_are_not_found(line: str, source: str) -> None:
    assert any(anchor not in Sources([source]) for anchor in find_anchors(line))


words = st.sampled_from(
    [
        *("2,5k", "12.06.", "June 12", "2026-06-12", "3:30 pm", "AZ 204", "a@b.org", "src/app.py", "`x y`", '"a b"'),
        *("Oslo", "Anna's", "3", "1.234,5", "£5", "#12", "we", "May", "March 3, 2021", "https://x.org/", "3月4日"),
    ]
)
texts = st.lists(words | st.text(max_size=12), max_size=12).map(" ".join)


@settings(max_examples=examples(300), deadline=None)
@given(texts, texts)
def test_a_text_has_its_own_anchors_also_among_others(text: str, other: str) -> None:
    anchors = find_anchors(text)
    assert anchors == find_anchors(text)
    assert len({(anchor.kind, anchor.readings) for anchor in anchors}) == len(anchors)
    assert all(anchor.readings and all(anchor.readings) for anchor in anchors)
    assert [anchor for anchor in anchors if anchor not in Sources([other, text])] == []


UNITS = ["x", " ", "\n", "A. ", '"', "- 1. ", "<a-b>", "1, ", "1.", "/", "a/", "a.", "a_", "-", "A1-", "@", "+1 ", "1 "]


@pytest.mark.slow
@pytest.mark.parametrize("unit", [*UNITS, "www.", "May ", "0123456789", "aB", "“", "12:3", "1,234", "今天"])
def test_time_grows_with_the_length_alone(unit: str) -> None:
    for _ in range(3):  # another program may take the caches of the processor
        short, long = (spent(unit * (size // len(unit))) for size in (20_000, 80_000))
        if long < 12 * short + 0.05:
            return
    pytest.fail(f"{short} s, and {long} s for a text four times as long")


def spent(text: str) -> float:
    started = time.thread_time()
    find_anchors(text)
    return time.thread_time() - started
