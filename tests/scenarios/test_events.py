"""Memory's events, field by field: in the stream while the run lives, in the event log always."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from diarist import Agent, Processor, Tool
from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError
from diarist.models.base import ModelRequest
from diarist.processors import ProcessOutputResultArgs
from diarist.storage import Event, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import (
    WordCounter,
    answering,
    configured,
    failing,
    observer,
    play,
    reflector,
    talk,
    ways,
    words,
)

TEXT, NUMBER, TIME, TEXTS, OPERATION, FLAG = "text", "number", "time", "texts", "operation", "flag"
CONFIG = {"messageTokens": NUMBER, "observationTokens": NUMBER, "scope": TEXT}
USAGE = {
    **{"inputTokens": NUMBER, "outputTokens": NUMBER, "cachedTokens": NUMBER, "cacheWriteTokens": NUMBER},
    "reasoningTokens": NUMBER,
}
WORK = {"cycleId": TEXT, "operationType": OPERATION, "recordId": TEXT, "threadId": TEXT}
HINTS = {"observations?": TEXT, "currentTask?": TEXT, "suggestedResponse?": TEXT}
FAILED = {**WORK, "failedAt": TIME, "durationMs": NUMBER, "tokensAttempted": NUMBER, "error": TEXT}

FIELDS: dict[str, dict[str, Any]] = {
    "status": {
        "windows": {
            "active": {
                "messages": {"tokens": NUMBER, "threshold": NUMBER},
                "observations": {"tokens": NUMBER, "threshold": NUMBER},
            },
            "buffered": {
                "observations": {
                    "chunks": NUMBER,
                    "messageTokens": NUMBER,
                    "projectedMessageRemoval": NUMBER,
                    "observationTokens": NUMBER,
                    "status": ("idle", "running", "complete"),
                },
                "reflection": {
                    "inputObservationTokens": NUMBER,
                    "observationTokens": NUMBER,
                    "status": ("idle", "running", "complete"),
                },
            },
        },
        **{"recordId": TEXT, "threadId": TEXT, "stepNumber": NUMBER, "generationCount": NUMBER},
    },
    "observation-start": {**WORK, "startedAt": TIME, "tokensToObserve": NUMBER, "threadIds": TEXTS, "config": CONFIG},
    "observation-end": {
        **{**WORK, **HINTS, "completedAt": TIME, "durationMs": NUMBER, "tokensObserved": NUMBER},
        **{"observationTokens": NUMBER, "usage": USAGE},
    },
    "observation-failed": {**FAILED, "observations?": TEXT, "attempt": NUMBER, "willRetry": FLAG},
    "buffering-start": {**WORK, "startedAt": TIME, "tokensToBuffer": NUMBER, "threadIds": TEXTS, "config": CONFIG},
    "buffering-end": {
        **{**WORK, **HINTS, "completedAt": TIME, "durationMs": NUMBER, "tokensBuffered": NUMBER},
        **{"bufferedTokens": NUMBER, "usage": USAGE},
    },
    "buffering-failed": {**FAILED, "observations?": TEXT, "attempt": NUMBER, "willRetry": FLAG},
    "activation": {
        **{**WORK, "activatedAt": TIME, "chunksActivated": NUMBER, "tokensActivated": NUMBER},
        **{"observationTokens": NUMBER, "messagesActivated": NUMBER, "generationCount": NUMBER},
        **{"observations?": TEXT, "config": CONFIG},
        "triggeredBy": ("threshold", "idle", "provider_change", "overflow", "manual"),
    },
    "thread-update": {
        **{"cycleId": TEXT, "threadId": TEXT, "oldTitle": TEXT, "threadTitle": TEXT, "timestamp": TIME},
    },
}
"""Every part with all its fields; those with a question mark may be missing."""

WORDS = ("observations", "currentTask", "suggestedResponse", "oldTitle", "threadTitle")
"""What quotes the conversation: the event log does without, the entry of the same ``cycleId`` has it."""


def kept_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part's data as the event log keeps it."""
    return {name: value for name, value in part.items() if name not in WORDS}


