"""What goes into the body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diarist.exceptions import BadRequestError, ConfigError
from diarist.messages import FilePart, ReasoningPart, ToolCallPart, ToolResultPart
from diarist.models import ModelRequest, ModelSettings, OutputSchema
from diarist.models.openai_chat import DIALECTS, dialect_for
from diarist.models.openai_chat.dialects import COMPATIBLE, Dialect, takes_sampling
from diarist.models.openai_chat.request import build_body, is_strict
from diarist.tools import ToolDefinition
from tests.models.conformance import SCHEMA, WEATHER, ask, message

OPENAI = DIALECTS["openai"]


def body(request: ModelRequest, *, dialect: Dialect = COMPATIBLE, model: str = "m", provider: str = "acme") -> Any:
    return json.loads(build_body(request, model=model, provider=provider, dialect=dialect))


def sent(*messages: Any, dialect: Dialect = COMPATIBLE) -> list[dict[str, Any]]:
    return body(ask(*messages), dialect=dialect)["messages"]


# --- messages --------------------------------------------------------------------------------------------


def test_messages() -> None:
    call = ToolCallPart(call_id="c1", name="get_weather", args={"city": "Rome", "days": 2})
    result = ToolResultPart(call_id="c1", name="get_weather", text="18", is_error=True)
    assert sent(
        message("system", "Be kind."),
        message("system", ""),
        message("system", "Be brief."),
        message("user", "Rome?"),
        message("assistant", "Let me ", "see.", call),
        message("tool", result),
        message("assistant", call),
        message("system", "Think again."),
        message("user", "a", "b"),
        message("assistant", ""),
        message("user", ""),
    ) == [
        {"role": "system", "content": "Be kind.\n\nBe brief."},
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [wire_call()]},
        {"role": "tool", "tool_call_id": "c1", "content": "18"},
        {"role": "assistant", "content": None, "tool_calls": [wire_call()]},
        {"role": "system", "content": "Think again."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]


def test_user_messages_in_a_row_are_one_except_for_openai() -> None:
    one, two = message("user", "one"), message("user", "two", "three")
    thought = message("assistant", ReasoningPart(text="hm"))  # is not sent, so it does not stand between them
    joined = "one\n\ntwo\n\nthree"
    assert sent(one, thought, two, message("assistant", "ok"), one) == [
        {"role": "user", "content": joined},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "one"},
    ]
    image = message("user", FilePart(media_type="image/png", url="https://a.example/b.png"))
    [shown] = sent(one, image)
    assert [part["type"] for part in shown["content"]] == ["text", "image_url"]
    assert [each["role"] for each in sent(one, image, two, dialect=OPENAI)] == ["user"] * 3


def test_a_further_user_message_keeps_what_was_sent_before_it() -> None:
    one, two = message("user", "one"), message("user", "two")
    before, after = (
        build_body(ask(*messages), model="m", provider="acme", dialect=COMPATIBLE) for messages in ([one], [one, two])
    )
    assert after.startswith(before.partition(b'"}]')[0])


def wire_call() -> dict[str, Any]:
    arguments = '{"city":"Rome","days":2}'
    return {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (
            FilePart(media_type="image/png", url="https://example.com/a.png"),
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        ),
        (
            FilePart(media_type="image/png", data=b"png"),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}},
        ),
        (
            FilePart(media_type="audio/mpeg", data=b"mp3"),
            {"type": "input_audio", "input_audio": {"data": "bXAz", "format": "mp3"}},
        ),
        (
            FilePart(media_type="application/pdf", data=b"pdf", name="a.pdf"),
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,cGRm", "filename": "a.pdf"}},
        ),
        (
            FilePart(media_type="text/csv", data="é;1".encode(), name="a.csv"),
            {"type": "text", "text": '<file name="a.csv">\né;1\n</file>'},
        ),
        *(
            (
                FilePart(media_type=f"application/{kind}", data=b"<a/>"),
                {"type": "text", "text": "<file>\n<a/>\n</file>"},
            )
            for kind in ("json", "xml", "yaml", "x-yaml", "ld+json", "xhtml+xml; charset=utf-8")
        ),
    ],
)
def test_files(part: FilePart, expected: dict[str, Any]) -> None:
    assert sent(message("user", "What is this?", part))[0]["content"][1] == expected


@pytest.mark.parametrize(
    "part",
    [
        FilePart(media_type="video/mp4", data=b"film"),
        FilePart(media_type="audio/mpeg", url="https://example.com/a.mp3"),
        FilePart(media_type="application/pdf", url="https://example.com/a.pdf"),
    ],
)
def test_files_that_have_no_place(part: FilePart) -> None:
    with pytest.raises(BadRequestError, match=f"do not support {part.media_type}"):
        sent(message("user", part))


def test_some_servers_take_files_by_address() -> None:
    part = FilePart(media_type="application/pdf", url="https://example.com/a.pdf")
    (content,) = sent(message("user", part), dialect=DIALECTS["openrouter"])[0]["content"]
    assert content["file"]["file_data"] == "https://example.com/a.pdf"


def test_what_no_server_can_read_is_replaced() -> None:
    """One such message in a thread would else fail every turn after it."""
    call = ToolCallPart(call_id="c", name="look", args={"at": "caf\udce9", "size": 2**70})
    user, assistant = sent(message("user", "half \ud83d"), message("assistant", call))
    assert user["content"] == "half \ufffd"
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"])["at"] == "caf\ufffd"


# --- reasoning -------------------------------------------------------------------------------------------


def thought(provider: str, field: str = "reasoning_content", **details: Any) -> ReasoningPart:
    data = {"provider": provider, "id": field, **({"details": details} if details else {})}
    return ReasoningPart(text="Hm.", provider=provider, provider_data=data)


def test_reasoning_goes_back_in_its_field() -> None:
    details = [{"type": "reasoning.encrypted", "data": "xyz"}]
    part = thought("openrouter", "reasoning", reasoning_details=details)
    (answer,) = sent(message("assistant", part, "Yes."), dialect=DIALECTS["openrouter"])
    assert answer == {"role": "assistant", "content": "Yes.", "reasoning": "Hm.", "reasoning_details": details}


def test_reasoning_of_others_stays_here() -> None:
    (answer,) = sent(message("assistant", thought("openrouter"), "Yes."), dialect=DIALECTS["deepseek"])
    assert answer == {"role": "assistant", "content": "Yes."}


def test_reasoning_alone_is_no_answer() -> None:
    assert sent(message("assistant", thought("openai-compatible"))) == []


def test_a_server_that_takes_none_back() -> None:
    (answer,) = sent(message("assistant", thought("groq"), "Yes."), dialect=DIALECTS["groq"])
    assert answer == {"role": "assistant", "content": "Yes."}


def test_a_server_that_wants_the_field_with_every_call() -> None:
    call = ToolCallPart(call_id="c1", name="w", args={})
    answers = [message("assistant", call), message("assistant", thought("deepseek"), call), message("assistant", call)]
    fields = [answer.get("reasoning_content") for answer in sent(*answers, dialect=DIALECTS["deepseek"])]
    assert fields == [None, "Hm.", ""]


# --- settings --------------------------------------------------------------------------------------------


def test_unset_settings_are_not_sent() -> None:
    assert body(ask()).keys() == {"model", "messages", "stream", "stream_options"}


def test_settings() -> None:
    settings = ModelSettings(
        temperature=0.3, top_p=0.9, max_output_tokens=50, seed=7, stop=("END",), parallel_tool_calls=False
    )
    request = ask(settings=settings, tools=[WEATHER])
    common = {"temperature": 0.3, "top_p": 0.9, "seed": 7, "stop": ["END"], "parallel_tool_calls": False}
    expected = {**common, "max_tokens": 50, "tool_choice": "auto"}
    assert body(request).items() >= expected.items()
    assert "parallel_tool_calls" not in body(ask(settings=settings))


def test_settings_of_openai_reasoning_models() -> None:
    """Reasoning models take no temperature, and the limit has another name."""
    request = ask(settings=ModelSettings(temperature=0.3, top_p=0.9, max_output_tokens=50))
    made = body(request, dialect=OPENAI, model="gpt-5-mini", provider="openai")
    assert made["max_completion_tokens"] == 50
    assert not made.keys() & {"temperature", "top_p", "max_tokens"}
    made = body(request, dialect=OPENAI, model="gpt-4o", provider="openai")
    assert made["temperature"] == 0.3


@pytest.mark.parametrize(
    ("model", "effort", "taken"),
    [
        ("gpt-4o", None, True),
        ("o3-mini", None, False),
        ("gpt-5-mini", None, False),
        ("gpt-5-mini", "none", False),
        ("gpt-5-chat-latest", None, True),
        ("gpt-5.1", None, True),
        ("gpt-5.1", "none", True),
        ("gpt-5.1", "low", False),
        ("gpt-5.1-codex", "none", False),
        ("gpt-5.6-luna", None, False),
        ("gpt-5.6-luna", "none", True),
        ("openai/gpt-5-mini", None, False),
        ("gpt-oss-120b", "high", True),
        ("qwen3", "high", True),
    ],
)
def test_models_that_take_a_temperature(model: str, effort: str | None, taken: bool) -> None:
    assert takes_sampling(model, effort) is taken


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("get_weather", {"type": "function", "function": {"name": "get_weather"}}),
    ],
)
def test_tool_choice(choice: str, expected: Any) -> None:
    assert body(ask(tools=[WEATHER], tool_choice=choice))["tool_choice"] == expected
    assert "tool_choice" not in body(ask(tool_choice=choice))


def test_options_win() -> None:
    options = {
        "acme": {
            "temperature": 0.9,
            "stream_options": None,
            "reasoning_effort": "low",
            "extra_body": {"grammar": "root"},
            "extra_headers": {"X-Team": "red"},
        },
        "other": {"reasoning_effort": "high"},
    }
    made = body(ask(settings=ModelSettings(temperature=0.1), provider_options=options))
    assert made.keys() == {"model", "messages", "stream", "temperature", "reasoning_effort", "grammar"}
    assert (made["temperature"], made["reasoning_effort"], made["grammar"]) == (0.9, "low", "root")


# --- schemas ---------------------------------------------------------------------------------------------

OPEN = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_strict_where_the_server_and_the_schema_can() -> None:
    loose = ToolDefinition(name="loose", description="", parameters=OPEN)
    request = ask(tools=[WEATHER, loose], output=OutputSchema(name="my answer", schema=SCHEMA))
    made = body(request, dialect=OPENAI, model="gpt-4o")
    assert [tool["function"].get("strict") for tool in made["tools"]] == [True, None]
    assert made["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "my_answer", "schema": SCHEMA, "strict": True},
    }
    made = body(request)
    assert "strict" not in json.dumps(made)


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (SCHEMA, True),
        (OPEN, False),
        ({**OPEN, "additionalProperties": False}, True),
        ({**OPEN, "additionalProperties": False, "required": []}, False),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({"type": "object"}, False),
        ({"type": "array", "items": OPEN}, False),
        ({"type": "array", "items": SCHEMA}, True),
        ({"anyOf": [SCHEMA, {"type": "null"}]}, True),
        ({"anyOf": [SCHEMA, {}]}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": OPEN}}, False),
        ({"type": "integer", "default": 3}, False),
    ],
)
def test_strict_schemas(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict


@pytest.mark.parametrize(
    ("provider", "model", "taken"),
    [
        ("openai", "gpt-4o", True),
        ("groq", "openai/gpt-oss-20b", True),
        ("groq", "llama-3.1-8b-instant", False),
        ("deepseek", "deepseek-chat", False),
        ("ollama", "qwen3", True),
    ],
)
def test_models_that_take_a_schema(provider: str, model: str, taken: bool) -> None:
    request = ask(output=OutputSchema(name="w", schema=SCHEMA))
    assert ("response_format" in body(request, dialect=DIALECTS[provider], model=model)) is taken


def test_the_dialect_of_a_provider() -> None:
    assert dialect_for("openai", "gpt-5", None) is OPENAI
    assert dialect_for("openai", "gpt-5", "https://proxy.example.com") is OPENAI
    assert dialect_for("openai", "gpt-oss-20b", "http://localhost:1") is COMPATIBLE
    assert dialect_for("openai", "some/model", "http://localhost:1") is COMPATIBLE
    assert dialect_for("groq", "llama", "http://localhost:1") is DIALECTS["groq"]


@pytest.mark.parametrize("seconds", [0, -1, "10", True])
@pytest.mark.parametrize("name", ["timeout", "total_timeout"])
def test_a_timeout_is_a_positive_number(name: str, seconds: Any) -> None:
    with pytest.raises(ConfigError, match=f"ModelSettings: {name} must be (a number|more than 0), not"):
        ModelSettings(**{name: seconds})


@pytest.mark.parametrize("stop", ["END", ["END"], ("END",)])
def test_one_text_or_several_end_the_answer(stop: Any) -> None:
    settings = ModelSettings(stop=stop)
    assert body(ask(settings=settings))["stop"] == ["END"]
    assert settings == ModelSettings(stop=("END",))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"stop": 5}, "stop must be a text or a list of texts, not 5"),
        ({"temperature": "0.7"}, "temperature must be a number, not '0.7'"),
        ({"top_p": -1}, "top_p must not be negative, not -1"),
        ({"max_output_tokens": "500"}, "max_output_tokens must be a whole number from 1 on, not '500'"),
        ({"max_output_tokens": 0}, "max_output_tokens must be a whole number from 1 on, not 0"),
    ],
)
def test_a_setting_that_no_model_takes_is_refused(setting: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"ModelSettings: {problem}"):
        ModelSettings(**setting)
