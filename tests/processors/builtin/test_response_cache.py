"""``ResponseCache``: an equal request gets the stored answer, and only complete answers are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, ModelSettings, Processor, Usage, tool
from diarist.chunks import Chunk, FileChunk, FilePayload, ModelFinish, ModelFinishPayload
from diarist.exceptions import ConfigError
from diarist.processors import (
    InMemoryCache,
    ProcessOutputResultArgs,
    ProcessOutputStepArgs,
    RegexFilter,
    ResponseCache,
    StorageCache,
)
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.testing import Reasoning, Reply, ScriptedModel, ToolCall
from tests.agent.kit import run_both


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_an_equal_request_calls_no_model_and_uses_no_tokens() -> None:
    model = ScriptedModel([Reasoning("hm", signature="s"), "Hello"])
    agent = Agent(model=model, input_processors=[ResponseCache()])
    first, second = await agent.generate("hi"), await agent.generate("hi")
    assert len(model.requests) == 1
    assert first.text == second.text == "Hello"
    assert second.steps[0].reasoning == "hm"
    assert first.usage.total_tokens > 0
    assert second.usage == Usage()


async def test_a_cached_answer_streams_the_same_chunks() -> None:
    cache = ResponseCache()
    await Agent(model=ScriptedModel(["He", "llo"]), input_processors=[cache]).generate("hi")
    result, _ = await run_both(lambda: Agent(model=ScriptedModel(), input_processors=[cache]))
    assert result.text == "Hello"


async def test_all_steps_of_a_run_are_cached() -> None:
    cache = ResponseCache()
    model = ScriptedModel(ToolCall("look"), "done")
    for _ in range(2):
        result = await Agent(model=model, tools=[look], input_processors=[cache]).generate("hi")
        assert result.text == "done"
        assert result.steps[0].tool_calls[0].result == "seen"
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"input": "ho"},
        {"model_settings": ModelSettings(temperature=1)},
        {"tool_choice": "none"},
        {"provider_options": {"openai": {"seed": 1}}},
        {"model": ScriptedModel("two", name="another")},
        {"output_type": {"type": "object"}},
    ],
    ids=str,
)
async def test_different_requests_do_not_share_an_answer(options: dict[str, Any]) -> None:
    model = ScriptedModel("one", '{"two": 2}')
    agent = Agent(model=model, tools=[look], input_processors=[ResponseCache()])
    await agent.generate("hi")
    result = await agent.generate(**{"input": "hi", **options})
    assert "two" in result.text


async def test_an_answer_expires_after_ttl() -> None:
    now = [0.0]
    cache = ResponseCache(InMemoryCache(clock=lambda: now[0]), ttl=10)
    model = ScriptedModel("one", "two")
    agent = Agent(model=model, input_processors=[cache])
    texts = []
    for now[0] in (0.0, 9.0, 10.0, 19.0):
        texts.append((await agent.generate("hi")).text)
    assert texts == ["one", "one", "two", "two"]


async def test_the_least_recently_used_answer_is_evicted_first() -> None:
    """By bytes: nine answers of 10 kB fit into 100 kB, and one of more than an eighth of that is not kept."""
    model = ScriptedModel(lambda request: f"{len(model.requests)} {'x' * 10_000 * (1 + request.text.count('long'))}")
    agent = Agent(model=model, input_processors=[ResponseCache(InMemoryCache(max_bytes=100_000))])
    asked = [*"abcdefgh", "a", "i", "j", "a", "b", "long", "long"]
    answers = [(await agent.generate(text)).text.split()[0] for text in asked]
    assert answers == ["1", "2", "3", "4", "5", "6", "7", "8", "1", "9", "10", "1", "11", "12", "13"]


class Refuse(Processor[Any]):
    """Blocks each first answer: in the step, or at the end."""

    def __init__(self, at: str, *, retry: bool = False) -> None:
        self.at, self.retry = at, retry

    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        if self.at == "step" and "bad" in args.text:
            args.abort("bad", retry=self.retry)

    def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        if self.at == "result" and "bad" in args.result.text:
            args.abort("bad")


@pytest.mark.parametrize("at", ["step", "result"])
async def test_blocked_answers_are_not_stored(at: str) -> None:
    model = ScriptedModel("bad", "good")
    agent = Agent(model=model, input_processors=[ResponseCache()], output_processors=[Refuse(at)])
    assert (await agent.generate("hi")).tripwire is not None
    assert (await agent.generate("hi")).text == "good"


async def test_failed_runs_store_nothing() -> None:
    model = ScriptedModel(ToolCall("look"), RuntimeError("down"), ToolCall("look"), "done")
    agent = Agent(model=model, tools=[look], input_processors=[ResponseCache()])
    with pytest.raises(Exception, match="down"):
        await agent.generate("hi")
    await agent.generate("hi")
    assert len(model.requests) == 4


async def test_rejected_attempts_are_not_stored() -> None:
    model = ScriptedModel("bad", "good", "best")
    agent = Agent(
        model=model,
        input_processors=[ResponseCache()],
        output_processors=[Refuse("step", retry=True)],
        max_processor_retries=1,
    )
    assert (await agent.generate("hi")).text == "good"
    assert (await agent.generate("hi")).text == "best"
    assert (await agent.generate("hi")).text == "best"


async def test_truncated_answers_are_not_stored() -> None:
    model = ScriptedModel(Reply(text="hal", finish_reason="length"), "whole")
    agent = Agent(model=model, input_processors=[ResponseCache()])
    assert [(await agent.generate("hi")).text for _ in range(3)] == ["hal", "whole", "whole"]


async def test_a_cached_answer_passes_the_output_processors() -> None:
    cache = ResponseCache()
    await Agent(model=ScriptedModel("ada@example.org"), input_processors=[cache]).generate("hi")
    agent = Agent(model=ScriptedModel(), input_processors=[cache], output_processors=[RegexFilter()])
    assert (await agent.generate("hi")).text == "[EMAIL]"


async def test_a_custom_key_decides_what_is_shared() -> None:
    model = ScriptedModel("one", "two", "three")
    cache = ResponseCache(key=lambda args: args.resource_id)
    agent = Agent(model=model, input_processors=[cache])
    assert (await agent.generate("a", thread="1", resource="ada")).text == "one"
    assert (await agent.generate("b", thread="2", resource="ada")).text == "one"
    assert (await agent.generate("a")).text == "two"
    assert (await agent.generate("a")).text == "three"


async def test_two_processes_share_answers_through_a_storage(tmp_path: Path) -> None:
    now = [1000.0]
    texts = []
    for now[0], reply in ((1000.0, "one"), (1009.0, "two"), (1010.0, "three"), (1011.0, "four")):
        async with SQLiteStorage(tmp_path / "cache.db") as storage:
            cache = ResponseCache(StorageCache(storage, clock=lambda: now[0]), ttl=10)
            model = ScriptedModel([Reasoning("hm", signature="s"), reply])
            result = await Agent(model=model, input_processors=[cache]).generate("hi")
            texts.append((result.text, result.steps[0].reasoning))
    assert texts == [("one", "hm"), ("one", "hm"), ("three", "hm"), ("three", "hm")]


async def test_a_storage_returns_equal_chunks() -> None:
    chunks: list[Chunk] = [
        FileChunk(payload=FilePayload(media_type="image/png", data=b"\x89PNG\x00\xff")),
        FileChunk(payload=FilePayload(media_type="image/png", url="https://example.org/a.png")),
        ModelFinish(payload=ModelFinishPayload(reason="stop", usage=Usage(input_tokens=3, cached_tokens=1))),
    ]
    model = ScriptedModel([Reasoning("hm"), "text", ToolCall("look", {"a": [1, None, {"b": "ü"}]})])
    chunks += [chunk async for chunk in model.stream(_request())]
    cache = StorageCache(InMemoryStorage())
    await cache.put("k", chunks, ttl=60)
    assert await cache.get("k") == chunks
    assert await cache.get("other") is None


async def test_a_storage_keeps_only_the_newest_answer_to_a_request() -> None:
    storage = InMemoryStorage()
    cache = StorageCache(storage)
    for text in ("one", "two", "three"):
        await cache.put("k", [chunk async for chunk in ScriptedModel(text).stream(_request())], ttl=60)
    (answer,) = await storage.list_events("response-cache:k")
    assert "three" in str(answer.data)
    assert await cache.get("k") is not None


def _request() -> Any:
    from diarist.messages import Prompt
    from diarist.models.base import ModelRequest

    return ModelRequest(prompt=Prompt(messages=[]))


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match="ResponseCache: ttl must be more than 0"):
        ResponseCache(ttl=0)
    with pytest.raises(ConfigError, match="InMemoryCache: max_bytes must be more than 0"):
        InMemoryCache(max_bytes=0)
