"""A model call fails: the processors' repair, the entry's own retries, the next model, the error. In that order."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor
from diarist.chunks import ErrorChunk
from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ConfigError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
)
from diarist.messages import TextPart
from diarist.models.fallbacks import ModelEntry
from diarist.storage import SQLiteStorage
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect, reasons, run_both, streamed_text, types
from tests.scenarios.kit import observational


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is made."""
    asked: list[float] = []
    real, here = asyncio.sleep, threading.get_ident()

    async def sleep(seconds: float, *more: Any) -> None:
        if threading.get_ident() != here:  # a server of another test
            return await real(seconds)
        if seconds > 0:
            asked.append(seconds)
        await real(0)

    monkeypatch.setattr("diarist.agent.loop.asyncio.sleep", sleep)
    return asked


def limited(after: float | None = None) -> RateLimitError:
    return RateLimitError("slow down", status=429, retry_after=after)


class Repairs(Processor[Any]):
    """Asks for so many retries, and notes the errors."""

    def __init__(self, times: int, log: list[str] | None = None) -> None:
        self.times = times
        self.log = log if log is not None else []
        self.counts: list[int] = []

    def process_api_error(self, args: Any) -> Any:
        self.log.append(f"repair {args.model.name}")
        self.counts.append(args.retry_count)
        return {"retry": True} if args.retry_count < self.times else None


def failing(name: str, log: list[str], *replies: Any) -> ScriptedModel:
    """A model that notes its calls."""
    left = list(replies)

    def answer(request: Any) -> Any:
        log.append(f"call {name}")
        return left.pop(0) if left else limited()

    return ScriptedModel(answer, name=name)


async def test_the_order_of_remedies(waits: list[float]) -> None:
    logs: list[list[str]] = []

    def make() -> Agent:
        logs.append(log := [])
        return Agent(
            model=[
                ModelEntry(model=failing("a", log), max_retries=2),
                ModelEntry(model=failing("b", log), max_retries=0),
                failing("c", log, limited(), "said"),
            ],
            error_processors=[Repairs(1, log)],
        )

    with pytest.raises(RateLimitError) as raised:  # c is scripted: no retries of its own, and the repair is used up
        await make().generate("hi")
    assert [note.split(" failed before: ")[0] for note in raised.value.__notes__] == ["scripted/a", "scripted/b"]
    chunks = await collect(make().stream("hi"))
    for log in logs:
        assert log == [
            *("call a", "repair a"),  # repaired: the same model again
            *("call a", "repair a"),  # no repair: the entry's own retries
            *("call a", "repair a"),
            *("call a", "repair a"),
            *("call b", "repair b"),
            *("call c", "repair c"),
        ]
    assert types(chunks)[-1] == "error"
    assert isinstance(chunks[-1], ErrorChunk)
    assert chunks[-1].payload.kind == "RateLimitError"
    assert reasons(chunks) == ["retry"] * 5
    assert len(waits) == 4, "two retries of a, in two runs"


async def test_the_last_model_answers(waits: list[float]) -> None:
    def make() -> Agent:
        return Agent(model=[ScriptedModel(limited(), name="a"), ScriptedModel("said", name="b")])

    result, chunks = await run_both(make)
    assert (result.text, result.stopped_by, result.steps[0].model) == ("said", "answer", "scripted/b")
    assert (streamed_text(chunks), reasons(chunks), waits) == ("said", ["retry", "stop"], [])


async def test_a_step_that_chooses_its_model_falls_back_too(waits: list[float]) -> None:
    chosen = ScriptedModel(limited(), "never said", name="chosen")
    models = [ScriptedModel(name="a"), ScriptedModel("said", name="b")]
    result = await Agent(model=models).generate("hi", prepare_step=lambda args: {"model": chosen})
    assert (result.text, result.steps[0].model, len(chosen.requests)) == ("said", "scripted/b", 1)


async def test_retry_after_is_honoured(waits: list[float]) -> None:
    model = ModelEntry(model=ScriptedModel(limited(7.5), limited(0.25), "said"), max_retries=2)
    assert (await Agent(model=[model]).generate("hi")).text == "said"
    assert waits == [7.5, 0.25]


async def test_a_provider_that_asks_for_too_long_is_not_waited_for(waits: list[float]) -> None:
    first = ModelEntry(model=ScriptedModel(limited(3600), "never"), max_retries=5)
    assert (await Agent(model=[first, ScriptedModel("second")]).generate("hi")).text == "second"
    assert waits == []


