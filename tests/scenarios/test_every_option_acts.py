"""Each option of observational memory does what it says, as an agent's conversation shows."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig, Tool
from diarist.models.base import ModelRequest, ModelSettings
from diarist.storage import InMemoryStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import answering, configured, observer, play, reflector, talk, words

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)

ELSEWHERE = {
    "enabled": "memory/test_memory.py",
    "model": "memory/test_memory.py",
    "scope": "scenarios/test_resource_scope.py",
    "obscure_thread_ids": "scenarios/test_resource_scope.py",
    "max_tokens_per_batch": "scenarios/test_resource_scope.py",
    "retrieval": "scenarios/test_the_agent_looks_things_up.py",
    "hooks": "memory/observational/test_hooks.py",
    "observe_timeout": "scenarios/test_the_turn_is_safe.py",
    "on_debug_event": "scenarios/test_events.py",
    "observe_attachments": "memory/observational/test_role_models.py",
    "thread_title": "scenarios/test_events.py",
    "observation": "scenarios/kit.py",
    "reflection": "scenarios/kit.py",
}
"""Options whose effect other files test."""


def test_no_option_is_without_a_test() -> None:
    here = [name for name in globals() if name.startswith("test_")]
    for config in (ObservationalMemoryConfig, ObservationConfig, ReflectionConfig):
        for field in fields(config):
            if field.name in ELSEWHERE:
                continue
            kind = "reflection_" if config is ReflectionConfig else ""
            assert any(f"{kind}{field.name}" in name for name in here), f"{config.__name__}.{field.name}"


async def sizes(memory: Memory, turns: int, *, size: int = 17) -> list[tuple[int, int]]:
    """Raw tokens before each model call of so many turns of 20 tokens, and how many notes were sent."""
    model = answering()
    agent = Agent(model=model, memory=memory)
    found: list[tuple[int, int]] = []
    for number in range(turns):
        played = await play(agent, words(f"turn-{number}", size), thread="t")
        active = played.data("status")[-1]["windows"]["active"]
        found.append((active["messages"]["tokens"], model.requests[-1].text.count("<observations>")))
    return found


def largest(found: list[tuple[int, int]]) -> int:
    return max(tokens for tokens, _ in found)


# --- when messages are observed ---------------------------------------------------------------------------


@pytest.mark.parametrize("message_tokens", [100, 200])
async def test_message_tokens_is_how_far_the_window_grows(storage: Storage, message_tokens: int) -> None:
    memory = configured(storage, observation={"message_tokens": message_tokens, "buffer_tokens": False})
    found = await sizes(memory, 30)
    assert message_tokens - 30 <= largest(found) < message_tokens
    assert found[-1][1] > 1


async def test_share_token_budget_lends_the_window_what_the_log_leaves(storage: Storage) -> None:
    options: dict[str, Any] = {
        "observation": {"buffer_tokens": False},
        "reflection": {"observation_tokens": 150},
    }
    memory = configured(storage, share_token_budget=True, **options)
    found = await sizes(memory, 40)
    assert 220 <= largest(found[:14]) < 250
    limits = [
        event.data["windows"]["active"]["messages"]["threshold"]
        for event in await storage.list_events("thread:t")
        if event.type == "data-om-status"
    ]
    assert limits[0] == 250
    assert min(limits) < 250, "what the notes take is not the window's any more"
    alone = configured(InMemoryStorage(), **options)
    assert largest(await sizes(alone, 14)) < 100


@pytest.mark.parametrize(("buffer_tokens", "calls"), [(15, 3), (0.15, 3), (60, 1)])
async def test_buffer_tokens_is_how_often_the_observer_is_asked(
    storage: Storage, buffer_tokens: float, calls: int
) -> None:
    notes = observer()
    memory = configured(storage, observation={"model": notes, "buffer_tokens": buffer_tokens}, await_background=True)
    await sizes(memory, 3)
    assert len(notes.requests) == calls


async def test_buffer_activation_is_how_much_leaves_the_window() -> None:
    smallest: list[int] = []
    for buffer_activation in (0.8, 0.3):
        observation = {"buffer_activation": buffer_activation, "buffer_tokens": 10}
        memory = configured(InMemoryStorage(), observation=observation, await_background=True)
        smallest.append(min(tokens for tokens, _ in (await sizes(memory, 30))[8:]))
    assert 20 <= smallest[0] <= 60
    assert 70 <= smallest[1] < 100


@pytest.mark.parametrize(("block_after", "waits_at"), [(1.2, 120), (1.6, 160), (180, 180)])
async def test_block_after_is_where_a_turn_waits(storage: Storage, block_after: float, waits_at: int) -> None:
    """The Observer in the background never comes to an end before the window is full."""
    waiting = asyncio.Event()

    async def slowly(_: ModelRequest) -> str:
        if not waiting.is_set():
            await waiting.wait()
        return "<diary>\n- 🟡 noted\n</diary>"

    memory = configured(
        storage,
        observation={
            "model": ScriptedModel(slowly, lambda _: "<diary>\n- 🟡 noted\n</diary>"),
            "block_after": block_after,
        },
        observe_timeout=0.05,
        on_debug_event=lambda event: decisions.append(dict(event)),
    )
    decisions: list[dict[str, Any]] = []
    await sizes(memory, 12)
    full = [d["window"]["messageTokens"] for d in decisions if d["type"] == "decision" and d["action"] == "observe"]
    assert waits_at <= min(full) < waits_at + 21
    waiting.set()
    await memory.settled()


@pytest.mark.parametrize(("observer_batch_tokens", "calls"), [(None, 1), (20, 3)])
async def test_observer_batch_tokens_is_the_most_for_one_call(
    storage: Storage, observer_batch_tokens: int | None, calls: int
) -> None:
    notes = observer()
    memory = configured(
        storage,
        observation={"model": notes, "observer_batch_tokens": observer_batch_tokens, "buffer_tokens": 60},
    )
    messages = [Message.user(words(f"said-{n}", 20)) for n in range(3)]
    await memory.messages.save(messages, thread="t")
    await memory.diary.observe(thread="t")
    assert len(notes.requests) == calls


async def test_observer_batch_tokens_holds_in_the_background_too(storage: Storage) -> None:
    notes = observer()
    memory = configured(
        storage, observation={"model": notes, "observer_batch_tokens": 20, "buffer_tokens": 60}, await_background=True
    )
    await sizes(memory, 4)
    assert len(notes.requests) == 4


# --- what the roles are told -------------------------------------------------------------------------------


async def observed(storage: Storage, *messages: Message, times: int = 1, **options: Any) -> list[ModelRequest]:
    """What an Observer with these options is asked about these messages, each observed by itself."""
    notes = observer(20)
    observation = {"model": notes, **options.pop("observation", {})}
    memory = configured(storage, observation=observation, **options)
    for message in messages:
        await memory.messages.save([message], thread="t")
        await memory.diary.observe(thread="t")
    return notes.requests


async def test_previous_observer_tokens_is_how_much_of_the_diary_it_sees(storage: Storage) -> None:
    messages = [Message.user(f"said {n}") for n in range(3)]
    seen = (await observed(storage, *messages))[-1]
    assert "note-1" in seen.text
    blind = (await observed(InMemoryStorage(), *messages, observation={"previous_observer_tokens": 0}))[-1]
    assert "note-" not in blind.text


async def test_tool_result_tokens_is_how_much_of_a_result_it_sees(storage: Storage) -> None:
    notes = observer()
    memory = configured(storage, observation={"model": notes, "tool_result_tokens": 12})
    model = ScriptedModel(ToolCall("look", {}), "Done.")
    agent = Agent(model=model, memory=memory, tools=[Tool(name="look", function=lambda: words("found", 50))])
    await agent.generate("go", thread="t")
    await memory.diary.observe(thread="t")
    assert notes.requests[-1].text.count("found") == 12
    assert "38 of 50 tokens left out" in notes.requests[-1].text


async def test_instruction_and_language_and_timezone_reach_the_observer(storage: Storage) -> None:
    message = Message.user("said", created_at=MONDAY)
    (request,) = await observed(
        storage, message, observation={"instruction": "Note part numbers."}, language="German", timezone="Asia/Tokyo"
    )
    assert "Note part numbers." in request.text
    assert "German" in request.text
    assert "18:00 User: said" in request.text


async def test_model_settings_go_over_the_defaults(storage: Storage) -> None:
    settings = ModelSettings(temperature=0.9)
    (request,) = await observed(storage, Message.user("said"), observation={"model_settings": settings})
    assert (request.settings.temperature, request.settings.max_output_tokens) == (0.9, 100_000)


async def test_reflection_model_settings_and_reflection_instruction_reach_the_reflector(storage: Storage) -> None:
    condenses = reflector()
    memory = configured(
        storage,
        reflection={
            "model": condenses,
            "model_settings": ModelSettings(max_output_tokens=77),
            "instruction": "Keep part numbers.",
        },
    )
    await memory.messages.save([Message.user("said")], thread="t")
    await memory.diary.observe(thread="t")
    await memory.diary.reflect(thread="t", guidance="short")
    settings = condenses.requests[-1].settings
    assert (settings.temperature, settings.max_output_tokens) == (0.0, 77)
    assert "Keep part numbers." in condenses.requests[-1].text


@pytest.mark.parametrize("temporal_markers", [True, False])
async def test_temporal_markers_name_pauses_to_both_models(storage: Storage, temporal_markers: bool) -> None:
    notes, model = observer(), answering()
    memory = configured(storage, observation={"model": notes}, temporal_markers=temporal_markers)
    agent = Agent(model=model, memory=memory)
    await memory.messages.save([Message.assistant("Hello.", created_at=MONDAY)], thread="t")
    await agent.generate(Message.user("again", created_at=MONDAY + timedelta(minutes=125)), thread="t")
    assert ("2 hours 5 minutes later" in model.requests[-1].text) is temporal_markers
    await memory.diary.observe(thread="t")
    assert ("2 hours 5 minutes later" in notes.requests[-1].text) is temporal_markers


# --- when the cache is cold --------------------------------------------------------------------------------


async def activations(memory: Memory, pause: timedelta, *models: ScriptedModel) -> list[str]:
    """What triggers activations in a turn after a pause, with 80 of 100 tokens in the window."""
    first = Agent(model=models[0], memory=memory)
    for number in range(4):
        await first.generate(words(f"turn-{number}", 15), thread="t")
    rows = await memory.storage.list_messages("t")
    said = max(row.created_at for row in rows if row.created_at is not None)
    played = await play(
        Agent(model=models[-1], memory=memory), Message.user("now", created_at=said + pause), thread="t"
    )
    return [data["triggeredBy"] for data in played.data("activation")]


@pytest.mark.parametrize(
    ("idle", "provider", "pause", "expected"),
    [
        (90, "openai", 89, []),
        (90, "openai", 90, ["idle"]),
        ("5m", "openai", 299, []),
        ("5m", "openai", 300, ["idle"]),
        ("auto", "anthropic", 299, []),
        ("auto", "anthropic", 301, ["idle"]),
        ("auto", "google", 1800, []),
        ("auto", "google", 3601, ["idle"]),
        (None, "openai", 10**7, []),
    ],
)
async def test_activate_after_idle(storage: Storage, idle: Any, provider: str, pause: int, expected: list[str]) -> None:
    model = ScriptedModel(lambda _: "Noted.", provider=provider)
    memory = configured(storage, activate_after_idle=idle, observation={"buffer_tokens": 10}, await_background=True)
    assert await activations(memory, timedelta(seconds=pause), model) == expected


@pytest.mark.parametrize(
    ("switched_on", "to", "expected"),
    [(True, "anthropic", ["provider_change"]), (True, "openai", []), (False, "anthropic", [])],
)
async def test_activate_on_provider_change(storage: Storage, switched_on: bool, to: str, expected: list[str]) -> None:
    here, there = (ScriptedModel(lambda _: "Noted.", provider=name) for name in ("openai", to))
    observation = {"buffer_tokens": 10}
    memory = configured(
        storage, activate_on_provider_change=switched_on, observation=observation, await_background=True
    )
    assert await activations(memory, timedelta(seconds=1), here, there) == expected


# --- the log -------------------------------------------------------------------------------------------------


async def test_reflection_observation_tokens_is_how_far_the_log_grows(storage: Storage) -> None:
    memory = configured(
        storage,
        observation={"buffer_tokens": False, "model": observer(10)},
        reflection={"observation_tokens": 60},
    )
    await sizes(memory, 60)
    log = await memory.diary.get(thread="t")
    assert log.generation >= 2
    assert log.tokens < 60


@pytest.mark.parametrize(("share", "begins"), [(0.3, 30), (0.9, 90)])
async def test_reflection_buffer_activation_is_where_it_begins_to_work_ahead(
    storage: Storage, share: float, begins: int
) -> None:
    heard: list[dict[str, Any]] = []
    memory = configured(
        storage,
        observation={"model": observer(10), "buffer_tokens": 10},
        reflection={"observation_tokens": 100, "buffer_activation": share},
        on_debug_event=lambda event: heard.append(dict(event)),
        await_background=True,
    )
    await sizes(memory, 40)
    starts = [
        e["window"]["observationTokens"]
        for e in heard
        if e["type"] == "decision" and e["action"] == "buffer" and e["operationType"] == "reflection"
    ]
    assert begins <= min(starts) < begins + 40


async def test_reflection_block_after_is_where_a_turn_waits(storage: Storage) -> None:
    heard: list[dict[str, Any]] = []
    gate = asyncio.Event()

    async def slowly(_: ModelRequest) -> str:
        await gate.wait()
        return "<diary>\n- 🔴 kept\n</diary>"

    memory = configured(
        storage,
        observation={"model": observer(10), "buffer_tokens": 10},
        reflection={"model": ScriptedModel(slowly), "observation_tokens": 50, "block_after": 1.5},
        on_debug_event=lambda event: heard.append(dict(event)),
        observe_timeout=0.05,
    )
    agent = Agent(model=answering(), memory=memory)
    for number in range(30):
        await agent.generate(words(f"turn-{number}", 17), thread="t")
        for _ in range(200):
            await asyncio.sleep(0)
    waits = [e["window"]["observationTokens"] for e in heard if e["type"] == "decision" and e["action"] == "reflect"]
    assert waits
    assert min(waits) >= 75
    gate.set()
    await memory.settled()


# --- in the background -----------------------------------------------------------------------------------


async def test_background_timeout_ends_work_that_takes_too_long(storage: Storage) -> None:
    gate = asyncio.Event()

    async def never(_: ModelRequest) -> str:
        await gate.wait()
        return ""

    memory = configured(storage, observation={"model": ScriptedModel(never)}, background_timeout=0.05)
    await talk(Agent(model=answering(), memory=memory), 2)
    await memory.settled()
    failed = [e.data for e in await storage.list_events("thread:t") if e.type == "data-om-buffering-failed"]
    assert "background_timeout" in str(failed[0]["error"])


@pytest.mark.parametrize("waits", [True, False])
async def test_await_background_ends_a_call_with_its_work(storage: Storage, waits: bool) -> None:
    memory = configured(storage, await_background=waits)
    await talk(Agent(model=answering(), memory=memory), 1)
    done = [e.type for e in await storage.list_events("thread:t") if e.type == "data-om-buffering-end"]
    assert len(done) == (1 if waits else 0)
    await memory.settled()
