"""Guards of the input that run beside the first model call: until they passed, nothing happens for others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, DataChunk, Memory, Message, Processor
from diarist.exceptions import ConfigError, ProcessorError, ProcessorResultError
from diarist.models.base import ModelRequest
from diarist.processors.compose import Branch, Parallel, Sequence
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import collect, run_both, streamed_text, types


class Guard(Processor[Any]):
    """Waits for ``gate``, then does what it was told."""

    run_in_parallel = True

    def __init__(self, do: Any = None, gate: asyncio.Event | None = None, id: str = "guard") -> None:
        self.id = id
        self._do = do
        self._gate = gate
        self.seen: list[str] = []
        self.cancelled = False

    async def process_input(self, args: Any) -> Any:
        self.seen.append(" ".join(message.text for message in args.messages))
        try:
            if self._gate is not None:
                await self._gate.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self._do(args) if self._do else None


def block(args: Any) -> None:
    args.abort("not that", metadata={"rule": 1})


class Writes(Processor[Any]):
    """Writes to the client wherever it can."""

    def process_input(self, args: Any) -> None:
        args.writer.custom(DataChunk("data-a", transient=True))

    def process_input_step(self, args: Any) -> None:
        args.writer.custom(DataChunk("data-b", transient=True))

    def process_llm_request(self, args: Any) -> None:
        args.writer.custom(DataChunk("data-c"))


@pytest.mark.parametrize("hold", [False, True])
async def test_nothing_gets_out_before_the_guard_has_passed(hold: bool) -> None:
    gate, model_done, ran = asyncio.Event(), asyncio.Event(), []

    async def answer(request: ModelRequest) -> Any:
        asyncio.get_running_loop().call_soon(model_done.set)
        return ["Working.", ToolCall("work")] if request.prompt.messages[-1].role == "user" else "done"

    def work() -> str:
        """Work."""
        assert gate.is_set(), "the tool ran before the guard had passed"
        ran.append(1)
        return "worked"

    class Holds(Processor[Any]):
        hold_output = hold

        def process_output_step(self, args: Any) -> None: ...

    agent = Agent(
        model=ScriptedModel(answer),
        tools=[work],
        input_processors=[Guard(gate=gate), Writes()],
        output_processors=[Holds()],
    )
    seen: list[str] = []
    async with agent.stream("hi") as stream:

        async def read() -> None:
            async for chunk in stream:
                seen.append(chunk.type)

        reading = asyncio.create_task(read())
        await model_done.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert seen == ["start"]
        gate.set()
        await reading
        result = await stream.result()
    assert (result.text, ran) == ("done", [1])
    assert seen[:3] == ["start", "data-a", "data-b"]
    assert seen[3:5] == (["step-start", "data-c"] if hold else ["data-c", "step-start"])
    assert seen[-1] == "finish"


async def test_a_guard_that_passes_early_lets_the_stream_flow() -> None:
    """The rest of the answer is not waited for."""
    more = asyncio.Event()

    class Slow(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            async for chunk in super().stream(request):
                yield chunk
                if chunk.type == "text-delta" and chunk.payload.text == "first":  # type: ignore[union-attr]
                    await more.wait()

    agent = Agent(model=Slow(["first", "second"]), input_processors=[Guard()])
    texts: list[str] = []
    async with agent.stream("hi") as stream:
        async for text in stream.text():
            texts.append(text)
            more.set()
    assert texts == ["first", "second"]


async def test_an_early_block_cancels_the_model_call() -> None:
    begun, cancelled, gate = asyncio.Event(), [], asyncio.Event()

    async def answer(request: ModelRequest) -> str:
        begun.set()
        gate.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "never"

    agent = Agent(model=ScriptedModel(answer), input_processors=[Guard(block, gate=gate)])
    chunks = await collect(agent.stream("hi"))
    assert types(chunks) == ["start", "tripwire"]
    assert cancelled == [True]


async def test_a_late_block_leaves_nothing(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    ran: list[int] = []

    def work() -> str:
        """Work."""
        ran.append(1)
        return "worked"

    def make() -> Agent:
        gate = asyncio.Event()

        class Opens(Processor[Any]):
            def process_llm_response(self, args: Any) -> None:
                asyncio.get_running_loop().call_later(0, gate.set)

        return Agent(
            model=ScriptedModel(["secret", ToolCall("work")]),
            tools=[work],
            memory=Memory(storage=storage),
            input_processors=[Guard(block, gate=gate), Opens()],
        )

    result, chunks = await run_both(make, thread="t")
    assert types(chunks) == ["start", "tripwire"]
    assert result.tripwire is not None
    assert (result.tripwire.hook, result.tripwire.processor_id) == ("process_input", "guard")
    assert (result.text, result.messages, ran) == ("", [], [])
    assert await storage.get_thread("t") is None
    await storage.close()


async def test_a_guard_that_asks_for_a_retry_blocks_at_once() -> None:
    """There is nothing to repeat: the input would be the same."""
    models: list[ScriptedModel] = []

    def make() -> Agent:
        models.append(ScriptedModel(lambda request: "ok"))
        guard = Guard(lambda args: args.abort("no", retry=True))
        return Agent(model=models[-1], input_processors=[guard], max_processor_retries=3)

    result, _ = await run_both(make)
    assert result.tripwire is not None
    assert (result.stopped_by, result.tripwire.retry, result.rejected) == ("tripwire", True, [])
    assert all(len(model.requests) <= 1 for model in models)


async def test_the_first_guard_that_blocks_cancels_the_others() -> None:
    waits = Guard(gate=asyncio.Event(), id="waits")
    agent = Agent(model=ScriptedModel("x"), input_processors=[waits, Guard(block)])
    result = await agent.generate("hi")
    assert result.stopped_by == "tripwire"
    assert waits.cancelled or waits.seen == []


async def test_a_guard_sees_the_input_as_the_caller_gave_it() -> None:
    class Edits(Processor[Any]):
        def process_input(self, args: Any) -> list[Message]:
            return [Message.user("edited")]

    guard = Guard()
    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[Edits(), guard]).generate("original")
    assert guard.seen == ["original"]
    assert "edited" in model.requests[0].text


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_guard_that_edits_is_told_that_it_cannot(in_place: bool) -> None:
    def edit(args: Any) -> Any:
        if in_place:
            args.messages[0].parts[0].text = "edited"
            return None
        return [Message.user("edited")]

    with pytest.raises(ProcessorResultError, match=r"'guard'.*process_input.*run_in_parallel"):
        await Agent(model=ScriptedModel("ok"), input_processors=[Guard(edit)]).generate("hi")


async def test_a_guard_that_fails_ends_the_run_and_nothing_gets_out() -> None:
    def broken(args: Any) -> None:
        raise ValueError("broken")

    agent = Agent(model=ScriptedModel("secret"), input_processors=[Guard(broken)])
    chunks = await collect(agent.stream("hi"))
    assert types(chunks) == ["start", "error"]
    with pytest.raises(ProcessorError, match="'guard' failed in process_input"):
        await Agent(model=ScriptedModel("secret"), input_processors=[Guard(broken)]).generate("hi")
    open_guard = Guard(broken)
    open_guard.on_error = "continue"
    assert (await Agent(model=ScriptedModel("ok"), input_processors=[open_guard]).generate("hi")).text == "ok"


async def test_a_block_counts_before_the_models_own_failure() -> None:
    """Whose input is refused is not told of the provider's troubles, and nothing of it is kept."""
    gate = asyncio.Event()

    def answer(request: ModelRequest) -> Any:
        asyncio.get_running_loop().call_later(0, gate.set)
        return RuntimeError("down")

    result = await Agent(model=ScriptedModel(answer), input_processors=[Guard(block, gate=gate)]).generate("hi")
    assert result.stopped_by == "tripwire"


