"""The Reflector that calls a model."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from diarist import ModelEntry
from diarist.exceptions import ModelConnectionError, RoleError
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.reflector import ModelReflector
from diarist.storage.records import Observation
from diarist.testing import Reply, ScriptedModel
from diarist.tokens import default_counter

LEVELS = load_prompt("reflector_levels").splitlines()
OLD = "Date: 2026-03-02\n" + "\n".join(f"- 🟡 09:{minute:02} User asked about item {minute}" for minute in range(60))
ENTRIES = [
    Observation(
        id="obs",
        text=OLD,
        tokens=default_counter().count(OLD),
        sources=(),
        message_tokens=0,
        message_count=0,
        observed_at=datetime(2026, 3, 2, tzinfo=UTC),
        cycle_id="c",
    )
]


def notes(lines: int) -> str:
    return "\n".join(OLD.splitlines()[: lines + 1])


def answer(lines: int) -> str:
    return f"<diary>\n{notes(lines)}\n</diary>"


def level_of(model: ScriptedModel, request: int) -> int:
    return next(level for level, text in enumerate(LEVELS) if text in model.requests[request].text)


def tokens(lines: int) -> int:
    return default_counter().count(notes(lines))


async def test_the_first_result_below_the_target_is_taken() -> None:
    model = ScriptedModel(answer(20))
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=tokens(20) + 1)
    assert (reflected.text, reflected.calls) == (notes(20), 1)
    assert level_of(model, 0) == 1
    assert model.requests[0].settings.temperature == 0
    assert OLD in model.requests[0].text


async def test_as_many_tokens_as_the_target_are_too_many() -> None:
    model = ScriptedModel(answer(20), answer(19))
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=tokens(20))
    assert (reflected.text, reflected.calls) == (notes(19), 2)
    assert level_of(model, 1) == 2


async def test_after_four_attempts_the_smallest_is_taken() -> None:
    model = ScriptedModel(answer(40), answer(20), answer(30), answer(25))
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=10)
    assert (reflected.text, reflected.calls) == (notes(20), 4)
    assert [level_of(model, index) for index in range(4)] == [1, 2, 3, 4]
    assert reflected.usage.output_tokens > tokens(40) + tokens(20) + tokens(30) + tokens(25)


async def test_guidance_starts_without_compression() -> None:
    model = ScriptedModel(answer(10))
    await ModelReflector(model).reflect(ENTRIES, target_tokens=1_000, guidance="Forget the odd items.")
    assert level_of(model, 0) == 0
    assert "Forget the odd items." in model.requests[0].text


async def test_guidance_leads_up_to_level_three() -> None:
    model = ScriptedModel(answer(40), answer(30), answer(20), answer(10))
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=10, guidance="Short.")
    assert [level_of(model, index) for index in range(4)] == [0, 1, 2, 3]
    assert reflected.text == notes(10)


async def test_the_model_of_the_smallest_result_is_named() -> None:
    first = ScriptedModel(answer(20), *[ModelConnectionError("cut")] * 3, name="a")
    second = ScriptedModel(answer(30), answer(31), answer(32), name="b")
    models = [ModelEntry(model=first, max_retries=0), ModelEntry(model=second)]
    reflected = await ModelReflector(models).reflect(ENTRIES, target_tokens=10)
    assert (reflected.text, reflected.model) == (notes(20), "scripted/a")


async def test_loops_and_empty_answers_are_never_the_result() -> None:
    loop = "<diary>\n" + "- 🟡 the same again and again\n" * 200
    model = ScriptedModel(loop, "", answer(30), answer(29))
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=10)
    assert reflected.text == notes(29)
    assert len(reflected.warnings) == 2


def cut_answer(lines: int) -> Reply:
    return Reply(text=f"<diary>\n{notes(lines)}\n- 🟡 and half of", finish_reason="length")


async def test_a_cut_answer_is_no_result_however_short() -> None:
    """It lacks the newest notes: less than it had room for is asked for."""
    model = ScriptedModel(cut_answer(30), answer(20))
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=2_000)
    assert (reflected.text, reflected.calls) == (notes(20), 2)
    assert f"fewer than {tokens(30) * 3 // 4:,} tokens" in model.requests[1].text  # without the half line
    assert "output limit" in reflected.warnings[0]


async def test_a_whole_answer_above_the_target_is_preferred_to_a_cut_one() -> None:
    model = ScriptedModel(answer(40), cut_answer(3), cut_answer(3), cut_answer(3))
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=tokens(20))
    assert reflected.text == notes(40)


async def test_where_every_answer_is_cut_the_newer_half_stays_as_it_is() -> None:
    """What a cut answer did not reach would be neither in the diary nor in the window."""
    entries = [replace(ENTRIES[0], id=f"obs{n}", text=f"Date: 2026-03-0{n}\n- 🔴 09:00 fact {n}") for n in range(1, 5)]
    model = ScriptedModel(cut_answer(40), cut_answer(35), "<diary>\nDate: 2026-03-01\n- 🔴 09:00 two facts\n</diary>")
    reflected = await ModelReflector(model).reflect(entries, target_tokens=2_000)
    assert reflected.text == f"Date: 2026-03-01\n- 🔴 09:00 two facts\n{entries[2].text}\n{entries[3].text}"
    assert reflected.calls == 3
    assert "fact 2" in model.requests[2].text
    assert "fact 3" not in model.requests[2].text
    assert "2 of 4 entries stay as they are" in reflected.warnings[2]


async def test_one_entry_of_which_every_answer_is_cut_stays_as_it_is() -> None:
    reflected = await ModelReflector(ScriptedModel(cut_answer(40), cut_answer(35))).reflect(
        ENTRIES, target_tokens=2_000
    )
    assert (reflected.text, reflected.calls) == (OLD, 2)


async def test_a_diary_that_was_closed_before_the_cut_is_whole() -> None:
    model = ScriptedModel(
        Reply(text=f"{answer(20)}\n<current-task>\nx\n</current-task>\n<sugg", finish_reason="length")
    )
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=2_000)
    assert (reflected.text, reflected.current_task, reflected.calls) == (notes(20), "x", 1)


async def test_a_crumb_is_no_diary() -> None:
    """If reasoning used the output limit, the old diary stays."""
    model = ScriptedModel(*[cut_answer(2)] * 4)
    with pytest.raises(RoleError, match="reasoning"):
        await ModelReflector(model).reflect(ENTRIES, target_tokens=2_000)


async def test_thoughts_that_took_the_room_do_not_lower_the_target() -> None:
    model = ScriptedModel(cut_answer(2), answer(20))
    await ModelReflector(model).reflect(ENTRIES, target_tokens=2_000)
    assert "fewer than 2,000 tokens" in model.requests[1].text


async def test_nothing_usable_is_an_error() -> None:
    model = ScriptedModel("", "Sorry.", "", "")
    with pytest.raises(RoleError, match="4 calls"):
        await ModelReflector(model).reflect(ENTRIES, target_tokens=10)


async def test_a_later_failure_does_not_lose_a_result() -> None:
    model = ScriptedModel(answer(30), ModelConnectionError("cut"))
    reflected = await ModelReflector(model).reflect(ENTRIES, target_tokens=10)
    assert reflected.text == notes(30)
    assert "cut" in reflected.warnings[-1]


async def test_a_first_failure_is_raised() -> None:
    with pytest.raises(ModelConnectionError):
        await ModelReflector(ScriptedModel(ModelConnectionError("cut"))).reflect(ENTRIES, target_tokens=10)
