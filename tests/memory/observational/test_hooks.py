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
from diarist.exceptions import RoleError
from diarist.memory import MemoryHooks, ObservationalMemoryConfig
from diarist.memory.observational.roles.base import Observed, ObserverRole, Reflected, ReflectorRole
from diarist.memory.observational.roles.role_models import RoleModels
from diarist.messages import Message, TextPart, ToolPart
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


async def test_redacted_text_reaches_neither_model_nor_storage() -> None:
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


async def test_no_model_is_asked_when_all_text_is_withheld() -> None:
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


async def test_the_hook_after_sees_usage_and_model() -> None:
    seen: list[Observed | Reflected] = []

    def look(made: Any) -> Any:
        seen.append(made)
        return made

    model = ScriptedModel(Reply(text=NOTES, usage=Usage(input_tokens=7, output_tokens=3)), NOTES)
    observer, reflector = roles(model, after_observation=look, after_reflection=look)
    await observer.observe(messages(), earlier=[])
    await reflector.reflect([ENTRY], target_tokens=1_000)
    assert [made.model for made in seen] == ["scripted/model", "scripted/model"]
    assert seen[0].usage.total_tokens == 10


@pytest.mark.parametrize(
    "name",
    [
        "before_observation",
        "after_observation",
        "before_reflection",
        "after_reflection",
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


@pytest.mark.parametrize("name", ["before_observation", "after_observation", "before_reflection", "after_reflection"])
async def test_a_hook_without_a_result_is_named(name: str) -> None:
    observer, reflector = roles(ScriptedModel(NOTES), **{name: lambda _: None})
    observing = "observation" in name
    work = observer.observe(messages(), earlier=[]) if observing else reflector.reflect([ENTRY], target_tokens=1_000)
    with pytest.raises(RoleError, match=f"the hook {name} returned None"):
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
        await memory.messages.save([*messages(), Message(id="m3", role="assistant", parts=[looked])], thread="t")
        await memory.diary.observe(thread="t")
    assert 1_000 < model.requests[0].text.count("translated") < 6_000  # tool_result_tokens is 5,000


async def test_withheld_messages_are_observed_all_the_same() -> None:
    config = ObservationalMemoryConfig(model="extractive", hooks=MemoryHooks(before_observation=lambda _: []))
    async with Memory(storage=InMemoryStorage(), observational_memory=config) as memory:
        await memory.messages.save(messages(), thread="t")
        log = await memory.diary.observe(thread="t")
        assert "2 messages were withheld" in log.text
        assert (await memory.diary.observe(thread="t")).version == log.version


async def test_withheld_messages_after_those_that_an_answer_had_room_for_stay_raw() -> None:
    given = [Message.user(f"fact {n}", id=f"m{n}", created_at=MORNING) for n in range(1, 9)]

    def without_two(shown: list[Message]) -> list[Message]:
        return [message for message in shown if message.id not in ("m2", "m7")]

    notes = "<diary>\nDate: 2026-03-02\n- 🔴 09:12 three facts"
    model = ScriptedModel(Reply(text=f"{notes}\n- 🔴 09:12 fa", finish_reason="length"), f"{notes}\n</diary>")
    observed = await roles(model, before_observation=without_two)[0].observe(given, earlier=[])
    assert observed.unnoted == ("m5", "m6", "m8")
    assert observed.text.splitlines()[-1] == "- 🟢 1 message was withheld from these notes"
