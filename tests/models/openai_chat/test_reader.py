"""Events as servers really send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.chunks import (
    Chunk,
    ModelFinish,
    ReasoningDelta,
    ReasoningEnd,
    TextDelta,
    ToolCallChunk,
    ToolInputDelta,
    ToolInputStart,
    Usage,
)
from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextOverflowError,
    ModelAPIError,
    ModelConnectionError,
    ModelError,
    ModelResponseError,
    RateLimitError,
)
from diarist.models.openai_chat.reader import AnswerReader

STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def call(**fields: Any) -> dict[str, Any]:
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return {**fields, "type": "function", "function": function}


def read(*events: Any) -> list[Chunk]:
    reader = AnswerReader(provider="acme", maker="acme")
    out = [chunk for event in events for chunk in reader.read([encoded(event)])]
    return [*out, *reader.finish()]


def encoded(event: Any) -> bytes:
    return event if isinstance(event, bytes) else json.dumps(event).encode()


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.payload.text for chunk in chunks if isinstance(chunk, TextDelta))


def thoughts(chunks: list[Chunk]) -> str:
    return "".join(chunk.payload.text for chunk in chunks if isinstance(chunk, ReasoningDelta))


def calls(chunks: list[Chunk]) -> list[tuple[str, str, Any]]:
    found = [chunk.payload for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    return [(payload.tool_call_id, payload.tool_name, payload.args) for payload in found]


def finish(chunks: list[Chunk]) -> Any:
    assert isinstance(chunks[-1], ModelFinish)
    return chunks[-1].payload


# --- text and reasoning ----------------------------------------------------------------------------------


def test_blocks_follow_one_another() -> None:
    chunks = read(
        delta(role="assistant", content="", reasoning_content=None),
        delta(reasoning_content="Hm"),
        delta(content=None, reasoning_content="m."),
        delta(content="Yes", reasoning_content=None),
        delta(content="."),
        delta(reasoning="Wait"),
        delta(content="No."),
        STOP,
    )
    assert [chunk.type for chunk in chunks] == [
        *("reasoning-start", "reasoning-delta", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-delta", "text-end"),
        *("reasoning-start", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-end", "model-finish"),
    ]
    assert {chunk.payload.id for chunk in chunks if isinstance(chunk, TextDelta)} == {"2", "4"}
    ends = [chunk.payload for chunk in chunks if isinstance(chunk, ReasoningEnd)]
    assert [(end.provider, (end.provider_data or {})["id"]) for end in ends] == [
        ("acme", "reasoning_content"),
        ("acme", "reasoning"),
    ]


def test_a_thought_beside_text_is_not_lost() -> None:
    chunks = read(delta(content="Yes"), delta(content=".", reasoning="Sure?"), STOP)
    assert (text(chunks), thoughts(chunks)) == ("Yes.", "Sure?")


def test_a_gateway_that_sends_a_thought_twice() -> None:
    assert thoughts(read(delta(reasoning="Hm", reasoning_content="Hm"), STOP)) == "Hm"


def test_fragments_of_reasoning_details_are_joined() -> None:
    chunks = read(
        delta(reasoning="Let ", reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "Let "}]),
        delta(reasoning="me.", reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "me."}]),
        delta(content="", reasoning_details=[{"type": "reasoning.text", "index": 0, "signature": "sig"}]),
        delta(content="", reasoning_details=[{"type": "reasoning.encrypted", "index": 1, "data": "xyz"}]),
        delta(content="Yes."),
        STOP,
    )
    (end,) = [chunk.payload for chunk in chunks if isinstance(chunk, ReasoningEnd)]
    assert end.provider_data == {
        "provider": "acme",
        "id": "reasoning",
        "details": {
            "reasoning_details": [
                {"type": "reasoning.text", "index": 0, "text": "Let me.", "signature": "sig"},
                {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
            ]
        },
    }


def test_content_in_parts() -> None:
    assert text(read(delta(content=[{"type": "text", "text": "Yes"}]), delta(content="."), STOP)) == "Yes."


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Yes \ud83d", "\ude00!"], "Yes 😀!"),
        (["\ud83d", "\ude00"], "😀"),
        (["\ud83d\ude00", "\ud83d", "\ude00"], "😀😀"),
        (["Yes \ud83d", "no"], "Yes \ufffdno"),
        (["No \ude00", "no"], "No \ufffdno"),
    ],
)
def test_a_character_in_two_halves(pieces: list[str], expected: str) -> None:
    assert text(read(*[delta(content=piece) for piece in pieces], STOP)) == expected
    assert thoughts(read(*[delta(reasoning=piece) for piece in pieces], STOP)) == expected
    fragments = [call(index=0, arguments=piece) for piece in ['{"x":"', *pieces, '"}']]
    fragments[0]["function"]["name"] = "say"
    ((_, _, args),) = calls(read(*[delta(tool_calls=[fragment]) for fragment in fragments], STOP))
    assert args == {"x": expected}


def test_only_the_first_of_several_choices_is_read() -> None:
    other = {"delta": {"content": "No", "tool_calls": [call(index=0, id="a", name="w")]}, "finish_reason": "length"}
    first, second = delta(content="Yes"), {"choices": [{"index": 1, **other}]}
    both = {"choices": [{"index": 1, **other}, {"index": 0, "delta": {"content": "."}}]}
    chunks = read(second, first, second, delta(content=" it is"), both, STOP, second)
    assert (text(chunks), calls(chunks), finish(chunks).reason) == ("Yes it is.", [], "stop")


# --- tool calls ------------------------------------------------------------------------------------------

ROME, OSLO = {"city": "Rome"}, {"city": "Oslo"}


def test_by_index() -> None:
    chunks = read(
        delta(tool_calls=[call(index=0, id="a", name="w", arguments="")]),
        delta(tool_calls=[call(index=0, arguments='{"city":'), call(index=1, id="b", name="w", arguments='{"city":')]),
        delta(tool_calls=[call(index=1, arguments='"Oslo"}'), call(index=0, arguments='"Rome"}')]),
        STOP,
    )
    assert calls(chunks) == [("a", "w", ROME), ("b", "w", OSLO)]
    assert finish(chunks).reason == "tool-calls"


@pytest.mark.parametrize("index", [{}, {"index": 0}, {"index": None}], ids=["none", "all 0", "null"])
def test_whole_calls_without_an_index_of_their_own(index: dict[str, Any]) -> None:
    one = call(**index, id="a", name="w", arguments='{"city":"Rome"}')
    two = call(**index, id="b", name="w", arguments='{"city":"Oslo"}')
    assert calls(read(delta(tool_calls=[one]), delta(tool_calls=[two]), STOP)) == [("a", "w", ROME), ("b", "w", OSLO)]
    assert calls(read(delta(tool_calls=[one, two]), STOP)) == [("a", "w", ROME), ("b", "w", OSLO)]


def test_fragments_with_neither_index_nor_id() -> None:
    chunks = read(
        delta(tool_calls=[call(id="a", name="w", arguments='{"city":')]),
        delta(tool_calls=[call(arguments='"Rome"}')]),
        STOP,
    )
    assert calls(chunks) == [("a", "w", ROME)]


def test_calls_without_ids_get_some() -> None:
    one = call(name="w", arguments='{"city":"Rome"}')
    two = call(name="w", arguments='{"city":"Oslo"}', id="")
    found = calls(read(delta(tool_calls=[one, two]), STOP))
    assert [args for _, _, args in found] == [ROME, OSLO]
    assert len({call_id for call_id, _, _ in found} - {""}) == 2


def test_id_and_name_in_every_fragment() -> None:
    chunks = read(
        delta(tool_calls=[call(index=0, id="a", name="w", arguments='{"city":')]),
        delta(tool_calls=[call(index=0, id="a", name="w", arguments='"Rome"}')]),
        STOP,
    )
    assert calls(chunks) == [("a", "w", ROME)]
    assert [chunk.type for chunk in chunks].count("tool-call-input-streaming-start") == 1


@pytest.mark.parametrize("late", [{"arguments": ""}, {"arguments": " "}, {"arguments": None}, {}])
def test_a_call_that_is_named_once_more_at_its_end(late: dict[str, Any]) -> None:
    whole = call(index=0, id="a", name="w", arguments='{"city":"Rome"}')
    chunks = read(delta(tool_calls=[whole]), delta(tool_calls=[call(index=0, id="a", name="w", **late)]), STOP)
    assert calls(chunks) == [("a", "w", ROME)]


def test_parallel_calls_without_ids_at_one_index_in_fragments() -> None:
    fragments = [
        *(call(index=0, id="", name="w", arguments=""), call(index=0, arguments='{"at":{"city":"Rome"}')),
        *(call(index=0, arguments=',"n":1}'), call(index=0, id="", name="w", arguments="")),
        *(call(index=0, arguments='{"city":'), call(index=0, arguments='"Oslo"}')),
    ]
    found = calls(read(*(delta(tool_calls=[fragment]) for fragment in fragments), STOP))
    assert [args for _, _, args in found] == [{"at": ROME, "n": 1}, OSLO]


@pytest.mark.parametrize("call_id", ["", "a"])
def test_calls_without_arguments_at_one_index(call_id: str) -> None:
    named = (call(index=0, id=call_id, name=name, arguments="") for name in ("ping", "pong"))
    found = calls(read(*(delta(tool_calls=[fragment]) for fragment in named), STOP))
    assert [name for _, name, _ in found] == ["ping", "pong"]


def test_fragments_of_one_id_at_two_indices() -> None:
    chunks = read(
        delta(tool_calls=[call(index=0, id="a", name="w", arguments='{"city":')]),
        delta(tool_calls=[call(index=1, id="a", name="w", arguments='{"city":')]),
        delta(tool_calls=[call(index=0, id="a", arguments='"Rome"}'), call(index=1, id="a", arguments='"Oslo"}')]),
        STOP,
    )
    assert [args for _, _, args in calls(chunks)] == [ROME, OSLO]


def test_a_name_that_comes_late() -> None:
    chunks = read(
        delta(tool_calls=[call(index=0, id="a", name="", arguments="")]),
        delta(tool_calls=[call(index=0, name="w", arguments='{"city":"Rome"}')]),
        STOP,
    )
    assert calls(chunks) == [("a", "w", ROME)]


def test_arguments_as_an_object() -> None:
    assert calls(read(delta(tool_calls=[call(id="a", name="w", arguments=ROME)]), STOP)) == [("a", "w", ROME)]


def test_text_before_calls_is_closed() -> None:
    chunks = read(delta(content="Well"), delta(tool_calls=[call(id="a", name="w", arguments="{}")]), STOP)
    assert [chunk.type for chunk in chunks] == [
        *("text-start", "text-delta", "text-end"),
        *("tool-call-input-streaming-start", "tool-call-delta", "tool-call", "model-finish"),
    ]


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4), st.data())
def test_however_calls_are_fragmented(cities: list[str], data: st.DataObject) -> None:
    """Any order of fragments that keeps each call's own order gives the same calls."""
    queues: list[list[dict[str, Any]]] = []
    for index, city in enumerate(cities):
        raw = json.dumps({"city": city})
        cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=3)))
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        first = call(index=index, id=f"c{index}", name="w", arguments=pieces[0])
        queues.append([first, *[call(index=index, arguments=piece) for piece in pieces[1:]]])
    events = [delta(tool_calls=[queue.pop(0)]) for queue in queues]
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        events.append(delta(tool_calls=[queue.pop(0)]))
    chunks = read(*events, STOP)
    assert calls(chunks) == [(f"c{index}", "w", {"city": city}) for index, city in enumerate(cities)]
    for index, city in enumerate(cities):
        own = [c.payload for c in chunks if isinstance(c, ToolInputDelta) and c.payload.tool_call_id == f"c{index}"]
        assert json.loads("".join(piece.args_text_delta for piece in own)) == {"city": city}
    assert sum(isinstance(chunk, ToolInputStart) for chunk in chunks) == len(cities)