def check_streamed(parts: list[Mapping[str, Any]]) -> None:
    """Holds parts, each with its type, to the table."""
    for part in parts:
        kind = part["type"].removeprefix("data-om-")
        check({name: value for name, value in part.items() if name != "type"}, FIELDS[kind], kind)


def check(value: Any, kind: Any, place: str) -> None:
    match kind:
        case dict():
            assert isinstance(value, Mapping), place
            names = {name.rstrip("?"): (name.endswith("?"), inner) for name, inner in kind.items()}
            assert value.keys() <= names.keys(), f"{place} has unknown fields {value.keys() - names.keys()}"
            for name, (optional, inner) in names.items():
                assert optional or name in value, f"{place}.{name} is missing"
                if name in value:
                    check(value[name], inner, f"{place}.{name}")
        case tuple():
            assert value in kind, place
        case "number":
            assert isinstance(value, int), place
            assert not isinstance(value, bool), place
            assert value >= 0, place
        case "flag":
            assert isinstance(value, bool), place
        case "text":
            assert isinstance(value, str), place
        case "texts":
            assert value, place
            assert all(isinstance(item, str) for item in value), place
        case "operation":
            assert value in ("observation", "reflection"), place
        case "time":
            assert datetime.fromisoformat(value).tzinfo is not None, place
        case _:
            raise AssertionError(f"{place}: no such kind {kind}")


def check_all(events: list[Event]) -> set[tuple[str, str]]:
    """Holds the event log to the table, words left out; returns their types, each with its kind of work."""
    seen: set[tuple[str, str]] = set()
    for event in events:
        kind = event.type.removeprefix("data-om-")
        check(event.data, {name: of for name, of in FIELDS[kind].items() if name.rstrip("?") not in WORDS}, kind)
        seen.add((kind, str(event.data.get("operationType", ""))))
    for event in events:
        if event.type.endswith(("-end", "-failed")) and event.data["cycleId"]:
            start = event.type.rpartition("-")[0] + "-start"
            starts = [e for e in events if e.type == start and e.data["cycleId"] == event.data["cycleId"]]
            assert starts, f"{event.type} without a start"
            assert starts[0].seq < event.seq
    return seen


def titled() -> ScriptedModel:
    notes = observer()

    def write(request: ModelRequest) -> str:
        title = "Rome" if len(notes.requests) < 3 else "Rome and Oslo"
        notes.requests.append(request)
        return (
            f"<diary>\nDate: 2026-03-02\n- 🟡 note-{len(notes.requests)} of it\n</diary>\n"
            "<current-task>book</current-task>\n<suggested-response>ask</suggested-response>\n"
            f"<thread-title>{title}</thread-title>"
        )

    return ScriptedModel(write, name="observer")


async def events_of(storage: Storage, key: str = "thread:t") -> list[Event]:
    return await storage.list_events(key)


BACKGROUND = {("buffering-start", "observation"), ("buffering-end", "observation"), ("activation", "observation")}


async def test_background_work_of_a_long_conversation(storage: Storage) -> None:
    told: list[Mapping[str, Any]] = []
    memory = configured(
        storage,
        observation={"model": titled(), "thread_title": True},
        reflection={"observation_tokens": 40},
        on_debug_event=told.append,
        await_background=True,
    )
    await talk(Agent(model=answering(), memory=memory), 40, size=12)
    check_streamed([part for part in told if part["type"] != "decision"])
    seen = check_all(await events_of(storage))
    reflecting = {(kind, "reflection") for kind, _ in BACKGROUND}
    assert seen == {*BACKGROUND, *reflecting, ("status", ""), ("thread-update", "")}
    titles = [part for part in told if part["type"] == "data-om-thread-update"]
    assert [(t["oldTitle"], t["threadTitle"]) for t in titles] == [("", "Rome"), ("Rome", "Rome and Oslo")]
    thread = await storage.get_thread("t")
    assert thread is not None
    assert thread.title == "Rome and Oslo"


