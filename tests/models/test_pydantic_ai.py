"""The library's clients, each against a server that speaks its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diarist.chunks import ModelFinish, ReasoningDelta, ReasoningEnd, TextEnd
from diarist.exceptions import AuthenticationError, BadRequestError, ContextOverflowError, ModelAPIError
from diarist.messages import FilePart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from diarist.models import LibraryModel, Model, ModelSettings, OutputSchema, resolve
from diarist.models.resolve import Client
from diarist.tools import ToolDefinition
from tests.loopback.anthropic_server import AnthropicServer
from tests.loopback.google_server import GoogleServer
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer, Call, HttpError, Tokens
from tests.models.conformance import (
    SCHEMA,
    WEATHER,
    ModelConformance,
    ask,
    calls,
    finish,
    message,
    read,
    text,
)
from tests.models.wires import AnthropicWire, ChatWire, GoogleWire, ResponsesWire, Wire


class TestOpenAIChat(ModelConformance):
    @pytest.fixture
    def wire(self, openai_server: OpenAIServer) -> Wire:
        return ChatWire(openai_server, "library")


class TestOpenAIResponses(ModelConformance):
    @pytest.fixture
    def wire(self, openai_server: OpenAIServer) -> Wire:
        return ResponsesWire(openai_server)


class TestAnthropic(ModelConformance):
    @pytest.fixture
    def wire(self, anthropic_server: AnthropicServer) -> Wire:
        return AnthropicWire(anthropic_server)


class TestGoogle(ModelConformance):
    # Arguments come as objects here, and a signature with the text or call after the thought: see below.
    test_arguments_that_are_no_object_are_told = None  # type: ignore[assignment]
    test_reasoning_comes_before_the_text_and_goes_back_signed = None  # type: ignore[assignment]

    @pytest.fixture
    def wire(self, google_server: GoogleServer) -> Wire:
        return GoogleWire(google_server)


@pytest.fixture
async def chat(openai_server: OpenAIServer) -> AsyncIterator[Model]:
    model = ChatWire(openai_server, "library").model()
    yield model
    await model.close()


@pytest.fixture
async def responses(openai_server: OpenAIServer) -> AsyncIterator[Model]:
    model = ResponsesWire(openai_server).model()
    yield model
    await model.close()


@pytest.fixture
async def claude(anthropic_server: AnthropicServer) -> AsyncIterator[Model]:
    model = AnthropicWire(anthropic_server).model()
    yield model
    await model.close()


# --- chat completions --------------------------------------------------------------------------------


async def test_mixed_fragments_of_parallel_calls(openai_server: OpenAIServer, chat: Model) -> None:
    one = Call(name="get_weather", args=['{"city"', ': "Rome"}'], id="a")
    two = Call(name="get_weather", args=['{"city"', ': "Oslo"}'], id="b")
    openai_server.will(Answer(calls=[one, two], mix_calls=True))
    found = calls(await read(chat, ask(tools=[WEATHER])))
    assert sorted(found) == [("a", "get_weather", {"city": "Rome"}), ("b", "get_weather", {"city": "Oslo"})]


async def test_settings_for_any_compatible_server(openai_server: OpenAIServer, chat: Model) -> None:
    settings = ModelSettings(
        temperature=0.3, top_p=0.9, max_output_tokens=50, seed=7, stop=("END",), parallel_tool_calls=False
    )
    await read(chat, ask(settings=settings, tools=[WEATHER]))
    body = openai_server.requests[-1].body
    sent = {key: body[key] for key in body.keys() - {"model", "messages", "tools", "stream", "stream_options"}}
    assert sent == {
        "temperature": 0.3,
        "top_p": 0.9,
        "max_tokens": 50,
        "seed": 7,
        "stop": ["END"],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
    }
    assert "strict" not in body["tools"][0]["function"]


async def test_unset_settings_are_not_sent(openai_server: OpenAIServer, chat: Model) -> None:
    await read(chat)
    assert openai_server.requests[-1].body.keys() == {"model", "messages", "stream", "stream_options"}


async def test_a_reasoning_model_gets_no_temperature(openai_server: OpenAIServer) -> None:
    model = resolve("openai/gpt-5-mini", base_url=openai_server.base_url, api_key="k", client="library")
    await read(model, ask(settings=ModelSettings(temperature=0.3, max_output_tokens=50)))
    body = openai_server.requests[-1].body
    assert "temperature" not in body
    assert body["max_completion_tokens"] == 50
    await model.close()


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("get_weather", {"type": "function", "function": {"name": "get_weather"}}),
    ],
)
async def test_tool_choice(choice: str, sent: Any, openai_server: OpenAIServer, chat: Model) -> None:
    other = ToolDefinition(name="other", description="", parameters={"type": "object", "properties": {}})
    await read(chat, ask(tools=[WEATHER, other], tool_choice=choice))
    assert openai_server.requests[-1].body.get("tool_choice") == sent


async def test_provider_options_are_handed_through(openai_server: OpenAIServer, chat: Model) -> None:
    options = {
        "openai": {"reasoning_effort": "low", "extra_headers": {"X-Team": "red"}, "top_k": 4, "grammar": "root"},
        "anthropic": {"effort": "high"},
    }
    await read(chat, ask(provider_options=options))
    request = openai_server.requests[-1]
    assert request.body["reasoning_effort"] == "low"
    assert request.body["grammar"] == "root"
    assert request.headers["x-team"] == "red"
    assert "effort" not in request.body


async def test_a_server_without_a_key(openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = resolve("openai/some/model", base_url=openai_server.base_url, client="library")
    assert text(await read(model)) == ["ok"]
    await model.close()


async def test_a_server_that_reports_no_reason_to_stop(openai_server: OpenAIServer, chat: Model) -> None:
    """Its usage shows that the answer is whole."""
    openai_server.will(Answer(text=["ok"], finish="unsaid"))
    assert finish(await read(chat)).payload.reason == "stop"


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "the request exceeds the available context size, try increasing it",
        "Please reduce the length of the messages or completion.",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    ],
)
async def test_how_servers_say_that_a_prompt_is_too_long(said: str, openai_server: OpenAIServer, chat: Model) -> None:
    openai_server.will(HttpError(status=400, message=said))
    with pytest.raises(ContextOverflowError):
        await read(chat)


async def test_an_answer_asked_too_long_is_no_overflow(openai_server: OpenAIServer, chat: Model) -> None:
    said = "max_tokens is too large: 50000. This model supports at most 16384 completion tokens."
    openai_server.will(HttpError(status=400, message=said))
    with pytest.raises(BadRequestError) as caught:
        await read(chat)
    assert not isinstance(caught.value, ContextOverflowError)


async def test_an_exhausted_account_is_no_rate_limit(openai_server: OpenAIServer, chat: Model) -> None:
    openai_server.will(HttpError(status=429, code="insufficient_quota", message="check your plan"))
    with pytest.raises(AuthenticationError) as caught:
        await read(chat)
    assert caught.value.status == 429


async def test_images_by_address(openai_server: OpenAIServer, chat: Model) -> None:
    image = FilePart(media_type="image/png", url="https://example.com/a.png")
    await read(chat, ask(message("user", image)))
    (sent,) = openai_server.requests[-1].body["messages"]
    assert sent["content"] == [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]


async def test_a_file_the_model_does_not_take(claude: Model) -> None:
    film = FilePart(media_type="video/mp4", url="https://example.com/film.mp4")
    with pytest.raises(BadRequestError, match="cannot be sent this request"):
        await read(claude, ask(message("user", film)))


# --- responses ---------------------------------------------------------------------------------------


async def test_one_reasoning_item_is_one_block(openai_server: OpenAIServer, responses: Model) -> None:
    openai_server.will(Answer(reasoning=["First.", "Second."], signature="sig", text=["Done."]))
    chunks = await read(responses)
    assert [chunk.type for chunk in chunks].count("reasoning-start") == 1
    assert "".join(c.payload.text for c in chunks if isinstance(c, ReasoningDelta)) == "First.\n\nSecond."


async def test_item_ids_go_back_with_their_reasoning_only(openai_server: OpenAIServer, responses: Model) -> None:
    openai_server.will(Answer(reasoning=["Hm."], signature="sig", calls=[Call(name="get_weather", id="c1")]))
    chunks = await read(responses, ask(tools=[WEATHER]))
    (thought,) = [chunk.payload for chunk in chunks if isinstance(chunk, ReasoningEnd)]
    (called,) = [chunk.payload for chunk in chunks if chunk.type == "tool-call"]
    reasoning = ReasoningPart(
        text="Hm.", signature=thought.signature, provider=thought.provider, provider_data=thought.provider_data
    )
    call = ToolCallPart(call_id="c1", name="get_weather", args={}, provider_data=called.provider_data)
    result = ToolResultPart(call_id="c1", name="get_weather", text="18")

    await read(responses, ask(message("user", "?"), message("assistant", reasoning, call), message("tool", result)))
    assert [item.get("id") for item in openai_server.requests[-1].body["input"]] == [None, "rs_1", "fc_c1", None]
    await read(responses, ask(message("user", "?"), message("assistant", call), message("tool", result)))
    assert [item.get("id") for item in openai_server.requests[-1].body["input"]] == [None, None, None]


# --- Anthropic ---------------------------------------------------------------------------------------


async def test_cache_writes_are_counted(anthropic_server: AnthropicServer, claude: Model) -> None:
    anthropic_server.will(Answer(text=["ok"], tokens=Tokens(input=100, cached=30, written=60)))
    usage = finish(await read(claude)).payload.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens) == (100, 30, 60)


def breakpoints(body: Any) -> list[str]:
    """The texts (or block types) after which the cache breaks, in order."""
    system = body.get("system", [])
    blocks = list(system) if isinstance(system, list) else []
    for one in body["messages"]:
        blocks.extend(one["content"])
    return [block.get("text", block["type"]) for block in blocks if "cache_control" in block]


async def test_the_log_stands_apart_from_the_instructions(anthropic_server: AnthropicServer, claude: Model) -> None:
    request = ask(
        message("system", "Be kind.", cache=True),
        message("system", "How to use notes."),
        message("system", "The notes.", cache=True),
        message("user", "Hi"),
        message("assistant", "Hello"),
        message("user", "And?", cache=True),
    )
    await read(claude, request)
    body = anthropic_server.requests[-1].body
    assert body["system"] == [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "5m"}}]
    first, _, last = body["messages"]
    assert first["role"] == "user"
    assert [block["text"] for block in first["content"]] == ["How to use notes.", "The notes.", "Hi"]
    assert breakpoints(body) == ["Be kind.", "The notes.", "And?"]
    assert last["content"][0]["text"] == "And?"


async def test_breakpoints_after_answers_and_results(anthropic_server: AnthropicServer, claude: Model) -> None:
    call = ToolCallPart(call_id="c1", name="get_weather", args={})
    result = ToolResultPart(call_id="c1", name="get_weather", text="18")
    await read(
        claude,
        ask(
            message("user", "Hi"),
            message("assistant", "Hello", cache=True),
            message("user", "Rome?"),
            message("assistant", call),
            message("tool", result, cache=True),
            tools=[WEATHER],
        ),
    )
    assert breakpoints(anthropic_server.requests[-1].body) == ["Hello", "tool_result"]


async def test_at_most_four_breakpoints(anthropic_server: AnthropicServer, claude: Model) -> None:
    turns = [message("user" if n % 2 == 0 else "assistant", f"turn {n}", cache=True) for n in range(7)]
    system = [message("system", "one", cache=True), message("system", "two", cache=True)]
    await read(claude, ask(*system, *turns))
    assert breakpoints(anthropic_server.requests[-1].body) == ["one", "two", "turn 5", "turn 6"]


async def test_only_where_breakpoints_are_named(openai_server: OpenAIServer, chat: Model, claude: Model) -> None:
    assert claude.cache_breakpoints
    assert not chat.cache_breakpoints
    await read(
        chat, ask(message("system", "one", cache=True), message("system", "two"), message("user", "Hi", cache=True))
    )
    assert openai_server.requests[-1].body["messages"] == [
        {"role": "system", "content": "one\n\ntwo"},
        {"role": "user", "content": "Hi"},
    ]


# --- Google ------------------------------------------------------------------------------------------


async def test_a_thought_signature_goes_back_with_its_part(google_server: GoogleServer) -> None:
    model = GoogleWire(google_server).model()
    google_server.will(Answer(reasoning=["Hm."], text=["Yes."], signature="c2ln"))
    (end,) = [chunk.payload for chunk in await read(model) if isinstance(chunk, TextEnd)]
    said = TextPart(text="Yes.", provider_data=end.provider_data)
    await read(model, ask(message("user", "Is it?"), message("assistant", said), message("user", "Sure?")))
    assert google_server.requests[-1].body["contents"][1]["parts"] == [{"text": "Yes.", "thoughtSignature": "c2ln"}]
    await model.close()


# --- other models of the library ----------------------------------------------------------------------


async def test_a_model_object_of_the_library(openai_server: OpenAIServer) -> None:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    made = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=openai_server.base_url, api_key="k"))
    model = resolve(made)
    assert isinstance(model, LibraryModel)
    assert model.id == "openai/gpt-4o"
    assert text(await read(model)) == ["ok"]
    openai_server.will(HttpError(status=500))
    with pytest.raises(ModelAPIError, match="HTTP 500"):
        await read(model)
    assert len(openai_server.requests) == 2  # its client's own retries are off


def test_a_model_object_in_one_event_loop_after_another(openai_server: OpenAIServer) -> None:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = resolve(OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=openai_server.base_url, api_key="k")))
    assert [text(asyncio.run(read(model))) for _ in range(3)] == [["ok"]] * 3


@pytest.mark.parametrize(
    ("model_id", "client"), [("openai/gpt-5", "lean"), ("openai/gpt-5", "library"), ("openai-responses/gpt-5", "auto")]
)
async def test_the_name_of_a_schema_has_only_characters_that_providers_accept(
    model_id: str, client: Client, openai_server: OpenAIServer
) -> None:
    model = resolve(model_id, base_url=openai_server.base_url, api_key="k", client=client)
    for name, sent in (("Box[int]", "Box_int_"), ("A weather report (v2)", "A_weather_report__v2_"), ("", "answer")):
        await read(model, ask(output=OutputSchema(name=name, schema=SCHEMA)))
        body = openai_server.requests[-1].body
        asked = body["text"]["format"] if "text" in body else body["response_format"]["json_schema"]
        assert asked["name"] == sent
    await model.close()


async def test_a_model_without_native_output(openai_server: OpenAIServer) -> None:
    """The schema is left out: the prompt has to say what is wanted."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles import ModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=openai_server.base_url, api_key="k")
    profile = ModelProfile(supports_json_schema_output=False)
    model = resolve(OpenAIChatModel("plain", provider=provider, profile=profile))
    chunks = await read(model, ask(output=OutputSchema(name="weather", schema=SCHEMA)))
    assert text(chunks) == ["ok"]
    assert "response_format" not in openai_server.requests[-1].body


async def test_a_function_model(anyio_backend: str) -> None:
    from pydantic_ai.models.function import FunctionModel

    async def stream(messages: Any, info: Any) -> AsyncIterator[str]:
        yield "from a "
        yield "function"

    chunks = await read(resolve(FunctionModel(stream_function=stream)))
    assert text(chunks) == ["from a ", "function"]
    assert isinstance(chunks[-1], ModelFinish)


def test_empty_parts_are_not_sent() -> None:
    from diarist.models.pydantic_ai.prompt import to_messages

    prompt = ask(message("assistant", TextPart(text="")), message("user", "")).prompt
    assert to_messages(prompt, system="openai", breakpoints=False) == []
