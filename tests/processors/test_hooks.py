"""The hooks: when they run, what they get, what they share, and how they block."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from diarist import Agent, Message, ModelSettings, Processor, ProcessorAbort, Tool
from diarist.chunks import TripwireChunk
from diarist.exceptions import BlockedError, ConfigError, ProcessorError, StorageError, ThreadBusyError
from diarist.message_list import MessageList, SystemMessage
from diarist.messages import Prompt, PromptMessage, TextPart
from diarist.models.base import OutputSchema
from diarist.processors import (
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMRequestArgs,
    ProcessOutputResultArgs,
    ProcessOutputStepArgs,
    ProcessOutputStreamArgs,
)
from diarist.testing import ScriptedModel, ToolCall
from tests.agent.kit import RecordingMemory, collect, run_both, types

HOOKS = (
    "process_input",
    "process_input_step",
    "process_llm_request",
    "process_output_stream",
    "process_output_step",
    "process_output_result",
)


def work() -> str:
    """Work."""
    return "worked"


class Everything(Processor[Any]):
    """Notes each hook that it is asked in, and in the stream only the first chunk of the model's."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.id = name
        self.log = log

    def note(self, hook: str) -> None:
        self.log.append(f"{self.id}.{hook}")

    def process_input(self, args: ProcessInputArgs[Any]) -> None:
        self.note("input")

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        self.note(f"input_step {args.step_number}")

    def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
        self.note("llm_request")

    async def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
        if args.part.type == "text-delta":
            self.note("stream")
        return args.part

    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        self.note("output_step")

    async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        self.note("result")


async def test_hooks_run_in_the_order_of_a_request_and_processors_in_theirs() -> None:
    log: list[str] = []
    a, b = Everything("a", log), Everything("b", log)
    agent = Agent(
        model=ScriptedModel(["x", ToolCall("work")], "y"),
        tools=[work],
        input_processors=[a, b],
        output_processors=[b, a],
    )
    await agent.generate("hi")
    step = ["b.stream", "a.stream", "b.output_step", "a.output_step"]
    assert log == [
        *("a.input", "b.input"),
        *("a.input_step 0", "b.input_step 0", "a.llm_request", "b.llm_request", *step),
        *("a.input_step 1", "b.input_step 1", "a.llm_request", "b.llm_request", *step),
        *("b.result", "a.result"),
    ]


async def test_memorys_processors_come_first_before_the_model_and_last_after_it() -> None:
    memory = RecordingMemory()

    class User(Processor[Any]):
        def process_input(self, args: Any) -> None:
            memory.events.append("user: input")

        def process_output_result(self, args: Any) -> None:
            memory.events.append("user: result")

    user = User()
    agent = Agent(model=ScriptedModel("ok"), memory=memory, input_processors=[user], output_processors=[user])
    await agent.generate("hi", thread="t")
    assert memory.events == ["memory: input", "user: input", "user: result", "memory: result"]
    assert memory.outcomes == ["committed"]


async def test_the_processors_of_a_call_replace_the_agents_and_memorys_stay() -> None:
    log: list[str] = []
    memory = RecordingMemory()
    agent = Agent(
        model=ScriptedModel(lambda request: "ok"),
        memory=memory,
        input_processors=[Everything("agents-in", log)],
        output_processors=[Everything("agents-out", log)],
    )
    await agent.generate("hi", thread="t", input_processors=[Everything("calls", log)])
    assert {entry.split(".")[0] for entry in log} == {"calls", "agents-out"}
    log.clear()
    await agent.generate("hi", thread="t", input_processors=[], output_processors=[])
    assert log == []
    await agent.generate("hi", thread="t")
    assert {entry.split(".")[0] for entry in log} == {"agents-in", "agents-out"}
    assert memory.events == ["memory: input", "memory: result"] * 3


async def test_a_processor_of_memorys_that_the_user_lists_himself_runs_once() -> None:
    memory = RecordingMemory()
    mine = type(memory.recorder)()
    agent = Agent(model=ScriptedModel("ok"), memory=memory, input_processors=[mine], output_processors=[mine])
    await agent.generate("hi", thread="t")
    assert (memory.events, mine.events) == ([], ["memory: input", "memory: result"])


# -- what is refused