@ways
async def test_a_new_title_is_streamed(storage: Storage, buffer_tokens: Any) -> None:
    """Each in the stream of the run that found it, before its model call; and once."""
    memory = configured(
        storage,
        observation={"model": titled(), "thread_title": True, "buffer_tokens": buffer_tokens},
        await_background=True,
    )
    agent = Agent(model=answering(), memory=memory)
    titles: list[tuple[str, str]] = []
    for number in range(20):
        played = await play(agent, words(f"turn-{number}", 15), thread="t")
        check_streamed([{"type": "data-om-thread-update", **data} for data in played.data("thread-update")])
        titles += [(data["oldTitle"], data["threadTitle"]) for data in played.data("thread-update")]
        thread = await storage.get_thread("t")
        assert thread is not None
        assert thread.title == (titles[-1][1] if titles else "")
    assert titles == [("", "Rome"), ("Rome", "Rome and Oslo")]
    kept = [event.type for event in await events_of(storage)]
    assert kept.count("data-om-thread-update") == 2


async def test_work_that_a_turn_waits_for(storage: Storage) -> None:
    told: list[Mapping[str, Any]] = []
    memory = configured(
        storage,
        observation={"buffer_tokens": False},
        reflection={"observation_tokens": 20},
        on_debug_event=told.append,
    )
    await talk(Agent(model=answering(), memory=memory), 20)
    check_streamed([part for part in told if part["type"] != "decision"])
    assert check_all(await events_of(storage)) == {
        ("status", ""),
        *((f"observation-{when}", work) for when in ("start", "end") for work in ("observation", "reflection")),
    }


@pytest.mark.parametrize("buffer_tokens", [0.2, False])
async def test_failures(storage: Storage, buffer_tokens: Any) -> None:
    lazy = ScriptedModel(lambda _: "", name="reflector")
    for thread, models in (("o", (failing(), reflector())), ("r", (observer(), lazy))):
        memory = configured(
            storage,
            observation={"model": models[0], "buffer_tokens": buffer_tokens},
            reflection={"model": models[1], "observation_tokens": 20},
            await_background=True,
        )
        await talk(Agent(model=answering(), memory=memory), 10, thread=thread)
    kind = "buffering" if buffer_tokens else "observation"
    assert (f"{kind}-failed", "observation") in check_all(await events_of(storage, "thread:o"))
    assert (f"{kind}-failed", "reflection") in check_all(await events_of(storage, "thread:r"))
    failed = [e.data for e in await events_of(storage, "thread:o") if e.type.endswith("-failed")]
    assert failed[0]["attempt"] == 1
    assert failed[0]["willRetry"] is True


async def test_manual_work(storage: Storage) -> None:
    memory = configured(storage, observation={"model": titled(), "thread_title": True})
    heard: list[DataChunk] = []
    await talk(Agent(model=answering(), memory=memory), 3, size=5)
    await memory.settled()
    before = len(await events_of(storage))
    await memory.diary.observe(thread="t", on_event=heard.append)
    await memory.diary.reflect(thread="t", guidance="short", on_event=heard.append)
    seen = check_all(await events_of(storage))
    assert {("observation-end", "observation"), ("observation-end", "reflection"), ("thread-update", "")} <= seen
    logged = [event.type for event in (await events_of(storage))[before:]]
    assert logged == [part.type for part in heard]
    thread = await storage.get_thread("t")
    assert thread is not None
    assert thread.title == "Rome"


async def test_events_of_a_run_that_has_ended_are_in_the_log_alone(storage: Storage) -> None:
    memory = configured(storage)
    agent = Agent(model=answering(), memory=memory)
    streamed: list[tuple[str, Any]] = []
    for number in range(12):
        played = await play(agent, words(f"turn-{number}", 15), thread="t")
        await memory.settled()
        streamed += [
            (c.type, kept_of(c.data))
            for c in played.chunks
            if isinstance(c, DataChunk) and c.type.startswith("data-om-")
        ]
    kept = [(event.type, event.data) for event in await events_of(storage)]
    assert all(part in kept for part in streamed)
    late = Counter(kind for kind, _ in kept) - Counter(kind for kind, _ in streamed)
    assert late["data-om-buffering-end"] > 0
    assert {kind for kind in late} <= {"data-om-buffering-start", "data-om-buffering-end"}