async def test_guards_are_asked_once_also_where_the_step_is_repeated() -> None:
    guard = Guard()

    class Judge(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            if args.retry_count == 0:
                args.abort("again", retry=True)

    agent = Agent(
        model=ScriptedModel("a", "b"), input_processors=[guard], output_processors=[Judge()], max_processor_retries=1
    )
    chunks = await collect(agent.stream("hi"))
    assert guard.seen == ["hi"]
    assert streamed_text(chunks) == "ab"


async def test_cancelling_the_run_ends_its_guards() -> None:
    guard = Guard(gate=asyncio.Event())
    async with Agent(model=ScriptedModel("x"), input_processors=[guard]).stream("hi") as stream:
        assert (await anext(stream)).type == "start"
        for _ in range(20):
            await asyncio.sleep(0)
    assert guard.cancelled


@pytest.mark.parametrize("made", [Sequence, Parallel, lambda a, b: Branch((lambda args: True, Sequence(a, b)))])
async def test_guards_in_a_composition_run_beside_the_model_too(made: Any) -> None:
    asked = asyncio.Event()

    def answer(request: ModelRequest) -> str:
        asked.set()
        return "ok"

    def guards(do: Any) -> Any:
        return made(Guard(gate=asked, id="a"), Guard(do, gate=asked, id="b"))

    async with asyncio.timeout(10):
        result = await Agent(model=ScriptedModel(answer), input_processors=[guards(None)]).generate("hi")
        assert result.text == "ok"
        blocked, chunks = await run_both(
            lambda: Agent(model=ScriptedModel(answer), input_processors=[guards(block)]), "hi"
        )
    assert blocked.tripwire is not None
    assert blocked.tripwire.processor_id == "b"
    assert types(chunks) == ["start", "tripwire"]


class Observes(Processor[Any]):
    def process_output_step(self, args: Any) -> None: ...


class Cleans(Processor[Any]):
    def process_input(self, args: Any) -> None: ...


class Opens(Cleans):
    opens_run = True


def test_a_part_that_runs_at_another_time_than_its_composition_is_refused() -> None:
    assert Sequence(Guard(), Observes()).run_in_parallel, "the other part has no process_input"
    with pytest.raises(ConfigError, match=r"sequence\(guard,cleans\).*'guard' has run_in_parallel.*'cleans'"):
        Sequence(Guard(), Cleans())
    with pytest.raises(ConfigError, match=r"branch\(cleans,guard\).*'guard'"):
        Branch((bool, Cleans()), default=Guard())
    with pytest.raises(ConfigError, match=r"parallel\(opens\).*'opens' has opens_run.*put the part itself"):
        Parallel(Opens())
