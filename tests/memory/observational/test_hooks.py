"""Functions of the user's around the Observer and the Reflector."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from diarist import Memory
from diarist.chunks import Usage
from diarist.exceptions import RateLimitError
from diarist.memory import MemoryHooks, ObservationalMemoryConfig, RoleCall
from diarist.memory.observational.roles import hooked_roles
from diarist.memory.observational.roles.base import Observed, ObserverRole, Reflected, ReflectorRole, RoleError
from diarist.memory.observational.roles.role_models import RoleModels
from diarist.messages import Message, TextPart, ToolPart
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, SQLiteStorage
from diarist.storage.records import Observation
from diarist.testing import Reply, ScriptedModel
from diarist.tokens import default_counter

NOTES = "Date: 2026-03-02\n- 🔴 09:12 User lives in Turku"
MORNING = datetime(2026, 3, 2, 9, 12, tzinfo=UTC)


def messages() -> list[Message]:
    return [
        Message.user("I live in Turku.", id="m1", created_at=MORNING),
        Message.user("My PIN is 1234.", id="m2", created_at=MORNING.replace(day=3)),
    ]


ENTRY = Observation(
    id="obs",
    text=NOTES,
    tokens=20,
    sources=(),
    message_tokens=0,
    message_count=0,
    observed_at=MORNING,
    cycle_id="c",
)


def roles(model: ScriptedModel, **hooks: Any) -> tuple[ObserverRole, ReflectorRole]:
    config = ObservationalMemoryConfig(model=model, hooks=MemoryHooks(**hooks))
    return RoleModels(config, default_counter()).roles(None)


async def test_what_is_redacted_never_reaches_the_model_nor_the_stored_row() -> None:
    def redact(shown: list[Message]) -> list[Message]:
        for message in shown:
            message.parts = [TextPart(text=message.text.replace("1234", "****"))]
        return shown

    given = messages()
    model = ScriptedModel(NOTES)
    observed = await roles(model, before_observation=redact)[0].observe(given, earlier=[])
    assert "****" in model.requests[0].text
    assert "1234" not in model.requests[0].text
    assert given[1].text == "My PIN is 1234."
    assert observed.text == NOTES


async def test_withheld_messages_are_counted_in_the_notes() -> None:
    async def first(shown: list[Message]) -> Sequence[Message]:
        await asyncio.sleep(0)
        return shown[:1]

    model = ScriptedModel(f"{NOTES} [#1]")
    observed = await roles(model, before_observation=first)[0].observe(messages(), earlier=[])
    assert "1234" not in model.requests[0].text
    assert observed.text == f"{NOTES}\nDate: 2026-03-03\n- 🟢 1 message was withheld from these notes"
    assert observed.citations == ((), ("m1",), (), ())


async def test_where_all_is_withheld_nobody_is_asked() -> None:
    model = ScriptedModel()
    observed = await roles(model, before_observation=lambda _: [])[0].observe(messages(), earlier=[])
    assert observed.text == "Date: 2026-03-03\n- 🟢 2 messages were withheld from these notes"
    assert (observed.calls, model.requests) == (0, [])


async def test_what_the_observer_wrote_can_be_changed() -> None:
    def shout(observed: Observed) -> Observed:
        return replace(observed, text=observed.text.upper(), current_task="Sail")

    model = ScriptedModel(f"{NOTES} [#1]", f"{NOTES} [#1]")
    observed = await roles(model, after_observation=shout)[0].observe(messages(), earlier=[])
    assert (observed.text, observed.current_task) == (NOTES.upper(), "Sail")
    assert observed.citations == ((), ("m1",))
    cut = lambda observed: replace(observed, text="- 🔴 all")  # noqa: E731
    observed = await roles(model, after_observation=cut)[0].observe(messages(), earlier=[])
    assert observed.citations == ()


async def test_reflections_pass_their_hooks() -> None:
    async def hide(entries: list[Observation]) -> list[Observation]:
        await asyncio.sleep(0)
        return [replace(entry, text=entry.text.replace("Turku", "a town")) for entry in entries]

    def shout(reflected: Reflected) -> Reflected:
        return replace(reflected, text=reflected.text.upper())

    model = ScriptedModel(NOTES)
    reflector = roles(model, before_reflection=hide, after_reflection=shout)[1]
    reflected = await reflector.reflect([ENTRY], target_tokens=1_000)
    assert "Turku" not in model.requests[0].text
    assert reflected.text == NOTES.upper()
    nothing = roles(model, before_reflection=lambda _: [])[1]
    assert (await nothing.reflect([ENTRY], target_tokens=1_000)).text == "- 🟢 1 older note was withheld"


async def test_starts_and_ends_are_told_with_usage() -> None:
    calls: list[tuple[str, RoleCall]] = []

    def on(name: str) -> Any:
        return lambda call: calls.append((name, call))

    async def on_start(call: RoleCall) -> None:
        await asyncio.sleep(0)
        calls.append(("start", call))

    model = ScriptedModel(Reply(text=NOTES, usage=Usage(input_tokens=7, output_tokens=3)), NOTES)
    observer, reflector = roles(
        model,
        on_observation_start=on_start,
        on_observation_end=on("end"),
        on_reflection_start=on("reflection start"),
        on_reflection_end=on("reflection end"),
    )
    await observer.observe(messages(), earlier=[])
    await reflector.reflect([ENTRY], target_tokens=1_000)
    assert [name for name, _ in calls] == ["start", "end", "reflection start", "reflection end"]
    start, end, reflection, _ = (call for _, call in calls)
    assert (start.role, [m.id for m in start.messages], start.usage) == ("observer", ["m1", "m2"], None)
    assert end.usage is not None
    assert (end.usage.total_tokens, end.model, end.error) == (10, "scripted/model", None)
    assert (reflection.role, reflection.entries) == ("reflector", (ENTRY,))


async def test_a_failure_is_told_at_the_end() -> None:
    ends: list[RoleCall] = []
    observer, _ = roles(ScriptedModel(RateLimitError("slow down")), on_observation_end=ends.append)
    with pytest.raises(RateLimitError):
        await observer.observe(messages(), earlier=[])
    assert isinstance(ends[0].error, RateLimitError)
    assert ends[0].usage is None


async def test_work_that_is_given_up_has_an_end_too() -> None:
    ends: list[RoleCall] = []

    async def hang(_: ModelRequest) -> str:
        await asyncio.Event().wait()
        return ""

    def fail(call: RoleCall) -> None:
        ends.append(call)
        raise ValueError("oops")

    observer, _ = roles(ScriptedModel(hang), on_observation_end=fail)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await observer.observe(messages(), earlier=[])
    assert isinstance(ends[0].error, asyncio.CancelledError)


async def test_nobody_waits_for_the_end_hook_of_work_that_was_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(_: object) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(hooked_roles, "_LONGEST_FAREWELL", 0.01)
    observer, _ = roles(ScriptedModel(hang), on_observation_end=hang)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await observer.observe(messages(), earlier=[])
    assert "on_observation_end took longer than 0.01 s" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "before_observation",
        "after_observation",
        "on_observation_start",
        "on_observation_end",
        "before_reflection",
        "after_reflection",
        "on_reflection_start",
        "on_reflection_end",
    ],
)
async def test_a_hook_that_raises_is_named(name: str) -> None:
    def fail(_: object) -> None:
        raise ValueError("oops")

    observer, reflector = roles(ScriptedModel(NOTES), **{name: fail})
    observing = "observation" in name
    work = observer.observe(messages(), earlier=[]) if observing else reflector.reflect([ENTRY], target_tokens=1_000)
    with pytest.raises(RoleError, match=f"the hook {name} raised ValueError: oops"):
        await work


async def test_a_tool_result_that_a_hook_made_longer_is_cut_like_any_other(tmp_path: Path) -> None:
    """Its size is not known from the row that is stored."""

    def translate(shown: list[Message]) -> list[Message]:
        for message in shown:
            for part in message.parts:
                if isinstance(part, ToolPart):
                    part.result = "translated " * 10_000
        return shown

    looked = ToolPart(call_id="c", name="look", args={}, state="result", result="käännetty " * 10)
    model = ScriptedModel(NOTES)
    config = ObservationalMemoryConfig(model=model, hooks=MemoryHooks(before_observation=translate))
    async with Memory(storage=SQLiteStorage(tmp_path / "memory.db"), observational_memory=config) as memory:
        await memory.save_messages([*messages(), Message(id="m3", role="assistant", parts=[looked])], thread="t")
        await memory.observe(thread="t")
    assert 1_000 < model.requests[0].text.count("translated") < 6_000  # tool_result_tokens is 5,000


async def test_withheld_messages_are_observed_all_the_same() -> None:
    config = ObservationalMemoryConfig(model="extractive", hooks=MemoryHooks(before_observation=lambda _: []))
    async with Memory(storage=InMemoryStorage(), observational_memory=config) as memory:
        await memory.save_messages(messages(), thread="t")
        log = await memory.observe(thread="t")
        assert "2 messages were withheld" in log.text
        assert (await memory.observe(thread="t")).version == log.version
