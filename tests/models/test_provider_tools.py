"""Tools that the provider runs itself, such as its web search: kept with their results, and sent back to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory
from diarist.chunks import ToolCallChunk, ToolResultChunk
from diarist.exceptions import BadRequestError
from diarist.messages import Message, ToolPart
from diarist.models import Model, resolve
from diarist.processors import ProviderHistoryCompat, RegexFilter
from diarist.storage import SQLiteStorage
from tests.agent.kit import collect, types
from tests.loopback.anthropic_server import AnthropicServer
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer, LoopbackServer, Search

SEARCH = Search(query="weather Rome", url="https://weather.example.org", title="Rome today")
NATIVE = {"native_tools": [{"type": "web_search"}]}
OPTIONS: Any = {"openai": NATIVE, "anthropic": NATIVE}


def responses(server: OpenAIServer) -> Model:
    return resolve("openai-responses/gpt-5-mini", api_key="none", base_url=server.base_url)


def claude(server: AnthropicServer) -> Model:
    return resolve("anthropic/claude-sonnet-5", api_key="none", base_url=server.base_url)


def chat(server: OpenAIServer, client: Any = "auto") -> Model:
    return resolve("openai/gpt-5-mini", api_key="none", base_url=server.base_url, client=client)


@pytest.fixture(params=["openai", "anthropic"])
def searching(
    request: pytest.FixtureRequest, openai_server: OpenAIServer, anthropic_server: AnthropicServer
) -> tuple[Model, LoopbackServer]:
    """A model that will search and then answer, and its server."""
    openai_server.will(Answer(search=SEARCH, text=["Sunny."]))
    anthropic_server.will(Answer(search=SEARCH, text=["Sunny."]))
    if request.param == "openai":
        return responses(openai_server), openai_server
    return claude(anthropic_server), anthropic_server


def sent_back(server: LoopbackServer) -> list[str]:
    """The types of what the newest request holds of earlier answers."""
    body = server.requests[-1].body
    if "input" in body:
        return [item["type"] for item in body["input"] if "type" in item and item["type"] != "message"]
    blocks = [block for m in body["messages"] if m["role"] == "assistant" for block in m["content"]]
    return [block["type"] for block in blocks if isinstance(block, dict)]


def search_part(messages: list[Message]) -> ToolPart:
    (part,) = [part for message in messages for part in message.tool_parts]
    return part


async def test_call_and_result_are_one_part_of_the_answer(searching: tuple[Model, LoopbackServer]) -> None:
    model, server = searching
    agent = Agent(model=model, default_options={"provider_options": OPTIONS})
    async with agent.stream("Weather in Rome?") as run:
        chunks = [chunk async for chunk in run]
        result = await run.result()
    await model.close()
    assert result.text == "Sunny."
    assert (result.stopped_by, result.finish_reason, len(server.requests)) == ("answer", "stop", 1)
    (call,) = [chunk.payload for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    (found,) = [chunk.payload for chunk in chunks if isinstance(chunk, ToolResultChunk)]
    assert call.tool_name == found.tool_name == "web_search"
    assert call.tool_call_id == found.tool_call_id
    assert call.provider_executed
    assert found.provider_executed
    assert call.args["query"] == "weather Rome"
    part = search_part(result.messages)
    assert (part.state, part.provider_executed, part.args["query"]) == ("result", True, "weather Rome")
    assert part.result == found.result
    order = types(chunks)
    assert order.index("tool-call") < order.index("tool-result") < order.index("text-delta")


async def test_it_is_stored_and_goes_back_to_its_provider(
    searching: tuple[Model, LoopbackServer], tmp_path: Path
) -> None:
    model, server = searching
    async with SQLiteStorage(tmp_path / "memory.db") as storage:
        options: Any = {"provider_options": OPTIONS}
        agent = Agent(model=model, memory=Memory(storage=storage), default_options=options)
        await agent.generate("Weather in Rome?", thread="t")
        await agent.generate("And tomorrow?", thread="t")
        assert search_part(await storage.list_messages("t")).provider_executed
    await model.close()
    if "input" in server.requests[-1].body:
        assert sent_back(server) == ["web_search_call"]
        (item,) = [i for i in server.requests[-1].body["input"] if i.get("type") == "web_search_call"]
        assert (item["status"], item["action"]["query"]) == ("completed", "weather Rome")
    else:
        assert sent_back(server) == ["server_tool_use", "web_search_tool_result", "text"]
        body = server.requests[-1].body
        (answer,) = [m["content"] for m in body["messages"] if m["role"] == "assistant"]
        assert answer[0]["input"] == {"query": "weather Rome"}
        assert answer[1]["content"][0]["url"] == SEARCH.url
        assert answer[1]["tool_use_id"] == answer[0]["id"]


@pytest.mark.parametrize("compat", [True, False])
@pytest.mark.parametrize("to", ["chat", "chat, library", "responses", "claude"])
async def test_no_other_caller_gets_it(
    to: str, compat: bool, openai_server: OpenAIServer, anthropic_server: AnthropicServer
) -> None:
    target = {
        "chat": lambda: chat(openai_server),
        "chat, library": lambda: chat(openai_server, "library"),
        "responses": lambda: responses(openai_server),
        "claude": lambda: claude(anthropic_server),
    }[to]()
    maker = claude(anthropic_server) if to == "responses" else responses(openai_server)
    (anthropic_server if to == "responses" else openai_server).will(Answer(search=SEARCH, text=["Sunny."]))
    first = await Agent(model=maker, default_options={"provider_options": OPTIONS}).generate("Weather in Rome?")
    assert search_part(first.messages).state == "result"
    agent = Agent(model=target, processors=[ProviderHistoryCompat()] if compat else [])
    second = await agent.generate([*first.conversation, Message.user("And tomorrow?")])
    assert second.text == "ok"
    server = anthropic_server if to == "claude" else openai_server
    body = str(server.requests[-1].body)
    assert "Sunny." in body
    assert "web_search" not in body
    assert "Rome today" not in body
    await maker.close()
    await target.close()


async def test_guards_see_what_was_found(searching: tuple[Model, LoopbackServer]) -> None:
    model, _ = searching
    agent = Agent(model=model, processors=[RegexFilter(("urls",))], default_options={"provider_options": OPTIONS})
    chunks = await collect(agent.stream("Weather in Rome?"))
    await model.close()
    assert "weather.example.org" not in str(chunks)


async def test_an_unknown_tool_is_refused(anthropic_server: AnthropicServer) -> None:
    model = claude(anthropic_server)
    for tool, what in [({"type": "telepathy"}, "telepathy"), ({"type": "web_search", "depth": 3}, "depth")]:
        options: Any = {"anthropic": {"native_tools": [tool]}}
        with pytest.raises(BadRequestError, match=what):
            await Agent(model=model).generate("hi", provider_options=options)
    assert anthropic_server.requests == []
    await model.close()