# --- the end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool-calls"),
        ("function_call", "tool-calls"),
        ("content_filter", "content-filter"),
        ("repetition", "other"),
    ],
)
def test_why_it_stopped(said: str, reason: str) -> None:
    end = {"choices": [{"index": 0, "delta": {"content": "."}, "finish_reason": said}]}
    assert finish(read(delta(content="Hi"), end)).reason == reason


USAGE = {"prompt_tokens": 100, "completion_tokens": 5}


@pytest.mark.parametrize(
    "end",
    [
        [{"choices": [], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 80}}}],
        [{"choices": [], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 80}}}, b"[DONE]"],
        [{"choices": [], "usage": {**USAGE, "prompt_cache_hit_tokens": 80}}],
        [{"choices": [], "usage": {**USAGE, "cached_tokens": 80, "prompt_tokens_details": None}}],
        [{**STOP, "x_groq": {"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 80}}}}],
        [{"choices": [{"delta": {}, "finish_reason": "stop", "usage": {**USAGE, "cached_tokens": 80}}]}],
        [{**STOP, "usage": {**USAGE, "cached_tokens": 80}}, {"choices": [], "usage": None}],
    ],
    ids=["openai", "with done", "deepseek", "moonshot", "groq", "in the choice", "null after it"],
)
def test_usage_wherever_it_stands(end: list[Any]) -> None:
    payload = finish(read(delta(content="Hi"), *end))
    assert payload.usage == Usage(input_tokens=100, output_tokens=5, cached_tokens=80)
    assert (payload.response_id, payload.model, payload.reason) == ("c1", "m", "stop")


def test_done_alone_is_an_end() -> None:
    assert finish(read(delta(content="Hi"), b"[DONE]")).reason == "stop"


def test_no_end_at_all() -> None:
    with pytest.raises(ModelConnectionError, match="broke off"):
        read(delta(content="Hi"))


def test_a_refusal_is_said() -> None:
    refused = delta(refusal="I can't "), delta(refusal="help with that.")
    with pytest.raises(ContentFilterError, match="I can't help with that"):
        read(*refused, STOP)
    assert finish(read(delta(content="Well"), *refused, STOP)).reason == "content-filter"


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"error": {"message": "The server had an error", "type": "server_error"}}, ModelAPIError),
        ({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, RateLimitError),
        ({"error": {"message": "slow down", "code": 429}, "choices": [{"delta": {"content": ""}}]}, RateLimitError),
        ({"error": {"message": "pay", "code": "insufficient_quota"}}, AuthenticationError),
        ({"error": {"message": "too long", "code": "context_length_exceeded"}}, ContextOverflowError),
        ({"error": {"message": "maximum context length is 5", "code": 400}}, ContextOverflowError),
        ({"error": {"message": "no such tool", "type": "invalid_request_error"}}, BadRequestError),
        ({"object": "error", "message": "bad sampling", "code": 400}, BadRequestError),
        ({"type": "error", "message": "slow down", "code": "rate_limit_exceeded"}, RateLimitError),
        ({"error": "upstream died"}, ModelAPIError),
        ({"choices": [{"delta": {"content": "."}, "error": {"message": "slow down", "code": 429}}]}, RateLimitError),
        ({"choices": [{"delta": {"content": "."}, "finish_reason": "error"}]}, ModelAPIError),
        ({"choices": [{"delta": {}}], "x_groq": {"id": "r", "error": "over_capacity"}}, ModelAPIError),
    ],
)
def test_errors_in_the_stream(event: dict[str, Any], kind: type[ModelAPIError]) -> None:
    with pytest.raises(ModelAPIError) as caught:
        read(delta(content="Hi"), event)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.provider) == (None, "acme")
    error = event.get("error") or event.get("choices", [{}])[0].get("error") or event.get("x_groq", event).get("error")
    message = error["message"] if isinstance(error, dict) else error or event.get("message", "it ended with error")
    assert message in str(caught.value)


