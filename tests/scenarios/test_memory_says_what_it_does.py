"""Memory's events: a status before each model call, and a start with an end or a failure for all its work."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from diarist import Agent, Tool
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import WordCounter, answering, failing, log_of, observational, play, talk, words

START = {"cycleId", "operationType", "startedAt", "tokensToObserve", "recordId", "threadId", "threadIds", "config"}
END = {
    *("cycleId", "operationType", "completedAt", "durationMs", "tokensObserved", "observationTokens"),
    *("observations", "recordId", "threadId", "usage"),
}
FAILED = {
    *("cycleId", "operationType", "failedAt", "durationMs", "tokensAttempted", "error", "recordId", "threadId"),
    *("attempt", "willRetry"),
}


def looping(storage: Storage, steps: int, **options: Any) -> Agent:
    model = ScriptedModel(*[ToolCall("look", {})] * steps, "Done.", lambda _: "Yes.")
    return Agent(
        model=model,
        tools=[Tool(name="look", function=lambda: words("found", 25))],
        memory=observational(storage, buffer_tokens=False, **options),
        max_steps=steps + 1,
    )


async def test_one_status_per_step_before_the_call(storage: Storage) -> None:
    played = await play(looping(storage, 9), "go", thread="t")
    order = [c.type for c in played.chunks if c.type in ("data-om-status", "step-start", "tool-result", "step-finish")]
    step = ["data-om-status", "step-start", "tool-result", "step-finish"]
    assert order == step * 9 + ["data-om-status", "step-start", "step-finish"]
    assert [data["stepNumber"] for data in played.data("status")] == list(range(10))


async def test_the_counters_equal_a_recount(storage: Storage) -> None:
    """Of the prompt that follows: its messages, its notes, in the words that the model gets."""
    agent = looping(storage, 9, observation_tokens=40)
    count = WordCounter().count
    for question in ("go", words("and", 30), "and now?"):
        first = len(agent.model.requests)  # type: ignore[attr-defined]
        played = await play(agent, question, thread="t")
        requests = agent.model.requests[first:]  # type: ignore[attr-defined]
        for status, request in zip(played.data("status"), requests, strict=True):
            active = status["windows"]["active"]
            notes = [m.text for m in request.prompt if m.text.startswith("<observations>")]
            inside = sum(count(note) - 2 for note in notes)
            assert active["observations"] == {"tokens": inside, "threshold": 40}
            assert active["messages"]["threshold"] == 100
            shown = [message for message in request.prompt if message.role != "system"]
            sizes = sum(count(message.text) for message in shown)
            # A call is counted as name and arguments; `look({})` is one word, `look {}` two.
            calls = sum(part.type == "tool-call" for message in shown for part in message.parts)
            opener = shown[0]
            rows = {row.id for row in await storage.list_messages("t")}
            assert opener.message_id in rows
            repeated = active["messages"]["tokens"] != sizes + calls
            if repeated:  # the message that opened a cut turn is shown, but it is no raw row any more
                assert active["messages"]["tokens"] == sizes + calls - count(opener.text)
                assert opener.message_id != shown[-1].message_id


async def test_status_fields(storage: Storage) -> None:
    await talk(Agent(model=answering(), memory=observational(storage, observation_tokens=20, buffer_tokens=False)), 20)
    agent = Agent(model=answering(), memory=observational(storage, observation_tokens=20, buffer_tokens=False))
    (status,) = (await play(agent, "short", thread="t")).data("status")
    log = await log_of(storage)
    assert log.generation > 0
    assert status["recordId"] == f"thread:t#{log.generation}"
    assert status["generationCount"] == log.generation
    assert status["threadId"] == "t"
    assert status["stepNumber"] == 0
    assert status["windows"]["buffered"] == {
        "observations": {
            "chunks": 0,
            "messageTokens": 0,
            "projectedMessageRemoval": 0,
            "observationTokens": 0,
            "status": "idle",
        },
        "reflection": {"inputObservationTokens": 0, "observationTokens": 0, "status": "idle"},
    }


async def test_start_and_end_of_observations_and_reflections(storage: Storage) -> None:
    agent = Agent(model=answering(), memory=observational(storage, observation_tokens=25, buffer_tokens=False))
    starts: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for number in range(12):
        played = await play(agent, words(f"turn-{number}", 30), thread="t")
        starts += played.data("observation-start")
        ends += played.data("observation-end")
        assert played.data("observation-failed") == []
    assert [data["cycleId"] for data in starts] == [data["cycleId"] for data in ends]
    assert len({data["cycleId"] for data in starts}) == len(starts)
    assert {data["operationType"] for data in ends} == {"observation", "reflection"}
    for start, end in zip(starts, ends, strict=True):
        assert start.keys() == START
        assert end.keys() - {"currentTask", "suggestedResponse"} == END
        assert start["config"] == {"messageTokens": 100, "observationTokens": 25, "scope": "thread"}
        assert start["threadIds"] == [start["threadId"]] == ["t"]
        assert datetime.fromisoformat(start["startedAt"]) <= datetime.fromisoformat(end["completedAt"])
        assert start["tokensToObserve"] == end["tokensObserved"] > 0
        assert end["observationTokens"] == WordCounter().count(end["observations"]) > 0
        assert end["usage"]["inputTokens"] > 0
    entries = (await log_of(storage)).entries
    assert {entry.cycle_id for entry in entries} <= {data["cycleId"] for data in ends}


async def test_failures(storage: Storage) -> None:
    agent = Agent(model=answering(), memory=observational(storage, observer_model=failing(), buffer_tokens=False))
    await talk(agent, 2)
    played = await play(agent, words("turn-3", 60), thread="t")
    (start,), (failed,) = played.data("observation-start"), played.data("observation-failed")
    assert failed.keys() == FAILED
    assert failed["cycleId"] == start["cycleId"]
    assert failed["error"] == "the observer is down"
    assert (failed["operationType"], failed["attempt"], failed["willRetry"]) == ("observation", 1, True)
    assert failed["tokensAttempted"] == start["tokensToObserve"]


async def test_the_event_log_has_failures_of_the_first_run_of_a_thread(storage: Storage) -> None:
    played = await play(looping(storage, 9, observer_model=failing()), "go", thread="t")
    kept = [e for e in await storage.list_events("thread:t") if e.type == "data-om-observation-failed"]
    assert len(kept) == len(played.data("observation-failed")) > 0


async def test_the_event_log_has_them_all(storage: Storage) -> None:
    agent = looping(storage, 9)
    played = [await play(agent, "go", thread="t"), await play(agent, words("and", 60), thread="t")]
    streamed = [c for p in played for c in p.chunks if c.type.startswith("data-om-")]
    kept = await storage.list_events("thread:t")
    assert [event.type for event in kept] == [chunk.type for chunk in streamed]
    assert [e.data.get("cycleId") for e in kept] == [c.data.get("cycleId") for c in streamed]  # type: ignore[attr-defined]
    assert [event.seq for event in kept] == list(range(1, len(kept) + 1))


async def test_events_are_no_part_of_the_messages(storage: Storage) -> None:
    agent = Agent(model=answering(), memory=observational(storage))
    await talk(agent, 6)
    for row in await storage.list_messages("t"):
        assert [part.type for part in row.parts] == ["text"]
