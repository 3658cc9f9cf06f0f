"""The lean client at a server: the contract of every model, and what is its own."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from diarist import Agent, Memory, Message, ModelEntry
from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ConfigError,
    ContextOverflowError,
    ModelAPIError,
    ModelConnectionError,
    ModelResponseError,
    ModelTimeoutError,
    RateLimitError,
)
from diarist.messages import FilePart, utc_now
from diarist.models import Model, ModelSettings, resolve
from diarist.models.openai_chat import OpenAIChatModel
from diarist.models.openai_chat.dialects import COMPATIBLE
from diarist.processors import PIIDetector
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer, Call, HttpError
from tests.models.conformance import WEATHER, ModelConformance, ask, calls, finish, message, read, text
from tests.models.wires import ChatWire, Wire
from tests.processes import run_python


class TestOpenAIChat(ModelConformance):
    @pytest.fixture
    def wire(self, openai_server: OpenAIServer) -> Wire:
        return ChatWire(openai_server, "lean")


@pytest.fixture
async def chat(openai_server: OpenAIServer) -> AsyncIterator[Model]:
    model = ChatWire(openai_server, "lean").model()
    yield model
    await model.close()


async def test_mixed_fragments_of_parallel_calls(openai_server: OpenAIServer, chat: Model) -> None:
    one = Call(name="get_weather", args=['{"city"', ': "Rome"}'], id="a")
    two = Call(name="get_weather", args=['{"city"', ': "Oslo"}'], id="b")
    openai_server.will(Answer(calls=[one, two], mix_calls=True))
    found = calls(await read(chat, ask(tools=[WEATHER])))
    assert found == [("a", "get_weather", {"city": "Rome"}), ("b", "get_weather", {"city": "Oslo"})]


async def test_a_server_that_reports_no_reason_to_stop(openai_server: OpenAIServer, chat: Model) -> None:
    openai_server.will(Answer(text=["ok"], finish="unsaid"))
    assert finish(await read(chat)).payload.reason == "stop"


async def test_a_thread_goes_on_after_a_failed_turn_where_roles_must_alternate(openai_server: OpenAIServer) -> None:
    model = resolve("vllm/gemma", base_url=openai_server.base_url)
    async with Agent(model=[ModelEntry(model=model, max_retries=0)], memory=Memory(storage=InMemoryStorage())) as agent:
        openai_server.will(HttpError(status=503))
        with pytest.raises(ModelAPIError):
            await agent.generate("one", thread="t")
        await agent.generate("two", thread="t")
    assert openai_server.requests[-1].body["messages"] == [{"role": "user", "content": "one\n\ntwo"}]


async def test_headers(openai_server: OpenAIServer, chat: Model) -> None:
    await read(chat, ask(provider_options={"openai": {"extra_headers": {"X-Team": "red"}}}))
    headers = openai_server.requests[-1].headers
    assert headers["authorization"] == "Bearer k"
    assert headers["x-team"] == "red"
    assert headers["content-type"] == "application/json"
    await read(chat)
    assert "x-team" not in openai_server.requests[-1].headers


async def test_a_server_without_a_key(openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = resolve("openai/some/model", base_url=openai_server.base_url)
    assert text(await read(model)) == ["ok"]
    assert "authorization" not in openai_server.requests[-1].headers
    await model.close()


@pytest.mark.parametrize("tail", ["/", "?team=red", "/?team=red"])
async def test_addresses(tail: str, openai_server: OpenAIServer) -> None:
    model = resolve("openai/some/model", base_url=openai_server.base_url + tail, api_key="k")
    assert text(await read(model)) == ["ok"]
    await model.close()


async def test_a_large_request(openai_server: OpenAIServer, chat: Model) -> None:
    image = FilePart(media_type="image/png", data=bytes(2_000_000))
    await read(chat, ask(message("user", image)))
    (sent,) = openai_server.requests[-1].body["messages"]
    assert len(sent["content"][0]["image_url"]["url"]) > 2_000_000


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
    assert type(caught.value) is BadRequestError


@pytest.mark.parametrize("script", [HttpError(status=429, code="insufficient_quota"), HttpError(status=402)])
async def test_an_exhausted_account_is_no_rate_limit(
    script: HttpError, openai_server: OpenAIServer, chat: Model
) -> None:
    openai_server.will(script)
    with pytest.raises(AuthenticationError) as caught:
        await read(chat)
    assert caught.value.status == script.status


# --- servers that are out of the ordinary ------------------------------------------------------------------

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


class RawServer:
    """Answers every request on a connection with the given bytes, in the given pieces.

    Attributes:
        answers: To how many requests of a connection; at the next one it is closed, without a word.
        drops: No more requests are answered: their connections are closed.
        connections: How many were opened.
        lines: The request lines that came.
    """

    def __init__(self, pieces: Iterable[bytes], answers: int | None = None) -> None:
        self.pieces = pieces
        self.answers = answers
        self.drops = False
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.lines: list[str] = []
        self.headers: list[str] = []
        self.address = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        left = self.answers
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.lines.append(head.partition("\r\n")[0])
                self.headers.append(head.lower())
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
                await reader.readexactly(length)
                if left == 0 or self.drops:
                    writer.close()
                    return
                left = None if left is None else left - 1
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def raw_server(*pieces: bytes, answers: int | None = None) -> AsyncIterator[RawServer]:
    made = RawServer(list(pieces), answers)
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        try:
            yield made
        finally:
            for writer in made.writers:  # the loop may end before they have seen that their clients are gone
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()


def answer(body: bytes, *, status: str = "200 OK", type: str = "text/event-stream", headers: bytes = b"") -> bytes:
    start = f"HTTP/1.1 {status}\r\nContent-Type: {type}\r\nContent-Length: {len(body)}\r\n".encode()
    return start + headers + b"\r\n" + body


async def read_from(server: RawServer, **more: Any) -> list[Any]:
    model = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1", **more)
    try:
        return await read(model)
    finally:
        await model.close()


async def test_an_answer_in_small_pieces() -> None:
    whole = answer(b": hello\r\n\r\n" + EVENT.replace(b"\n", b"\r\n") * 3 + STOP + b"data: [DONE]")
    async with raw_server(*(whole[i : i + 7] for i in range(0, len(whole), 7))) as server:
        assert text(await read_from(server)) == ["Hi"] * 3


@pytest.mark.parametrize("type", ["text/plain", "application/octet-stream", "text/event-stream; charset=utf-8"])
async def test_any_content_type_of_the_stream_is_read(type: str) -> None:
    async with raw_server(answer(EVENT + STOP, type=type)) as server:
        assert text(await read_from(server)) == ["Hi"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"index": 0, "id": ""}, {"index": 0, "id": ""}),
        ({"index": 0, "id": "x"}, {"index": 0, "id": "x"}),
        ({"index": 0, "id": "x"}, {"index": 1, "id": "x"}),
        ({"id": "x"}, {"id": "x"}),
    ],
)
async def test_whole_calls_that_share_an_index_or_an_id(one: dict[str, Any], two: dict[str, Any]) -> None:
    def look(city: str) -> str:
        return f"{city} is fine"

    body = b""
    for place, city in ((one, "Rome"), (two, "Oslo")):
        made = {**place, "function": {"name": "look", "arguments": json.dumps({"city": city})}}
        body += b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [made]}}]}).encode()
    async with raw_server(answer(body + STOP)) as server:
        model = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1")
        async with Agent(model=model, tools=[look], max_steps=1) as agent:
            found = (await agent.generate("How are they?")).steps[0].tool_calls
        await model.close()
    assert [part.result for part in found] == ["Rome is fine", "Oslo is fine"]
    assert len({part.call_id for part in found}) == 2


@pytest.mark.parametrize("type", ["application/json", "text/plain"])
async def test_a_server_that_does_not_stream(type: str) -> None:
    body = b'{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}'
    async with raw_server(answer(body, type=type)) as server:
        assert text(await read_from(server)) == ["Hi"]


@pytest.mark.parametrize("way", ["stream", "one piece"])
async def test_images_and_cited_pages(way: str) -> None:
    images = [{"image_url": {"url": url}} for url in ("data:image/webp;base64,aGk=", "https://a.example/b.png")]
    notes = [{"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}, {"type": "file"}]
    made = {"delta": {"content": "Here:", "images": images, "annotations": notes}, "finish_reason": "stop"}
    body, type = b"data: %s\n\n" % _event(made), "text/event-stream"
    if way == "one piece":
        body, type = _event(made).replace(b'"delta"', b'"message"'), "application/json"
    async with raw_server(answer(body, type=type)) as server:
        model = OpenAIChatModel(provider="openrouter", name="m", base_url=f"http://{server.address}/v1")
        step = (await Agent(model=model).generate("Draw.")).steps[0]
        await model.close()
    assert step.text == "Here:"
    assert [(file.media_type, file.data, file.url) for file in step.files] == [
        ("image/webp", b"hi", None),
        ("image/png", None, "https://a.example/b.png"),
    ]
    assert [(source.url, source.title) for source in step.sources] == [("https://a.example", "A")]


async def test_images_and_cited_pages_split_no_text_and_come_once() -> None:
    page = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}
    odd = [5, {"url_citation": "x"}, {"url_citation": {"url": 5}}]
    image = {"image_url": {"url": "data:image/webp;base64,aGk="}}
    deltas = [
        {"content": "Mail ada@exam", "annotations": [page], "images": [image, {"image_url": "x"}]},
        {"content": "ple.com now", "annotations": [page, *odd], "images": [image]},
        {"annotations": "x", "images": 5},
    ]
    body = b"".join(b"data: %s\n\n" % _event({"delta": delta}) for delta in deltas) + STOP
    async with raw_server(answer(body, type="text/event-stream")) as server:
        model = OpenAIChatModel(provider="openrouter", name="m", base_url=f"http://{server.address}/v1")
        agent = Agent(model=model, processors=[PIIDetector(redaction_method="placeholder")])
        step = (await agent.generate("Draw.")).steps[0]
        await model.close()
    assert "ada" not in step.text
    assert step.text.endswith(" now")
    assert len(step.files) == len(step.sources) == 1


@pytest.mark.parametrize("type", ["application/json", "text/plain"])
async def test_an_error_with_status_200(type: str) -> None:
    body = b'{"error":{"message":"no such model","code":404}}'
    async with raw_server(answer(body, type=type)) as server:
        with pytest.raises(BadRequestError, match="no such model"):
            await read_from(server)


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (b'{"message":"slow down","code":429}', RateLimitError, "slow down"),
        (b'{"error":{"message":"slow down","code":429}}', RateLimitError, "slow down"),
        (b'{"detail":"out of memory"}', ModelAPIError, "out of memory"),
        (b'"out of memory"', ModelAPIError, "out of memory"),
    ],
)
async def test_an_event_that_is_named_an_error(data: bytes, kind: type[ModelAPIError], said: str) -> None:
    body = EVENT + b"event: error\ndata: " + data + b"\n\n" + STOP
    async with raw_server(answer(body)) as server:
        with pytest.raises(kind, match=said):
            await read_from(server)


FAILED = {"delta": {"content": ""}, "finish_reason": "error", "error": {"code": 502, "message": "upstream died"}}


@pytest.mark.parametrize("way", ["lean", "one piece", "library"])
async def test_an_answer_that_its_provider_broke_off_is_asked_for_again(way: str, openai_server: OpenAIServer) -> None:
    body, type = EVENT + b"data: %s\n\ndata: [DONE]\n\n" % _event(FAILED), "text/event-stream"
    if way == "one piece":
        body, type = _event(FAILED).replace(b'"delta"', b'"message"'), "application/json"
    async with raw_server(answer(body, type=type)) as server:
        client = "library" if way == "library" else "lean"
        broken = resolve("openai/some/model", base_url=f"http://{server.address}/v1", api_key="k", client=client)
        spare = resolve("vllm/spare", base_url=openai_server.base_url)
        async with Agent(model=[ModelEntry(model=broken, max_retries=1, backoff=0), spare]) as agent:
            result = await agent.generate("Hi")
        assert (result.text, len(server.lines)) == ("ok", 2)
        with pytest.raises(ModelAPIError, match="it ended with 'error'" if way == "library" else "upstream died"):
            await read(broken)
        await broken.close()


@pytest.mark.parametrize("reason", ["error", "insufficient_system_resource"])
async def test_the_error_of_a_broken_off_answer_shows_nothing_of_it(reason: str) -> None:
    body = EVENT + b"data: %s\n\n" % _event({"delta": {"content": "secret"}, "finish_reason": reason})
    async with raw_server(answer(body, type="text/event-stream")) as server:
        with pytest.raises(ModelAPIError, match=f"it ended with {reason}") as caught:
            await read_from(server)
    assert "secret" not in str(caught.value)


async def test_an_answer_of_an_image_alone_stands_between_its_questions(openai_server: OpenAIServer) -> None:
    drawn = Message(role="assistant", parts=[FilePart(media_type="image/png", data=b"hi")])
    model = resolve("vllm/m", base_url=openai_server.base_url)
    async with Agent(model=model) as agent:
        await agent.generate([Message.user("Draw a cat"), drawn, Message.user("Make it blue")])
    assert [(each["role"], each["content"]) for each in openai_server.requests[-1].body["messages"]] == [
        ("user", "Draw a cat"),
        ("assistant", "(image/png)"),
        ("user", "Make it blue"),
    ]


@pytest.mark.parametrize("client", ["id", "address with secrets"])
async def test_an_address_without_v1(client: str, openai_server: OpenAIServer) -> None:
    address = openai_server.url
    secrets = address.replace("http://", "http://ada:secret@") + "/?api-key=secret"
    base_url = address if client == "id" else secrets
    with pytest.raises(BadRequestError) as caught:
        async with Agent(model=resolve("openai/qwen", base_url=base_url)) as agent:
            await agent.generate("Hi")
    assert str(caught.value) == (
        f"the server at {address} answered with an error (HTTP 404): Not Found (asked: {address}/chat/completions; "
        f"most servers need /v1 in the address: base_url='{address}/v1')"
    )
    assert (caught.value.status, caught.value.provider, openai_server.requests) == (404, "openai", [])
    async with Agent(model=resolve("openai/qwen", base_url=f"{address}/v1")) as agent:
        assert (await agent.generate("Hi")).text == "ok"


async def test_a_model_that_the_server_does_not_have(openai_server: OpenAIServer) -> None:
    openai_server.will(HttpError(status=404, code="model_not_found", message="the model 'x' does not exist"))
    model = resolve("openai/x", base_url=openai_server.base_url)
    with pytest.raises(BadRequestError, match="the model 'x' does not exist") as caught:
        await read(model)
    assert str(caught.value).endswith(f"(asked: {openai_server.url}/v1/chat/completions)")
    await model.close()


@pytest.mark.parametrize(("provider", "server"), [("openai", "the server at http://localhost:1/v1"), ("groq", "groq")])
async def test_errors_name_a_server_of_ones_own_by_its_address(provider: str, server: str) -> None:
    model = resolve(f"{provider}/x", base_url="http://localhost:1/v1", api_key="k")
    with pytest.raises(ModelConnectionError) as caught:
        await read(model)
    assert str(caught.value).startswith(f"the connection to {server} failed: ")
    await model.close()


def test_an_address_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        resolve("openai/x", base_url="http://[/v1")


def _event(choice: Any = None, **fields: Any) -> bytes:
    delta = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}
    return json.dumps({"id": "c", "model": "m", "choices": [delta if choice is None else choice], **fields}).encode()


def _call(**function: Any) -> bytes:
    more = {name: function.pop(name) for name in ("id", "index") if name in function}
    return _event({"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": function, **more}]}})


WRONG = [
    _event(id=5),
    _event(id=["x"]),
    _event(model={}),
    _event(choices={}),
    _event(choices="x"),
    _event(choices=[5]),
    _event({"delta": "Hi"}),
    _event({"delta": {"content": 5}}),
    _event({"delta": {"content": {"text": "Hi"}}}),
    _event({"delta": {"content": [{"type": "text", "text": 5}]}}),
    _event({"delta": {"content": ["Hi"]}}),
    _event({"delta": {"content": "Hi"}, "finish_reason": {}}),
    _event({"delta": {"content": "Hi"}, "finish_reason": ["stop"]}),
    _event({"delta": {"refusal": 5}}),
    _event({"delta": {"reasoning_details": {"text": "x"}}}),
    _event({"delta": {"reasoning_details": [5]}}),
    _event({"delta": {"tool_calls": {}}}),
    _event({"delta": {"tool_calls": [5]}}),
    _event({"delta": {"tool_calls": [{"index": 0, "id": "a", "function": "look"}]}}),
    _call(name=None, arguments="{}"),
    _call(name=5, arguments="{}"),
    _call(name={}, arguments="{}"),
    _call(name="look", arguments="{}", id=5),
    _call(name="look", arguments="{}", index={}),
    _event(usage=5),
    _event(usage=["x"]),
    _event(usage={"prompt_tokens": {}}),
    _event(usage={"prompt_tokens": "many"}),
    _event(usage={"prompt_tokens": -1}),
    _event(usage={"prompt_tokens": 1e300}),
    _event(usage={"prompt_tokens": 1, "prompt_tokens_details": 5}),
    _event(x_groq=5),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.decode()[23:80])
@pytest.mark.parametrize("way", ["stream", "after text", "one piece"])
async def test_fields_of_the_wrong_type(way: str, wrong: bytes) -> None:
    body, type = b"data: " + wrong + b"\n\n" + STOP, "text/event-stream"
    if way == "after text":
        body = EVENT + body
    if way == "one piece":
        body, type = wrong.replace(b'"delta"', b'"message"'), "application/json"
    async with raw_server(answer(body, type=type)) as server:
        broken = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1")
        async with Agent(model=[broken, ScriptedModel("from another")]) as agent:
            assert (await agent.generate("Hi")).text == "from another"
        with pytest.raises(ModelResponseError, match="cannot read the answer of vllm"):
            await read(broken)
        await broken.close()


@pytest.mark.parametrize(
    "wrong",
    [
        _event(choices="x"),
        _event(choices=[5]),
        _event({"delta": "Hi"}),
        _event({"delta": {"content": "Hi"}, "finish_reason": ["stop"]}),
        _event({"delta": {"tool_calls": [5]}}),
        _event(usage=5),
    ],
)
async def test_fields_of_the_wrong_type_through_the_library(wrong: bytes) -> None:
    async with raw_server(answer(b"data: " + wrong + b"\n\n" + STOP)) as server:
        url = f"http://{server.address}/v1"
        broken = resolve("openai/some/model", base_url=url, api_key="k", client="library")
        async with Agent(model=[broken, ScriptedModel("from another")]) as agent:
            assert (await agent.generate("Hi")).text == "from another"
        with pytest.raises(ModelResponseError, match="cannot read the answer of openai"):
            await read(broken)
        await broken.close()


@pytest.mark.parametrize("base_url", [None, "http://localhost:1/v1"])
def test_an_unknown_provider(base_url: str | None) -> None:
    with pytest.raises(ConfigError, match=r"unknown provider 'vlm'; did you mean 'vllm'\? .*known: .*openai, .*vllm"):
        OpenAIChatModel(provider="vlm", name="m", base_url=base_url)
    made = OpenAIChatModel(provider="mine", name="m", base_url="http://localhost:1/v1", dialect=COMPATIBLE)
    assert made.id == "mine/m"


async def test_a_web_page_is_no_api() -> None:
    async with raw_server(answer(b"<html>Welcome</html>", type="text/html")) as server:
        with pytest.raises(ModelResponseError, match="is it the address of an API"):
            await read_from(server)


async def test_an_error_page_is_shown() -> None:
    page = answer(b"<h1>Bad gateway</h1>", status="502 Bad Gateway", type="text/html")
    async with raw_server(page) as server:
        with pytest.raises(ModelAPIError, match="Bad gateway") as caught:
            await read_from(server)
    assert (caught.value.status, caught.value.body) == (502, "<h1>Bad gateway</h1>")


async def test_the_key_does_not_follow_a_redirect() -> None:
    async with raw_server(answer(EVENT + STOP)) as other:
        moved = answer(b"", status="307 Moved", headers=f"Location: http://{other.address}/\r\n".encode())
        async with raw_server(moved) as server:
            with pytest.raises(ModelAPIError, match=f"moved to http://{other.address}"):
                await read_from(server, api_key="secret")
        assert other.connections == 0


async def test_a_server_that_keeps_the_connection_open_after_done() -> None:
    """Its connection cannot be used again, but its answer is complete."""
    endless = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENT + STOP + b"data: [DONE]\n\n"
    async with raw_server(endless) as server:
        model = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1")
        assert [text(await read(model)) for _ in range(2)] == [["Hi"], ["Hi"]]
        assert server.connections == 2
        await model.close()


async def test_a_server_that_closes_a_connection_it_seemed_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As llama.cpp does after each answer, without saying so. The next call finds out, and takes a new one."""
    monkeypatch.setattr("diarist.models.openai_chat.connections._STALE_WITHIN", 60.0)  # a busy machine is slow
    async with raw_server(answer(EVENT + STOP), answers=1) as server:
        model = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1")
        assert [text(await read(model)) for _ in range(3)] == [["Hi"]] * 3
        for _ in range(2):  # several of them lie ready
            assert [text(some) for some in await asyncio.gather(*(read(model) for _ in range(3)))] == [["Hi"]] * 3
        await model.close()


