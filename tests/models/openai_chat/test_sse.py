from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.models.openai_chat.sse import EventParser


def events(pieces: Sequence[bytes]) -> list[bytes]:
    parser = EventParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.end()


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one\n\n", [b" one"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b": a comment\n\ndata: one\n: another\n\n", [b"one"]),
        (b"event: message\nid: 7\nretry: 5\ndata: one\n\n", [b"one"]),
        (b'event: error\ndata: {"a":1}\n\ndata: one\n\n', [b'{"error":{"a":1}}', b"one"]),
        (b"event: error\n\ndata: one\n\n", [b"one"]),
        (b"\n\n\ndata: one\n\n\n\n", [b"one"]),
        (b"database: no\n\ndata: one\n\n", [b"one"]),
        (b"data: one", [b"one"]),
        (b"data: one\n", [b"one"]),
        (b"data:\n\n", [b""]),
        (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
        (b"", []),
        ("data: é\n\n".encode(), ["é".encode()]),
    ],
)
def test_events(stream: bytes, expected: list[bytes]) -> None:
    assert events([stream]) == expected


words = st.binary(max_size=8).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))
ends = st.sampled_from([b"\n", b"\r\n"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream with one kind of line end throughout, and its events."""
    end = draw(ends)
    out, expected = b"", []
    for lines in draw(st.lists(st.lists(words, min_size=1, max_size=3), max_size=4)):
        out += draw(st.sampled_from([b"", b": comment" + end, b"event: x" + end]))
        out += b"".join(b"data: " + line + end for line in lines) + end
        expected.append(b"\n".join(lines))
    return out, expected


@given(streams(), st.data())
def test_wherever_the_network_cuts(stream: tuple[bytes, list[bytes]], data: st.DataObject) -> None:
    raw, expected = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert events(pieces) == expected


@given(streams())
def test_byte_by_byte(stream: tuple[bytes, list[bytes]]) -> None:
    raw, expected = stream
    assert events([raw[i : i + 1] for i in range(len(raw))]) == expected


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    for end in (b"\n", b"\r\n"):
        assert EventParser().feed(b"data: one" + end + end) == [b"one"]
