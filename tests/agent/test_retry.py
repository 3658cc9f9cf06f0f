"""Processors send an attempt back: another one with feedback, and no trace of the rejected one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diarist import Agent, AgentStream, DataChunk, Memory, Message, Processor, Usage
from diarist.chunks import Chunk, StepFinish, StepStart, TextDelta, TextEnd
from diarist.messages import DataPart, TextPart
from diarist.processors import (
    PIIDetector,
    ProcessInputStepArgs,
    ProcessLLMResponseArgs,
    ProcessOutputStepArgs,
    ProcessOutputStreamArgs,
    RegexFilter,
    TokenLimiter,
    UnicodeNormalizer,
)
from diarist.processors.compose import Sequence
from diarist.storage import InMemoryStorage
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import RecordingMemory, collect, outline, reasons, run_both, streamed_text, types

FEEDBACK = "processor-retry-feedback"
RETRYING_HOOKS = ["process_output_stream", "process_output_step", "process_output_result"]


def reject_bad(hook: str, **attributes: Any) -> Processor[Any]:
    """A processor that sends BAD answers back, in ``hook``."""

    def judge(self: Any, args: Any) -> Any:
        if hook == "process_output_stream":
            text = getattr(getattr(args.part, "payload", None), "text", "")
        else:
            text = args.text if hook == "process_output_step" else args.result.text
        if "BAD" in text:
            args.abort(f"say GOOD ({args.retry_count})", retry=True, metadata={"rule": 1})
        return args.part if hook == "process_output_stream" else None

    return type("QualityGuard", (Processor,), {hook: judge, **attributes})()


def prompts(model: ScriptedModel) -> list[list[tuple[str, str]]]:
    return [[(m.role, m.text) for m in request.prompt] for request in model.requests]


@pytest.mark.parametrize("hook", RETRYING_HOOKS)
async def test_the_rejected_attempt_vanishes_and_the_reason_comes_last(hook: str) -> None:
    models: list[ScriptedModel] = []

    def make() -> Agent:
        models.append(ScriptedModel("BAD one", "BAD two", "GOOD"))
        return Agent(
            model=models[-1], instructions="Be good.", output_processors=[reject_bad(hook)], max_processor_retries=3
        )

    result, chunks = await run_both(make)
    assert (result.text, result.stopped_by, len(result.steps)) == ("GOOD", "answer", 1)
    assert [message.text for message in result.messages] == ["GOOD"]
    first, second, third = prompts(models[0])
    assert first == [("system", "Be good."), ("user", "hi")]
    assert [role for role, _ in second] == ["system", "user", "user"]
    assert second[:2] == third[:2] == first
    assert FEEDBACK in second[2][1]
    assert "say GOOD (0)" in second[2][1]
    assert len(third) == 3, "only the newest reason"
    assert "say GOOD (1)" in third[2][1]
    assert not any("BAD" in request.text for request in models[0].requests)
    assert [(r.step_number, r.reason, r.processor_id) for r in result.rejected] == [
        (0, "say GOOD (0)", "quality-guard"),
        (0, "say GOOD (1)", "quality-guard"),
    ]
    passed = ["", ""] if hook == "process_output_stream" else ["BAD one", "BAD two"]  # the chunk itself was refused
    assert [r.text for r in result.rejected] == passed
    assert reasons(chunks) == ["retry", "retry", "stop"]


async def test_feedback_is_for_that_attempt_alone() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    model = ScriptedModel(["BAD", ToolCall("add", {"a": 1, "b": 1})], ToolCall("add", {"a": 1, "b": 2}), "GOOD")
    agent = Agent(
        model=model, tools=[add], output_processors=[reject_bad("process_output_step")], max_processor_retries=1
    )
    result = await agent.generate("hi")
    assert [FEEDBACK in request.text for request in model.requests] == [False, True, False]
    assert [part.result for message in result.messages for part in message.tool_parts] == [3]


async def test_the_tools_of_a_rejected_attempt_never_run() -> None:
    ran: list[str] = []

    def delete(what: str) -> str:
        """Delete."""
        ran.append(what)
        return "gone"

    model = ScriptedModel(["BAD", ToolCall("delete", {"what": "all"})], "GOOD")
    for hook in ("process_output_step", "process_output_stream"):
        model = ScriptedModel(["BAD", ToolCall("delete", {"what": "all"})], "GOOD")
        agent = Agent(model=model, tools=[delete], output_processors=[reject_bad(hook)], max_processor_retries=1)
        assert (await agent.generate("hi")).text == "GOOD"
    assert ran == []


@pytest.mark.parametrize("hook", RETRYING_HOOKS)
@pytest.mark.parametrize("allowed", [None, 0, 2])
async def test_when_retries_are_used_up_the_run_is_blocked(hook: str, allowed: int | None) -> None:
    memory = RecordingMemory()

    def make() -> Agent:
        return Agent(
            model=ScriptedModel(lambda request: "BAD"),
            output_processors=[reject_bad(hook)],
            max_processor_retries=allowed,
            memory=memory,
        )

    result, chunks = await run_both(make, thread="t")
    attempts = (allowed or 0) + 1
    assert result.tripwire is not None
    assert (result.tripwire.retry, result.tripwire.hook, result.tripwire.metadata) == (True, hook, {"rule": 1})
    assert (result.stopped_by, result.finish_reason) == ("tripwire", "other")
    assert (result.text, result.messages, result.steps) == ("", [], [])
    assert len(result.rejected) == attempts - 1
    assert types(chunks)[-1] == "tripwire"
    assert chunks[-1].to_dict()["payload"]["retry"] is True
    assert reasons(chunks) == ["retry"] * (attempts - 1)
    assert memory.outcomes == ["discarded", "discarded"]


async def test_a_calls_value_beats_the_agents() -> None:
    def make() -> tuple[ScriptedModel, Agent]:
        model = ScriptedModel(lambda request: "BAD")
        guard = reject_bad("process_output_step")
        return model, Agent(model=model, output_processors=[guard], max_processor_retries=1)

    for option, requests in (({}, 2), ({"max_processor_retries": 3}, 4), ({"max_processor_retries": 0}, 1)):
        model, agent = make()
        await agent.generate("hi", **option)  # pyright: ignore[reportArgumentType]
        assert len(model.requests) == requests


async def test_retries_are_not_counted_as_steps_but_their_tokens_are() -> None:
    bad = Reply(text="BAD", usage=Usage(input_tokens=10, output_tokens=1))
    model = ScriptedModel(bad, bad, Reply(text="GOOD", usage=Usage(input_tokens=12, output_tokens=1)))
    guard = reject_bad("process_output_step")
    agent = Agent(model=model, output_processors=[guard], max_steps=1, max_processor_retries=2)
    result = await agent.generate("hi")
    assert (result.stopped_by, result.text) == ("answer", "GOOD")
    assert result.usage == Usage(input_tokens=32, output_tokens=3)
    assert [r.usage.input_tokens for r in result.rejected] == [10, 10]
    assert result.steps[0].usage.input_tokens == 12


async def test_the_retry_count_starts_at_zero_in_each_step() -> None:
    counts: list[tuple[int, int]] = []

    class Guard(Processor[Any]):
        def process_input_step(self, args: Any) -> None:
            counts.append((args.step_number, args.retry_count))

        def process_output_step(self, args: Any) -> None:
            if args.retry_count < 1:
                args.abort("again", retry=True)

    def work() -> str:
        """Work."""
        return "done"

    guard = Guard()
    call = ToolCall("work")
    agent = Agent(
        model=ScriptedModel(call, call, "a", "b"),
        tools=[work],
        input_processors=[guard],
        output_processors=[guard],
        max_processor_retries=1,
    )
    result = await agent.generate("hi")
    assert counts == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (result.text, len(result.steps)) == ("b", 2)


async def test_an_input_step_may_ask_for_a_retry_before_the_model_is_called() -> None:
    class NotReady(Processor[Any]):
        def process_input_step(self, args: Any) -> None:
            if args.retry_count == 0:
                args.abort("mind the date", retry=True)

    model = ScriptedModel("ok")
    result = await Agent(model=model, input_processors=[NotReady()], max_processor_retries=1).generate("hi")
    assert (result.text, len(model.requests)) == ("ok", 1)
    assert "mind the date" in model.requests[0].text


async def test_there_is_nothing_to_repeat_in_process_input() -> None:
    class Impatient(Processor[Any]):
        def process_input(self, args: Any) -> None:
            args.abort("again", retry=True)

    model = ScriptedModel("never")
    result = await Agent(model=model, input_processors=[Impatient()], max_processor_retries=5).generate("hi")
    assert (result.stopped_by, model.requests) == ("tripwire", [])


async def test_what_processors_added_to_the_conversation_in_a_rejected_attempt_goes_with_it() -> None:
    class Adds(Processor[Any]):
        def process_input_step(self, args: Any) -> None:
            args.message_list.add(Message.user(f"context {args.retry_count}"), "context")
            args.message_list.add_system(f"system {args.retry_count}")

    model = ScriptedModel("BAD", "GOOD")
    guard = reject_bad("process_output_step")
    agent = Agent(model=model, input_processors=[Adds()], output_processors=[guard], max_processor_retries=1)
    await agent.generate("hi")
    assert [text for _, text in prompts(model)[1]][:3] == ["system 1", "hi", "context 1"]


@pytest.mark.parametrize("hook", ["process_llm_request", "process_output_stream"])
async def test_data_written_in_a_rejected_attempt_is_not_stored(hook: str) -> None:
    def note(self: Any, args: Any) -> Any:
        if hook == "process_llm_request" or args.part.type == "text-delta":
            args.writer.custom(DataChunk("data-note", args.retry_count))
        if hook == "process_output_stream":
            return guard.process_output_stream(args)
        return None

    guard = reject_bad("process_output_stream")
    notes = type("Notes", (Processor,), {hook: note})()
    model = ScriptedModel("BAD", "GOOD")
    agent = Agent(model=model, input_processors=[notes], output_processors=[notes, guard], max_processor_retries=1)
    result = await agent.generate("hi")
    parts = [part for message in result.messages for part in message.parts if isinstance(part, DataPart)]
    assert [part.data for part in parts] == [1]


async def test_a_retry_asked_for_at_the_end_repeats_the_last_step_only() -> None:
    ran: list[int] = []

    def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    model = ScriptedModel(["Working.", ToolCall("work")], "BAD", "GOOD")
    guard = reject_bad("process_output_result")
    agent = Agent(model=model, tools=[work], output_processors=[guard], max_processor_retries=1)
    chunks = await collect(agent.stream("hi"))
    assert reasons(chunks) == ["tool-calls", "retry", "stop"]
    assert ran == [1]
    assert [m.role for m in model.requests[2].prompt] == ["user", "assistant", "tool", "user"]


async def test_a_step_cannot_be_repeated_after_its_tools_ran() -> None:
    """Its effects have happened: asking for it blocks."""
    ran: list[int] = []

    def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    class AtTheEnd(Processor[Any]):
        def process_output_result(self, args: Any) -> None:
            args.abort("again", retry=True)

    class AtTheToolsResult(Processor[Any]):
        def process_output_stream(self, args: Any) -> Any:
            if args.part.type == "tool-result":
                args.abort("again", retry=True)
            return args.part

    for guard in (AtTheEnd(), AtTheToolsResult()):
        ran.clear()
        model = ScriptedModel(lambda request: ToolCall("work"))
        agent = Agent(model=model, tools=[work], output_processors=[guard], max_processor_retries=3, max_steps=1)
        result = await agent.generate("hi")
        assert (result.stopped_by, len(model.requests), ran) == ("tripwire", 1, [1])


CALLS_THAT_START_NOTHING = {
    "unknown": ToolCall("nobody"),
    "arguments that are no JSON": ToolCall("look", '{"at":'),
    "arguments that do not fit": ToolCall("look", {"at": {}, "more": 1}),
    "refused": ToolCall("look", {"at": "refused"}),
    "answered": ToolCall("look", {"at": "answered"}),
}


@pytest.mark.parametrize("call", CALLS_THAT_START_NOTHING.values(), ids=CALLS_THAT_START_NOTHING)
async def test_a_step_in_which_no_tool_has_really_started_can_be_repeated(call: ToolCall) -> None:
    ran: list[str] = []

    def look(at: str) -> str:
        """Look."""
        ran.append(at)
        return at

    class Answers(Processor[Any]):
        def process_tool_call(self, args: Any) -> Any:
            what = args.call.args.get("at")
            return {"deny": "no"} if what == "refused" else {"result": "yes"} if what == "answered" else None

        def process_output_result(self, args: Any) -> None:
            if args.result.steps[-1].tool_calls:
                args.abort("answer in words", retry=True)

    agent = Agent(
        model=ScriptedModel(call, "GOOD"), tools=[look], processors=[Answers()], max_steps=1, max_processor_retries=1
    )
    result = await agent.generate("hi")
    assert (ran, result.text, result.tripwire, len(result.rejected)) == ([], "GOOD", None, 1)


# -- hold_output


@pytest.mark.parametrize("hook", RETRYING_HOOKS)
async def test_rejected_text_never_reaches_the_client_with_hold_output(hook: str) -> None:
    model = ScriptedModel(["some ", "BAD ", "text"], ["GOOD ", "text"])
    guard = reject_bad(hook, hold_output=True)
    chunks = await collect(Agent(model=model, output_processors=[guard], max_processor_retries=1).stream("hi"))
    assert streamed_text(chunks) == "GOOD text"
    assert types(chunks) == [
        "start",
        "step-start",
        *("text-start", "text-delta", "text-end"),
        "step-finish",
        "finish",
    ]


class Shown:
    """A page that takes the text of a rejected attempt back, as docs/howto/stream-a-run.md has it."""

    def __init__(self) -> None:
        self.text = ""

    async def read(self, stream: AgentStream[Any]) -> str:
        async with stream:
            async for chunk in stream:
                match chunk:
                    case StepStart():
                        before = self.text
                    case TextDelta():
                        self.text += chunk.payload.text
                    case StepFinish() if chunk.payload.reason == "retry":
                        self.text = before  # pyright: ignore[reportPossiblyUnboundVariable]
                    case _:
                        pass
        return self.text


@pytest.mark.parametrize("hold_output", [True, False])
@pytest.mark.parametrize("hook", RETRYING_HOOKS)
async def test_a_page_that_takes_rejected_text_back_keeps_accepted_text(hook: str, hold_output: bool) -> None:
    def look() -> str:
        """Look."""
        return "a door"

    model = ScriptedModel(["Let me look. ", ToolCall("look")], "BAD", "There is a door.")
    guard = reject_bad(hook, hold_output=hold_output)
    agent = Agent(model=model, tools=[look], output_processors=[guard], max_processor_retries=1)
    assert await Shown().read(agent.stream("hi")) == "Let me look. There is a door."


async def test_an_attempt_rejected_before_its_model_call_is_not_streamed() -> None:
    class Again(Processor[Any]):
        def process_llm_request(self, args: Any) -> None:
            if args.retry_count == 0:
                args.abort("again", retry=True)

    agent = Agent(model=ScriptedModel("hi"), processors=[Again()], max_processor_retries=1)
    assert await Shown().read(agent.stream("hi")) == "hi"


async def test_without_hold_output_the_rejected_text_was_streamed_and_is_marked() -> None:
    guard = reject_bad("process_output_step")
    agent = Agent(model=ScriptedModel("BAD", "GOOD"), output_processors=[guard], max_processor_retries=1)
    chunks = await collect(agent.stream("hi"))
    assert streamed_text(chunks) == "BADGOOD"
    assert reasons(chunks) == ["retry", "stop"]


@pytest.mark.parametrize("hook", RETRYING_HOOKS)
async def test_blocked_text_never_reaches_the_client_with_hold_output(hook: str) -> None:
    guard = reject_bad(hook, hold_output=True)
    chunks = await collect(Agent(model=ScriptedModel(["x ", "BAD"]), output_processors=[guard]).stream("hi"))
    assert types(chunks) == ["start", "tripwire"]


async def test_held_output_is_released_before_the_steps_tools_run() -> None:
    seen = asyncio.Event()

    async def work() -> str:
        """Work until the client has seen the text."""
        await seen.wait()
        return "done"

    guard = reject_bad("process_output_step", hold_output=True)
    agent = Agent(model=ScriptedModel(["Working.", ToolCall("work")], "ok"), tools=[work], output_processors=[guard])
    async with agent.stream("hi") as stream:
        async for chunk in stream:
            if chunk.type == "text-delta":
                seen.set()
        result = await stream.result()
    assert result.text == "ok"


async def test_held_output_comes_only_after_the_last_hook() -> None:
    order: list[str] = []

    class Last(Processor[Any]):
        hold_output = True

        def process_output_result(self, args: Any) -> None:
            order.append("judged")

    async with Agent(model=ScriptedModel(["a", "b"]), output_processors=[Last()]).stream("hi") as stream:
        async for chunk in stream:
            order.append(chunk.type)
    assert order.index("judged") < order.index("step-start")


async def test_holding_changes_nothing_in_the_result() -> None:
    def agent(hold: bool) -> Agent:
        guard = reject_bad("process_output_step", hold_output=hold)
        return Agent(model=ScriptedModel("BAD", "GOOD"), output_processors=[guard], max_processor_retries=1)

    assert outline(await agent(True).generate("hi")) == outline(await agent(False).generate("hi"))


class Again(Processor[Any]):
    """Rejects the first attempt, in the hook it is made for."""

    def __init__(self, hook: str) -> None:
        self._hook = hook

    def process_llm_response(self, args: ProcessLLMResponseArgs[Any]) -> None:
        if self._hook == "response" and args.retry_count == 0:
            args.abort("again", retry=True)

    def process_output_stream(self, args: ProcessOutputStreamArgs[Any]) -> Chunk:
        if self._hook == "stream" and args.retry_count == 0 and isinstance(args.part, TextEnd):
            args.abort("again", retry=True)
        return args.part


@pytest.mark.parametrize("hook", ["response", "stream"])
async def test_a_rejected_text_does_not_hold_what_a_filter_took_out(hook: str) -> None:
    model = ScriptedModel(["mail ada@exam", "ple.com now"], "fine")
    agent = Agent(model=model, processors=[RegexFilter(strategy="redact"), Again(hook)], max_processor_retries=1)
    [rejected] = (await agent.generate("hi")).rejected
    assert rejected.text.startswith("mail ")
    assert "ada@" not in rejected.text


class Edits(Processor[Any]):
    """Edits the input in place and rejects the first attempt."""

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        part = args.messages[0].parts[0]
        assert isinstance(part, TextPart)
        part.text += " [note]"
        args.messages[0].metadata["notes"] = args.messages[0].metadata.get("notes", 0) + 1

    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        if args.retry_count == 0:
            args.abort("again", retry=True)


async def test_edits_in_place_of_a_rejected_attempt_are_taken_back() -> None:
    model = ScriptedModel("no", "yes")
    result = await Agent(model=model, processors=[Edits()], max_processor_retries=1).generate("hi")
    assert [request.prompt.messages[0].text for request in model.requests] == ["hi [note]", "hi [note]"]
    assert result.conversation[0].metadata["notes"] == 1


class Counted(dict[str, Any]):
    """Data that know how often they were copied."""

    copies = 0

    def items(self) -> Any:
        Counted.copies += 1
        return super().items()


class LooksOn(Processor[Any]):
    edits_in_place = False

    def process_input(self, args: Any) -> None:
        args.messages[-1].parts.append(DataPart(type="data-x", data=Counted()))

    def process_input_step(self, args: Any) -> None: ...


class Heir(LooksOn):
    """Has to say for itself that it leaves messages as they are."""


@pytest.mark.parametrize(
    ("processors", "copied"),
    [
        ([LooksOn(), RegexFilter(), TokenLimiter(1000)], False),
        ([Sequence(LooksOn(), PIIDetector())], False),
        ([LooksOn(), UnicodeNormalizer()], False),
        ([Heir()], True),
        ([Sequence(LooksOn(), Heir())], True),
    ],
)
async def test_messages_are_copied_only_if_a_processor_may_change_them(processors: Any, copied: bool) -> None:
    Counted.copies = 0
    agent = Agent(model=ScriptedModel("ok"), processors=processors, memory=Memory(storage=InMemoryStorage()))
    assert (await agent.generate("hi", thread="t")).text == "ok"
    assert (Counted.copies > 0) is copied


@pytest.mark.parametrize("hook", ["process_output_step", "process_output_result"])
@pytest.mark.parametrize("clean", ["clean", ""])
async def test_held_text_reaches_the_client_as_it_was_accepted(hook: str, clean: str) -> None:
    def edit(self: Any, args: Any) -> None:
        args.messages[-1].parts[0].text = clean

    editor = type("Editor", (Processor,), {hook: edit, "hold_output": True})()

    def make() -> Agent:
        return Agent(model=ScriptedModel(["dirty ", "words"]), processors=[editor])

    result, chunks = await run_both(make)
    assert streamed_text(chunks) == result.text == clean
    text = ["text-start", "text-delta", "text-end"] if clean else []
    assert types(chunks) == ["start", "step-start", *text, "step-finish", "finish"]