def test_ids_are_unique_within_a_list() -> None:
    class Guard(Processor[Any]):
        pass

    with pytest.raises(ConfigError, match="input_processors: two processors have the id 'guard'"):
        Agent(model=ScriptedModel("x"), input_processors=[Guard(), Guard()])
    with pytest.raises(ConfigError, match="output_processors: two processors"):
        Agent(model=ScriptedModel("x"), output_processors=[Guard(), Guard()])
    with pytest.raises(ConfigError, match="two processors"):
        Agent(model=ScriptedModel("x")).stream("hi", input_processors=[Guard(), Guard()])


def test_a_class_instead_of_an_instance_is_refused() -> None:
    class Guard(Processor[Any]):
        pass

    with pytest.raises(ConfigError, match="is no processor"):
        Agent(model=ScriptedModel("x"), input_processors=[Guard])  # pyright: ignore[reportArgumentType]


def test_ids_are_the_class_names_in_kebab_case() -> None:
    class PIIDetector(Processor[Any]):
        pass

    class TokenLimiter2(Processor[Any]):
        pass

    class Named(Processor[Any]):
        id = "my-own"

    assert (PIIDetector().id, TokenLimiter2().id, Named().id) == ("pii-detector", "token-limiter2", "my-own")


# -- arguments


async def test_what_the_hooks_are_given() -> None:
    seen: dict[str, Any] = {}

    class Look(Processor[Any]):
        def process_input(self, args: ProcessInputArgs[Any]) -> None:
            seen["input"] = ([m.text for m in args.messages], args.system_messages, args.retry_count)
            seen["list"] = args.message_list

        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
            seen[f"step {args.step_number}"] = (
                [m.role for m in args.messages],
                [step.text for step in args.steps],
                args.model.id,
                list(args.tools),
                args.tool_choice,
                args.active_tools,
                args.model_settings.seed,
                args.structured_output,
            )

        def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
            seen[f"prompt {args.step_number}"] = (args.prompt.text, args.request.prompt is args.prompt, args.model.id)

        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
            seen[f"output {args.step_number}"] = (
                args.text,
                [(call.name, call.state) for call in args.tool_calls],
                args.finish_reason,
                args.usage.output_tokens > 0,
                [m.role for m in args.messages],
                [step.text for step in args.steps],
            )

        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            seen["result"] = (args.result.text, args.result.finish_reason, [m.text for m in args.messages])
            seen["usage"] = args.result.usage
            seen["ids"] = (args.run_id, args.processor_id)
            assert args.message_list is seen["list"]
            assert [step.tool_calls[0].state for step in args.result.steps if step.tool_calls] == ["result"]

    look = Look()
    agent = Agent(
        model=ScriptedModel(["x", ToolCall("work")], "y"),
        instructions="I",
        tools=[work],
        input_processors=[look],
        output_processors=[look],
        model_settings=ModelSettings(seed=7),
    )
    result = await agent.generate("hi")
    assert isinstance(seen["list"], MessageList)
    assert seen["input"] == (["hi"], [SystemMessage("I")], 0)
    common = ("scripted/model", ["work"], "auto", None, 7, None)
    assert seen["step 0"] == (["user"], [], *common)
    assert seen["step 1"] == (["user", "assistant"], ["x"], *common)
    assert seen["prompt 0"] == ("[system]\nI\n[user]\nhi", True, "scripted/model")
    assert seen["output 0"] == ("x", [("work", "call")], "tool-calls", True, ["user", "assistant"], ["x"])
    assert seen["output 1"] == ("y", [], "stop", True, ["user", "assistant", "assistant"], ["x", "y"])
    assert seen["result"] == ("y", "stop", ["x", "y"])
    assert seen["usage"] == result.usage
    assert seen["ids"] == (result.run_id, "look")


