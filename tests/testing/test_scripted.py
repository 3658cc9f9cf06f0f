from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.chunks import Chunk, ModelFinish, ReasoningEnd, TextDelta, ToolCallChunk, Usage
from diarist.messages import Prompt, PromptMessage, TextPart
from diarist.models import ModelRequest
from diarist.testing import Reasoning, Reply, ScriptedModel, ScriptError, ToolCall
from diarist.tokens import default_counter


def ask(*texts: str) -> ModelRequest:
    messages = [PromptMessage(role="user", parts=[TextPart(text=text)]) for text in texts or ("Hi",)]
    return ModelRequest(prompt=Prompt(messages=messages))


async def read(model: ScriptedModel, request: ModelRequest | None = None) -> list[Chunk]:
    return [chunk async for chunk in model.stream(request or ask())]


def text(chunks: list[Chunk]) -> list[str]:
    return [chunk.payload.text for chunk in chunks if isinstance(chunk, TextDelta)]


def calls(chunks: list[Chunk]) -> list[tuple[str, str, Any]]:
    found = [chunk.payload for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    return [(call.tool_call_id, call.tool_name, call.args) for call in found]


def usage(chunks: list[Chunk]) -> Usage:
    last = chunks[-1]
    assert isinstance(last, ModelFinish)
    return last.payload.usage


def reason(chunks: list[Chunk]) -> str:
    last = chunks[-1]
    assert isinstance(last, ModelFinish)
    return last.payload.reason


async def test_replies_come_in_order() -> None:
    model = ScriptedModel("Hello!", ToolCall("get_weather", {"city": "Rome"}), "18 degrees.", RuntimeError("boom"))
    assert text(await read(model)) == ["Hello!"]
    called = await read(model)
    assert calls(called) == [("call_1", "get_weather", {"city": "Rome"})]
    assert reason(called) == "tool-calls"
    assert text(await read(model)) == ["18 degrees."]
    with pytest.raises(RuntimeError, match="boom"):
        await read(model)
    assert len(model.requests) == 4


async def test_a_list_is_one_reply_in_pieces() -> None:
    chunks = await read(ScriptedModel(["Hel", "lo!"]))
    assert [chunk.type for chunk in chunks] == ["text-start", "text-delta", "text-delta", "text-end", "model-finish"]
    assert text(chunks) == ["Hel", "lo!"]


async def test_pieces_of_all_kinds() -> None:
    chunks = await read(ScriptedModel([Reasoning("Hm.", "sig"), "One", ToolCall("f"), "two"]))
    assert [chunk.type for chunk in chunks] == [
        *("reasoning-start", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-end"),
        *("tool-call-input-streaming-start", "tool-call-delta", "tool-call"),
        *("text-start", "text-delta", "text-end", "model-finish"),
    ]
    (end,) = [chunk.payload for chunk in chunks if isinstance(chunk, ReasoningEnd)]
    assert (end.signature, end.provider) == ("sig", "scripted")


async def test_parallel_calls() -> None:
    chunks = await read(ScriptedModel((ToolCall("f", {"n": 1}), ToolCall("f", {"n": 2}, id="mine"))))
    assert calls(chunks) == [("call_1", "f", {"n": 1}), ("mine", "f", {"n": 2})]


@pytest.mark.parametrize("args", ["{", "[1]"])
async def test_arguments_that_are_no_object(args: str) -> None:
    (call,) = [c.payload for c in await read(ScriptedModel(ToolCall("f", args))) if isinstance(c, ToolCallChunk)]
    assert call.args == {}
    assert args in (call.args_error or "")


async def test_a_reply_in_full() -> None:
    wanted = Usage(input_tokens=7, output_tokens=1)
    reply = Reply(text=["a", "b"], reasoning="Hm.", tool_calls=ToolCall("f"), usage=wanted, finish_reason="length")
    chunks = await read(ScriptedModel(reply))
    assert text(chunks) == ["a", "b"]
    assert calls(chunks) == [("call_1", "f", {})]
    assert usage(chunks) == wanted
    assert reason(chunks) == "length"


async def test_an_error_inside_the_stream() -> None:
    stream = ScriptedModel(Reply(text="Hel", error_after=ConnectionError("gone"))).stream(ask())
    assert text([await anext(stream) for _ in range(3)]) == ["Hel"]
    with pytest.raises(ConnectionError, match="gone"):
        await anext(stream)


async def test_functions_see_the_request() -> None:
    async def later(request: ModelRequest) -> str:
        await asyncio.sleep(0)
        return request.text.upper()

    model = ScriptedModel(lambda request: ToolCall("f", {"asked": request.text}), later)
    assert calls(await read(model, ask("one")))[0][2] == {"asked": "[user]\none"}
    assert text(await read(model, ask("two"))) == ["[USER]\nTWO"]
    assert text(await read(model, ask("three"))) == ["[USER]\nTHREE"]  # the last one goes on for ever


async def test_a_function_may_raise_or_return_an_error() -> None:
    model = ScriptedModel(lambda request: ValueError("returned"))
    with pytest.raises(ValueError, match="returned"):
        await read(model)


async def test_running_out_is_told() -> None:
    model = ScriptedModel("only one")
    await read(model)
    with pytest.raises(ScriptError, match="request 2 arrived, but the script of 'scripted/model' has 1 reply;"):
        await read(model)
    with pytest.raises(ScriptError):
        await read(ScriptedModel())


async def test_a_reply_of_no_known_kind() -> None:
    with pytest.raises(ScriptError, match="not a reply: 42"):
        await read(ScriptedModel(42))  # type: ignore[arg-type]


async def test_requests_are_kept_as_they_were_sent() -> None:
    model = ScriptedModel("a", "b")
    request = ask("before")
    await read(model, request)
    request.prompt.messages[0].parts[0] = TextPart(text="after")
    assert model.requests[-1].text == "[user]\nbefore"


async def test_tokens_of_the_shared_prefix_are_cached() -> None:
    model = ScriptedModel(lambda request: "ok")
    first, second = ask("one " * 50), ask("one " * 50, "two")
    assert usage(await read(model, first)).cached_tokens == 0
    again = usage(await read(model, second))
    assert again.input_tokens == default_counter().count(second.text)
    assert again.cached_tokens == default_counter().count(first.text)


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_usage_adds_up(texts: list[str]) -> None:
    async def run() -> list[Usage]:
        model = ScriptedModel(lambda request: texts[0])
        return [usage(await read(model, ask(*texts[: n + 1]))) for n in range(len(texts))]

    for used in asyncio.run(run()):
        assert 0 <= used.cached_tokens <= used.input_tokens
        assert used.output_tokens == default_counter().count(texts[0])


async def test_it_can_be_cancelled_between_pieces() -> None:
    task = asyncio.create_task(read(ScriptedModel(["x"] * 1000)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
