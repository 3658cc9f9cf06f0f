"""Spans of a run, as an application's exporter sees them. Without an exporter, no spans are made."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from diarist import Agent, ModelSettings, Processor, Usage, tool
from diarist.chunks import TextDelta
from diarist.exceptions import OutputError, ProcessorError
from diarist.processors.compose import Branch, Parallel, Sequence
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect
from tests.processors.test_compositions import acts


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def work(n: int) -> str:
    """Work."""
    if n < 0:
        raise ValueError("negative")
    return "done"


def tree(exporter: InMemorySpanExporter) -> list[str]:
    """Each span behind the names above it, in the order in which they began."""
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
    by_id = {span.context.span_id: span for span in spans if span.context}

    def path(span: ReadableSpan) -> str:
        return f"{path(by_id[span.parent.span_id])} > {span.name}" if span.parent else span.name

    return [path(span) for span in spans]


def attributes(exporter: InMemorySpanExporter, name: str) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in exporter.get_finished_spans() if span.name == name]


def failure(exporter: InMemorySpanExporter, name: str) -> tuple[str, Any, tuple[str, ...]]:
    """How the only span of this name ended: status, ``error.type``, and what was recorded."""
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    events = tuple(event.name for event in span.events)
    return span.status.status_code.name, dict(span.attributes or {}).get("error.type"), events


async def test_run_step_model_and_tool(exporter: InMemorySpanExporter) -> None:
    usage = Usage(input_tokens=10, output_tokens=3, cached_tokens=4)
    model = ScriptedModel(
        Reply(text="x", tool_calls=ToolCall("work", {"n": 1}), usage=usage), Reply(text="y", usage=usage)
    )
    agent = Agent(model=model, name="helper", tools=[work], model_settings=ModelSettings(temperature=0.5))
    result = await agent.generate("hi")
    run = "invoke_agent helper"
    assert tree(exporter) == [
        run,
        f"{run} > step 0",
        f"{run} > step 0 > chat model",
        f"{run} > step 0 > execute_tool work",
        f"{run} > step 1",
        f"{run} > step 1 > chat model",
    ]
    (whole,) = attributes(exporter, run)
    assert whole == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "helper",
        "diarist.run.id": result.run_id,
        "diarist.stopped_by": "answer",
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 6,
    }
    assert attributes(exporter, "chat model")[0] == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "model",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("tool-calls",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert attributes(exporter, "execute_tool work") == [
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "work", "gen_ai.tool.call.id": "call_1"}
    ]


async def test_what_was_approved_hangs_below_a_step_of_the_resumed_run(exporter: InMemorySpanExporter) -> None:
    approved = tool(name="work", needs_approval=True)(work)
    agent = Agent(model=ScriptedModel(ToolCall("work", {"n": 1}, id="w"), "done"), tools=[approved])
    waiting = await agent.generate("hi")
    exporter.clear()
    await agent.resume({"w": True}, of=waiting)
    run = "invoke_agent agent"
    assert tree(exporter) == [
        run,
        f"{run} > step 0",
        f"{run} > step 0 > execute_tool work",
        f"{run} > step 1",
        f"{run} > step 1 > chat model",
    ]


async def test_processors_one_span_per_hook_and_one_per_stream(exporter: InMemorySpanExporter) -> None:
    class Watch(Processor[Any]):
        description = "Looks on."

        def process_input_step(self, args: Any) -> Any:
            return {"tool_choice": "auto"}

        def process_output_step(self, args: Any) -> Any: ...

        def process_output_stream(self, args: Any) -> Any:
            return [args.part, args.part] if args.part.type == "text-delta" else args.part

    await Agent(model=ScriptedModel(["a", "b", "c"]), processors=[Watch()]).generate("hi")
    found = {span["diarist.processor.hook"]: span for span in attributes(exporter, "processor watch")[:-1]}
    assert list(found) == ["process_input_step", "process_output_step", "process_output_stream"]
    assert found["process_input_step"]["diarist.processor.returned"] == ("tool_choice",)
    assert found["process_input_step"]["diarist.processor.description"] == "Looks on."
    assert found["process_output_step"]["diarist.processor.returned"] == ()
    assert found["process_output_stream"]["diarist.stream.changed"] == 3
    assert found["process_output_stream"]["diarist.stream.chunks"] >= 5


async def test_processors_in_compositions_have_spans_too(exporter: InMemorySpanExporter) -> None:
    quiet = [acts(name, "process_output_stream", lambda args: None) for name in "abcd"]
    whole = Sequence(quiet[0], Parallel(quiet[1]), Branch((lambda args: True, quiet[2]), default=quiet[3]))
    await Agent(model=ScriptedModel("x"), output_processors=[whole]).generate("hi")
    names = [span.name for span in exporter.get_finished_spans()]
    assert [names.count(f"processor {name}") for name in "abcd"] == [2, 2, 2, 0], "the step, and the end of the run"


class Edits(Processor[Any]):
    """Changes everything where it stands, and returns nothing."""

    def process_input(self, args: Any) -> None:
        args.messages[0].parts[0].text += "!"

    def process_input_step(self, args: Any) -> None:
        args.message_list.add_system("Be kind.")

    def process_llm_request(self, args: Any) -> None:
        args.prompt.messages[-1].parts[0].text += "?"

    def process_output_stream(self, args: Any) -> Any:
        if isinstance(args.part, TextDelta):
            args.part.payload.text = args.part.payload.text.upper()
        return args.part

    def process_tool_call(self, args: Any) -> None:
        args.call.args["n"] = 2

    def process_tool_result(self, args: Any) -> None:
        args.call.result = "redacted"

    def process_output_step(self, args: Any) -> None:
        args.messages[-1].metadata["seen"] = True

    def process_output_result(self, args: Any) -> None: ...


async def test_what_a_hook_changed_in_place_is_named(exporter: InMemorySpanExporter) -> None:
    model = ScriptedModel(ToolCall("work", {"n": 1}), ["a", "b"])
    await Agent(model=model, tools=[work], processors=[Edits()]).generate("hi")
    found = attributes(exporter, "processor edits")
    changed = {
        span["diarist.processor.hook"]: span["diarist.processor.changed"]
        for span in found
        if "diarist.processor.changed" in span
    }
    assert changed == {
        "process_input": ("messages",),
        "process_input_step": ("system_messages",),
        "process_llm_request": ("prompt",),
        "process_tool_call": ("args",),
        "process_tool_result": ("result",),
        "process_output_step": ("messages",),
        "process_output_result": (),
    }
    streams = [span["diarist.stream.changed"] for span in found if "diarist.stream.changed" in span]
    assert streams == [0, 2, 0], "two steps, and the end of the run"


async def test_what_a_hook_returned_without_changing_anything_is_no_change(exporter: InMemorySpanExporter) -> None:
    same = acts("same", "process_input", lambda args: list(args.messages))
    await Agent(model=ScriptedModel("x"), input_processors=[same]).generate("hi")
    (span,) = attributes(exporter, "processor same")
    assert (span["diarist.processor.returned"], span["diarist.processor.changed"]) == (("list",), ())


async def test_a_streams_span_lasts_from_its_first_chunk_to_its_last(exporter: InMemorySpanExporter) -> None:
    quiet = acts("quiet", "process_output_stream", lambda args: args.part)
    await Agent(model=ScriptedModel(["a", "b"]), tools=[work], output_processors=[quiet]).generate("hi")
    step, end = sorted(
        (span for span in exporter.get_finished_spans() if span.name == "processor quiet"), key=lambda s: s.start_time
    )
    (chat,) = [span for span in exporter.get_finished_spans() if span.name == "chat model"]
    assert step.start_time <= chat.start_time
    assert step.end_time >= chat.end_time
    assert end.start_time >= step.end_time


async def test_work_at_the_end_of_the_run_hangs_below_the_run(exporter: InMemorySpanExporter) -> None:
    late = acts("late", "process_output_stream", lambda args: args.part)
    await Agent(model=ScriptedModel("x"), output_processors=[late]).generate("hi")
    paths = tree(exporter)
    assert paths.count("invoke_agent agent > step 0 > processor late") == 1
    assert paths[-1] == "invoke_agent agent > processor late"


async def test_guards_and_tools_hang_below_their_step(exporter: InMemorySpanExporter) -> None:
    guard = acts("guard", "process_input", lambda args: None, run_in_parallel=True)
    judge = acts("judge", "process_tool_result", lambda args: None)
    model = ScriptedModel(ToolCall("work", {"n": 1}), "y")
    await Agent(model=model, tools=[work], input_processors=[guard], output_processors=[judge]).generate("hi")
    paths = tree(exporter)
    assert "invoke_agent agent > processor guard" in paths
    assert "invoke_agent agent > step 0 > processor judge" in paths


async def test_errors_are_marked_where_they_happened(exporter: InMemorySpanExporter) -> None:
    def broken(args: Any) -> None:
        raise ValueError("broken")

    for hook in ("process_output_step", "process_output_stream"):
        exporter.clear()
        with pytest.raises(ProcessorError):
            await Agent(model=ScriptedModel("x"), processors=[acts("broken", hook, broken)]).generate("hi")
        for name in ("processor broken", "step 0", "invoke_agent agent"):
            assert failure(exporter, name) == ("ERROR", "ProcessorError", ("exception",))


async def test_a_failed_call_and_a_failed_tool_are_marked(exporter: InMemorySpanExporter) -> None:
    model = ScriptedModel(ToolCall("work", {"n": -1}), RuntimeError("down"))
    with pytest.raises(RuntimeError):
        await Agent(model=model, tools=[work]).generate("hi")
    assert failure(exporter, "execute_tool work") == ("ERROR", "tool_error", ("exception",))
    assert [span.get("error.type") for span in attributes(exporter, "chat model")] == [None, "RuntimeError"]
    assert failure(exporter, "invoke_agent agent") == ("ERROR", "RuntimeError", ("exception",))
    kinds = {span.kind.name for span in exporter.get_finished_spans() if span.name == "chat model"}
    assert kinds == {"CLIENT"}, "a model is a service that is called"


async def test_a_block_is_no_error_but_named(exporter: InMemorySpanExporter) -> None:
    await Agent(
        model=ScriptedModel("x"), processors=[acts("no", "process_output_step", lambda a: a.abort("no"))]
    ).generate("hi")
    assert {failure(exporter, name) for name in ("step 0", "invoke_agent agent")} == {("UNSET", None, ())}
    assert all("error.type" not in dict(span.attributes or {}) for span in exporter.get_finished_spans())
    (whole,) = attributes(exporter, "invoke_agent agent")
    assert (whole["diarist.stopped_by"], whole["diarist.tripwire.processor_id"]) == ("tripwire", "no")


async def test_spans_hold_no_texts_of_a_model(exporter: InMemorySpanExporter) -> None:
    model = ScriptedModel(ToolCall("work", {"n": "Mrs Moreno"}), '"Mrs Moreno"')
    with pytest.raises(OutputError):
        await Agent(model=model, tools=[work]).generate("hi", output_type=dict[str, int])
    assert failure(exporter, "execute_tool work") == ("ERROR", "tool_error", ("exception",))
    assert failure(exporter, "invoke_agent agent") == ("ERROR", "OutputError", ("exception",))
    assert "Moreno" not in "".join(span.to_json() for span in exporter.get_finished_spans())


async def test_a_run_cancelled_from_outside_has_its_end_and_its_usage(exporter: InMemorySpanExporter) -> None:
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        return await asyncio.Future()

    model = ScriptedModel(Reply(tool_calls=ToolCall("wait"), usage=Usage(input_tokens=3, output_tokens=2)))
    call = asyncio.create_task(Agent(model=model, tools=[wait]).generate("hi"))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (whole,) = attributes(exporter, "invoke_agent agent")
    assert (whole["diarist.stopped_by"], whole["gen_ai.usage.input_tokens"]) == ("cancelled", 3)


async def test_an_agent_in_a_tool_hangs_below_the_tool(exporter: InMemorySpanExporter) -> None:
    inner = Agent(model=ScriptedModel("inner"), name="inner")

    @tool
    async def ask() -> str:
        """Ask another."""
        return (await inner.generate("hi")).text

    async with asyncio.timeout(10):
        await collect(Agent(model=ScriptedModel(ToolCall("ask"), "done"), tools=[ask]).stream("hi"))
    assert "invoke_agent agent > step 0 > execute_tool ask > invoke_agent inner" in tree(exporter)


def test_nothing_is_recorded_and_nothing_loaded_without_an_sdk() -> None:
    code = (
        "import asyncio, sys\n"
        "from diarist import Agent\n"
        "from diarist.testing import ScriptedModel\n"
        "asyncio.run(Agent(model=ScriptedModel('x')).generate('hi'))\n"
        "from opentelemetry import trace\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]\n"
        "print(type(trace.get_current_span()).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "NonRecordingSpan"