async def test_a_request_that_is_always_dropped_goes_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections lie ready."""
    monkeypatch.setattr("diarist.models.openai_chat.connections._STALE_WITHIN", 60.0)
    async with raw_server(answer(EVENT + STOP)) as server:
        model = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1")
        await asyncio.gather(*(read(model) for _ in range(8)))
        server.drops = True
        server.lines.clear()
        with pytest.raises(ModelConnectionError):
            await read(model)
        assert len(server.lines) == 2
        await model.close()


async def test_a_connection_that_breaks_late_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have worked on it, and been paid."""
    monkeypatch.setattr("diarist.models.openai_chat.connections._STALE_WITHIN", -1.0)  # nobody waits here
    async with raw_server(answer(EVENT + STOP), answers=1) as server:
        model = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1")
        assert text(await read(model)) == ["Hi"]
        with pytest.raises(ModelConnectionError):
            await read(model)
        assert (len(server.lines), server.connections) == (2, 1)
        await model.close()


async def test_a_new_connection_that_is_closed_is_an_error() -> None:
    """The server may have worked on the request, so only the caller's ``max_retries`` repeats it."""
    async with raw_server(answers=0) as server:
        with pytest.raises(ModelConnectionError, match="connection to vllm failed"):
            await read_from(server)
        assert server.connections == 1


