"""SQLite's binary JSON is read as SQLite reads it, by whatever SQLite this Python has."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import libsql
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.integrations.mastra_content import read_json, read_jsonb
from tests.memory.jsonb_writer import to_jsonb

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | st.text("x", min_size=200, max_size=300)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
)


@given(VALUES, st.data())
def test_what_was_written_is_read(value: Any, data: st.DataObject) -> None:
    written = to_jsonb(value, lambda ways: data.draw(st.integers(0, ways - 1)))
    assert read_jsonb(written) == read_json(written) == value


@given(VALUES)
def test_what_sqlite_wrote_is_read(value: Any) -> None:
    """The SQLite of libSQL, which Mastra writes with."""
    (written,) = libsql.connect(":memory:").execute("SELECT jsonb(?)", (json.dumps(value),)).fetchone()
    assert read_jsonb(written) == value


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (r'"\ud83d\ude00"', "😀"),
        (r'"cut \ud83d"', "cut \ud83d"),
        ("123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_surrogates_and_long_numbers_are_read(said: str, value: Any) -> None:
    (written,) = libsql.connect(":memory:").execute("SELECT jsonb(?)", (said,)).fetchone()
    assert read_jsonb(written) == value


def test_json5_is_refused() -> None:
    (written,) = libsql.connect(":memory:").execute("SELECT jsonb('{a: 0x1F}')").fetchone()
    with pytest.raises(ValueError, match="unknown kind"):
        read_jsonb(written)


@given(VALUES, st.data())
def test_a_cut_text_is_refused(value: Any, data: st.DataObject) -> None:
    written = to_jsonb(value)
    for wrong in (written[: data.draw(st.integers(0, len(written) - 1))], written + b"\0"):
        with pytest.raises(ValueError):  # noqa: PT011
            read_jsonb(wrong)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        read_json(data)


@pytest.mark.parametrize("wrong", [b"\x0d", b"\x1c\x00", b"\x3c\x00\x17a", b"\xfb" + b"\xff" * 8, to_jsonb(1)[:1]])
def test_bytes_that_are_not_binary_json(wrong: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_jsonb(wrong)


def test_too_deep_nesting_is_refused() -> None:
    deep: bytes = b""
    for _ in range(3_000):
        deep = b"\xeb" + len(deep).to_bytes(4) + deep
    with pytest.raises(ValueError, match="nested too deeply"):
        read_jsonb(deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json("[" * 200_000)


def test_text_is_read_too() -> None:
    for text in ('{"a": "é"}', b'{"a": "\xc3\xa9"}'):
        assert read_json(text) == {"a": "é"}
    assert read_json(r'{"a": "\ud83d"}') == {"a": "\ufffd"}
    assert read_json(None) is None