async def test_background_work_that_ends_while_the_run_lives_is_streamed(storage: Storage) -> None:
    memory = configured(storage, observation={"model": observer()})

    async def look() -> str:
        await memory.settled()
        return words("found", 25)

    model = ScriptedModel(*[ToolCall("look", {})] * 6, "Done.")
    agent = Agent(model=model, memory=memory, tools=[Tool(name="look", function=look)], max_steps=7)
    played = await play(agent, "go", thread="t")
    assert played.data("buffering-start")
    assert [d["cycleId"] for d in played.data("buffering-end")] == [
        d["cycleId"] for d in played.data("buffering-start")
    ][: len(played.data("buffering-end"))]
    assert played.data("buffering-end")
    assert played.data("activation")


# --- the status ----------------------------------------------------------------------------------------


async def test_a_status_is_true_of_the_prompt_that_follows_it(storage: Storage) -> None:
    """Once per step, before the call, after memory has acted: its counters equal a recount of the prompt."""
    memory = configured(storage, reflection={"observation_tokens": 60}, await_background=True)
    count = WordCounter().count

    def answer(request: ModelRequest) -> Any:
        return ToolCall("look", {}) if request.prompt.messages[-1].role == "user" else "Done and done."

    model = ScriptedModel(answer)
    agent = Agent(model=model, memory=memory, tools=[Tool(name="look", function=lambda: words("found", 9))])
    complete = 0
    for number in range(40):
        first = len(model.requests)
        played = await play(agent, words(f"turn-{number}", 9), thread="t")
        statuses = played.data("status")
        order = [c.type for c in played.chunks if c.type in ("data-om-status", "data-om-activation", "step-start")]
        assert [kind for kind in order if kind != "data-om-activation"] == ["data-om-status", "step-start"] * 2
        assert all(order[n + 1] != "step-start" for n, kind in enumerate(order) if kind == "data-om-activation")
        log = await memory.diary.get(thread="t")
        for status, request in zip(statuses, model.requests[first:], strict=True):
            windows = status["windows"]
            shown = [message for message in request.prompt if message.role != "system"]
            calls = sum(part.type == "tool-call" for message in shown for part in message.parts)
            raw = sum(count(message.text) for message in shown) + calls
            notes = [m.text for m in request.prompt if m.text.startswith("<observations>")]
            opener = shown[0].text if windows["active"]["messages"]["tokens"] != raw else ""
            assert windows["active"]["messages"]["tokens"] == raw - count(opener)
            assert windows["active"]["observations"]["tokens"] == sum(count(note) - 2 for note in notes)
            waiting = windows["buffered"]["observations"]
            assert waiting["messageTokens"] <= windows["active"]["messages"]["tokens"]
            assert waiting["projectedMessageRemoval"] <= waiting["messageTokens"]
            assert (waiting["chunks"] > 0) == (waiting["messageTokens"] > 0)
            complete += waiting["status"] == "complete"
            assert status["generationCount"] <= log.generation
    assert complete > 10


async def test_an_activation_takes_what_it_says(storage: Storage) -> None:
    heard: list[Mapping[str, Any]] = []
    memory = configured(storage, await_background=True, on_debug_event=heard.append)
    await talk(Agent(model=answering(), memory=memory), 30, size=9)
    taken = 0
    for decision, part, later in zip(heard, heard[1:], heard[2:], strict=False):
        if part["type"] == "data-om-activation":
            before, after = decision["window"], later["window"]
            assert decision["action"] == "activate"
            assert part["chunksActivated"] <= len(before["chunks"])
            assert part["tokensActivated"] == sum(before["chunks"][: part["chunksActivated"]])
            assert after["messageTokens"] == before["messageTokens"] - part["tokensActivated"]
            assert after["observationTokens"] == part["observationTokens"]
            taken += 1
    assert taken >= 2