# --- answers without end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX-Drip: ", b"HTTP/1.1 200 OK\r\n\r\n" + EVENT + b": "])
async def test_a_server_that_drips(start: bytes) -> None:
    """Each byte ends the silence, so only ``total_timeout`` ends the call."""
    async with raw_server() as server:
        model = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1")
        server.pieces = Drip(start)
        with pytest.raises(ModelTimeoutError, match=r"longer than total_timeout \(0.2 s\)"):
            await read(model, ask(settings=ModelSettings(timeout=60, total_timeout=0.2)))
        await model.close()


class Drip:
    def __init__(self, start: bytes) -> None:
        self.start = start

    def __iter__(self) -> Iterator[bytes]:
        yield self.start
        yield from (b"." for _ in range(1000))  # fewer than a header may have
        yield from repeat(b"")  # nothing at all


async def test_milliseconds_to_wait() -> None:
    busy = answer(b"{}", status="429 Busy", headers=b"retry-after-ms: 1500\r\nRetry-After: 9\r\n")
    async with raw_server(busy) as server:
        with pytest.raises(ModelAPIError) as caught:
            await read_from(server)
    assert caught.value.retry_after == 1.5


# --- proxies -----------------------------------------------------------------------------------------------


@pytest.fixture
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("_no_proxies")
async def test_a_proxy_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(answer(EVENT + STOP)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://ada:secret@{proxy.address}")
        model = OpenAIChatModel(provider="vllm", name="m", base_url="http://models.example/v1")
        assert text(await read(model)) == ["Hi"]
        await model.close()
    assert proxy.lines == ["POST http://models.example/v1/chat/completions HTTP/1.1"]
    assert "proxy-authorization: basic " in proxy.headers[0]


@pytest.mark.usefixtures("_no_proxies")
async def test_a_proxy_without_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(answer(EVENT + STOP)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"ada:secret@{proxy.address}")
        model = OpenAIChatModel(provider="vllm", name="m", base_url="http://models.example/v1")
        assert text(await read(model)) == ["Hi"]
        await model.close()
    assert "proxy-authorization: basic " in proxy.headers[0]


@pytest.mark.usefixtures("_no_proxies")
async def test_the_password_of_a_proxy_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Denied\r\n\r\n")
        writer.close()

    model = OpenAIChatModel(provider="vllm", name="m", base_url="https://models.example/v1")
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("HTTPS_PROXY", f"http://ada:secret@{address}")
        with pytest.raises(ModelConnectionError, match=f"407.*http://{address}") as caught:
            await read(model)
        await model.close()
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.usefixtures("_no_proxies")
async def test_addresses_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with raw_server(answer(EVENT + STOP)) as server:
        assert text(await read_from(server)) == ["Hi"]


@pytest.mark.usefixtures("_no_proxies")
async def test_a_proxy_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://ada:secret@127.0.0.1:1")
    model = OpenAIChatModel(provider="vllm", name="m", base_url="http://models.example/v1")
    with pytest.raises(ConfigError, match="sets a socks5 proxy; only http"):
        await read(model)


# --- event loops -------------------------------------------------------------------------------------------


def test_several_event_loops_at_once(openai_server: OpenAIServer) -> None:
    model = ChatWire(openai_server, "lean").model()
    found: list[list[str]] = []

    async def several() -> None:
        found.extend([text(await read(model)) for _ in range(3)])

    threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["ok"]] * 9


