"""Tools in a run: they work at the same time, and whatever goes wrong is text for the model."""

from __future__ import annotations

import asyncio
import contextvars
import math
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from diarist import Agent, AgentResult, Processor, ProcessorAbort, Tool, ToolContext, tool
from diarist.chunks import ToolErrorChunk, ToolResultChunk
from diarist.exceptions import BadRequestError, ConfigError, ProcessorResultError, ToolError
from diarist.messages import ToolPart
from diarist.models.base import ModelRequest
from diarist.processors import ProcessToolCallArgs, ToolCallResult
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import collect, run_both, types


def parts(result: AgentResult[Any]) -> list[ToolPart]:
    return result.messages[0].tool_parts


async def call(function: Any, args: dict[str, Any] | str | None = None) -> ToolPart:
    """The tool part after a run in which the model called ``function`` once."""
    item = function if isinstance(function, Tool) else tool(function)
    model = ScriptedModel(ToolCall(item.name, {} if args is None else args), "done")
    result = await Agent(model=model, tools=[item]).generate("go")
    part = parts(result)[0]
    assert result.text == "done", "the run went on"
    assert part.result_text in model.requests[1].text, "the model saw it"
    return part


class Skipped(BaseException):
    """What is no ``Exception``, as testing tools raise it."""


@pytest.mark.parametrize(
    "error", [SystemExit(2), Skipped("x"), GeneratorExit(), BaseExceptionGroup("several", [Skipped("x")])], ids=repr
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_base_exception_of_a_tool_is_a_tool_error(error: BaseException, is_async: bool) -> None:
    def work() -> None:
        """Work."""
        raise error

    async def work_async() -> None:
        """Work."""
        raise error

    part = await call(work_async if is_async else work)
    assert part.state == "error"
    assert type(error).__name__ in part.result_text


@pytest.mark.parametrize("typed", [True, False])
async def test_what_a_tool_does_to_its_arguments_does_not_change_the_call(typed: bool) -> None:
    args = {"filters": {"a": {"b": 1}}, "items": [[1]]}

    def search(filters: dict[str, Any], items: list[Any]) -> str:
        """Search."""
        filters["a"].clear()
        filters.clear()
        items[0].append(2)
        return "found"

    schema = {"properties": {"filters": {"type": "object"}, "items": {"type": "array"}}}
    part = await call(search if typed else Tool(name="search", parameters=schema, function=search), args)  # pyright: ignore[reportArgumentType]
    assert part.result == "found"
    assert part.args == {"filters": {"a": {"b": 1}}, "items": [[1]]}


@pytest.mark.parametrize("choice", ["required", "search"])
async def test_a_forced_tool_call_is_forced_once(choice: str) -> None:
    def search(q: str) -> str:
        """Search."""
        return "found"

    def obey(request: ModelRequest) -> Any:
        return "Here it is." if request.tool_choice == "auto" else ToolCall("search", {"q": "x"})

    model = ScriptedModel(obey)
    result = await Agent(model=model, tools=[search]).generate("?", tool_choice=choice)
    assert (result.text, [request.tool_choice for request in model.requests]) == ("Here it is.", [choice, "auto"])


async def test_a_processor_may_force_every_step() -> None:
    def search() -> str:
        """Search."""
        return "found"

    model = ScriptedModel(lambda request: ToolCall("search"))
    agent = Agent(model=model, tools=[search], max_steps=3)
    await agent.generate("?", prepare_step=lambda args: {"tool_choice": "required"})
    assert [request.tool_choice for request in model.requests] == ["required"] * 3


async def test_a_result_without_a_json_form_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def book() -> object:
        """Book it."""
        return object()

    part = await call(book)
    assert caplog.messages == [f"tool book: {part.result}"]
    assert "the result has no JSON form" in str(part.result)


@pytest.mark.parametrize("hook", ["process_tool_call", "process_tool_result"])
async def test_bytes_as_the_result_that_a_hook_returns_name_the_hook(hook: str) -> None:
    def read() -> str:
        """Read."""
        return "x"

    answers = type("Answers", (Processor,), {hook: lambda self, args: {"result": b"\xff"}})()  # pyright: ignore
    agent = Agent(model=ScriptedModel(ToolCall("read"), "ok"), tools=[read], processors=[answers])
    with pytest.raises(ProcessorResultError, match=f"'answers' returned from {hook} at step 0: bytes that has no JSON"):
        await agent.generate("hi")


async def test_nan_is_null_wherever_a_result_is_seen() -> None:
    def measure() -> list[float]:
        """Measure."""
        return [math.nan, 1.5]

    def mean() -> float:
        """Mean."""
        return math.nan

    class Mean(BaseModel):
        value: float

    def model() -> BaseModel:
        """Mean."""
        return Mean(value=math.nan)

    results = [(await call(each)).result for each in (measure, mean, model)]
    assert results == [[None, 1.5], None, {"value": None}]


async def test_a_generator_is_a_tool_that_returns_what_it_yields() -> None:
    threads: list[str] = []

    def rows() -> Iterator[int]:
        """Rows."""
        threads.append(threading.current_thread().name)
        yield from (1, 2)

    async def pages() -> AsyncIterator[int]:
        """Pages."""
        yield 1
        yield 2

    assert [(await call(tool(each), {})).result for each in (rows, pages)] == [[1, 2], [1, 2]]
    assert threads == ["diarist-tool"]


async def test_the_timeout_of_a_generator_holds() -> None:
    @tool(timeout=0.05)
    def rows() -> Iterator[int]:
        """Rows."""
        time.sleep(0.3)
        yield 1

    @tool(timeout=0.05)
    async def pages() -> AsyncIterator[int]:
        """Pages."""
        await asyncio.sleep(9)
        yield 1

    for each, end in ((rows, "may still be running"), (pages, "was stopped")):
        assert (await call(each, {})).result == f"{each.name} took longer than 0.05 s and {end}"


async def test_what_needs_approval_does_to_the_arguments_does_not_change_the_call() -> None:
    def careless(args: dict[str, Any]) -> bool:
        args["filters"].clear()
        return False

    def search(filters: dict[str, int]) -> str:
        """Search."""
        return "found"

    part = await call(tool(needs_approval=careless)(search), {"filters": {"a": 1}})
    assert part.args == {"filters": {"a": 1}}


async def test_a_tools_error_that_cannot_even_say_what_it_is() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def work() -> None:
        """Work."""
        raise Mute

    part = await call(work)
    assert (part.state, part.result) == ("error", "Mute")


# -- what a tool gets and gives


async def test_typed_arguments_arrive_typed() -> None:
    class Trip(BaseModel):
        city: str
        on: date

    got: list[Any] = []

    async def book(trip: Trip, seats: int = 1) -> str:
        """Book a trip."""
        got.extend((trip, seats))
        return "booked"

    book.__annotations__["trip"] = Trip
    part = await call(book, {"trip": {"city": "Rome", "on": "2026-05-01"}, "seats": "2"})
    assert got == [Trip(city="Rome", on=date(2026, 5, 1)), 2]
    assert (part.state, part.result) == ("result", "booked")
    assert part.args == {"trip": {"city": "Rome", "on": "2026-05-01"}, "seats": "2"}, "as the model wrote them"


async def test_a_sync_tool_runs_in_a_worker_thread() -> None:
    names: list[str] = []
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set by the caller")

    def work() -> str:
        """Work."""
        names.append(threading.current_thread().name)
        return variable.get()

    part = await call(work)
    assert names != [threading.current_thread().name]
    assert part.result == "set by the caller", "context variables are there too"


async def test_results_are_plain_json() -> None:
    @dataclass
    class Place:
        name: str
        visited: date

    async def where() -> Any:
        """Where."""
        return [Place("Rome", date(2026, 5, 1)), {"n": None}, (1, 2)]

    part = await call(where)
    assert part.result == [{"name": "Rome", "visited": "2026-05-01"}, {"n": None}, [1, 2]]
    assert part.result_text == '[{"name":"Rome","visited":"2026-05-01"},{"n":null},[1,2]]'


async def test_a_tool_without_a_result() -> None:
    async def note() -> None:
        """Note."""

    part = await call(note)
    assert (part.state, part.result, part.result_text) == ("result", None, "null")


async def test_the_context_of_a_tool() -> None:
    seen: list[Any] = []

    async def look(x: int, context: ToolContext[dict[str, int]]) -> int:
        """Look."""
        seen.append((context.call_id, context.tool_name, context.run.thread_id))
        return x + context.deps["y"]

    model = ScriptedModel(ToolCall("look", {"x": 1}, id="c9"), "done")
    result = await Agent(model=model, tools=[look]).generate("go", deps={"y": 2}, thread="t")
    assert parts(result)[0].result == 3
    assert seen == [("c9", "look", "t")]


async def test_a_sync_function_that_returns_an_awaitable() -> None:
    async def inner() -> str:
        return "awaited"

    def work() -> Any:
        """Work."""
        return inner()

    assert (await call(work)).result == "awaited"


async def test_a_tool_with_a_json_schema_of_its_own_gets_the_arguments_as_they_come() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    search = Tool(name="search", description="Search.", parameters=schema, function=lambda **args: args)
    part = await call(search, {"q": 1, "extra": True})
    assert part.result == {"q": 1, "extra": True}
    assert search.definition.parameters == schema


# -- what goes wrong


def explain() -> str:
    """Explain."""
    raise ToolError("the shop is closed")


def crash() -> str:
    """Crash."""
    raise KeyError("secret")


def silent() -> str:
    """Crash without words."""
    raise ValueError


def block() -> str:
    """A ProcessorAbort means something in a processor only."""
    raise ProcessorAbort("stop")


def unspeakable() -> Any:
    """Return what has no JSON form."""
    return object()


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def nest(depth: int) -> Any:
    """A list in a list in a list..."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def hold_itself() -> Any:
    """A dictionary that contains itself."""
    value: dict[str, Any] = {}
    value["me"] = value
    return value


@dataclass
class Node:
    """A node of a graph."""

    next: Any = None


def make_ring() -> Node:
    """An object that leads back to itself."""
    node = Node()
    node.next = node
    return node


def accept(value: Any) -> str:
    """Take anything."""
    return "taken"


@pytest.mark.parametrize(
    ("function", "args", "says"),
    [
        (explain, {}, "the shop is closed"),
        (crash, {}, "KeyError: 'secret'"),
        (silent, {}, "ValueError"),
        (block, {}, "ProcessorAbort: stop"),
        (unspeakable, {}, "the result has no JSON form"),
        (nest, {"depth": 101}, "the result is nested more than 100 deep"),
        (hold_itself, {}, "the result contains itself, or is nested more than 100 deep"),
        (make_ring, {}, "the result has no JSON form: Circular reference"),
        (
            accept,
            f'{{"value": {"[" * 300}{"]" * 300}}}',
            "the arguments of accept cannot be used: the arguments are nested more than 100",
        ),
        (add, {"a": "x"}, "invalid arguments for add: a: Input should be a valid integer"),
        (add, {"a": 1}, "b: Field required"),
        (add, {"a": 1, "b": 2, "c": 3}, "c: Extra inputs are not permitted"),
        (add, '{"a": 1,', "the arguments of add cannot be used"),
        (add, "[1, 2]", "the arguments of add cannot be used"),
    ],
)
async def test_whatever_goes_wrong_is_text_for_the_model(function: Any, args: Any, says: str) -> None:
    part = await call(function, args)
    assert part.state == "error"
    assert says in part.result

    def make() -> Agent:
        return Agent(model=ScriptedModel(ToolCall(function.__name__, args), "done"), tools=[function])

    _, chunks = await run_both(make)
    errors = [chunk.payload for chunk in chunks if isinstance(chunk, ToolErrorChunk)]
    assert [error.error for error in errors] == [part.result]
    assert "error" not in types(chunks), "the run itself did not fail"


async def test_an_unknown_tool() -> None:
    model = ScriptedModel(ToolCall("ad", {}), "done")
    result = await Agent(model=model, tools=[add]).generate("go")
    assert (parts(result)[0].state, parts(result)[0].result) == ("error", "there is no tool 'ad'; available: add")


async def test_a_tool_that_was_not_offered_at_this_step_does_not_run() -> None:
    model = ScriptedModel(ToolCall("add", {"a": 1, "b": 2}), "done")
    result = await Agent(model=model, tools=[add]).generate("go", active_tools=[])
    assert parts(result)[0].state == "error"


async def test_an_async_tool_that_takes_too_long_is_cancelled() -> None:
    stopped = asyncio.Event()

    @tool(timeout=0.01)
    async def hang() -> str:
        """Hang."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    part = await call(hang)
    assert (part.state, part.result) == ("error", "hang took longer than 0.01 s and was stopped")
    assert stopped.is_set()


async def test_a_sync_tool_that_takes_too_long_is_not_waited_for() -> None:
    release, left = threading.Event(), threading.Event()

    @tool(timeout=0.01)
    def hang() -> str:
        """Hang."""
        release.wait(30)
        left.set()
        return "late"

    part = await call(hang)
    assert (part.state, part.result) == ("error", "hang took longer than 0.01 s and may still be running")
    assert not left.is_set()
    release.set()
    await asyncio.to_thread(left.wait)


def test_a_sync_tool_that_never_ends_does_not_keep_the_process_alive() -> None:
    program = """
import asyncio, threading
from diarist import Agent, tool
from diarist.testing import ScriptedModel, ToolCall

@tool(timeout=0.01)
def hang() -> None:
    threading.Event().wait()

print(asyncio.run(Agent(model=ScriptedModel(ToolCall("hang"), "done"), tools=[hang]).generate("go")).text)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert ended.stdout == "done\n"


async def test_a_sync_tool_that_raises_stop_iteration() -> None:
    def work() -> str:
        """Work."""
        return next(iter(()))

    assert "StopIteration" in (await call(work)).result


async def test_a_timeout_of_the_tools_own_is_the_tools_error() -> None:
    @tool(timeout=60)
    async def fetch() -> str:
        """Fetch."""
        raise TimeoutError("the site did not answer")

    assert (await call(fetch)).result == "TimeoutError: the site did not answer"


# -- several at once


async def test_calls_of_one_step_run_at_the_same_time_and_keep_their_order() -> None:
    arrived: list[int] = []
    all_there = asyncio.Event()
    turn = [asyncio.Event() for _ in range(4)]
    turn[3].set()

    async def work(i: int) -> int:
        """Work; the last called finishes first."""
        arrived.append(i)
        if len(arrived) == 4:
            all_there.set()
        await all_there.wait()
        await turn[i].wait()
        if i:
            turn[i - 1].set()
        return i

    model = ScriptedModel([ToolCall("work", {"i": i}) for i in range(4)], "done")
    async with Agent(model=model, tools=[work]).stream("go") as stream:
        chunks = [chunk async for chunk in stream]
        result = await stream.result()
    assert [c.payload.result for c in chunks if isinstance(c, ToolResultChunk)] == [3, 2, 1, 0], "as they finish"
    assert [part.result for part in parts(result)] == [0, 1, 2, 3], "as they were called"
    assert [m.role for m in model.requests[1].prompt] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_at_most_ten_at_once(kind: str) -> None:
    lock, running, most = threading.Lock(), 0, 0
    ten = threading.Barrier(10, timeout=30)

    def enter(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    def sync_work() -> None:
        """Work."""
        enter(1)
        ten.wait()  # ten threads are there, on a small machine too
        enter(-1)

    async def async_work() -> None:
        """Work."""
        enter(1)
        for _ in range(20):
            await asyncio.sleep(0)
        enter(-1)

    work = tool(name="work")(sync_work if kind == "sync" else async_work)
    model = ScriptedModel([ToolCall("work")] * 30, "done")
    result = await Agent(model=model, tools=[work]).generate("go")
    assert most == 10
    assert {part.state for part in parts(result)} == {"result"}


async def test_the_sync_tools_of_many_runs_do_not_wait_for_each_other() -> None:
    """They may depend on each other, as agents that call agents do; a pool of threads would run dry."""
    everybody = threading.Barrier(50, timeout=30)

    def meet() -> int:
        """Meet."""
        return everybody.wait()

    agent = Agent(model=ScriptedModel(*[ToolCall("meet")] * 50, lambda request: "done"), tools=[meet])
    results = await asyncio.gather(*(agent.generate("go") for _ in range(50)))
    assert sorted(parts(result)[0].result for result in results) == list(range(50))


@pytest.mark.parametrize(("answer", "options", "seen"), [("42", {}, "42"), ("42", {"output_type": int}, 42)])
async def test_a_tool_that_returns_another_agents_result_gives_its_answer_only(
    answer: str, options: Any, seen: object
) -> None:
    helper = Agent(model=ScriptedModel(answer), instructions="Keep this to yourself.")

    async def ask(question: str) -> AgentResult[Any]:
        """Ask the helper."""
        return await helper.generate(question, **options)

    model = ScriptedModel(ToolCall("ask", {"question": "six times seven?"}), "It is 42.")
    result = await Agent(model=model, tools=[ask]).generate("go")
    assert parts(result)[0].result == seen
    assert "Keep this" not in model.requests[1].text


async def test_a_tool_that_asks_several_agents_gives_their_answers_only() -> None:
    async def ask() -> list[AgentResult[Any]]:
        """Ask the helpers."""
        helpers = [Agent(model=ScriptedModel(each), instructions="Keep this to yourself.") for each in ("a", "b")]
        return [await helper.generate("well?") for helper in helpers]

    async def ask_by_name() -> dict[str, AgentResult[Any]]:
        """Ask the helpers."""
        return dict(zip(("first", "second"), await ask(), strict=True))

    async def ask_twice() -> dict[str, list[dict[str, AgentResult[Any]]]]:
        """Ask the helpers."""
        return {"rounds": [await ask_by_name(), await ask_by_name()]}

    assert (await call(ask)).result == ["a", "b"]
    assert (await call(ask_by_name)).result == {"first": "a", "second": "b"}
    assert (await call(ask_twice)).result == {"rounds": [{"first": "a", "second": "b"}] * 2}


@pytest.mark.parametrize(("needs_approval", "stopped_by"), [(True, "approval"), (False, "max_steps")])
async def test_a_tool_whose_other_agent_gives_no_answer_fails(needs_approval: bool, stopped_by: str) -> None:
    @tool(needs_approval=needs_approval)
    def pay() -> str:
        """Pay."""
        return "paid"

    helper = Agent(model=ScriptedModel(ToolCall("pay", {})), tools=[pay], max_steps=1)

    async def ask() -> AgentResult[Any]:
        """Ask the helper."""
        return await helper.generate("pay")

    part = await call(ask)
    assert (part.state, part.result_text) == ("error", f"the other agent gave no answer: stopped_by is {stopped_by!r}")


async def test_one_failing_call_does_not_harm_the_others() -> None:
    calls = [ToolCall("crash"), ToolCall("add", {"a": 1, "b": 2}), ToolCall("nothing")]
    result = await Agent(model=ScriptedModel(calls, "done"), tools=[add, crash]).generate("go")
    assert [part.state for part in parts(result)] == ["error", "result", "error"]


async def test_a_long_tool_loop() -> None:
    steps = 120
    model = ScriptedModel(*[ToolCall("add", {"a": 1, "b": 2})] * steps, "done")
    chunks = await collect(Agent(model=model, tools=[add], max_steps=steps + 1).stream("go"))
    assert types(chunks).count("step-finish") == steps + 1
    assert len(model.requests[-1].prompt.messages) == 1 + 2 * steps


@pytest.mark.parametrize("timeout", [0, "3", True])
def test_timeouts_are_seconds(timeout: Any) -> None:
    with pytest.raises(ConfigError, match=f"tool 'add': timeout must be a number of seconds above 0, not {timeout!r}"):
        tool(timeout=timeout)(add)


def test_needs_approval_is_a_flag_or_a_function() -> None:
    with pytest.raises(ConfigError, match="tool 'add': needs_approval must be True, False or a function, not 'no'"):
        tool(needs_approval="no")(add)  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("hook", ["process_tool_call", "process_tool_result"])
@pytest.mark.parametrize(("value", "is_json"), [(date(2020, 1, 2), True), (object(), False)])
async def test_what_a_processor_answers_for_a_tool_has_a_json_form(hook: str, value: Any, is_json: bool) -> None:
    def answer(self: Any, args: Any) -> Any:
        return {"result": value}

    processor = type("Answers", (Processor,), {hook: answer})()
    agent = Agent(model=ScriptedModel(ToolCall("today"), "ok"), tools=[today], processors=[processor])
    if is_json:
        assert parts(await agent.generate("hi"))[0].result == "2020-01-02"
    else:
        with pytest.raises(ProcessorResultError, match=rf"{hook} at step 0: object that has no JSON form"):
            await agent.generate("hi")


def today() -> str:
    """Say which day it is."""
    return "Friday"


async def test_a_processor_can_mend_arguments_that_are_no_json() -> None:
    seen: list[str | None] = []

    class Mends(Processor[Any]):
        def process_tool_call(self, args: ProcessToolCallArgs[Any]) -> ToolCallResult:
            seen.append(args.args_error)
            return {"args": {"a": 1}}

    def add(a: int) -> int:
        """Add."""
        return a + 1

    model = ScriptedModel(ToolCall("add", '{"a": 1'), "Done.")
    result = await Agent(model=model, tools=[add], output_processors=[Mends()]).generate("hi")
    assert seen[0]
    assert result.steps[0].tool_calls[0].result == 2


async def test_a_needs_approval_that_raises_is_a_tool_error() -> None:
    def check(args: dict[str, Any]) -> bool:
        return args["amount"] > 10

    tool_ = Tool(name="pay", function=lambda: "paid", parameters={"type": "object"}, needs_approval=check)
    result = await Agent(model=ScriptedModel(ToolCall("pay"), "Done."), tools=[tool_]).generate("hi")
    call = result.steps[0].tool_calls[0]
    assert (call.state, call.result) == ("error", "KeyError: 'amount'")


# -- ids that a model gives twice


async def test_chunks_of_two_calls_with_one_id_stay_apart() -> None:
    """Some models and servers number the calls of one answer alike, or not at all."""
    twins = [ToolCall("add", {"a": 1}, id="c"), ToolCall("add", {"a": 5}, id="c"), ToolCall("add", {"a": 7}, id="c_2")]

    def add(a: int) -> int:
        """Add one."""
        return a + 1

    model = ScriptedModel(twins, "done")
    chunks = await collect(Agent(model=model, tools=[add]).stream("go"))
    named = [(c.type, c.payload.tool_call_id) for c in chunks if "tool" in c.type]
    kinds = ["tool-call-input-streaming-start", "tool-call-delta", "tool-call"]
    ids = ["c", "c_2", "c_2_2"]
    assert [entry for entry in named if entry[0] in kinds] == [(kind, id) for id in ids for kind in kinds]
    assert {c.payload.tool_call_id: c.payload.result for c in chunks if isinstance(c, ToolResultChunk)} == {
        "c": 2,
        "c_2": 6,
        "c_2_2": 8,
    }
    told = [part for message in model.requests[1].prompt for part in message.parts if part.type == "tool-result"]
    assert [(part.call_id, part.text) for part in told] == [("c", "2"), ("c_2", "6"), ("c_2_2", "8")]


# -- what a processor says of a call is a text


@pytest.mark.parametrize("value", [None, 7])
@pytest.mark.parametrize(("hook", "name"), [("process_tool_call", "deny"), ("process_tool_result", "error")])
async def test_a_refusal_without_a_text_is_an_error_of_its_processor(hook: str, name: str, value: Any) -> None:
    guard = type("Guard", (Processor,), {"id": "guard", hook: lambda self, args: {name: value}})()
    model = ScriptedModel(ToolCall("work"), "done")

    def work() -> str:
        """Work."""
        return "done"

    with pytest.raises(ProcessorResultError, match=f"'guard' returned from {hook} at step 0: .*{name}"):
        await Agent(model=model, tools=[work], processors=[guard]).generate("go")


async def test_retry_is_yes_or_no() -> None:
    class Repair(Processor):
        def process_api_error(self, args: Any) -> Any:
            return {"retry": "no"}

    with pytest.raises(ProcessorResultError, match="retry 'no'; allowed: True, False"):
        await Agent(model=ScriptedModel(BadRequestError("x"), "y"), processors=[Repair()]).generate("go")