@pytest.mark.parametrize("event", [b"<html>", b"[1]", b'"x"', b"1", b'{"choices": 1}', b'{"choices": [1]}', b"{"])
def test_events_that_cannot_be_read(event: bytes) -> None:
    with pytest.raises(ModelResponseError, match="cannot read the answer of acme"):
        read(delta(content="Hi"), event)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "delta", "content", "tool_calls", "function", "error", "usage", "reasoning"]
                ),
                inner,
            )
        ),
    )
)
def test_nonsense_is_never_anything_but_a_model_error(event: Any) -> None:
    reader = AnswerReader(provider="acme", maker="acme")
    try:
        list(reader.read([encoded(delta(content="Hi")), encoded(event)]))
        reader.finish()
    except ModelError as error:
        assert error.provider == "acme"  # noqa: PT017 - some nonsense can be read


def test_text_that_arrives_together_is_one_chunk() -> None:
    reader = AnswerReader(provider="acme", maker="acme")
    events = [delta(content=word) for word in ("One", " two", " three", " four")]
    chunks = list(reader.read(map(encoded, events)))
    assert [chunk.payload.text for chunk in chunks if isinstance(chunk, TextDelta)] == ["One", " two three four"]


def test_text_before_an_error_is_kept() -> None:
    reader = AnswerReader(provider="acme", maker="acme")
    chunks = reader.read(map(encoded, [delta(content="Hel"), delta(content="lo"), {"error": "overloaded"}]))
    assert text([next(chunks) for _ in range(3)]) == "Hello"
    with pytest.raises(ModelError, match="overloaded"):
        next(chunks)


def test_events_without_the_blank_line_between_them() -> None:
    joined = b"\n".join([encoded(delta(content="Hel")), encoded(delta(content="lo")), b"[DONE]"])
    assert text(read(joined)) == "Hello"


def test_an_answer_in_one_piece() -> None:
    message = {"content": "Hi", "tool_calls": [call(id="a", name="w", arguments='{"city":"Rome"}')]}
    reader = AnswerReader(provider="acme", maker="acme")
    answer = {"id": "c1", "choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    chunks = [*reader.read_whole(encoded(answer)), *reader.finish()]
    assert (text(chunks), calls(chunks)) == ("Hi", [("a", "w", ROME)])
    assert finish(chunks).usage.output_tokens == 5
