"""``HeldOutput``: no text is lost or judged twice, and spans end with sentences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diarist.chunks import ReasoningDelta, TextDelta, TextEnd, TextPayload
from diarist.processors.guardrails.guard import Delta, HeldOutput


def delta(text: str, block: str = "1") -> TextDelta:
    return TextDelta(payload=TextPayload(text=text, id=block))


def spans(held: HeldOutput, *deltas: Delta) -> list[Delta]:
    return [span for piece in (*deltas, TextEnd()) for span in held.spans(piece)]


@given(st.lists(st.text(st.sampled_from("ab .!\n。"))), st.integers(1, 10) | st.none())
def test_the_spans_joined_are_the_text(pieces: list[str], span_chars: int | None) -> None:
    found = spans(HeldOutput(span_chars), *map(delta, pieces))
    assert "".join(span.payload.text for span in found) == "".join(pieces)
    assert all(span.payload.text for span in found)


@given(st.text(st.sampled_from("ab .!\n。")), st.integers(1, 10), st.data())
def test_spans_are_the_same_wherever_the_text_is_cut(text: str, span_chars: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    one = spans(HeldOutput(span_chars), *map(delta, text))
    two = spans(HeldOutput(span_chars), delta(text[:cut]), delta(text[cut:]))
    assert [span.payload.text for span in one] == [span.payload.text for span in two]


@given(st.text(st.sampled_from("ab .")), st.integers(1, 10))
def test_spans_keep_their_minimum_and_maximum_length(text: str, span_chars: int) -> None:
    found = spans(HeldOutput(span_chars), *map(delta, text))
    assert all(len(span.payload.text) >= span_chars for span in found[:-1])
    assert all(len(span.payload.text) <= 4 * span_chars for span in found)


def test_a_span_ends_with_a_sentence() -> None:
    found = spans(HeldOutput(5), *map(delta, ["Hi. I a", "m Ada.", " Who are you? 1.5 is", " a number. End"]))
    assert [span.payload.text for span in found] == ["Hi. I am Ada. ", "Who are you? ", "1.5 is a number. ", "End"]


def test_another_block_ends_the_span() -> None:
    reasoning = ReasoningDelta(payload=TextPayload(text="hm", id="2"))
    found = spans(HeldOutput(100), delta("a"), delta("b"), reasoning, delta("c", "3"))
    assert [(type(span), span.payload.id, span.payload.text) for span in found] == [
        (TextDelta, "1", "ab"),
        (ReasoningDelta, "2", "hm"),
        (TextDelta, "3", "c"),
    ]


def test_a_long_row_of_dots_is_searched_in_linear_time() -> None:
    found = spans(HeldOutput(20_000), *[delta("." * 100) for _ in range(300)])
    assert [len(span.payload.text) for span in found] == [30_000]