async def test_back_off_doubles(waits: list[float]) -> None:
    entry = ModelEntry(model=ScriptedModel(*[limited()] * 4, "said"), max_retries=4, backoff=2.0)
    await Agent(model=entry).generate("hi")
    assert len(waits) == 4
    for number, pause in enumerate(waits):
        assert 0.75 * 2 * 2**number <= pause <= 1.25 * 2 * 2**number


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (limited(), True),
        (ModelTimeoutError("slow", status=504), True),
        (ModelConnectionError("cut"), True),
        (ModelAPIError("server", status=503), True),
        (ModelAPIError("inside the stream"), True),
        (ModelAPIError("teapot", status=418), False),
        (AuthenticationError("key", status=401), False),
        (BadRequestError("bad", status=400), False),
        (ContentFilterError("no", status=400), False),
        (RuntimeError("a bug"), False),
    ],
)
async def test_only_what_may_pass_is_tried_again(error: Exception, again: bool, waits: list[float]) -> None:
    model = ScriptedModel(error, "said")
    agent = Agent(model=ModelEntry(model=model, max_retries=1))
    if again:
        assert (await agent.generate("hi")).text == "said"
    else:
        with pytest.raises(type(error)):
            await agent.generate("hi")
    assert len(model.requests) == 1 + again


async def test_every_failure_goes_on_to_the_next_model(waits: list[float]) -> None:
    for error in (AuthenticationError("key", status=401), BadRequestError("bad", status=400), RuntimeError("a bug")):
        assert (await Agent(model=[ScriptedModel(error), ScriptedModel("said")]).generate("hi")).text == "said"


async def test_partial_output_is_rolled_back(tmp_path: Path, waits: list[float]) -> None:
    storage = SQLiteStorage(tmp_path / "memory.db")
    ran: list[int] = []

    def work() -> str:
        """Work."""
        ran.append(1)
        return "done"

    cut = Reply(text="half of it", tool_calls=ToolCall("work"), error_after=ModelConnectionError("cut"))

    def make() -> Agent:
        model = ModelEntry(model=ScriptedModel(cut, "whole"), max_retries=1)
        return Agent(model=model, tools=[work], memory=Memory(storage=storage))

    result = await make().generate("hi", thread="a")
    chunks = await collect(make().stream("hi", thread="b"))
    assert (result.text, [message.text for message in result.messages], ran) == ("whole", ["whole"], [])
    assert (result.rejected, len(result.steps)) == ([], 1)
    for thread in ("a", "b"):
        assert [row.text for row in await storage.list_messages(thread)] == ["hi", "whole"]
    assert reasons(chunks) == ["retry", "stop"]
    assert types(chunks).count("finish") == 1
    await storage.close()


async def test_retries_are_no_steps(waits: list[float]) -> None:
    def work() -> str:
        """Work."""
        return "done"

    model = ScriptedModel(limited(), ToolCall("work"), limited(), limited(), "said")
    agent = Agent(model=ModelEntry(model=model, max_retries=2), tools=[work], max_steps=2)
    result = await agent.generate("hi")
    assert (result.text, result.stopped_by, len(result.steps)) == ("said", "answer", 2)


async def test_each_step_begins_with_the_first_model_and_all_its_remedies(waits: list[float]) -> None:
    def work() -> str:
        """Work."""
        return "done"

    first, second = ScriptedModel(limited(), "said", name="a"), ScriptedModel(ToolCall("work"), name="b")
    result = await Agent(model=[first, second], tools=[work]).generate("hi")
    assert [step.model for step in result.steps] == ["scripted/b", "scripted/a"]


@pytest.mark.parametrize("option", [{}, {"max_processor_retries": 0}, {"max_processor_retries": 20}])
async def test_repairs_have_a_counter_of_their_own(option: Any) -> None:
    repairs, model = Repairs(1000), ScriptedModel(lambda request: RuntimeError("down"))
    with pytest.raises(RuntimeError, match="down"):
        await Agent(model=model, error_processors=[repairs], **option).generate("hi")
    assert len(model.requests) == 11
    assert repairs.counts == list(range(10))


async def test_repairs_and_rejections_are_counted_apart() -> None:
    class Judge(Repairs):
        def process_output_step(self, args: Any) -> None:
            if "BAD" in args.text:
                args.abort("say GOOD", retry=True)

    model = ScriptedModel(RuntimeError("x"), "BAD", RuntimeError("y"), "GOOD")
    agent = Agent(model=model, processors=[Judge(5)], max_processor_retries=2)
    result = await agent.generate("hi")
    assert (result.text, [r.text for r in result.rejected]) == ("GOOD", ["BAD"])
    prompts = [request.text for request in model.requests]
    assert ["say GOOD" in text for text in prompts] == [False, False, True, True], "feedback waits for an answer"


async def test_a_repair_may_wait(waits: list[float]) -> None:
    class Waits(Processor[Any]):
        def process_api_error(self, args: Any) -> Any:
            return {"retry": True, "delay": 3}

    await Agent(model=ScriptedModel(RuntimeError("x"), "ok"), processors=[Waits()]).generate("hi")
    assert waits == [3]


