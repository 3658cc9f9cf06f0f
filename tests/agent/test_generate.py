"""``Agent.generate``: what a result says, and what the model was sent."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from diarist import Agent, Memory, Message, ModelSettings, Processor, ThreadRef, Usage
from diarist.exceptions import ConfigError, InputError, ModelConnectionError
from diarist.messages import ToolPart
from diarist.models import Model, ModelRequest
from diarist.processors import UnicodeNormalizer
from diarist.storage import InMemoryStorage
from diarist.testing import Reasoning, Reply, ScriptedModel, ToolCall
from tests.agent.kit import RecordingMemory, run_both, streamed_text, types


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_an_answer_and_what_was_sent() -> None:
    model = ScriptedModel("Hello Ada!")
    result = await Agent(model=model, instructions="Be kind.").generate("I am Ada.")
    assert result.text == "Hello Ada!"
    assert (result.stopped_by, result.finish_reason, result.tripwire) == ("answer", "stop", None)
    assert [(m.role, m.text) for m in model.requests[0].prompt] == [("system", "Be kind."), ("user", "I am Ada.")]
    assert [(m.role, m.text, m.run_id) for m in result.messages] == [("assistant", "Hello Ada!", result.run_id)]


async def test_generate_and_stream_are_one_path() -> None:
    def make() -> Agent:
        model = ScriptedModel(
            Reply(reasoning="sum it", text=["Let ", "me add."], tool_calls=ToolCall("add", {"a": 1, "b": 2})),
            ["It ", "is ", "3."],
        )
        return Agent(model=model, tools=[add])

    result, chunks = await run_both(make)
    assert result.text == "It is 3."
    assert streamed_text(chunks) == "Let me add.It is 3."
    assert types(chunks)[0] == "start"
    assert types(chunks)[-1] == "finish"
    assert {chunk.run_id for chunk in chunks} == {chunks[0].run_id}
    assert chunks[0].run_id


async def test_the_text_is_the_last_steps_and_each_step_has_its_own() -> None:
    model = ScriptedModel(["Looking.", ToolCall("add", {"a": 1, "b": 1})], "Two.")
    result = await Agent(model=model, tools=[add]).generate("1+1?")
    assert result.text == "Two."
    assert [(step.step_number, step.text) for step in result.steps] == [(0, "Looking."), (1, "Two.")]
    assert [len(step.messages) for step in result.steps] == [1, 1]
    assert result.messages == [m for step in result.steps for m in step.messages]
    assert result.steps[0].model == "scripted/model"


async def test_one_message_per_step_with_calls_and_results_in_one_part() -> None:
    model = ScriptedModel([Reasoning("hm"), "Looking.", ToolCall("add", {"a": 1, "b": 1})], "Two.")
    result = await Agent(model=model, tools=[add]).generate("1+1?")
    first = result.messages[0]
    assert [part.type for part in first.parts] == ["reasoning", "text", "tool"]
    assert isinstance(first.parts[2], ToolPart)
    assert (first.parts[2].state, first.parts[2].result) == ("result", 2)
    assert [m.role for m in model.requests[1].prompt] == ["user", "assistant", "tool"]


async def test_usage_is_the_sum_of_all_calls_with_cached_tokens() -> None:
    model = ScriptedModel(
        Reply(tool_calls=ToolCall("add", {"a": 1, "b": 1}), usage=Usage(input_tokens=100, output_tokens=10)),
        Reply(text="Two.", usage=Usage(input_tokens=150, output_tokens=5, cached_tokens=100, reasoning_tokens=2)),
    )
    result = await Agent(model=model, tools=[add]).generate("1+1?")
    assert result.usage == Usage(input_tokens=250, output_tokens=15, cached_tokens=100, reasoning_tokens=2)
    assert result.usage.total_tokens == 265
    assert [step.usage.input_tokens for step in result.steps] == [100, 150]


@pytest.mark.parametrize("per_call", [False, True])
async def test_reaching_max_steps_is_never_silent(per_call: bool) -> None:
    def make() -> Agent:
        model = ScriptedModel(lambda request: ToolCall("add", {"a": 1, "b": 1}))
        return Agent(model=model, tools=[add], max_steps=5 if per_call else 2)

    result, chunks = await run_both(make, **({"max_steps": 2} if per_call else {}))
    assert (result.stopped_by, result.finish_reason, len(result.steps)) == ("max_steps", "tool-calls", 2)
    assert chunks[-1].to_dict()["payload"]["stoppedBy"] == "max_steps"
    assert [part.state for part in result.messages[-1].tool_parts] == ["result"], "the last step's tools did run"


async def test_five_steps_are_the_default() -> None:
    model = ScriptedModel(lambda request: ToolCall("add", {"a": 1, "b": 1}))
    result = await Agent(model=model, tools=[add]).generate("go")
    assert (result.stopped_by, len(model.requests)) == ("max_steps", 5)


async def test_an_answer_on_the_last_allowed_step_is_an_answer() -> None:
    result = await Agent(model=ScriptedModel("done"), max_steps=1).generate("go")
    assert result.stopped_by == "answer"


async def test_a_model_that_says_nothing() -> None:
    result, chunks = await run_both(lambda: Agent(model=ScriptedModel("")))
    assert (result.text, result.messages, result.stopped_by) == ("", [], "answer")
    assert types(chunks)[-2:] == ["step-finish", "finish"]


# -- input


async def test_input_forms() -> None:
    model = ScriptedModel(lambda request: "ok")
    agent = Agent(model=model)
    await agent.generate(
        [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]
    )
    await agent.generate([Message.user("a"), Message.assistant("b"), {"role": "user", "content": "c"}])
    assert model.requests[0].text == "[system]\nS\n[user]\nU"
    assert model.requests[1].text == "[user]\na\n[assistant]\nb\n[user]\nc"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "empty"),
        ("", "the input is an empty text"),
        (" \n", "the input is an empty text"),
        (7, "not int"),
        (None, "not NoneType"),
        (["hi"], "message 0"),
        ({"role": "user", "text": "x"}, "message 0: a dictionary needs role and content; it has role, text"),
        ({"messages": [{"role": "user", "content": "x"}]}, "a dictionary needs role and content; it has messages"),
        ([{"role": "tool", "content": "x"}], "message 0: a message of role tool needs the tool_call_id"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": None}], "message 1: content"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "message 0: cannot read the content part"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "message 0: cannot read the tool call"),
    ],
)
async def test_input_that_cannot_be_read_is_refused_by_index(value: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        await Agent(model=ScriptedModel("ok")).generate(value)


async def test_the_callers_messages_are_not_touched() -> None:
    class Shout(Processor[Any]):
        def process_input(self, args: Any) -> None:
            for part in args.messages[0].parts:
                part.text = part.text.upper()
            args.messages[0].metadata["seen"] = True

    given = Message.user("hi")
    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[Shout()]).generate(given)
    assert "HI" in model.requests[0].text
    assert (given.text, given.metadata) == ("hi", {})


async def test_the_later_of_two_messages_with_one_id_counts() -> None:
    model = ScriptedModel("ok")
    await Agent(model=model).generate([Message.user("old", id="m"), Message.user("b"), Message.user("new", id="m")])
    assert model.requests[0].text == "[user]\nnew\n[user]\nb"


async def test_a_message_that_memory_brings_too_is_sent_once() -> None:
    class Recall(Processor[Any]):
        def process_input(self, args: Any) -> None:
            args.message_list.recall([Message.user("before", id="a"), Message.user("asked", id="b")])

    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[Recall()]).generate(Message.user("asked", id="b"))
    assert model.requests[0].text == "[user]\nbefore\n[user]\nasked"


# -- options


async def test_options_of_a_call_win_over_the_agents_defaults() -> None:
    model = ScriptedModel(lambda request: "ok")
    agent = Agent(
        model=model,
        tools=[add],
        model_settings=ModelSettings(temperature=0.1, seed=1),
        default_options={"model_settings": ModelSettings(temperature=0.2), "tool_choice": "required"},
    )
    await agent.generate("hi")
    await agent.generate("hi", model_settings=ModelSettings(temperature=0.3), tool_choice="auto")
    assert [(r.settings.temperature, r.settings.seed, r.tool_choice) for r in model.requests] == [
        (0.2, 1, "required"),
        (0.3, 1, "auto"),
    ]


async def test_an_option_that_is_none_counts_as_not_given() -> None:
    agent = Agent(model=ScriptedModel("ok"), max_steps=3)
    result = await agent.generate("hi", thread=None, max_steps=None, model=None)  # pyright: ignore[reportArgumentType]
    assert (result.text, result.thread_id) == ("ok", None)


async def test_another_model_and_provider_options_for_one_call() -> None:
    usual, other = ScriptedModel("usual"), ScriptedModel("other")
    agent = Agent(model=usual)
    options = {"openai": {"reasoning_effort": "low"}}
    result = await agent.generate("hi", model=other, provider_options=options)
    assert result.text == "other"
    assert other.requests[0].provider_options == options
    assert usual.requests == []


async def test_active_tools_and_tool_choice_none() -> None:
    def sub(a: int) -> int:
        """Subtract."""
        return a

    model = ScriptedModel(lambda request: "ok")
    agent = Agent(model=model, tools=[add, sub])
    await agent.generate("hi")
    await agent.generate("hi", active_tools=["sub"])
    await agent.generate("hi", tool_choice="none")
    assert [[tool.name for tool in r.tools] for r in model.requests] == [["add", "sub"], ["sub"], []]


async def test_thread_and_resource_reach_result_and_processors() -> None:
    seen: list[Any] = []

    class Look(Processor[Any]):
        def process_input(self, args: Any) -> None:
            seen.append((args.thread_id, args.resource_id, args.context.thread, args.deps, args.request_context))

    agent = Agent(model=ScriptedModel(lambda request: "ok"), input_processors=[Look()])
    result = await agent.generate("hi", thread="t")
    assert (result.thread_id, result.resource_id) == ("t", "@thread:t")
    ref = ThreadRef(id="trip", title="Rome")
    result = await agent.generate("hi", thread=ref, resource="ada", deps=7, request_context={"k": 1})
    assert (result.thread_id, result.resource_id) == ("trip", "ada")
    await agent.generate("hi")
    assert seen[1] == ("trip", "ada", ref, 7, {"k": 1})
    assert seen[2][:3] == (None, None, None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_step": 3}, "unknown options \\['max_step'\\]; did you mean 'max_steps'\\?; known: thread, "),
        ({"thread_id": "t"}, "did you mean 'thread'\\?"),
        ({"session_id": "t"}, "did you mean 'thread'\\?"),
        ({"user_id": "ada"}, "did you mean 'resource'\\?"),
        ({"instructions": "Be brief."}, "unknown options \\['instructions'\\]; write Agent\\(instructions=...\\)"),
        (
            {"temperature": 0},
            "unknown options \\['temperature'\\]; write model_settings=ModelSettings\\(temperature=...\\)",
        ),
        ({"colour": 1}, "unknown options \\['colour'\\]; known: "),
        ({"max_steps": 0}, "max_steps must be a whole number from 1 on, not 0"),
        ({"max_steps": "5"}, "max_steps must be a whole number from 1 on, not '5'"),
        ({"max_processor_retries": -1}, "max_processor_retries must be a whole number from 0 on, not -1"),
        ({"max_processor_retries": True}, "max_processor_retries must be a whole number from 0 on, not True"),
        ({"model_settings": {"temperature": 1}}, r"model_settings must be ModelSettings\(.*, not {'temperature': 1}"),
        ({"provider_options": "x"}, "provider_options must be a dictionary of options by provider, not 'x'"),
        (
            {"provider_options": {"effort": "low"}},
            "provider_options must have a dictionary per provider, not {'effort': 'low'}; write {'openai': {",
        ),
        ({"provider_options": {"a": {"extra_headers": ["X"]}}}, r"extra_headers of 'a' must be a dictionary, not list"),
        ({"provider_options": {"a": {"extra_headers": {"X-A": 1}}}}, "of 'a': header 'X-A' must be a text of one line"),
        ({"provider_options": {"a": {"extra_headers": {"X-A": "\n"}}}}, "of 'a': header 'X-A' must be a text of one"),
        ({"stop_when": 3}, "stop_when must be a function of the steps, or a list of such functions, not 3"),
        ({"stop_when": [3]}, "stop_when must be a function"),
        ({"cancel": True}, "cancel must be a CancelSignal, not True"),
        ({"request_context": ["a"]}, r"request_context must be a dictionary, not \['a'\]"),
        ({"active_tools": "add"}, "active_tools must be a list of texts, not 'add'"),
        ({"active_tools": iter(["add"])}, "active_tools must be a list of texts, not <list_iterator"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice must be 'auto', 'none', 'required' or the name of a tool"),
        ({"prepare_step": {"tool_choice": "none"}}, "prepare_step must be a function"),
        ({"on_finish": "a"}, "on_finish must be a function, not 'a'"),
        ({"processors": UnicodeNormalizer()}, "processors must be a list of processors"),
        ({"processors": UnicodeNormalizer}, r"list of processors, such as \[UnicodeNormalizer\(\)\], not a class"),
        ({"thread": ""}, "thread: the id is empty"),
        ({"thread": 5}, "thread must be an id, a ThreadRef or a Thread, not 5"),
        ({"thread": ThreadRef(id=5)}, "thread must be an id"),  # pyright: ignore[reportArgumentType]
        ({"thread": "t", "resource": 5}, "resource must be the id of a resource, not 5"),
        ({"model": 7}, "not a model"),
        ({"output_type": threading.Lock}, "output_type"),
    ],
)
async def test_impossible_options_are_refused(options: dict[str, Any], says: str) -> None:
    agent = Agent(model=ScriptedModel("ok"))
    with pytest.raises(ConfigError, match=says):
        await agent.generate("hi", **options)
    with pytest.raises(ConfigError, match=says):
        agent.stream("hi", **options)


def test_impossible_options_of_an_agent_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"model_settings": {"temperature": 1}}, "model_settings must be ModelSettings"),
        ({"default_options": {"provider_options": {"a": {"extra_headers": {"X-A": 1}}}}}, "of 'a': header 'X-A' must"),
        ({"max_steps": "3"}, "max_steps must be a whole number from 1 on, not '3'"),
        ({"default_options": {"cancel": 1}}, "cancel must be a CancelSignal, not 1"),
        ({"default_options": [1]}, "options of a call must be a dictionary"),
        ({"memory": Memory}, "memory must be a Memory\\(...\\), not <class"),
        ({"memory": True}, "memory must be a Memory\\(...\\), not True"),
        ({"instructions": 5}, "Agent: instructions must be a text or a list of texts, not 5"),
        ({"processors": UnicodeNormalizer}, r"list of processors, such as \[UnicodeNormalizer\(\)\], not a class"),
        ({"tools": "add"}, "tools must be a list of functions and Tools, or a dictionary by name, not 'add'"),
    ]
    for options, says in wrong:
        with pytest.raises(ConfigError, match=says):
            Agent(model=ScriptedModel("ok"), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"active_tools": ["ad"]}, "active_tools: there is no tool 'ad'; tools: add"),
        ({"tool_choice": "ad"}, "tool_choice must be .* or a tool that is offered, not 'ad'; offered: add"),
        ({"prepare_step": lambda args: {"active_tools": ["zz"]}}, "active_tools: there is no tool 'zz'"),
        ({"active_tools": [], "tool_choice": "add"}, "not 'add'; offered: none"),
    ],
)
async def test_names_that_no_tool_has_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await Agent(model=ScriptedModel("ok"), tools=[add]).generate("hi", **options)


async def test_active_tools_may_name_a_tool_that_a_processor_removed() -> None:
    model = ScriptedModel("ok")
    agent = Agent(model=model, tools=[add], default_options={"active_tools": ["add"]})
    await agent.generate("hi", prepare_step=lambda args: {"tools": {}})
    assert model.requests[0].tools == []


async def test_in_a_dictionary_of_tools_the_key_is_the_name() -> None:
    model = ScriptedModel(ToolCall("plus", {"a": 1, "b": 1}), "ok")
    agent = Agent(model=model, tools=[add])
    result = await agent.generate("hi", prepare_step=lambda args: {"tools": {**args.tools, "plus": add}})
    assert [tool.name for tool in model.requests[0].tools] == ["add", "plus"]
    assert result.steps[0].tool_calls[0].result == 2


async def test_a_thread_that_was_not_awaited_is_refused() -> None:
    memory = Memory(storage=InMemoryStorage())
    with pytest.raises(ConfigError, match="not awaited: thread=await"):
        await Agent(model=ScriptedModel("ok"), memory=memory).generate("hi", thread=memory.threads.create())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_a_thread_names_its_resource() -> None:
    memory = Memory(storage=InMemoryStorage())
    agent = Agent(model=ScriptedModel("ok", "ok"), memory=memory)
    made = await memory.threads.create(resource="ada", title="Rome")
    result = await agent.generate("hi", thread=made)
    assert (result.thread_id, result.resource_id) == (made.id, "ada")
    with pytest.raises(InputError, match="belong"):
        await agent.generate("hi", thread=made, resource="bob")


async def test_unknown_default_options_are_refused_when_the_agent_is_built() -> None:
    with pytest.raises(ConfigError, match="unknown options"):
        Agent(model=ScriptedModel("ok"), default_options={"temperature": 1})  # pyright: ignore[reportArgumentType]


async def test_two_tools_of_one_name_are_refused() -> None:
    def other(a: int) -> int:
        """Add."""
        return a

    other.__name__ = "add"
    with pytest.raises(ConfigError, match="two tools have the name 'add'"):
        Agent(model=ScriptedModel("ok"), tools=[add, other])


# -- failures


@pytest.mark.parametrize("error", [ModelConnectionError("cut", provider="x"), ValueError("odd")])
async def test_a_models_error_is_raised_as_it_is(error: Exception) -> None:
    memory = RecordingMemory()
    agent = Agent(model=ScriptedModel(error), memory=memory)
    with pytest.raises(type(error)) as raised:
        await agent.generate("hi", thread="t")
    assert raised.value is error
    assert memory.outcomes == ["interrupted"]


async def test_an_answer_cut_in_the_middle_is_an_error_not_an_answer() -> None:
    memory = RecordingMemory()
    model = ScriptedModel(Reply(text="half an ans", error_after=ModelConnectionError("cut")))
    with pytest.raises(ModelConnectionError):
        await Agent(model=model, memory=memory).generate("hi", thread="t")
    assert memory.outcomes == ["interrupted"]


async def test_a_failing_commit_is_raised() -> None:
    class Storage(Processor[Any]):
        def process_input(self, args: Any) -> None:
            async def end(outcome: str) -> None:
                raise OSError("disk full")

            args.context.on_end(end)

    agent = Agent(model=ScriptedModel(lambda request: "ok"), input_processors=[Storage()])
    with pytest.raises(OSError, match="disk full"):
        await agent.generate("hi")
    async with agent.stream("hi") as stream:
        chunks = [chunk async for chunk in stream]
        assert types(chunks)[-1] == "error"
        assert "finish" not in types(chunks), "nobody was told that all is well"
        with pytest.raises(OSError, match="disk full"):
            await stream.result()


async def test_everyone_hears_of_the_end_whatever_another_ending_waited_for() -> None:
    heard: list[str] = []

    class Storage(Processor[Any]):
        def process_input(self, args: Any) -> None:
            async def waits(outcome: str) -> None:
                lost = asyncio.get_running_loop().create_future()
                lost.cancel()
                await lost

            async def end(outcome: str) -> None:
                heard.append(outcome)

            args.context.on_end(waits)
            args.context.on_end(end)

    with pytest.raises(RuntimeError, match="cancelled"):
        await Agent(model=ScriptedModel("ok"), input_processors=[Storage()]).generate("hi")
    assert heard == ["committed"]


@pytest.mark.parametrize("moment", [datetime.min, datetime.max])
async def test_a_time_that_utc_does_not_have_is_not_stored(moment: datetime) -> None:
    hours = 5 if moment == datetime.min else -5
    said = Message.user("hi", created_at=moment.replace(tzinfo=timezone(timedelta(hours=hours))))
    with pytest.raises(InputError, match=r"created_at of message .* lies outside the years 1 to 9999"):
        await Agent(model=ScriptedModel("ok"), memory=Memory()).generate([said], thread="t")


# -- many runs at once


async def test_many_runs_of_one_agent_do_not_mix() -> None:
    agent = Agent(model=ScriptedModel(lambda request: request.prompt.messages[-1].text.upper()))
    results = await asyncio.gather(*(agent.generate(f"run {i}") for i in range(50)))
    assert [result.text for result in results] == [f"RUN {i}" for i in range(50)]
    assert len({result.run_id for result in results}) == 50


async def test_nothing_is_left_running_or_open() -> None:
    loop = asyncio.get_running_loop()
    problems: list[Any] = []
    loop.set_exception_handler(lambda _, details: problems.append(details))
    loop.set_debug(True)
    before = asyncio.all_tasks()
    try:
        model = ScriptedModel([ToolCall("add", {"a": 1, "b": 2})] * 3, "ok", RuntimeError("boom"))
        agent = Agent(model=model, tools=[add])
        await agent.generate("hi")
        with pytest.raises(RuntimeError):
            await agent.generate("hi")
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
    finally:
        loop.set_debug(False)
        loop.set_exception_handler(None)
    assert problems == []


async def test_leaving_the_agent_waits_for_memory() -> None:
    memory = RecordingMemory()
    async with Agent(model=ScriptedModel("ok"), memory=memory) as agent:
        await agent.generate("hi", thread="t")
        assert memory.closed == 0
    assert memory.closed == 1


# -- generate_sync


def test_generate_sync_from_many_threads() -> None:
    agent = Agent(model=ScriptedModel(lambda request: request.prompt.messages[-1].text.upper()))
    texts: dict[int, str] = {}

    def work(i: int) -> None:
        texts[i] = agent.generate_sync(f"run {i}").text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {i: f"RUN {i}" for i in range(8)}


def test_generate_sync_raises_what_generate_raises() -> None:
    with pytest.raises(ConfigError, match="unknown options"):
        Agent(model=ScriptedModel("ok")).generate_sync("hi", nonsense=1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ModelConnectionError):
        Agent(model=ScriptedModel(ModelConnectionError("cut"))).generate_sync("hi")


def test_generate_sync_from_its_own_loop_is_an_error_and_not_a_deadlock() -> None:
    inner = Agent(model=ScriptedModel("inner"))

    async def ask() -> str:
        """Ask another agent, the wrong way."""
        return inner.generate_sync("hi").text

    outer = Agent(model=ScriptedModel(ToolCall("ask", {}), "done"), tools=[ask])
    result = outer.generate_sync("go")
    part = result.messages[0].tool_parts[0]
    assert part.state == "error"
    assert "await generate" in part.result


def test_generate_sync_inside_a_sync_tool_works_at_any_depth() -> None:
    """Each level waits in a worker thread; no pool of threads may run dry over it."""

    def agent(depth: int) -> Agent:
        def deeper() -> str:
            """Ask the next agent."""
            return agent(depth - 1).generate_sync("go").text

        calls = [ToolCall("deeper", {})] * 2
        return Agent(model=ScriptedModel(calls, f"level {depth}") if depth else ScriptedModel("bottom"), tools=[deeper])

    result = agent(4).generate_sync("go")
    assert [part.result for part in result.messages[0].tool_parts] == ["level 3", "level 3"]


async def test_generate_sync_while_another_loop_runs() -> None:
    agent = Agent(model=ScriptedModel("ok"))
    result = await asyncio.to_thread(agent.generate_sync, "hi")
    assert result.text == "ok"


async def test_a_model_that_yields_plain_text_is_refused_with_the_remedy() -> None:
    class Plain(Model):
        provider, name = "own", "plain"

        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            yield "hello"

    with pytest.raises(TypeError, match=r"yields chunks of diarist\.chunks, such as TextDelta, not 'hello'"):
        await Agent(model=Plain()).generate("hi")