async def test_editing_the_arguments_in_place_does_not_leak_into_later_steps() -> None:
    class Edits(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
            args.tools.clear()
            args.provider_options["openai"]["n"] = 2
            assert args.active_tools is not None
            args.active_tools.clear()

    model = ScriptedModel(ToolCall("work"), "ok")
    options = {"openai": {"n": 1}}
    agent = Agent(model=model, tools=[work], input_processors=[Edits()])
    await agent.generate("hi", provider_options=options, active_tools=["work"])
    assert [request.provider_options for request in model.requests] == [{"openai": {"n": 1}}] * 2
    assert [[tool.name for tool in request.tools] for request in model.requests] == [["work"]] * 2
    assert options == {"openai": {"n": 1}}


# -- state


async def test_state_is_one_object_per_processor_and_request() -> None:
    @dataclass
    class Counter:
        hooks: int = 0

    states: list[Counter] = []

    class Counts(Processor[Any]):
        def create_state(self) -> Counter:
            states.append(Counter())
            return states[-1]

        def count(self, args: Any) -> None:
            args.state.hooks += 1

        process_input = process_input_step = process_llm_request = count
        process_output_step = process_output_result = count

    a, b = Counts(), Counts()
    b.id = "other"
    agent = Agent(model=ScriptedModel(lambda request: "ok"), input_processors=[a, b], output_processors=[a])
    await agent.generate("hi")
    assert [state.hooks for state in states] == [5, 3]


async def test_state_survives_retries_and_is_not_shared_between_concurrent_requests() -> None:
    meeting = asyncio.Barrier(10)

    class Remembers(Processor[Any]):
        async def process_input(self, args: ProcessInputArgs[Any]) -> None:
            args.state["asked"] = args.messages[0].text
            await meeting.wait()

        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
            args.state["tries"] = args.state.get("tries", 0) + 1
            if args.retry_count < 2:
                args.abort("again", retry=True)

        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            args.messages[-1].metadata.update(args.state)

    guard = Remembers()
    agent = Agent(
        model=ScriptedModel(lambda request: "ok"),
        input_processors=[guard],
        output_processors=[guard],
        max_processor_retries=2,
    )
    results = await asyncio.gather(*(agent.generate(f"run {i}") for i in range(10)))
    assert [r.messages[0].metadata for r in results] == [{"asked": f"run {i}", "tries": 3} for i in range(10)]


# -- process_input and process_input_step


async def test_system_messages_of_a_step_are_gone_at_the_next_those_of_process_input_stay() -> None:
    class Adds(Processor[Any]):
        def process_input(self, args: ProcessInputArgs[Any]) -> Any:
            return {"system_messages": [*args.system_messages, "from input"]}

        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> Any:
            return {"system_messages": [*args.system_messages, SystemMessage(f"step {args.step_number}", "mine")]}

    model = ScriptedModel(ToolCall("work"), "ok")
    await Agent(model=model, instructions="I", tools=[work], input_processors=[Adds()]).generate("hi")
    systems = [[m.text for m in request.prompt if m.role == "system"] for request in model.requests]
    assert systems == [["I", "from input", "step 0"], ["I", "from input", "step 1"]]


async def test_messages_added_in_a_step_stay() -> None:
    class Adds(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> Any:
            if args.step_number == 0:
                return [*args.messages, Message.user("context")]
            return None

    model = ScriptedModel(ToolCall("work"), "ok")
    result = await Agent(model=model, tools=[work], input_processors=[Adds()]).generate("hi")
    assert [m.text for m in model.requests[1].prompt][:2] == ["hi", "context"]
    assert [m.role for m in result.messages] == ["assistant", "assistant"], "context is no response"


async def test_overrides_chain_and_prepare_step_has_the_last_word() -> None:
    seen: list[Any] = []
    first, second = ScriptedModel(name="first"), ScriptedModel(lambda request: "{}", name="second")
    schema = OutputSchema(name="s", schema={"type": "object"})

    class A(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> Any:
            return {
                "model": second,
                "tool_choice": "required",
                "model_settings": ModelSettings(temperature=0.5),
                "provider_options": {"a": {"x": 1}},
                "structured_output": schema,
            }

    class B(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> Any:
            seen.append((args.model.name, args.tool_choice, args.model_settings.temperature))
            return {
                "tool_choice": "none",
                "tools": [*args.tools.values(), Tool(name="extra", function=lambda: 1)],
                "active_tools": ["extra"],
                "provider_options": {"b": {"y": 1}},
            }

    async def prepare(args: ProcessInputStepArgs[Any]) -> Any:
        seen.append((args.model.name, args.tool_choice, list(args.tools)))
        return {"tool_choice": "auto", "model_settings": ModelSettings(seed=1)}

    agent = Agent(model=first, tools=[work], input_processors=[A(), B()], default_options={"prepare_step": prepare})
    await agent.generate("hi")
    assert seen == [("second", "required", 0.5), ("second", "none", ["work", "extra"])]
    assert first.requests == []
    request = second.requests[0]
    assert (request.tool_choice, [tool.name for tool in request.tools]) == ("auto", ["extra"])
    assert (request.settings.temperature, request.settings.seed) == (0.5, 1)
    assert request.provider_options == {"a": {"x": 1}, "b": {"y": 1}}
    assert request.output == schema
    await agent.generate("hi", prepare_step=lambda args: {"active_tools": None})
    assert [tool.name for tool in second.requests[1].tools] == [], "this call's prepare_step, after all processors"


async def test_overrides_are_for_one_step() -> None:
    other = ScriptedModel("other")

    def prepare(args: ProcessInputStepArgs[Any]) -> Any:
        return {"model": other, "tools": [], "tool_choice": "none"} if args.step_number == 1 else None

    model = ScriptedModel(ToolCall("work"), ToolCall("work"))
    result = await Agent(model=model, tools=[work]).generate("hi", prepare_step=prepare)
    assert [step.model for step in result.steps] == ["scripted/model", "scripted/model"]


async def test_tools_added_at_a_step_can_be_called() -> None:
    def late() -> str:
        """Come late."""
        return "here"

    def prepare(args: ProcessInputStepArgs[Any]) -> Any:
        return {"tools": {**args.tools, "late": late}}

    model = ScriptedModel(ToolCall("late"), "ok")
    result = await Agent(model=model, tools=[work]).generate("hi", prepare_step=prepare)
    assert result.messages[0].tool_parts[0].result == "here"


# -- process_llm_request


async def test_edits_of_the_prompt_are_for_this_call_only() -> None:
    class Redacts(Processor[Any]):
        def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
            for message in args.prompt:
                for part in message.parts:
                    if isinstance(part, TextPart):
                        part.text = part.text.replace("hunter2", "***")
                    if part.type == "tool-call":
                        part.args["q"] = "***"  # pyright: ignore[reportAttributeAccessIssue]

    def look(q: str) -> str:
        """Look."""
        return "ok"

    model = ScriptedModel(["It is hunter2.", ToolCall("look", {"q": "hunter2"})], "done")
    result = await Agent(model=model, tools=[look], input_processors=[Redacts()]).generate("I am hunter2")
    assert not any("hunter2" in request.text for request in model.requests)
    assert result.messages[0].text == "It is hunter2."
    assert result.messages[0].tool_parts[0].args == {"q": "hunter2"}


@pytest.mark.parametrize("wrapped", [False, True])
async def test_another_prompt_chains_to_the_next_processor(wrapped: bool) -> None:
    def add(text: str) -> Any:
        def hook(self: Any, args: ProcessLLMRequestArgs[Any]) -> Any:
            parts: list[Any] = [TextPart(text=text)]
            prompt = Prompt(messages=[*args.prompt.messages, PromptMessage(role="user", parts=parts)])
            return {"prompt": prompt} if wrapped else prompt

        return type(f"Add{text}", (Processor,), {"process_llm_request": hook})()

    model = ScriptedModel("ok")
    await Agent(model=model, input_processors=[add("A"), add("B")]).generate("hi")
    assert [message.text for message in model.requests[0].prompt] == ["hi", "A", "B"]


async def test_a_processor_answers_in_the_models_place() -> None:
    later: list[str] = []

    class Cache(Processor[Any]):
        def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> Any:
            return {"response": "from the cache"}

    def make() -> Agent:
        log = Everything("later", later)
        return Agent(model=ScriptedModel(), input_processors=[Cache(), log], output_processors=[log])

    result, chunks = await run_both(make)
    assert (result.text, result.stopped_by, result.usage.total_tokens) == ("from the cache", "answer", 0)
    assert types(chunks) == [*("start", "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish")]
    assert "later.llm_request" not in later
    assert "later.stream" in later, "the answer passes the output hooks as a model's would"


async def test_recorded_chunks_can_answer_again_and_again() -> None:
    recorded: list[Any] = []

    class Record(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if args.part.type.startswith(("text", "tool-call")):
                recorded.append(args.part)
            return args.part

    class Replay(Processor[Any]):
        def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> Any:
            return {"response": recorded} if args.step_number == 0 else None

    model = ScriptedModel(["x", ToolCall("work")], "y")
    await Agent(model=model, tools=[work], output_processors=[Record()], max_steps=1).generate("hi")
    before = [chunk.to_dict() for chunk in recorded]
    agent = Agent(model=ScriptedModel(lambda request: "y"), tools=[work], input_processors=[Replay()])
    results = await asyncio.gather(*(agent.generate("hi") for _ in range(5)))
    assert [(r.text, r.messages[0].tool_parts[0].result) for r in results] == [("y", "worked")] * 5
    assert [chunk.to_dict() for chunk in recorded] == before


# -- output hooks


async def test_an_edited_answer_is_the_answer() -> None:
    class Polish(Processor[Any]):
        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> Any:
            return [*args.messages[:-1], Message.assistant("polished", id=args.messages[-1].id)]

        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            args.messages[-1].parts.append(TextPart(text="!"))

    result, _ = await run_both(lambda: Agent(model=ScriptedModel("rough"), output_processors=[Polish()]))
    assert (result.text, result.steps[0].text, [m.text for m in result.messages]) == ("polished!",) * 2 + (
        ["polished!"],
    )


async def test_calls_that_process_output_step_removes_do_not_run() -> None:
    ran: list[str] = []

    def danger() -> str:
        """Danger."""
        ran.append("ran")
        return "boom"

    class Disarm(Processor[Any]):
        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
            message = args.messages[-1]
            message.parts = [part for part in message.parts if part.type != "tool"]

    model = ScriptedModel(["No.", ToolCall("danger")])
    result = await Agent(model=model, tools=[danger], output_processors=[Disarm()]).generate("hi")
    assert (result.text, result.stopped_by, ran) == ("No.", "answer", [])


async def test_messages_added_to_the_response_are_part_of_it() -> None:
    class Appends(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> Any:
            return [*args.messages, Message.assistant(" P.S.")]

    result = await Agent(model=ScriptedModel("ok"), output_processors=[Appends()]).generate("hi")
    assert (result.text, [m.text for m in result.messages]) == ("ok P.S.", ["ok", " P.S."])


# -- blocking


def blocker(hook: str) -> Processor[Any]:
    def block(self: Any, args: Any) -> Any:
        if hook == "process_output_stream" and args.part.type != "text-end":
            return args.part
        args.abort("not allowed", metadata={"rule": 7})

    return type("Blocker", (Processor,), {hook: block})()


@pytest.mark.parametrize("hook", HOOKS)
async def test_blocking_has_one_outcome_in_every_hook(hook: str) -> None:
    ran: list[str] = []
    later: list[str] = []
    memory = RecordingMemory()

    def danger() -> str:
        """Danger."""
        ran.append("ran")
        return "boom"

    def make() -> Agent:
        processors = [blocker(hook), Everything("later", later)]
        return Agent(
            model=ScriptedModel(["text", ToolCall("danger")] if hook != "process_output_result" else "text"),
            tools=[danger],
            memory=memory,
            input_processors=processors,
            output_processors=processors,
        )

    result, chunks = await run_both(make, thread="t")
    assert result.tripwire is not None
    assert (result.tripwire.reason, result.tripwire.processor_id) == ("not allowed", "blocker")
    assert (result.tripwire.hook, result.tripwire.metadata, result.tripwire.retry) == (hook, {"rule": 7}, False)
    assert (result.text, result.finish_reason, result.stopped_by) == ("", "other", "tripwire")
    assert (result.messages, result.output, ran) == ([], None, [])
    assert memory.outcomes == ["discarded", "discarded"]
    noted = {"process_output_stream": "no hook", "process_output_result": "result"}
    own = noted.get(hook, hook.removeprefix("process_"))
    assert not any(entry.startswith(f"later.{own}") for entry in later), "later processors are not called"
    last = chunks[-1]
    assert isinstance(last, TripwireChunk)
    assert types(chunks).count("tripwire") == 1
    assert last.to_dict() == {
        "type": "tripwire",
        "runId": chunks[0].run_id,
        "from": "AGENT",
        "payload": {"reason": "not allowed", "retry": False, "metadata": {"rule": 7}, "processorId": "blocker"},
    }
    with pytest.raises(BlockedError, match="blocked by processor 'blocker': not allowed"):
        result.raise_for_tripwire()


async def test_an_unblocked_result_does_not_raise() -> None:
    (await Agent(model=ScriptedModel("ok")).generate("hi")).raise_for_tripwire()


async def test_nothing_of_a_blocked_run_is_in_the_result_but_its_usage() -> None:
    class Second(Processor[Any]):
        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
            if args.step_number == 1:
                args.abort("no")

    model = ScriptedModel(ToolCall("work"), "text")
    result = await Agent(model=model, tools=[work], output_processors=[Second()]).generate("hi")
    assert (result.text, result.messages, len(result.steps)) == ("", [], 1)
    assert result.usage.input_tokens > result.steps[0].usage.input_tokens


async def test_prepare_step_can_block() -> None:
    def prepare(args: ProcessInputStepArgs[Any]) -> None:
        args.abort("no")

    result = await Agent(model=ScriptedModel("never")).generate("hi", prepare_step=prepare)
    assert result.tripwire is not None
    assert (result.tripwire.processor_id, result.tripwire.hook) == ("prepare-step", "prepare_step")


async def test_a_tripwire_raised_by_hand_names_the_processor_too() -> None:
    class ByHand(Processor[Any]):
        def process_input(self, args: Any) -> None:
            raise ProcessorAbort("by hand")

    result = await Agent(model=ScriptedModel("x"), input_processors=[ByHand()]).generate("hi")
    assert result.tripwire is not None
    assert (result.tripwire.processor_id, result.tripwire.reason) == ("by-hand", "by hand")


async def test_tools_that_run_when_a_stream_hook_blocks_are_cancelled() -> None:
    stopped: list[str] = []

    async def quick() -> str:
        """Quick."""
        return "secret"

    async def slow() -> str:
        """Slow."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("slow")
        return "never"

    class Guard(Processor[Any]):
        def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Any:
            if args.part.type == "tool-result":
                args.abort("secret")
            return args.part

    before = asyncio.all_tasks()
    model = ScriptedModel([ToolCall("slow"), ToolCall("quick")])
    agent = Agent(model=model, tools=[quick, slow], output_processors=[Guard()])
    chunks = await collect(agent.stream("hi"))
    assert types(chunks)[-1] == "tripwire"
    assert "tool-result" not in types(chunks)
    assert stopped == ["slow"]
    assert asyncio.all_tasks() == before


# -- failing


def failing(hook: str, error: Exception) -> Processor[Any]:
    def fail(self: Any, args: Any) -> Any:
        raise error

    async def fail_later(self: Any, args: Any) -> Any:
        raise error

    return type("Broken", (Processor,), {hook: fail_later if hook.endswith("step") else fail})()


@pytest.mark.parametrize("hook", HOOKS)
async def test_what_a_processor_raises_ends_the_run_with_its_name(hook: str) -> None:
    cause = KeyError("x")
    memory = RecordingMemory()
    processor = failing(hook, cause)
    agent = Agent(
        model=ScriptedModel(lambda request: "ok"),
        memory=memory,
        input_processors=[processor],
        output_processors=[processor],
    )
    with pytest.raises(ProcessorError) as raised:
        await agent.generate("hi", thread="t")
    where = hook if hook == "process_input" else f"{hook} at step 0"
    assert str(raised.value) == f"processor 'broken' failed in {where}: KeyError: 'x'"
    assert raised.value.__cause__ is cause
    assert (raised.value.processor_id, raised.value.hook) == ("broken", hook)
    assert raised.value.step == (None if hook == "process_input" else 0)
    assert memory.outcomes == ["interrupted"]
    chunks = await collect(agent.stream("hi"))
    assert types(chunks)[-1] == "error"
    assert chunks[-1].to_dict()["payload"]["kind"] == "ProcessorError"


async def test_errors_that_callers_tell_apart_stay_what_they_are() -> None:
    driver = OSError("disk")
    error = ThreadBusyError("busy")
    error.__cause__ = driver
    agent = Agent(model=ScriptedModel("x"), input_processors=[failing("process_input", error)])
    with pytest.raises(StorageError) as raised:
        await agent.generate("hi")
    assert raised.value is error
    assert raised.value.__cause__ is driver, "the cause is kept"
    assert raised.value.__notes__ == ["raised by processor 'broken' in process_input"]


async def test_prepare_step_that_fails() -> None:
    def prepare(args: Any) -> Any:
        raise KeyError("x")

    with pytest.raises(ProcessorError, match="'prepare-step' failed in prepare_step at step 0"):
        await Agent(model=ScriptedModel("x")).generate("hi", prepare_step=prepare)


async def test_every_ending_is_told_even_when_one_fails() -> None:
    heard: list[str] = []

    class Endings(Processor[Any]):
        def process_input(self, args: Any) -> None:
            async def bad(outcome: str) -> None:
                raise OSError(outcome)

            async def good(outcome: str) -> None:
                heard.append(outcome)

            for callback in (bad, good, bad, good):
                args.context.on_end(callback)

    with pytest.raises(OSError, match="committed") as raised:
        await Agent(model=ScriptedModel("x"), input_processors=[Endings()]).generate("hi")
    assert heard == ["committed", "committed"]
    assert len(raised.value.__notes__) == 1, "the other failure is not lost"