async def test_a_model_that_is_closed_during_a_call_lets_it_end() -> None:
    async with raw_server(answer(EVENT + STOP).removesuffix(STOP)) as server:
        model = OpenAIChatModel(provider="vllm", name="m", base_url=f"http://{server.address}/v1")
        stream = model.stream(ask())
        found = [await anext(stream), await anext(stream)]
        assert text(found) == ["Hi"]
        await model.close()
        server.writers[0].write(STOP)
        assert finish([chunk async for chunk in stream]).payload.reason == "stop"
        await server.writers[0].wait_closed()  # the model kept no connection


def test_a_loop_that_ends_closes_its_connections(openai_server: OpenAIServer, caplog: pytest.LogCaptureFixture) -> None:
    """The model is not closed. An unclosed session would warn, and warnings are errors in these tests."""
    model = ChatWire(openai_server, "lean").model()
    for _ in range(2):
        assert text(asyncio.run(read(model))) == ["ok"]
    del model
    gc.collect()
    assert caplog.records == []


async def test_a_model_that_is_dropped_closes_its_connections(
    openai_server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    model = ChatWire(openai_server, "lean").model()
    assert text(await read(model)) == ["ok"]
    del model
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.records == []


def test_an_agent_that_is_dropped_closes_its_connections(
    openai_server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Agent and memory refer to each other, so they are garbage together with their connections."""
    for _ in range(3):
        agent = Agent(model=ChatWire(openai_server, "lean").model(), memory=Memory(storage=InMemoryStorage()))
        assert agent.generate_sync("hi", thread="t").text == "ok"
    del agent
    gc.collect()
    assert caplog.records == []


def test_an_agent_that_is_dropped_as_its_loop_ends_closes_its_connections(
    openai_server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> str:
        agent = Agent(model=ChatWire(openai_server, "lean").model())
        return (await agent.generate("hi")).text

    for _ in range(3):
        assert asyncio.run(ask()) == "ok"
        gc.collect()
    assert caplog.records == []


@pytest.mark.parametrize("way", ["generate_sync", "run_until_complete"])
def test_a_process_that_ends_says_nothing(way: str, openai_server: OpenAIServer) -> None:
    """Not even where its loop runs in a thread, or was left open."""
    code = f"""
import asyncio
from diarist import Agent
from diarist.models import resolve
agent = Agent(model=resolve("openai/some/model", base_url={openai_server.base_url!r}, api_key="k"))
if {way!r} == "generate_sync":
    print(agent.generate_sync("Hello").text)
else:
    print(asyncio.new_event_loop().run_until_complete(agent.generate("Hello")).text)
"""
    warnings = "error" if way == "generate_sync" else "ignore"  # the open loop itself would warn
    command = [sys.executable, "-W", warnings, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("ok\n", "")


SCRIPT = """
import asyncio, os, sys, threading
from diarist import Agent
from diarist.models import resolve

def agent():
    return Agent(model=resolve("openai/some/model", base_url=sys.argv[1], api_key="k"))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("asks", [False, True])
def test_child_of_a_fork_has_connections_of_its_own(asks: bool, openai_server: OpenAIServer) -> None:
    """It ends without a word, and leaves the parent's connections alone."""
    fork = f"""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer versions warn of fork
one, two = agent(), agent()
one.generate_sync("Hello"), two.generate_sync("Hello")
if os.fork() == 0:
    if {asks}:
        print(one.generate_sync("Hello").text, asyncio.run(two.generate("Hello")).text)
    sys.exit(0)
print(os.wait()[1], one.generate_sync("Hello").text)
"""
    assert run_python(SCRIPT + fork, openai_server.base_url) == asks * "ok ok\n" + "0 ok\n"


def test_a_loop_that_hangs_at_exit_keeps_no_other_from_being_closed(openai_server: OpenAIServer) -> None:
    hang = """
async def ask_and_hang():
    await one.generate("Hello")
    asyncio.get_running_loop().call_soon(threading.Event().wait)
    asked.set()
    await asyncio.Event().wait()

one, asked = agent(), threading.Event()
threading.Thread(target=asyncio.run, args=(ask_and_hang(),), daemon=True).start()
asked.wait()
print(one.generate_sync("Hello").text, agent().generate_sync("Hello").text)
"""
    assert run_python(SCRIPT + hang, openai_server.base_url) == "ok ok\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio's own, about its sockets
def test_a_loop_that_was_closed_before_its_connections(
    openai_server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    model = ChatWire(openai_server, "lean").model()
    loop = asyncio.new_event_loop()
    assert text(loop.run_until_complete(read(model))) == ["ok"]
    loop.close()
    assert text(asyncio.run(read(model))) == ["ok"]
    del model, loop
    gc.collect()
    assert caplog.records == []


# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture
def self_signed(tmp_path: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(utc_now() - timedelta(days=1))
        .not_valid_after(utc_now() + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "server.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + private)
    return path


async def test_certificates_are_checked(self_signed: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(self_signed)
    made = RawServer([answer(EVENT + STOP)])
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0, ssl=context)
    async with server:
        model = OpenAIChatModel(
            provider="vllm", name="m", base_url=f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        )
        with pytest.raises(ModelConnectionError, match="certificate verify failed"):
            await read(model, ask())
        await model.close()
    assert made.lines == []
