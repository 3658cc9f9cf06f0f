"""Every hook, streamed and not, with every outcome, at the first step and after a tool step, in every place.

The cases are generated (``cases.py``), and what has to come out of each is told by an oracle of its own
(``oracle.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from diarist import Agent, AgentResult, Memory, Usage
from diarist.chunks import Chunk
from diarist.storage import SQLiteStorage
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import reasons, streamed_text
from tests.matrix.cases import RETRIES, Actor, Case, cells, impossible, placed, said
from tests.matrix.oracle import Expected, expected, uses_tool

CASES, LEFT_OUT = cells()
USAGE = Usage(input_tokens=10, output_tokens=3)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> SQLiteStorage:
    """One database for all cases, each with a thread of its own."""
    folder: Path = tmp_path_factory.mktemp("matrix")
    return SQLiteStorage(folder / "memory.db")


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.get_empty())  # others are looked for in threads
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


@dataclass
class Outcome:
    """What came out of a run."""

    result: AgentResult[Any] | None = None
    error: Exception | None = None
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    tools: list[str] = field(default_factory=list[str])


def scripted(case: Case) -> ScriptedModel:
    """Calls the tool at each step but the last; at the step in question the call may fail, after some text."""
    failures = 0

    def answer(request: Any) -> Reply:
        nonlocal failures
        step = sum(1 for message in request.prompt if message.role == "tool")
        fails_always = case.does in ("provider error", "no change", "foreign result", "exception", "abort")
        fails = case.does == "provider error" or case.hook == "process_api_error"
        if step == case.step and fails and (fails_always or case.does == "retries used up" or failures == 0):
            failures += 1
            return Reply(text=said(step), error_after=RuntimeError("provider down"))
        calls = [ToolCall("weather", {"city": "Rome"})] if uses_tool(case, step) else []
        return Reply(text=said(step), tool_calls=calls, usage=USAGE)

    return ScriptedModel(answer)


async def run(agent: Agent, case: Case, thread: str, outcome: Outcome) -> None:
    try:
        if case.mode == "generate":
            outcome.result = await agent.generate("hello", thread=thread)
            return
        async with agent.stream("hello", thread=thread) as stream:
            async for chunk in stream:
                outcome.chunks.append(chunk)
            outcome.result = await stream.result()
    except Exception as error:
        outcome.error = error


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_outcome(case: Case, storage: SQLiteStorage, exporter: InMemorySpanExporter) -> None:
    outcome, actor, model, thread = Outcome(), Actor(case), scripted(case), str(case)

    def weather(city: str) -> str:
        """The weather."""
        outcome.tools.append(city)
        return f"sunny in {city}"

    agent = Agent(
        model=model,
        tools=[weather],
        memory=Memory(storage=storage, last_messages=10),
        max_processor_retries=RETRIES,
        **placed(case, actor),
    )
    await run(agent, case, thread, outcome)
    want = expected(case)
    assert actor.asked == want.asked
    assert outcome.tools == want.tools
    check_result(case, outcome, want)
    if case.mode == "stream":
        check_chunks(outcome.chunks, want)
    check_prompts(case, model, want)
    rows = await storage.list_messages(thread)
    assert [(row.role, row.text, "".join(part.result_text for part in row.tool_parts)) for row in rows] == want.rows
    if want.ends == "tripwire":
        assert await storage.get_thread(thread) is None, "the run that was blocked would have created it"
    check_spans(case, list(exporter.get_finished_spans()), want)


def check_result(case: Case, outcome: Outcome, want: Expected) -> None:
    if want.ends == "error":
        assert outcome.result is None
        assert type(outcome.error).__name__ == want.error
        if want.error != "RuntimeError":
            assert "actor" in str(outcome.error)
            assert case.hook in str(outcome.error)
        if want.error == "ProcessorError":
            assert isinstance(outcome.error.__cause__ if outcome.error else None, ValueError)
        return
    result = outcome.result
    assert outcome.error is None
    assert result is not None
    assert (result.stopped_by, result.text, len(result.steps)) == (want.ends, want.text, want.steps)
    assert result.finish_reason == ("stop" if want.ends == "answer" else "other")
    assert [(r.step_number, r.text) for r in result.rejected] == want.rejected
    assert all(r.reason == "try again" and r.processor_id == "actor" for r in result.rejected)
    assert result.usage.input_tokens == USAGE.input_tokens * want.answered
    if want.tripwire is None:
        assert result.tripwire is None
    else:
        wire = result.tripwire
        assert wire is not None
        assert (wire.retry, wire.metadata, wire.processor_id, wire.hook) == (*want.tripwire, "actor", case.hook)
        assert wire.reason == ("try again" if wire.retry else "not this")
        assert (result.messages, result.conversation, result.output) == ([], [], None)


def check_chunks(chunks: list[Chunk], want: Expected) -> None:
    kinds = [chunk.type for chunk in chunks]
    ends = [kind for kind in kinds if kind in ("finish", "tripwire", "error", "abort")]
    assert kinds[0] == "start"
    assert ends == [want.last] == kinds[-1:], "one end, and nothing after it"
    assert reasons(chunks) == want.step_finishes
    assert streamed_text(chunks) == want.streamed
    assert len({chunk.run_id for chunk in chunks}) == 1
    open_step = False
    for kind in kinds[1:-1]:
        if kind == "step-start":
            assert not open_step, "a step begins when the one before has ended"
            open_step = True
        elif kind == "step-finish":
            open_step = False
        else:
            assert open_step, f"{kind} outside a step"


def check_prompts(case: Case, model: ScriptedModel, want: Expected) -> None:
    prompts = [request.text for request in model.requests]
    assert len(prompts) == want.calls
    assert [n for n, text in enumerate(prompts) if "processor-retry-feedback" in text] == want.feedback
    assert all("try again" in prompts[n] for n in want.feedback)
    assert not any(said(case.step) in text for text in prompts[: _first_after(case, want)])
    if case.does == "edit":
        shown = {
            "process_input": "edited-hello",
            "process_input_step": "edited-system",
            "process_llm_request": "edited-prompt",
            "process_tool_call": "sunny in edited-city",
            "process_tool_result": "edited-result",
        }.get(case.hook)
        assert shown is None or shown in prompts[-1]
        if case.hook in ("process_llm_request", "process_input_step"):
            assert [shown in text for text in prompts if shown] == [False] * case.step + [True]


def _first_after(case: Case, want: Expected) -> int:
    """Number of prompts that go out before the step in question is finished: no attempt of it is in any."""
    return want.calls - (1 if want.ends == "answer" and case.hook.startswith("process_tool") else 0)


def check_spans(case: Case, spans: list[ReadableSpan], want: Expected) -> None:
    names = [span.name for span in spans]
    (whole,) = [span for span in spans if span.name == "invoke_agent agent"]
    attributes = dict(whole.attributes or {})
    assert attributes["diarist.stopped_by"] == want.ends
    assert attributes.get("error.type") == want.error
    assert attributes.get("diarist.tripwire.processor_id") == ("actor" if want.ends == "tripwire" else None)
    assert names.count("chat model") == want.calls
    assert names.count("execute_tool weather") == len(want.tools)
    assert [span.name for span in spans if span.parent is None] == ["invoke_agent agent"]
    mine = [span for span in spans if span.name == "processor actor"]
    assert {dict(span.attributes or {})["diarist.processor.hook"] for span in mine} <= {case.hook}
    if case.hook == "process_output_stream":
        changed = sum(int(str(dict(span.attributes or {})["diarist.stream.changed"])) for span in mine)
        assert changed == (1 if case.does == "edit" else changed)
    elif want.asked:
        assert len(mine) >= want.asked
    failed = [span for span in mine if dict(span.attributes or {}).get("error.type")]
    broken = case.does in ("exception", "foreign result") or (
        want.error == "ProcessorResultError" and case.hook != "process_tool_result"
    )
    assert len(failed) == (1 if broken else 0)


@pytest.mark.parametrize("cell", LEFT_OUT, ids=lambda cell: "-".join(map(str, cell)).replace(" ", "_"))
def test_what_cannot_occur_says_why(cell: tuple[str, str, int]) -> None:
    assert impossible(*cell)
    assert not any((case.hook, case.does, case.step) == cell for case in CASES)
