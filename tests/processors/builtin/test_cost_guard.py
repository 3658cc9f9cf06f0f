"""``CostGuard``: limits what a run, a thread or a user may cost."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diarist import Agent, DataChunk, Processor, Usage, tool
from diarist.exceptions import ConfigError
from diarist.processors import (
    CostGuard,
    InMemoryLedger,
    ModerationProcessor,
    ProcessOutputStepArgs,
    ResponseCache,
    StorageLedger,
    StructuredOutput,
)
from diarist.storage import InMemoryStorage
from diarist.testing import Reply, ScriptedModel, ToolCall
from tests.agent.kit import collect


@tool
def look() -> str:
    """Look."""
    return "seen"


def dollar(answer: str | ToolCall) -> Reply:
    """Return a reply that costs one dollar."""
    calls = [answer] if isinstance(answer, ToolCall) else []
    text = answer if isinstance(answer, str) else ""
    return Reply(text=text, tool_calls=calls, usage=Usage(output_tokens=100))


def price(model: str, usage: Usage) -> float | None:
    return usage.output_tokens / 100 if model == "scripted/model" else None


def agent(guard: CostGuard, *replies: Any, **options: Any) -> Agent:
    return Agent(model=ScriptedModel(*replies), tools=[look], input_processors=[guard], **options)


async def test_a_run_is_blocked_before_the_step_over_the_limit() -> None:
    guard = CostGuard(2, price=price)
    replies = [dollar(ToolCall("look"))] * 5
    result = await agent(guard, *replies).generate("?")
    assert len(result.steps) == 2
    assert result.tripwire is not None
    assert result.tripwire.metadata == {"spent": 2.0, "max_cost": 2, "scope": "run"}
    assert "this run has cost 2.0000 US dollars; the limit is 2" in result.tripwire.reason


async def test_the_run_scope_starts_each_run_at_zero() -> None:
    guarded = agent(CostGuard(1, price=price), *[dollar("ok")] * 3)
    assert [(await guarded.generate("?")).text for _ in range(3)] == ["ok"] * 3


@pytest.mark.parametrize(
    ("scope", "texts"),
    [("run", ["ok", "ok", "ok", "ok"]), ("thread", ["ok", "", "ok", "ok"]), ("resource", ["ok", "", "", "ok"])],
)
async def test_costs_are_added_up_per_scope(scope: Any, texts: list[str]) -> None:
    guarded = agent(CostGuard(1, scope=scope, price=price), *[dollar("ok")] * 4)
    calls = [("a", "ada"), ("a", "ada"), ("b", "ada"), ("c", "bob")]
    assert [(await guarded.generate("?", thread=t, resource=r)).text for t, r in calls] == texts


async def test_a_run_without_a_thread_is_its_own_scope() -> None:
    guarded = agent(CostGuard(1, scope="thread", price=price), *[dollar("ok")] * 2)
    assert [(await guarded.generate("?")).text for _ in range(2)] == ["ok", "ok"]


async def test_costs_older_than_the_window_do_not_count() -> None:
    now = [0.0]
    ledger = InMemoryLedger(clock=lambda: now[0])
    guarded = agent(CostGuard(1, scope="thread", window=60, ledger=ledger, price=price), *[dollar("ok")] * 2)
    texts = []
    for now[0] in (0.0, 59.0, 60.0):
        texts.append((await guarded.generate("?", thread="t")).text)
    assert texts == ["ok", "", "ok"]


async def test_a_storage_ledger_is_shared_by_guards() -> None:
    storage = InMemoryStorage()
    options: dict[str, Any] = {"scope": "thread", "window": 3600, "price": price}
    first = agent(CostGuard(1, ledger=StorageLedger(storage), **options), dollar("ok"))
    assert (await first.generate("?", thread="t")).text == "ok"
    second = agent(CostGuard(1, ledger=StorageLedger(storage), **options), dollar("ok"))
    assert (await second.generate("?", thread="t")).tripwire is not None
    later = StorageLedger(storage, clock=lambda: datetime.now(UTC) + timedelta(hours=2))
    third = agent(CostGuard(1, ledger=later, **options), dollar("ok"))
    assert (await third.generate("?", thread="t")).text == "ok"


async def test_a_limit_without_a_window_counts_calls_that_the_storage_has_dropped() -> None:
    storage = InMemoryStorage()
    storage.events_kept = 3
    texts: list[str] = []
    for number in range(4):  # a new process each
        guard = CostGuard(7, scope="thread", ledger=StorageLedger(storage), price=price)
        guarded = agent(guard, *[dollar("ok")] * 2)
        texts += [(await guarded.generate("?", thread="t")).text for _ in range(2)]
        assert await StorageLedger(storage).spent("thread:t", window=None) == min(2 * number + 2, 7)
    assert texts == ["ok"] * 7 + [""]


async def test_no_amount_is_lost_when_processes_add_costs_at_the_same_time() -> None:
    class Slow(InMemoryStorage):
        async def append_event(self, key: str, type: str, data: Any) -> Any:
            await asyncio.sleep(0)  # the others read the same total
            return await super().append_event(key, type, data)

    storage = Slow()
    storage.events_kept = 8
    ledgers = [StorageLedger(storage) for _ in range(4)]

    async def work(ledger: StorageLedger) -> None:
        for _ in range(10):
            await ledger.add("thread:t", 0.5)

    await asyncio.gather(*map(work, ledgers))
    every = [*ledgers, StorageLedger(storage)]
    assert [await ledger.spent("thread:t", window=None) for ledger in every] == [20.0] * 5


@pytest.mark.parametrize("window", [None, 60.0])
async def test_a_check_reads_only_what_it_has_not_read(window: float | None) -> None:
    class Counted(InMemoryStorage):
        read = 0

        async def list_events(self, *args: Any, **options: Any) -> Any:
            events = await super().list_events(*args, **options)
            self.read += len(events)
            return events

    storage, late = Counted(), timedelta()
    writer, ledger = StorageLedger(storage), StorageLedger(storage, clock=lambda: datetime.now(UTC) + late)
    for _ in range(300):
        await writer.add("thread:t", 0.5)
    late = timedelta(seconds=60)  # the earlier ones are outside of the window
    for recent in (0, 1, 2):
        storage.read = 0
        spent = await ledger.spent("thread:t", window=window)
        assert spent == (150 + recent / 2 if window is None else 0.0)
        assert storage.read < (120 if recent == 0 else 3)
        await writer.add("thread:t", 0.5)
    late = timedelta()
    assert await StorageLedger(storage).spent("thread:t", window=60) == 151.5


async def test_costs_recorded_by_earlier_versions_count() -> None:
    storage = InMemoryStorage()
    storage.events_kept = 200
    for _ in range(150):
        await storage.append_event("cost:thread:t", "cost", {"usd": 1.0})
    assert await StorageLedger(storage).spent("thread:t", window=None) == 150
    await StorageLedger(storage).add("thread:t", 1.0)
    await storage.append_event("cost:thread:t", "cost", {"usd": 1.0})  # such a process still runs
    for _ in range(100):
        await StorageLedger(storage).add("thread:t", 1.0)
    assert await StorageLedger(storage).spent("thread:t", window=None) == 252


async def test_deleted_costs_no_longer_count() -> None:
    storage = InMemoryStorage()
    guard = CostGuard(1, scope="thread", ledger=StorageLedger(storage), price=price)
    guarded = agent(guard, *[dollar("ok")] * 2)
    texts = [(await guarded.generate("?", thread="t")).text for _ in range(2)]
    await storage.delete_events("cost:thread:t")
    texts += [(await guarded.generate("?", thread="t")).text for _ in range(2)]
    assert texts == ["ok", "", "ok", ""]


class Reject(Processor[Any]):
    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        args.abort("again", retry=True)


async def test_rejected_attempts_count() -> None:
    guarded = agent(
        CostGuard(2, price=price), *[dollar("no")] * 9, output_processors=[Reject()], max_processor_retries=9
    )
    result = await guarded.generate("?")
    assert result.tripwire is not None
    assert result.tripwire.processor_id == "cost-guard"
    assert len(result.rejected) == 2


async def test_blocked_runs_count() -> None:
    guarded = agent(CostGuard(1, scope="thread", price=price), dollar("no"), output_processors=[Reject()])
    await guarded.generate("?", thread="t")
    result = await guarded.generate("?", thread="t")
    assert result.tripwire is not None
    assert result.tripwire.processor_id == "cost-guard"


async def test_cached_answers_are_free() -> None:
    guard = CostGuard(1.5, scope="thread", price=price)
    model = ScriptedModel(dollar("ok"))
    cached = Agent(model=model, input_processors=[guard, ResponseCache()])
    assert [(await cached.generate("?", thread="t")).text for _ in range(4)] == ["ok"] * 4


async def test_warn_continues_logs_and_sends_a_chunk(caplog: pytest.LogCaptureFixture) -> None:
    guarded = agent(CostGuard(1, strategy="warn", price=price), *[dollar(ToolCall("look"))] * 3, dollar("ok"))
    with caplog.at_level(logging.WARNING, logger="diarist"):
        chunks = await collect(guarded.stream("?"))
    told = [chunk.data for chunk in chunks if isinstance(chunk, DataChunk)]
    assert told == [{"spent": 1.0, "max_cost": 1, "scope": "run"}]
    assert len(caplog.records) == 1


async def test_an_unknown_price_counts_as_free_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    guarded = agent(CostGuard(0.01), ToolCall("look"), "ok")
    with caplog.at_level(logging.WARNING, logger="diarist"):
        assert (await guarded.generate("?")).text == "ok"
    assert [record.message for record in caplog.records] == [
        "cost-guard: no price is known for scripted/model; its calls count as free"
    ]


async def test_an_unknown_price_can_block() -> None:
    result = await agent(CostGuard(1, unknown_price="block"), "ok").generate("?")
    assert result.tripwire is not None
    assert result.tripwire.reason == "no price is known for scripted/model"


async def test_list_prices_are_the_default() -> None:
    model = ScriptedModel(Reply(text="ok", usage=Usage(output_tokens=1_000_000)), provider="openai", name="gpt-5-mini")
    guarded = Agent(model=model, input_processors=[CostGuard(0.5, scope="thread")])
    assert (await guarded.generate("?", thread="t")).text == "ok"
    assert (await guarded.generate("?", thread="t")).tripwire is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_cost": 0}, "CostGuard: max_cost must be more than 0"),
        ({"max_cost": 1, "scope": "user"}, "CostGuard: scope must be one of"),
        ({"max_cost": 1, "window": 60}, r"CostGuard: scope \(with a window\) must be one of 'thread', 'resource'"),
        ({"max_cost": 1, "scope": "thread", "window": 0}, "CostGuard: window must be more than 0"),
        ({"max_cost": 1, "strategy": "stop"}, "CostGuard: strategy must be one of"),
        ({"max_cost": 1, "unknown_price": "free"}, "CostGuard: unknown_price must be one of"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CostGuard(**options)


async def test_the_model_calls_of_processors_count() -> None:
    judge = ScriptedModel(lambda request: dollar('{"ok": true}'))
    output = StructuredOutput({"type": "object"}, model=judge)
    guarded = agent(CostGuard(1, scope="resource", price=price), *["ok"] * 2, output_processors=[output])
    texts = [(await guarded.generate("?", thread="t", resource="ada")).text for _ in range(2)]
    assert (texts, len(judge.requests)) == (["ok", ""], 1)


async def test_a_judge_that_blocks_the_input_counts() -> None:
    judge = ScriptedModel(lambda request: dollar('{"violence": 1}'))
    ledger = InMemoryLedger()
    guard = CostGuard(1, scope="resource", price=price, ledger=ledger)
    moderation = ModerationProcessor(model=judge, categories=["violence"])
    result = await agent(guard, "ok", processors=[moderation]).generate("?", thread="t", resource="ada")
    assert (result.stopped_by, await ledger.spent("resource:ada", window=None)) == ("tripwire", 1.0)


async def test_a_ledger_forgets_what_is_older_than_its_window() -> None:
    now = [0.0]
    ledger = InMemoryLedger(clock=lambda: now[0])
    for now[0] in range(1000):
        await ledger.add("k", 1.0)
        assert await ledger.spent("k", window=10) <= 10
    assert len(ledger._entries["k"]) == 10  # pyright: ignore[reportPrivateUsage]
