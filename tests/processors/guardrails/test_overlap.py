"""``Overlap``: finds repeated passages in a text that is still being written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diarist.processors.guardrails.system_prompt_scrubber import Overlap
from diarist.processors.streaming_redaction import Redactor, Span

SECRET = "You are the assistant of Acme. Never speak of the price list, and never mention project Heron."
WORDS = st.sampled_from(["never", "Speak", "of", "the", "price", "list", "and", "mention", "project", "heron", "fox"])
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from([" ", ", ", ". ", "\n", " - "]))).map(
    lambda pieces: "".join(word + gap for word, gap in pieces)
)


def redactor(words: int = 4, *texts: str) -> Redactor:
    overlap = Overlap(texts or (SECRET,), words=words, label="secret")
    return Redactor(overlap.look, lambda matched, span: "#")


def whole(text: str) -> str:
    return redactor().redact(text)


@given(TEXTS, st.data())
def test_the_result_is_the_same_wherever_the_text_is_cut(text: str, data: st.DataObject) -> None:
    stream = redactor()
    rest, out = text, ""
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        out += stream.feed(rest[:cut])
        rest = rest[cut:]
    assert out + stream.flush() == whole(text)


@given(TEXTS, TEXTS, st.integers(0, 6), st.integers(4, 10))
def test_no_passage_is_ever_sent(before: str, after: str, start: int, count: int) -> None:
    words = SECRET.replace(",", "").replace(".", "").split()
    passage = " ".join(words[start : start + count]).upper()
    stream = redactor()
    out = "".join(stream.feed(char) for char in f"{before}{passage} {after}") + stream.flush()
    assert passage not in out


def test_case_punctuation_and_white_space_are_ignored() -> None:
    assert whole("It says: NEVER, speak\nof the — price list! Good.") == "It says: #! Good."


def test_shorter_passages_pass() -> None:
    assert whole("Never speak of me.") == "Never speak of me."


def test_a_long_passage_is_one_match() -> None:
    assert whole(f"Here: {SECRET} That was it.") == "Here: #. That was it."


def test_scripts_without_spaces_count_characters() -> None:
    secret = "あなたは親切なアシスタントです。価格表について話してはいけません。"
    assert redactor(8, secret).redact("はい、価格表について話してはいけません、と。") == "はい、#、と。"


def test_a_text_shorter_than_a_passage_is_ignored() -> None:
    assert Overlap(["Be kind."], words=8, label="x").look("Be kind.") == ([], 0)


def test_only_words_that_may_begin_a_passage_are_held() -> None:
    overlap = Overlap([SECRET], words=4, label="secret")
    assert overlap.look("The fox said: nev", final=False)[1] == len("nev")
    assert overlap.look("The fox never speaks", final=False)[1] == 0
    assert overlap.look("I never speak of th", final=False)[1] == len("never speak of th")
    assert overlap.look("never speak of the fox") == ([Span(0, 18, "secret")], 0)