async def test_a_repair_changes_the_next_request_and_the_error_is_typed() -> None:
    seen: list[tuple[str, str]] = []

    class Shortens(Processor[Any]):
        def process_api_error(self, args: Any) -> Any:
            assert isinstance(args.error, ModelError)
            seen.append((type(args.error).__name__, args.model.id))
            args.message_list.remove([args.messages[0].id])
            args.message_list.add(Message.user("shorter"), "context")
            return {"retry": True}

    model = ScriptedModel(ValueError("odd"), BadRequestError("too long", status=400), "ok")
    result = await Agent(model=model, error_processors=[Shortens()]).generate([Message.user("a"), Message.user("b")])
    assert result.text == "ok"
    assert seen == [("ModelError", "scripted/model"), ("BadRequestError", "scripted/model")]
    assert [message.text for message in model.requests[-1].prompt] == ["shorter", "shorter"]


async def test_all_lists_are_asked_and_each_processor_once() -> None:
    asked: list[str] = []

    class Asks(Processor[Any]):
        def __init__(self, id: str) -> None:
            self.id = id

        def process_api_error(self, args: Any) -> None:
            asked.append(self.id)

    a, b, c, d = (Asks(name) for name in "abcd")
    agent = Agent(
        model=ScriptedModel(RuntimeError("x")),
        input_processors=[a],
        output_processors=[b, a],
        error_processors=[c],
        processors=[d],
    )
    with pytest.raises(RuntimeError):
        await agent.generate("hi")
    assert sorted(asked) == ["a", "b", "c", "d"]


async def test_no_handler_is_asked_after_a_repair() -> None:
    first, second = Repairs(1), Repairs(1)
    second.id = "second"
    await Agent(model=ScriptedModel(RuntimeError("x"), "ok"), error_processors=[first, second]).generate("hi")
    assert (first.counts, second.counts) == ([0], [])


@pytest.mark.parametrize("kind", ["messages", "observational"])
async def test_a_thread_pays_for_a_refusal_once(tmp_path: Path, kind: str) -> None:
    """What a repair changes in stored messages is stored with the run."""

    class Repair(Processor[Any]):
        def process_api_error(self, args: Any) -> Any:
            for message in args.messages:
                for part in message.parts:
                    if isinstance(part, TextPart):
                        part.text = part.text.replace("poison", "cure")
            return {"retry": True}

    def answer(request: Any) -> Any:
        return BadRequestError("poison", status=400) if "poison" in request.text else "ok"

    storage = SQLiteStorage(tmp_path / "memory.db")
    memory = Memory(storage=storage) if kind == "messages" else observational(storage, message_tokens=10_000)
    await memory.messages.save([Message.user("poison"), Message.assistant("fine")], thread="t")
    model = ScriptedModel(answer)
    agent = Agent(model=model, memory=memory, error_processors=[Repair()])
    before = await storage.list_messages("t")
    await agent.generate("hello", thread="t")
    assert len(model.requests) == 2
    await agent.generate("again", thread="t")
    assert len(model.requests) == 3
    rows = await storage.list_messages("t")
    assert [row.text for row in rows] == ["cure", "fine", "hello", "ok", "again", "ok"]
    assert [(row.seq, row.run_id) for row in rows[:2]] == [(row.seq, row.run_id) for row in before]
    await storage.close()


async def test_a_repair_of_a_run_that_is_blocked_is_not_stored(tmp_path: Path) -> None:
    class Repair(Processor[Any]):
        def process_api_error(self, args: Any) -> Any:
            args.messages[0].parts[0].text = "changed"
            return {"retry": True}

        def process_output_result(self, args: Any) -> None:
            args.abort("no")

    storage = SQLiteStorage(tmp_path / "memory.db")
    memory = Memory(storage=storage)
    await memory.messages.save([Message.user("as it was")], thread="t")
    agent = Agent(model=ScriptedModel(RuntimeError("x"), "ok"), memory=memory, processors=[Repair()])
    await agent.generate("hello", thread="t")
    assert [row.text for row in await storage.list_messages("t")] == ["as it was"]
    await storage.close()


async def test_a_block_in_process_api_error() -> None:
    class Blocks(Processor[Any]):
        def process_api_error(self, args: Any) -> None:
            args.abort("give up")

    result, chunks = await run_both(lambda: Agent(model=ScriptedModel(RuntimeError("x")), processors=[Blocks()]))
    assert result.tripwire is not None
    assert (result.tripwire.hook, chunks[-1].type) == ("process_api_error", "tripwire")


def test_entries_that_cannot_be() -> None:
    model = ScriptedModel()
    for wrong in ({"max_retries": -1}, {"max_retries": "2"}, {"backoff": -0.1}, {"backoff": "1"}):
        with pytest.raises(ConfigError, match=f"ModelEntry: {next(iter(wrong))} must be a .*number"):
            ModelEntry(model=model, **wrong)
    for models in ([], [None], ["no-provider-here"], [ModelEntry(model=3)]):
        with pytest.raises(ConfigError):
            Agent(model=models)


async def test_a_call_may_bring_a_list_of_its_own(waits: list[float]) -> None:
    agent = Agent(model=ScriptedModel())
    result = await agent.generate("hi", model=[ScriptedModel(limited()), ScriptedModel("said")])
    assert result.text == "said"
