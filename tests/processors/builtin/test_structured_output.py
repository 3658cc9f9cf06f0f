"""``StructuredOutput``: converts a text answer into an object with a second model call."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from diarist import Agent, DataChunk, Memory, Tool, tool
from diarist.exceptions import ConfigError, ModelAPIError
from diarist.processors import StructuredOutput
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import collect


class Trip(BaseModel):
    city: str
    days: int


GOOD = '{"city": "Rome", "days": 3}'
BAD = '{"city": "Rome"}'


async def test_another_model_converts_the_answer() -> None:
    actor, second = ScriptedModel("Three days in Rome."), ScriptedModel(GOOD)
    trip = StructuredOutput(Trip, model=second, instructions="Days are nights plus one.")
    result = await Agent(model=actor, output_processors=[trip]).generate("Where?")
    assert result.text == "Three days in Rome."
    assert trip.value(result) == Trip(city="Rome", days=3)
    request = second.requests[0]
    assert "Three days in Rome." in request.text
    assert "Days are nights plus one." in request.text
    assert request.output is not None
    assert request.output.name == "Trip"
    assert request.tools == []


async def test_without_a_model_the_answering_model_converts() -> None:
    model = ScriptedModel("Three days in Rome.", f"```json\n{GOOD}\n```")
    trip = StructuredOutput(Trip)
    agent = Agent(model=model, input_processors=[trip], output_processors=[trip])
    assert trip.value(await agent.generate("Where?")) == Trip(city="Rome", days=3)


async def test_the_object_is_streamed_and_stored() -> None:
    storage = InMemoryStorage()
    trip = StructuredOutput(Trip, model=ScriptedModel(GOOD))
    agent = Agent(model=ScriptedModel("Rome."), memory=Memory(storage=storage), output_processors=[trip])
    chunks = await collect(agent.stream("Where?", thread="t"))
    data = [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)]
    assert {"city": "Rome", "days": 3} in data
    stored = (await storage.list_messages("t"))[-1]
    assert stored.metadata["structured_output"] == {"city": "Rome", "days": 3}
    assert stored.text == "Rome."


async def test_the_model_is_sent_the_validation_error() -> None:
    second = ScriptedModel(BAD, "no json", GOOD)
    trip = StructuredOutput(Trip, model=second)
    result = await Agent(model=ScriptedModel("Rome."), output_processors=[trip]).generate("Where?")
    assert trip.value(result) == Trip(city="Rome", days=3)
    assert "days: Field required" in second.requests[1].text
    assert len(second.requests) == 3


async def failing(**options: Any) -> tuple[Any, StructuredOutput[Trip]]:
    trip = StructuredOutput(Trip, model=ScriptedModel(lambda request: BAD), max_retries=1, **options)
    return await Agent(model=ScriptedModel("Rome."), output_processors=[trip]).generate("Where?"), trip


async def test_a_failed_conversion_blocks_the_run() -> None:
    result, trip = await failing()
    assert result.tripwire is not None
    assert "could not be converted to Trip" in result.tripwire.reason
    assert trip.value(result) is None


async def test_warn_returns_the_answer_without_an_object(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="diarist"):
        result, trip = await failing(on_failure="warn")
    assert (result.text, trip.value(result)) == ("Rome.", None)
    assert "has no Trip" in caplog.text


async def test_fallback_replaces_a_failed_conversion() -> None:
    result, trip = await failing(on_failure="fallback", fallback={"city": "?", "days": 0})
    assert trip.value(result) == Trip(city="?", days=0)


class Busy(ScriptedModel):
    default_retries = 2  # as of a provider's model


async def test_a_busy_model_is_asked_again() -> None:
    busy = ModelAPIError("busy", status=503, retry_after=0)
    second = Busy(busy, busy, GOOD)
    trip = StructuredOutput(Trip, model=second)
    result = await Agent(model=ScriptedModel("Rome."), output_processors=[trip]).generate("Where?")
    assert (trip.value(result), len(second.requests)) == (Trip(city="Rome", days=3), 3)


@pytest.mark.parametrize("on_failure", ["block", "warn", "fallback"])
async def test_on_failure_covers_a_model_that_fails(on_failure: Literal["block", "warn", "fallback"]) -> None:
    broken = ScriptedModel(ModelAPIError("key sk-1 is wrong", status=400))
    trip = StructuredOutput(Trip, model=broken, on_failure=on_failure, fallback={"city": "?", "days": 0})
    result = await Agent(model=ScriptedModel("Rome."), output_processors=[trip]).generate("Where?")
    assert trip.value(result) == (Trip(city="?", days=0) if on_failure == "fallback" else None)
    reason = "" if result.tripwire is None else result.tripwire.reason
    assert reason == ("the answer could not be converted to Trip: ModelAPIError" if on_failure == "block" else "")


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.mark.parametrize(
    ("payment", "stopped_by"),
    [
        (tool(needs_approval=True)(pay), "approval"),
        (Tool(name="pay"), "client_tool"),
        (tool(pay), "max_steps"),
    ],
)
async def test_only_an_answer_is_converted(payment: Tool[object], stopped_by: str) -> None:
    second = ScriptedModel(GOOD)
    trip = StructuredOutput(Trip, model=second)
    call = ToolCall("pay", {"amount": 3})
    agent = Agent(model=ScriptedModel(call), tools=[payment], output_processors=[trip], max_steps=1)
    result = await agent.generate("Pay the hotel.")
    assert (result.stopped_by, trip.value(result), second.requests) == (stopped_by, None, [])


async def test_the_answer_of_a_resumed_run_is_converted() -> None:
    trip = StructuredOutput(Trip, model=ScriptedModel(GOOD))
    model = ScriptedModel(ToolCall("pay", {"amount": 3}), "Three days in Rome.")
    agent = Agent(model=model, tools=[tool(needs_approval=True)(pay)], output_processors=[trip])
    stopped = await agent.generate("Pay the hotel.")
    result = await agent.resume({stopped.pending[0].call_id: True}, of=stopped)
    assert trip.value(result) == Trip(city="Rome", days=3)


async def test_a_json_schema_is_accepted() -> None:
    schema = {"title": "Trip", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    trip = StructuredOutput(schema, model=ScriptedModel('{"city": "Rome"}'))
    result = await Agent(model=ScriptedModel("Rome."), output_processors=[trip]).generate("Where?")
    assert trip.value(result) == {"city": "Rome"}


async def test_a_missing_model_is_a_clear_error() -> None:
    trip = StructuredOutput(Trip)
    with pytest.raises(ConfigError, match=r"needs its input hooks too: pass model=, or put it into processors="):
        Agent(model=ScriptedModel("Rome."), output_processors=[trip])
    Agent(model=ScriptedModel("Rome."), input_processors=[trip], output_processors=[trip])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_retries": -1}, "StructuredOutput: max_retries must be a whole number from 0 on"),
        ({"on_failure": "ignore"}, "StructuredOutput: on_failure must be one of"),
        ({"instructions": None}, "StructuredOutput: instructions must be a text"),
        ({"on_failure": "fallback"}, "StructuredOutput: fallback does not match"),
        ({"output_type": ScriptedModel}, "has no JSON schema"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StructuredOutput(**{"output_type": Trip, **options})
