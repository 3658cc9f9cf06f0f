"""``output_type``: the answer as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Optional

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from diarist import Agent, Processor
from diarist.chunks import ObjectChunk
from diarist.exceptions import ConfigError, OutputError, ProcessorResultError
from diarist.json_schema import JsonSchema
from diarist.messages import TextPart
from diarist.models.base import OutputSchema
from diarist.processors import InputStepResult, ProcessInputStepArgs, ProcessOutputResultArgs
from diarist.testing import ScriptedModel, ToolCall, scripted
from tests.agent.kit import run_both, streamed_text, types


class City(BaseModel):
    name: str
    people: int = Field(gt=0)


class Node(BaseModel):
    below: list[Node] = []


@dataclass
class Reply:
    answer: str


@dataclass
class Point:
    x: int
    y: int = 0


class Leg(TypedDict):
    to: str
    minutes: NotRequired[int]


class Trip(TypedDict, total=False):
    """A trip."""

    legs: list[Leg]
    by: Annotated[Literal["train", "car"], Field(description="means")]
    back: Optional[Leg]  # noqa: UP045 - the old spelling has to work too
    price: int | None


SCHEMA = {
    "title": "weather",
    "type": "object",
    "properties": {"degrees": {"type": "number"}},
    "required": ["degrees"],
}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (City, '{"name": "Rome", "people": 3}', City(name="Rome", people=3)),
        (City, '```json\n{"name": "Rome", "people": 3}\n```', City(name="Rome", people=3)),
        (Point, '{"x": 1}', Point(1)),
        (Leg, '{"to": "Rome"}', {"to": "Rome"}),
        (
            Trip,
            '{"legs": [{"to": "Rome", "minutes": 5}], "back": null, "price": 3}',
            {"legs": [{"to": "Rome", "minutes": 5}], "back": None, "price": 3},
        ),
        (list[Leg], '[{"to": "Rome"}]', [{"to": "Rome"}]),
        (list[Leg], '{"answer": [{"to": "Rome"}]}', [{"to": "Rome"}]),
        (list[int], "[1, 2]", [1, 2]),
        (City | Point, '{"answer": {"x": 1}}', Point(1)),
        (City | Reply, '{"answer": "Rome"}', Reply("Rome")),
        (City | Reply, '{"answer": {"answer": "Rome"}}', Reply("Rome")),
        (int, f'{{"answer": {10**30}}}', 10**30),
        (Node, '{"answer": {"below": [{}]}}', Node(below=[Node()])),
        (SCHEMA, '{"degrees": 18.5}', {"degrees": 18.5}),
    ],
)
async def test_the_answer_as_a_value(kind: Any, text: str, value: Any) -> None:
    model = ScriptedModel(text)
    result, chunks = await run_both(lambda: Agent(model=ScriptedModel(text)), output_type=kind)
    assert (result.output, result.text) == (value, text)
    assert [chunk.payload.object for chunk in chunks if isinstance(chunk, ObjectChunk)] == [value]
    assert types(chunks)[-3:] == ["object-result", "step-finish", "finish"]
    await Agent(model=model).generate("hi", output_type=kind)
    sent = model.requests[0].output
    assert sent is not None
    assert sent.schema["type"] == "object", "OpenAI refuses other schemas"
    assert list(JsonSchema(sent.schema).faults()) == []


async def test_the_schema_that_the_model_gets() -> None:
    model = ScriptedModel(lambda request: '{"to": "Rome"}')
    await Agent(model=model).generate("hi", output_type=Leg)
    sent = model.requests[0].output
    assert sent is not None
    assert sent.name == "Leg"
    assert (sorted(sent.schema["properties"]), sent.schema["required"]) == (["minutes", "to"], ["to"])
    model = ScriptedModel('{"degrees": 1}')
    await Agent(model=model).generate("hi", output_type=SCHEMA)
    sent = model.requests[0].output
    assert sent is not None
    assert (sent.name, sent.schema) == ("weather", SCHEMA)


async def test_without_output_type_there_is_no_output() -> None:
    model = ScriptedModel('{"x": 1}')
    result = await Agent(model=model).generate("hi")
    assert (result.output, model.requests[0].output) == (None, None)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (City, '{"name": "Rome", "people": 0}', "people: Input should be greater than 0"),
        (City, "It is Rome.", "Invalid JSON"),
        (Point, '{"y": 1}', "x: Field required"),
        (Trip, '{"legs": [{}]}', "legs.0.to: Field required"),
        (Trip, '{"by": "ship"}', "by: Input should be 'train' or 'car'"),
        (SCHEMA, "18 degrees", "the answer is not JSON"),
        (SCHEMA, f"[{'18, ' * 50}18]", "18, 18,… is not of type 'object'"),
        (SCHEMA, '{"degrees": "warm"}', "degrees: 'warm' is not of type 'number'"),
        (SCHEMA, '{"temperature": 18}', "'degrees' is a required property"),
    ],
)
async def test_an_answer_that_does_not_fit_goes_back_as_feedback(kind: Any, text: str, says: str) -> None:
    good = {City: '{"name": "Rome", "people": 3}', Point: '{"x": 1}', Trip: "{}"}.get(
        kind if not isinstance(kind, dict) else None,  # pyright: ignore[reportArgumentType]
        '{"degrees": 1}',
    )
    model = ScriptedModel(text, good)
    result = await Agent(model=model, max_processor_retries=1).generate("hi", output_type=kind)
    assert result.text == good
    assert says in model.requests[1].prompt.messages[-1].text
    assert text not in model.requests[1].text, "the answer itself does not stand in the prompt"
    assert [(r.text, r.processor_id) for r in result.rejected] == [(text, "output-type")]
    assert (len(result.steps), len(result.messages)) == (1, 1)


@pytest.mark.parametrize("retries", [0, 2])
async def test_an_answer_that_never_fits_is_an_output_error(retries: int) -> None:
    model = ScriptedModel(lambda request: "no")
    with pytest.raises(OutputError, match="does not fit City") as raised:
        await Agent(model=model, max_processor_retries=retries).generate("hi", output_type=City)
    assert raised.value.text == "no"
    assert len(model.requests) == retries + 1


async def test_the_stream_of_an_answer_that_never_fits() -> None:
    async with Agent(model=ScriptedModel("no")).stream("hi", output_type=City) as stream:
        chunks = [chunk async for chunk in stream]
        assert types(chunks)[-1] == "error"
        with pytest.raises(OutputError):
            await stream.result()


async def test_only_the_final_answer_has_to_fit() -> None:
    def look() -> str:
        """Look it up."""
        return "3"

    model = ScriptedModel(["Let me look.", ToolCall("look")], '{"name": "Rome", "people": 3}')
    result = await Agent(model=model, tools=[look]).generate("hi", output_type=City)
    assert result.output == City(name="Rome", people=3)


async def test_a_rejected_answer_is_held_back_with_hold_output() -> None:
    class Hold(Processor[Any]):
        hold_output = True

    model = ScriptedModel("no", '{"x": 1}')
    agent = Agent(model=model, max_processor_retries=1, output_processors=[Hold()])
    async with agent.stream("hi", output_type=Point) as stream:
        chunks = [chunk async for chunk in stream]
    assert streamed_text(chunks) == '{"x": 1}'


async def test_what_processors_made_of_the_text_is_what_has_to_fit() -> None:
    class Repair(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            args.messages[-1].parts[0].text = '{"x": 2}'

    result = await Agent(model=ScriptedModel("x is 2"), output_processors=[Repair()]).generate("hi", output_type=Point)
    assert (result.output, result.text) == (Point(2), '{"x": 2}')


async def test_a_json_schema_that_is_none_is_refused_before_the_call() -> None:
    model = ScriptedModel("never")
    with pytest.raises(ConfigError, match=r"output_type is no JSON schema: properties\.a\.type: 'strng' is not one of"):
        await Agent(model=model).generate("hi", output_type={"properties": {"a": {"type": "strng"}}})
    assert model.requests == []


async def test_a_type_without_a_schema_is_refused_before_the_call() -> None:
    class Odd:
        pass

    model = ScriptedModel("never")
    with pytest.raises(ConfigError, match=r"output_type .*Odd.* has no JSON schema; use a Pydantic model") as raised:
        await Agent(model=model).generate("hi", output_type=Odd)
    assert "\n" not in str(raised.value)
    assert model.requests == []


async def test_the_typed_answer_is_what_the_last_hook_left() -> None:
    class Redacts(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            for message in args.messages:
                for part in message.parts:
                    if isinstance(part, TextPart):
                        part.text = part.text.replace("SECRET", "***")

    agent = Agent(model=ScriptedModel('{"word": "SECRET"}'), output_processors=[Redacts()])
    result = await agent.generate("hi", output_type={"type": "object", "required": ["word"]})
    assert (result.text, result.output) == ('{"word": "***"}', {"word": "***"})


# --- the schema of a step

NAMED = OutputSchema(name="Name", schema={"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]})


def setting(schema: OutputSchema | None, *, at: int = 0) -> Processor[Any]:
    """Sets the schema of a step, and of those behind it."""

    class Switch(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepResult | None:
            return {"structured_output": schema} if args.step_number >= at else None

    return Switch()


@pytest.mark.parametrize("output_type", [None, City])
async def test_the_schema_of_the_last_step_judges_the_answer(output_type: Any) -> None:
    def make(text: str = '{"s": "Rome"}') -> Agent:
        return Agent(model=ScriptedModel(text), processors=[setting(NAMED)])

    options = {} if output_type is None else {"output_type": output_type}
    result, chunks = await run_both(make, **options)
    assert result.output == {"s": "Rome"}
    assert [c.payload.object for c in chunks if isinstance(c, ObjectChunk)] == [{"s": "Rome"}]
    with pytest.raises(OutputError, match="does not fit Name: s: 7 is not of type 'string'"):
        await make('{"s": 7}').generate("hi", **options)


async def test_an_answer_that_does_not_fit_the_schema_of_the_step_is_sent_back() -> None:
    model = ScriptedModel("Rome", '{"s": "Rome"}')
    agent = Agent(model=model, processors=[setting(NAMED)], max_processor_retries=1)
    result = await agent.generate("hi", output_type=City)
    assert (result.output, len(result.rejected)) == ({"s": "Rome"}, 1)


async def test_a_step_without_a_schema_answers_in_text() -> None:
    result, chunks = await run_both(
        lambda: Agent(model=ScriptedModel("Rome"), processors=[setting(None)]), output_type=City
    )
    assert (result.text, result.output) == ("Rome", None)
    assert not [chunk for chunk in chunks if isinstance(chunk, ObjectChunk)]


async def test_the_type_of_the_call_judges_where_its_own_schema_was_asked_for() -> None:
    async def look() -> str:
        """Look."""
        return "it"

    def only_first(args: ProcessInputStepArgs[Any]) -> InputStepResult | None:
        return {"structured_output": None} if args.step_number == 0 else None

    model = ScriptedModel(ToolCall("look"), '{"name": "Rome", "people": 3}')
    result = await Agent(model=model, tools=[look]).generate("hi", output_type=City, prepare_step=only_first)
    assert result.output == City(name="Rome", people=3)
    assert [request.output is None for request in model.requests] == [True, False]


async def test_a_schema_with_a_mistake_is_refused_where_it_is_set() -> None:
    bad = OutputSchema(name="Bad", schema={"type": "foo"})
    with pytest.raises(ProcessorResultError, match=r"'switch'.*the schema 'Bad' is no JSON schema"):
        await Agent(model=ScriptedModel("x"), processors=[setting(bad)]).generate("hi")


@pytest.mark.parametrize(("reason", "remedy"), [("length", "max_output_tokens"), ("content-filter", "the model")])
async def test_an_answer_that_was_cut_off_is_not_asked_for_again(reason: Any, remedy: str) -> None:
    model = ScriptedModel(lambda request: scripted.Reply(text='{"name": "Ro', finish_reason=reason))
    with pytest.raises(OutputError, match=f"the answer was cut off .*{remedy}"):
        await Agent(model=model).generate("hi", output_type=City, max_processor_retries=2)
    assert len(model.requests) == 1


async def test_a_none_that_the_type_allows_is_an_answer_like_any_other() -> None:
    def agent() -> Agent:
        return Agent(model=ScriptedModel('{"answer": null}'))

    result, chunks = await run_both(agent, output_type=Optional[City])  # noqa: UP045  as users write it
    assert (result.output, result.has_output) == (None, True)
    assert [chunk.payload.object for chunk in chunks if isinstance(chunk, ObjectChunk)] == [None]

    async def find() -> Any:
        """Find a city."""
        return await agent().generate("hi", output_type=Optional[City])  # noqa: UP045

    outer = await Agent(model=ScriptedModel(ToolCall("find"), "None."), tools=[find]).generate("hi")
    assert outer.steps[0].tool_calls[0].result is None
