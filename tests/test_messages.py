"""Messages, their parts, and their plain form."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist import Agent
from diarist.chunks import DataChunk
from diarist.exceptions import InputError
from diarist.messages import (
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SentBlock,
    SourcePart,
    TextPart,
    ToolPart,
    as_text,
    copy_message,
    new_id,
)
from diarist.testing import ScriptedModel

TEXT = st.text(max_size=10)
MAYBE_TEXT = st.none() | TEXT
SCALARS: Any = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
)
JSON: Any = st.recursive(
    SCALARS | TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
MAYBE_OBJECT = st.none() | OBJECT
WHEN = st.datetimes(
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))])
)

FILES = st.builds(FilePart, media_type=TEXT, data=st.binary(max_size=9), name=MAYBE_TEXT) | st.builds(
    FilePart, media_type=TEXT, url=TEXT, name=MAYBE_TEXT
)
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, text=TEXT, provider_data=MAYBE_OBJECT),
    st.builds(ReasoningPart, text=TEXT, signature=MAYBE_TEXT, provider=MAYBE_TEXT, provider_data=MAYBE_OBJECT),
    st.builds(
        ToolPart,
        call_id=TEXT,
        name=TEXT,
        args=OBJECT,
        state=st.sampled_from(["call", "result", "error", "denied"]),
        result=JSON,
        provider_executed=st.booleans(),
        provider_data=MAYBE_OBJECT,
    ),
    FILES,
    st.builds(SourcePart, url=TEXT, title=TEXT, id=TEXT),
    st.builds(DataPart, type=TEXT.map(lambda text: f"data-{text}"), data=JSON, id=TEXT),
)
MESSAGES = st.builds(
    Message,
    id=st.text(min_size=1, max_size=9),
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=st.lists(PARTS, max_size=4),
    created_at=st.none() | WHEN,
    thread_id=MAYBE_TEXT,
    resource_id=MAYBE_TEXT,
    run_id=MAYBE_TEXT,
    metadata=OBJECT,
    seq=st.none() | st.integers(0, 2**31),
    part_tokens=st.none() | st.lists(st.integers(0, 999), max_size=4).map(tuple),
    sent=st.none() | st.builds(SentBlock, text=TEXT, tokens=st.integers(0, 999), made_from=OBJECT),
)


@given(MESSAGES)
def test_the_plain_form_is_json_and_reads_back_to_an_equal_message(message: Message) -> None:
    data = orjson.loads(orjson.dumps(message.to_dict()))
    again = Message.from_dict(data)
    assert again == message
    assert again.to_dict() == message.to_dict()


@given(MESSAGES)
def test_a_copy_shares_nothing_that_can_be_edited(message: Message) -> None:
    before = message.to_dict()
    copied = copy_message(message)
    assert copied == message
    for part in copied.parts:
        if isinstance(part, TextPart | ReasoningPart):
            part.text += "edited"
        if isinstance(part, ToolPart):
            part.args["edited"] = True
    copied.parts.append(TextPart(text="more"))
    copied.metadata["edited"] = True
    assert message.to_dict() == before


def test_unset_values_are_left_out() -> None:
    message = Message(id="m", role="user", parts=[TextPart(text="hi")], created_at=None)
    assert message.to_dict() == {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"parts": []}, "KeyError('role')"),
        ({"role": "user"}, "KeyError('parts')"),
        ({"role": "user", "parts": [{"text": "x"}]}, "KeyError('type')"),
        ({"role": "user", "parts": [{"type": "text"}]}, "text"),
        ({"role": "user", "parts": [{"type": "text", "text": "x", "more": 1}]}, "more"),
        ({"role": "user", "parts": ["x"]}, "not a message"),
        ({"role": "user", "parts": None}, "not a message"),
        ({"role": "user", "parts": [], "created_at": "yesterday"}, "yesterday"),
        ({"role": "user", "parts": [], "sent": {"words": 1}}, "words"),
    ],
)
def test_a_wrong_message_is_refused_with_its_mistake(data: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as raised:
        Message.from_dict(data)
    assert str(raised.value).startswith("not a message")
    assert str(data)[:30] in str(raised.value), "it shows the message"


def test_an_unknown_part_type_names_those_that_are_known() -> None:
    with pytest.raises(
        InputError, match="unknown part type 'video'; known: text, reasoning, tool, file, source, data-"
    ):
        Message.from_dict({"role": "user", "parts": [{"type": "video"}]})


@pytest.mark.parametrize("more", [{}, {"data": b"x", "url": "https://example.com"}])
def test_a_file_has_data_or_a_url(more: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="either data or url"):
        FilePart(media_type="image/png", **more)


@pytest.mark.parametrize("make", [lambda: DataPart(type="x", data=1), lambda: DataChunk("x", 1)])
def test_data_types_have_a_prefix(make: Any) -> None:
    with pytest.raises(InputError, match="starts with 'data-', not 'x'"):
        make()


def test_texts() -> None:
    tool = ToolPart(call_id="1", name="t", args={}, state="result", result={"a": [1]})
    message = Message(role="assistant", parts=[TextPart(text="a"), tool, TextPart(text="b"), ReasoningPart(text="c")])
    assert (message.text, message.tool_parts) == ("ab", [tool])
    assert tool.result_text == '{"a":[1]}'
    assert ToolPart(call_id="1", name="t", args={}, result="not yet").result_text == ""
    assert [as_text(value) for value in ("x", None, 1, {1: datetime(2026, 1, 1)})] == [
        *("x", "null", "1", '{"1":"2026-01-01T00:00:00"}')
    ]


def test_short_ways_to_make_one() -> None:
    made = [Message.user("u", id="1"), Message.assistant("a"), Message.system("s")]
    assert [(m.role, m.text) for m in made] == [("user", "u"), ("assistant", "a"), ("system", "s")]
    assert made[0].id == "1"
    assert all(m.created_at and m.created_at.tzinfo for m in made), "aware"


def test_ids_are_unique_and_say_what_they_are() -> None:
    ids = {new_id("msg") for _ in range(10_000)}
    assert len(ids) == 10_000
    assert all(re.fullmatch(r"msg_[0-9a-f]{32}", id) for id in ids)


@pytest.mark.parametrize("of", [ToolPart(call_id="c", name="look", args={}), Message.user("hello")])
async def test_too_deep_nesting_is_refused_before_any_work(of: ToolPart | Message) -> None:
    deep: Any = {}
    for _ in range(101):
        deep = {"a": deep}
    message = Message(role="assistant", parts=[of]) if isinstance(of, ToolPart) else of
    setattr(of, "result" if isinstance(of, ToolPart) else "metadata", deep)
    model = ScriptedModel("never")
    with pytest.raises(InputError, match="message 1: metadata, arguments or a result are nested more than 100 deep"):
        await Agent(model=model).generate([Message.user("hi"), message])
    assert model.requests == []
    with pytest.raises(InputError, match="the data of 'data-x' is nested more than 100 deep"):
        DataPart(type="data-x", data=deep)
