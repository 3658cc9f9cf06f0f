"""What hooks write reaches the client: from every hook, as it is written, and before whatever ends the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diarist import Agent, DataChunk, Processor, tool
from diarist.chunks import Finish
from diarist.exceptions import BadRequestError
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import collect, types
from tests.processors.test_compositions import HOOKS, agent


def writes(hook: str, then: Any, **attributes: Any) -> Processor[Any]:
    """Writes in one hook, and does ``then(args)``."""

    def method(self: Any, args: Any) -> Any:
        if hook == "process_output_stream" and args.part.type != "text-delta":
            return args.part
        args.writer.custom(DataChunk("data-w", args.state.setdefault("n", 1)))
        return then(args)

    return type("Writes", (Processor,), {hook: method, "id": "writes", **attributes})()


def blocks(args: Any) -> None:
    args.abort("no")


def sends_back(args: Any) -> None:
    args.abort("no", retry=True)


def fails(args: Any) -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("hook", list(HOOKS))
@pytest.mark.parametrize(("then", "last"), [(blocks, "tripwire"), (sends_back, "tripwire"), (fails, "error")])
async def test_it_comes_before_what_ends_the_run(hook: str, then: Any, last: str) -> None:
    chunks = await collect(agent(writes(hook, then), hook=hook).stream("hi"))
    if (hook, then) == ("process_tool_result", sends_back):
        last = "error"  # the tool has run
    assert types(chunks)[-1] == last
    assert types(chunks)[-2] == "data-w"
    assert all(chunk.run_id == chunks[0].run_id for chunk in chunks)


async def test_it_comes_before_what_ends_the_run_at_its_last_chunk() -> None:
    class AtTheEnd(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            if isinstance(args.part, Finish):
                args.writer.custom(DataChunk("data-w"))
                args.abort("no")
            return args.part

    chunks = await collect(Agent(model=ScriptedModel("said"), processors=[AtTheEnd()]).stream("hi"))
    assert types(chunks)[-2:] == ["data-w", "tripwire"]


async def test_an_error_that_nobody_repairs_comes_after_it() -> None:
    broken = Agent(
        model=ScriptedModel(BadRequestError("down")), processors=[writes("process_api_error", lambda a: None)]
    )
    assert types(await collect(broken.stream("hi")))[-2:] == ["data-w", "error"]


async def test_before_a_retry_is_waited_for() -> None:
    """The chunk is there while the run still waits: the wait is long, and is broken off."""
    retry = writes("process_api_error", lambda args: {"retry": True, "delay": 3600})
    async with Agent(model=ScriptedModel(BadRequestError("down"), "said"), processors=[retry]).stream("hi") as stream:
        async for chunk in stream:
            if chunk.type == "data-w":
                return
    pytest.fail("the chunk never came")


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in ("process_output_stream",)])
async def test_while_the_hook_still_works(hook: str) -> None:
    """The hook goes on only when the client has its chunk."""
    seen = asyncio.Event()

    async def method(self: Any, args: Any) -> Any:
        args.writer.custom(DataChunk("data-w", transient=True))
        await seen.wait()
        return {"retry": True} if hook == "process_api_error" else None

    waits = type("Waits", (Processor,), {hook: method})()
    async with agent(waits, hook=hook).stream("hi") as stream:
        async for chunk in stream:
            if chunk.type == "data-w":
                seen.set()
        assert (await stream.result()).text == "said"


@pytest.mark.parametrize("hook", ["process_input", "process_llm_request", "process_llm_response", "process_api_error"])
async def test_it_is_stored_with_the_answer(hook: str) -> None:
    """Once, also where the attempt after it is sent back."""

    class Again(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            if args.retry_count == 0:
                args.abort("again", retry=True)

    note = writes(hook, lambda args: {"retry": True} if hook == "process_api_error" else None)
    model = ScriptedModel(*([BadRequestError("down")] if hook == "process_api_error" else []), "bad", "good", "end")
    both = Agent(model=model, processors=[note, Again()], max_processor_retries=1)
    chunks = await collect(both.stream("hi"))
    message = next(chunk for chunk in chunks if isinstance(chunk, Finish)).payload.messages[-1]
    assert [part.type for part in message.parts].count("data-w") == 1
    assert message.text == "good"


async def test_it_passes_the_stream_hooks() -> None:
    class Hides(Processor[Any]):
        process_data_parts = True

        def process_output_stream(self, args: Any) -> Any:
            return None if args.part.type == "data-w" else args.part

    blocked = writes("process_input", lambda args: args.abort("no"))
    chunks = await collect(Agent(model=ScriptedModel("x"), processors=[blocked, Hides()]).stream("hi"))
    assert types(chunks) == ["start", "tripwire"]


async def test_it_is_held_until_the_guards_beside_the_model_have_passed() -> None:
    class Guard(Processor[Any]):
        run_in_parallel = True

        def process_input(self, args: Any) -> None:
            args.abort("no")

    note = writes("process_input", lambda args: None)
    chunks = await collect(Agent(model=ScriptedModel("x"), processors=[note, Guard()]).stream("hi"))
    assert types(chunks) == ["start", "tripwire"]


async def test_a_resumed_run_stores_it_with_the_answer() -> None:
    async def send(to: str) -> str:
        """Send."""
        return f"sent to {to}"

    note = writes("process_input", lambda args: None)
    mailer = Agent(
        model=ScriptedModel(ToolCall("send", {"to": "Ada"}), "done"),
        tools=[tool(needs_approval=True)(send)],
        processors=[note],
    )
    first = await mailer.generate("hi")
    second = await mailer.resume({first.pending[0].call_id: True}, of=first, input="go on")
    kinds = [(message.role, [part.type for part in message.parts]) for message in second.messages]
    assert kinds == [("tool", ["tool"]), ("assistant", ["data-w", "text"])]
