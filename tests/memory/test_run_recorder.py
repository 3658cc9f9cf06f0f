"""A run's way into storage: what is written, when, and what happens to a run that others took for dead."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor, Tool, ToolContext
from diarist.agent.options import CallOptions
from diarist.exceptions import RunLostError
from diarist.messages import FilePart, TextPart
from diarist.models.base import ModelRequest
from diarist.processors import ProcessInputStepArgs, ProcessOutputResultArgs, StepResult
from diarist.run_context import RunContext
from diarist.storage import Run, Thread
from diarist.storage.records import own_resource
from diarist.testing import ScriptedModel, ToolCall
from tests.memory.test_cancelled_manual_observation import Halting, cancelled_at
from tests.scenarios.kit import WatchedStorage, answering


async def test_a_turn_writes_no_more_than_it_must() -> None:
    """The answer is stored in one write with the run's end."""
    storage = WatchedStorage()
    agent = Agent(model=answering(), memory=Memory(storage=storage))
    await agent.generate("hello", thread="t")
    assert storage.calls == {
        "begin_run": 1,
        "list_messages": 1,
        "append_messages": 1,
        "finish_run": 1,
    }


async def test_the_question_is_stored_before_the_model_is_asked_and_each_step_before_the_next() -> None:
    storage = WatchedStorage()
    stored: list[int] = []

    async def answer(_: ModelRequest) -> Any:
        (run,) = storage.runs
        stored.append(len(await storage.list_messages("t", run_id=run.id)))
        assert await storage.list_messages("t") == []
        return ToolCall("look", {}) if len(stored) < 4 else "Done."

    model = ScriptedModel(answer)
    agent = Agent(
        model=model, memory=Memory(storage=storage), tools=[Tool(name="look", function=lambda: "seen")], max_steps=9
    )
    await agent.generate([Message.user("one"), Message.user("two")], thread="t")
    assert stored == [2, 3, 4, 5]
    assert len(await storage.list_messages("t")) == 6


async def test_only_what_changed_is_written_again() -> None:
    class Rate(Processor[Any]):
        def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
            args.messages[0].metadata["rated"] = 5

    class Rewrites(WatchedStorage):
        rewritten: list[str]

        async def rewrite_messages(self, run: Run, messages: Any, *, remove: Any = ()) -> None:
            self.rewritten = [message.id for message in messages]
            await super().rewrite_messages(run, messages, remove=remove)

    storage = Rewrites()
    model = ScriptedModel(ToolCall("look", {}), ToolCall("look", {}), "Done.")
    agent = Agent(
        model=model,
        memory=Memory(storage=storage),
        tools=[Tool(name="look", function=lambda: "seen")],
        output_processors=[Rate()],
    )
    result = await agent.generate("go", thread="t")
    assert storage.rewritten == [result.messages[0].id]
    assert [row.metadata for row in await storage.list_messages("t")] == [{}, {"rated": 5}, {}, {}]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_call_that_is_cancelled_while_a_message_is_taken_out_keeps_its_finished_steps(after: bool) -> None:
    """The run's end does not remove the same row again."""

    class Dropping(Processor[Any]):
        def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
            if args.step_number == 1:
                args.message_list.remove([row.id for row in args.message_list.input if row.text == "aside"])

    storage = Halting()
    agent = Agent(
        model=ScriptedModel(ToolCall("look", {}), ToolCall("look", {}), "Done."),
        memory=Memory(storage=storage),
        tools=[Tool(name="look", function=lambda: "seen")],
        input_processors=[Dropping()],
    )
    asked = agent.generate([Message.user("aside"), Message.user("go")], thread="t")
    await cancelled_at(storage, "rewrite_messages", after, asked)
    assert [row.role for row in await storage.list_messages("t")] == ["user", "assistant", "assistant"]


async def test_a_run_that_was_taken_for_dead_writes_nothing_more() -> None:
    """Another process has taken over the thread: the call raises an error, and only the other process writes."""
    storage = WatchedStorage()
    memory = Memory(storage=storage)

    async def slow(_: ModelRequest) -> str:
        (run,) = storage.runs
        await storage.heartbeat(run, ttl=0)
        other = await storage.begin_run("other", Thread(id="t", resource_id=own_resource("t")))
        await storage.append_messages(other, [Message.user("I was quicker")])
        await storage.finish_run(other, "committed")
        return "Too late."

    with pytest.raises(RunLostError, match="interrupted"):
        await Agent(model=ScriptedModel(slow), memory=memory).generate("hello", thread="t")
    assert [row.text for row in await memory.messages.list(thread="t")] == ["hello", "I was quicker"]


async def test_stored_messages_equal_the_given_ones() -> None:
    """Bytes, Unicode, odd arguments and empty texts come back as they were."""
    storage = WatchedStorage()
    memory = Memory(storage=storage)
    args = {"text": "naïve \u0000 \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "n": 1.5, "x": None}
    model = ScriptedModel([ToolCall("look", args)], "")
    question = Message(role="user", parts=[FilePart(media_type="image/png", data=b"\x89PNG\x00\xff")])
    look = Tool(name="look", function=lambda **_: {"ok": [1, None]}, parameters={"type": "object"})
    agent = Agent(model=model, memory=memory, tools=[look])
    result = await agent.generate(question, thread="t")
    rows = await memory.messages.list(thread="t")
    assert rows[0].parts == question.parts
    assert rows[1].tool_parts[0].args == args
    assert rows[1].tool_parts[0].result == {"ok": [1, None]}
    assert [row.id for row in rows[1:]] == [message.id for message in result.messages]


@pytest.mark.parametrize("who", ["tool", "callback"])
async def test_edits_in_place_between_steps_are_stored_with_the_next_step(who: str) -> None:
    """If the process dies during the next step, storage already has the edited text."""
    storage, stored = WatchedStorage(), list[str]()

    def redact(context: RunContext[Any]) -> None:
        context.messages.input[0].parts = [TextPart(text="my card is [redacted]")]

    def look(context: ToolContext[Any]) -> str:
        redact(context.run)
        return "seen"

    def finished(step: StepResult) -> None:
        step.messages[0].metadata["card"] = "redacted"

    async def answer(_: ModelRequest) -> Any:
        (run,) = storage.runs
        rows = await storage.list_messages("t", run_id=run.id)
        stored.append(rows[0].text if who == "tool" else str(rows[-1].metadata))
        return ToolCall("look", {}) if len(stored) < 3 else "Done."

    tools = [Tool(name="look", function=look if who == "tool" else lambda: "seen")]
    agent = Agent(model=ScriptedModel(answer), memory=Memory(storage=storage), tools=tools)
    options: CallOptions = {"on_step_finish": finished} if who == "callback" else {}
    await agent.generate("my card is 4111", thread="t", **options)
    expected = "my card is [redacted]" if who == "tool" else "{'card': 'redacted'}"
    assert stored[1:] == [expected] * 2
