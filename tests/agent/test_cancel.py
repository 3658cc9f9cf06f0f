"""Cancelling a run: by its task, by a signal, at every stage."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, AgentResult, CancelSignal, Memory, Message, ObservationalMemoryConfig, Processor, Tool
from diarist.chunks import AbortChunk, Chunk, ErrorChunk, Finish
from diarist.exceptions import DiaristError, ProcessorError
from diarist.models.base import ModelRequest
from diarist.processors import ProcessInputArgs, ProcessOutputStreamArgs
from diarist.storage import SQLiteStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import RecordingMemory, collect, types


class Stage:
    """Something that hangs, and says when it has begun and when it was stopped."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.stopped = False

    async def hang(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise


def agent_that_hangs(where: str, stage: Stage, memory: RecordingMemory) -> Agent:
    async def step_hook(self: Any, args: Any) -> None:
        if args.step_number == 1:
            await stage.hang()

    async def result_hook(self: Any, args: Any) -> None:
        await stage.hang()

    async def answer(request: ModelRequest) -> str:
        if where == "model":
            await stage.hang()
        return "answer"

    async def work() -> str:
        """Work."""
        if where == "tool":
            await stage.hang()
        return "done"

    hooks = {"process_input_step": step_hook, "process_output_result": result_hook}
    processors = [type("Hanging", (Processor,), {where: hooks[where]})()] if where in hooks else []
    script = [["first", ToolCall("work")], answer] if where != "tool" else [["first", *[ToolCall("work")] * 3]]
    return Agent(
        model=ScriptedModel(*script),  # pyright: ignore[reportArgumentType]
        tools=[work],
        memory=memory,
        input_processors=processors,
        output_processors=processors,
    )


STAGES = ["process_input_step", "model", "tool", "process_output_result"]


@pytest.mark.parametrize("where", STAGES)
async def test_a_signal_ends_the_run_and_keeps_its_finished_steps(where: str) -> None:
    stage, memory, signal = Stage(), RecordingMemory(), CancelSignal()
    before = asyncio.all_tasks()
    run = asyncio.create_task(agent_that_hangs(where, stage, memory).generate("hi", thread="t", cancel=signal))
    await stage.begun.wait()
    signal.cancel("enough")
    result = await run
    assert stage.stopped
    assert (result.stopped_by, result.finish_reason) == ("cancelled", "other")
    assert [m.text for m in result.messages] == ["first"]
    assert memory.outcomes == ["interrupted"]
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("where", STAGES)
async def test_cancelling_the_task_is_passed_on(where: str) -> None:
    stage, memory = Stage(), RecordingMemory()
    before = asyncio.all_tasks()
    run = asyncio.create_task(agent_that_hangs(where, stage, memory).generate("hi", thread="t"))
    await stage.begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert stage.stopped
    assert memory.outcomes == ["interrupted"]
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("where", STAGES)
async def test_a_cancelled_stream_ends_with_an_abort_chunk(where: str) -> None:
    stage, memory, signal = Stage(), RecordingMemory(), CancelSignal()

    async def cancel() -> None:
        await stage.begun.wait()
        signal.cancel("enough")

    canceller = asyncio.create_task(cancel())
    async with agent_that_hangs(where, stage, memory).stream("hi", thread="t", cancel=signal) as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    await canceller
    last = chunks[-1]
    assert isinstance(last, AbortChunk)
    assert (last.payload.reason, last.run_id) == ("enough", result.run_id)
    assert types(chunks).count("abort") == 1
    assert result.stopped_by == "cancelled"


class Tools:
    """Two tools: one is quick, one hangs until it is cancelled; and a run that is cancelled once both have begun."""

    def __init__(self, memory: Memory | None = None, **more: Any) -> None:
        self.stage, self.quick_done, self.memory = Stage(), asyncio.Event(), memory
        calls = [ToolCall("hang", id="h"), ToolCall("quick", id="q"), ToolCall("waits", id="w")]
        self.model = ScriptedModel(["Working.", *calls], "going on")
        waits = Tool(name="waits", function=lambda: "approved", needs_approval=True)
        self.agent = Agent(model=self.model, tools=[self.hang, self.quick, waits], memory=memory, **more)

    async def hang(self) -> None:
        """Hang."""
        await self.stage.hang()

    async def quick(self) -> str:
        """Be quick."""
        self.quick_done.set()
        return "done"

    async def cancel(self, how: str) -> AgentResult[Any] | None:
        """Cancel a run of the thread "t" in this way; its result, where there is one."""
        signal = CancelSignal()
        if how == "leave the stream":
            async with self.agent.stream("hi", thread="t", cancel=signal) as stream:
                async for chunk in stream:
                    if chunk.type == "tool-result":
                        break
                await self.stage.begun.wait()
            return await stream.result()
        run = asyncio.create_task(
            collect(self.agent.stream("hi", thread="t", cancel=signal))
            if how == "signal, streamed"
            else self.agent.generate("hi", thread="t", cancel=signal)
        )
        await self.stage.begun.wait()
        await self.quick_done.wait()
        for _ in range(20):
            await asyncio.sleep(0)  # let its result be judged
        if how == "task":
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            return None
        signal.cancel("enough")
        answer = await run
        return answer if isinstance(answer, AgentResult) else None


HOW = ["signal", "signal, streamed", "task", "leave the stream"]

KEPT = [("h", "error", "cancelled"), ("q", "result", "done"), ("w", "error", "cancelled")]


def ends(messages: list[Message]) -> list[tuple[str, str, Any]]:
    return [(part.call_id, part.state, part.result) for message in messages for part in message.tool_parts]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("observational", [False, ObservationalMemoryConfig(model="extractive")])
async def test_results_of_tools_that_had_finished_are_kept(tmp_path: Path, how: str, observational: Any) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    memory = Memory(storage=storage, observational_memory=observational)
    tools = Tools(memory)
    result = await tools.cancel(how)
    if result is not None:
        assert (result.stopped_by, result.pending, ends(result.messages)) == ("cancelled", [], KEPT)
        assert [(step.text, step.finish_reason) for step in result.steps] == [("Working.", "tool-calls")]
        assert result.usage == result.steps[0].usage
    rows = await memory.messages.list(thread="t")
    assert [(row.role, row.text) for row in rows] == [("user", "hi"), ("assistant", "Working.")]
    assert ends(rows) == KEPT
    assert (await tools.agent.generate("and now?", thread="t")).text == "going on"
    prompt = tools.model.requests[-1].prompt.messages
    assert [message.role for message in prompt] == ["user", "assistant", "tool", "user"]
    await memory.close()


class Judge(Processor[Any]):
    def process_output_result(self, args: Any) -> None: ...


class Holds(Processor[Any]):
    hold_output = True


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("guard", [Judge, Holds])
async def test_unjudged_output_is_not_kept(tmp_path: Path, how: str, guard: type[Processor[Any]]) -> None:
    memory = Memory(storage=SQLiteStorage(tmp_path / "memory.db"))
    result = await Tools(memory, processors=[guard()]).cancel(how)
    if result is not None:
        assert (result.stopped_by, result.steps, result.messages) == ("cancelled", [], [])
    assert [row.text for row in await memory.messages.list(thread="t")] == ["hi"]
    await memory.close()


async def test_a_result_that_a_processor_was_still_judging_counts_as_cancelled() -> None:
    class Judges(Processor[Any]):
        async def process_tool_result(self, args: Any) -> None:
            if args.call.name == "quick":
                await asyncio.Event().wait()

    result = await Tools(processors=[Judges()]).cancel("signal")
    assert result is not None
    assert [end[1:] for end in ends(result.messages)] == [("error", "cancelled")] * 3


@pytest.mark.parametrize("uncancels", [False, True])
async def test_no_model_is_called_after_a_signal_that_a_hook_has_swallowed(uncancels: bool) -> None:
    class Stubborn(Processor[Any]):
        async def process_output_stream(self, args: Any) -> Any:
            if args.part.type == "step-finish":
                args.cancel.cancel("enough")
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                if uncancels:
                    current_task().uncancel()
            return args.part

    model = ScriptedModel(ToolCall("look"), "never")
    agent = Agent(model=model, tools=[Tool(name="look", function=lambda: "x")], processors=[Stubborn()])
    result = await agent.generate("hi", cancel=CancelSignal())
    assert (result.stopped_by, len(result.steps), len(model.requests)) == ("cancelled", 1, 1)
    assert current_task().cancelling() == 0, "the caller's task is not cancelled"


def current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_a_signal_given_before_the_call() -> None:
    model, memory, signal = ScriptedModel("never"), RecordingMemory(), CancelSignal()
    signal.cancel()
    result = await Agent(model=model, memory=memory).generate("hi", thread="t", cancel=signal)
    assert (result.stopped_by, model.requests) == ("cancelled", [])
    assert current_task().cancelling() == 0, "the caller's task is not cancelled"
    await asyncio.sleep(0)  # and nothing of it is left to come


async def test_a_signal_while_a_hook_judges_the_error() -> None:
    stage, signal = Stage(), CancelSignal()

    class Judge(Processor[Any]):
        async def process_output_stream(self, args: Any) -> Any:
            if isinstance(args.part, ErrorChunk):
                await stage.hang()
            return args.part

    agent = Agent(model=ScriptedModel(ValueError("broken")), output_processors=[Judge()])
    run = asyncio.create_task(agent.generate("hi", cancel=signal))
    await stage.begun.wait()
    signal.cancel()
    with pytest.raises(ValueError, match="broken"):
        await run
    assert stage.stopped


async def test_a_signal_after_the_run_changes_nothing() -> None:
    signal = CancelSignal()
    result = await Agent(model=ScriptedModel("ok")).generate("hi", cancel=signal)
    signal.cancel()
    await asyncio.sleep(0)
    assert result.stopped_by == "answer"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_signal_given_by_a_callback_that_hears_of_the_end(is_async: bool, streamed: bool) -> None:
    signal = CancelSignal()

    async def later(result: Any) -> None:
        signal.cancel()
        await asyncio.sleep(0)
        told.append(result.stopped_by)

    def at_once(result: Any) -> None:
        signal.cancel()
        told.append(result.stopped_by)

    told: list[str] = []
    agent, call = Agent(model=ScriptedModel("ok")), {"cancel": signal, "on_finish": later if is_async else at_once}
    run = agent.stream("hi", **call).result() if streamed else agent.generate("hi", **call)  # pyright: ignore
    assert ((await run).stopped_by, told) == ("answer", ["answer"])
    await not_cancelled()


@pytest.mark.parametrize("memory", [None, RecordingMemory()])
async def test_a_signal_at_the_very_end_of_a_run_stays_within_it(memory: Any) -> None:
    class Last(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            if args.part.type == "finish":
                args.cancel.cancel()
            return args.part

    agent = Agent(model=ScriptedModel("ok"), processors=[Last()], memory=memory)
    result = await agent.generate("hi", thread="t", cancel=CancelSignal())
    assert result.stopped_by == "answer"
    await not_cancelled()


async def not_cancelled() -> None:
    """The caller's own task goes on."""
    assert current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_one_signal_for_several_runs() -> None:
    signal, begun = CancelSignal(), [asyncio.Event() for _ in range(3)]

    async def run(i: int) -> str:
        async def answer(request: ModelRequest) -> str:
            begun[i].set()
            await asyncio.Event().wait()
            return "never"

        return (await Agent(model=ScriptedModel(answer)).generate("hi", cancel=signal)).stopped_by

    runs = [asyncio.create_task(run(i)) for i in range(3)]
    for event in begun:
        await event.wait()
    signal.cancel()
    assert await asyncio.gather(*runs) == ["cancelled"] * 3


def test_a_signal_from_another_thread() -> None:
    signal, begun = CancelSignal(), threading.Event()

    async def answer(request: ModelRequest) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    def cancel() -> None:
        begun.wait()
        signal.cancel("from outside")

    thread = threading.Thread(target=cancel)
    thread.start()
    result = Agent(model=ScriptedModel(answer)).generate_sync("hi", cancel=signal)
    thread.join()
    assert result.stopped_by == "cancelled"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_a_signal_from_a_signal_handler() -> None:
    cancel, begun, handled = CancelSignal(), threading.Event(), threading.Event()
    main_thread = threading.get_ident()

    async def answer(request: ModelRequest) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    def handle(*_: object) -> None:
        cancel.cancel("by a signal handler")
        handled.set()

    def terminate() -> None:
        begun.wait()
        while not handled.wait(0.05):  # Python may miss a signal that comes just before the loop waits
            signal.pthread_kill(main_thread, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=terminate)
    thread.start()
    try:
        result = asyncio.run(Agent(model=ScriptedModel(answer)).generate("hi", cancel=cancel))
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert result.stopped_by == "cancelled"


@pytest.mark.parametrize("by", ["signal", "task"])
async def test_a_cancellation_during_the_commit_comes_too_late_to_cut_it(by: str) -> None:
    steps: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Storage(Processor[Any]):
        def process_input(self, args: Any) -> None:
            async def end(outcome: str) -> None:
                steps.append(f"begin {outcome}")
                begun.set()
                await go_on.wait()
                steps.append("end")

            args.context.on_end(end)

    signal = CancelSignal()
    agent = Agent(model=ScriptedModel("ok"), input_processors=[Storage()])
    run = asyncio.create_task(agent.generate("hi", cancel=signal))
    await begun.wait()
    if by == "signal":
        signal.cancel()
    else:
        run.cancel()
    await asyncio.sleep(0)
    go_on.set()
    if by == "signal":
        assert (await run).stopped_by == "answer"
    else:
        with pytest.raises(asyncio.CancelledError):
            await run
    assert steps == ["begin committed", "end"]


async def test_a_second_cancellation_does_not_cut_the_clean_up() -> None:
    steps: list[str] = []
    begun, ending, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Storage(Processor[Any]):
        def process_input(self, args: Any) -> None:
            async def end(outcome: str) -> None:
                ending.set()
                await go_on.wait()
                steps.append(outcome)

            args.context.on_end(end)

    async def answer(request: ModelRequest) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    signal = CancelSignal()
    run = asyncio.create_task(
        Agent(model=ScriptedModel(answer), input_processors=[Storage()]).generate("hi", cancel=signal)
    )
    await begun.wait()
    signal.cancel()
    await ending.wait()
    run.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert steps == ["interrupted"]


async def test_a_time_limit_around_a_run() -> None:
    stage, memory = Stage(), RecordingMemory()

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            begun = asyncio.create_task(stage.begun.wait())
            begun.add_done_callback(lambda _: limit.reschedule(0))
            await agent_that_hangs("model", stage, memory).generate("hi", thread="t")

    with pytest.raises(TimeoutError):
        await limited()
    assert memory.outcomes == ["interrupted"]


async def test_a_processor_can_look_at_the_signal() -> None:
    seen: list[bool] = []

    class Look(Processor[Any]):
        def process_input(self, args: Any) -> None:
            seen.append(args.cancel is signal)

    signal = CancelSignal()
    await Agent(model=ScriptedModel("ok"), input_processors=[Look()]).generate("hi", cancel=signal)
    assert seen == [True]


# -- a CancelledError that nobody meant for this run is a failure, not a cancellation


async def wait_for_something_cancelled() -> None:
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    await other


async def test_a_tool_that_waits_for_something_cancelled() -> None:
    async def work() -> None:
        """Work."""
        await wait_for_something_cancelled()

    result = await Agent(model=ScriptedModel(ToolCall("work"), "sorry"), tools=[work]).generate("hi")
    assert (result.text, result.messages[0].tool_parts[0].state) == ("sorry", "error")
    assert "CancelledError" in result.messages[0].tool_parts[0].result


async def test_a_processor_that_waits_for_something_cancelled() -> None:
    class Waits(Processor[Any]):
        async def process_input_step(self, args: Any) -> None:
            await wait_for_something_cancelled()

    memory = RecordingMemory()
    with pytest.raises(ProcessorError, match="'waits' failed in process_input_step at step 0: CancelledError"):
        await Agent(model=ScriptedModel("ok"), input_processors=[Waits()], memory=memory).generate("hi", thread="t")
    assert memory.outcomes == ["interrupted"]


async def test_a_model_that_waits_for_something_cancelled() -> None:
    async def answer(request: ModelRequest) -> str:
        await wait_for_something_cancelled()
        return "never"

    with pytest.raises(DiaristError, match="was cancelled, but the run itself was not"):
        await Agent(model=ScriptedModel(answer)).generate("hi")


async def test_a_signal_reaches_a_run_after_a_nested_agent_used_it() -> None:
    signal = CancelSignal()
    inner = Agent(model=ScriptedModel(lambda _: "fine"))

    class Classifies(Processor[Any]):
        async def process_input(self, args: ProcessInputArgs[Any]) -> None:
            await inner.generate("is this fine?", cancel=args.cancel)

    async def late(_: Any) -> str:
        signal.cancel("enough")
        await asyncio.Event().wait()
        return "never"

    agent = Agent(model=ScriptedModel(late), input_processors=[Classifies()])
    result = await asyncio.wait_for(agent.generate("hi", cancel=signal), 30)
    assert result.stopped_by == "cancelled"


async def test_a_signal_inside_the_inner_run_ends_the_outer_one_too() -> None:
    signal = CancelSignal()

    async def stuck(_: Any) -> str:
        signal.cancel("enough")
        await asyncio.Event().wait()
        return "never"

    inner = Agent(model=ScriptedModel(stuck))

    class Classifies(Processor[Any]):
        async def process_input(self, args: ProcessInputArgs[Any]) -> None:
            await inner.generate("is this fine?", cancel=args.cancel)

    agent = Agent(model=ScriptedModel(lambda _: "answer"), input_processors=[Classifies()])
    result = await asyncio.wait_for(agent.generate("hi", cancel=signal), 30)
    assert result.stopped_by == "cancelled"


def test_a_signal_shows_its_state() -> None:
    signal = CancelSignal()
    assert repr(signal) == "CancelSignal(cancelled=False, reason='')"
    signal.cancel("enough")
    assert repr(signal) == "CancelSignal(cancelled=True, reason='enough')"


async def test_a_run_cancelled_at_its_very_end_has_no_output() -> None:
    class CancelAtFinish(Processor[Any]):
        id = "cancel-at-finish"

        async def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Chunk:
            if isinstance(args.part, Finish):
                args.context.cancel.cancel()
                await asyncio.sleep(0)
            return args.part

    agent = Agent(model=ScriptedModel('{"a": 1}'), processors=[CancelAtFinish()])
    async with agent.stream("go", output_type=dict[str, int]) as stream:
        result = await stream.result()
    assert result.stopped_by == "cancelled"
    assert result.output is None
    assert not result.has_output