# --- words of runs that never were ----------------------------------------------------------------------


class Refuse(Processor[Any]):
    """Sends a whole run away."""

    async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        args.abort("not this")


@pytest.mark.parametrize("buffer_tokens", [0.2, False])
async def test_no_word_of_a_discarded_run_is_left(storage: Storage, buffer_tokens: Any) -> None:
    def write(request: ModelRequest) -> str:
        word = "secret" if "secret" in request.text else "public"
        return (
            f"<diary>\nDate: 2026-03-02\n- 🟡 {word} things\n</diary>\n<current-task>{word} task</current-task>\n"
            f"<suggested-response>{word} answer</suggested-response>\n<thread-title>{word} title</thread-title>"
        )

    memory = configured(
        storage,
        observation={"model": ScriptedModel(write), "thread_title": True, "buffer_tokens": buffer_tokens},
        reflection={"observation_tokens": 10},
    )

    async def look() -> str:
        await memory.settled()
        return words("secret", 25)

    await talk(Agent(model=answering(), memory=memory), 1)
    model = ScriptedModel(*[ToolCall("look", {})] * 8, "Done.")
    tools = [Tool(name="look", function=look)]
    agent = Agent(model=model, memory=memory, tools=tools, max_steps=9, output_processors=[Refuse()])
    played = await play(agent, "go", thread="t")
    await memory.settled()
    streamed = [c.data for c in played.chunks if isinstance(c, DataChunk) and c.type.startswith("data-om-")]
    assert "secret" in str(streamed), "the client of the run itself may read them"
    kept = await events_of(storage)
    assert check_all(kept)
    assert any(event.type.endswith("-end") for event in kept)
    assert "secret" not in str(kept)
    thread = await storage.get_thread("t")
    assert thread is not None
    assert "secret" not in thread.title


# --- on_debug_event --------------------------------------------------------------------------------------


async def test_debug_events_are_all_parts_and_all_decisions(storage: Storage) -> None:
    heard: list[dict[str, Any]] = []
    memory = configured(storage, on_debug_event=lambda event: heard.append(dict(event)), await_background=True)
    await talk(Agent(model=answering(), memory=memory), 12)
    kept = [{"type": event.type, **event.data} for event in await events_of(storage)]
    parts = [event for event in heard if event["type"] != "decision"]
    assert [kept_of(part) for part in parts] == kept
    decisions = [event for event in heard if event["type"] == "decision"]
    assert {(d["operationType"], d["action"]) for d in decisions} == {
        ("observation", "wait"),
        ("observation", "buffer"),
        ("observation", "activate"),
        ("reflection", "wait"),
    }
    assert all(d["threadId"] == "t" and d["window"]["messageTokens"] >= 0 for d in decisions)


async def test_a_debug_callback_that_raises_breaks_no_turn(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    def burst(event: Mapping[str, Any]) -> None:
        raise RuntimeError(f"cannot print {event['type']}")

    memory = configured(storage, on_debug_event=burst, await_background=True)
    model = answering()
    await talk(Agent(model=model, memory=memory), 12)
    assert len(model.requests) == 12
    assert (await memory.diary.get(thread="t")).active
    assert "cannot print data-om-status" in caplog.text


@pytest.mark.parametrize("callback", [5, "print"])
async def test_a_debug_callback_is_a_plain_function(storage: Storage, callback: Any) -> None:
    with pytest.raises(ConfigError, match="on_debug_event"):
        configured(storage, on_debug_event=callback)

    async def later(event: Mapping[str, Any]) -> None: ...

    with pytest.raises(ConfigError, match="on_debug_event"):
        configured(storage, on_debug_event=later)


async def test_a_call_by_hand_raises_its_own_error(storage: Storage) -> None:
    memory = configured(storage)
    await talk(Agent(model=answering(), memory=memory), 2, size=5)

    def burst(part: DataChunk) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await memory.diary.observe(thread="t", on_event=burst)
    assert (await memory.diary.observe(thread="t")).entries
