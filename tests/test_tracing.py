from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from diarist import Agent
from diarist.exceptions import ProcessorAbort
from diarist.testing import ScriptedModel
from diarist.tracing import Carrier, record, span


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A listener, as an application would configure one."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (finished,) = exporter.get_finished_spans()
    return finished


def test_attributes_arrive(exporter: InMemorySpanExporter) -> None:
    with span("chat m", **{"gen_ai.request.model": "m", "gen_ai.request.seed": None}) as current:
        current.set(**{"gen_ai.usage.input_tokens": 7, "gen_ai.response.finish_reasons": ("stop",)})
        assert current.recording
    assert only(exporter).name == "chat m"
    assert dict(only(exporter).attributes or {}) == {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.response.finish_reasons": ("stop",),
    }


def test_other_values_become_text(exporter: InMemorySpanExporter) -> None:
    with span("s", a={"k": 1}, b=[1, "x"]):
        pass
    assert dict(only(exporter).attributes or {}) == {"a": "{'k': 1}", "b": ("1", "x")}


async def test_spans_nest_across_tasks(exporter: InMemorySpanExporter) -> None:
    async def child() -> None:
        with span("child"):
            await asyncio.sleep(0)

    with span("parent"):
        await asyncio.gather(child(), child())
    *children, parent = exporter.get_finished_spans()
    assert [c.name for c in children] == ["child", "child"]
    assert all(c.parent and c.parent.span_id == parent.context.span_id for c in children)


def test_an_exception_is_recorded_once_and_travels_on(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="boom"), span("s"):
        raise ValueError("boom")
    finished = only(exporter)
    assert finished.status.status_code is trace.StatusCode.ERROR
    assert finished.status.description == "boom"
    assert [event.name for event in finished.events] == ["exception"]
    assert (finished.attributes or {})["error.type"] == "ValueError"


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_say_what_it_is(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(UnspeakableError), span("s"):
        raise UnspeakableError
    with span("s") as current:
        current.fail(Carrier(UnspeakableError()))
    record("s", 0, error=UnspeakableError())
    for finished in exporter.get_finished_spans():
        assert (finished.attributes or {})["error.type"] == "UnspeakableError"
        assert finished.status.status_code is trace.StatusCode.ERROR
        (event,) = finished.events
        assert "UnspeakableError" in str((event.attributes or {})["exception.stacktrace"])
    assert len(exporter.get_finished_spans()) == 3


async def test_such_an_exception_of_the_model_ends_the_run(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(UnspeakableError):
        await Agent(model=ScriptedModel(UnspeakableError()), name="a").generate("hi")
    names = {finished.name: finished.status.status_code for finished in exporter.get_finished_spans()}
    assert names["invoke_agent a"] is trace.StatusCode.ERROR


@pytest.mark.parametrize("leaving", [ProcessorAbort("blocked"), asyncio.CancelledError()])
def test_blocking_and_cancelling_are_no_failures(leaving: BaseException, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(type(leaving)), span("s"):
        raise leaving
    assert only(exporter).status.status_code is trace.StatusCode.UNSET
    assert not only(exporter).events


def test_without_a_listener_nothing_happens() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("an attribute was rendered for nobody")

    with span("s", a=Costly()) as current:
        current.set(b=Costly())
        assert not current.recording
    with pytest.raises(ValueError, match="boom"), span("s"):
        raise ValueError("boom")


def test_a_listener_configured_late_is_seen() -> None:
    code = """
from diarist.tracing import span
import sys
assert "opentelemetry" not in sys.modules
with span("before"): pass
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
with span("after") as current: assert current.recording
"""
    subprocess.run([sys.executable, "-c", code], check=True)
