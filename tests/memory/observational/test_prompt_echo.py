"""What small models write instead of notes is not kept: a 1.5B model did each of these."""

from __future__ import annotations

import pytest

from diarist.exceptions import DiaristError
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.earlier_notes import without_repeats
from diarist.memory.observational.roles.observer import ModelObserver
from diarist.memory.observational.roles.prompt_echo import is_form, without_form
from diarist.messages import Message, utc_now
from diarist.storage import Observation
from diarist.testing import ScriptedModel


def form_of(name: str) -> str:
    text = load_prompt(name)
    return text[text.index("<diary>") : text.index("</suggested-response>") + len("</suggested-response>")]


def entry(text: str) -> Observation:
    return Observation(
        id="o", text=text, tokens=9, sources=(), message_tokens=9, message_count=1, observed_at=utc_now(), cycle_id="c"
    )


@pytest.mark.parametrize("name", ["observer", "reflector"])
def test_every_line_of_the_form_is_recognised(name: str) -> None:
    lines = [line for line in form_of(name).splitlines() if line.strip() and not line.startswith("<")]
    assert len(lines) > 4
    assert [line for line in lines if not is_form(line)] == []


async def test_a_copied_form_is_no_diary() -> None:
    observer = ModelObserver(ScriptedModel(lambda _: form_of("observer")))
    with pytest.raises(DiaristError, match="gave no notes"):
        await observer.observe([Message.user("I am Ada.")], earlier=[])


async def test_lines_of_the_form_are_dropped_and_the_rest_is_kept() -> None:
    answer = form_of("observer").replace("</diary>", "Date: 2026-03-02\n- 🔴 09:00 User stated: I am Ada\n</diary>")
    observed = await ModelObserver(ScriptedModel(answer)).observe([Message.user("I am Ada.")], earlier=[])
    assert observed.text == "Date: 2026-03-02\n- 🔴 09:00 User stated: I am Ada"
    assert observed.current_task is None
    assert observed.suggested_response is None


async def test_noted_messages_are_not_noted_again() -> None:
    noted = "Date: 2026-03-02\n- 🔴 09:00 User stated: I am Ada"
    answer = f"<diary>\n{noted}\n- 🔴 09:05 User stated: I live in Rome\nDate: 2026-03-03\n- 🟢 09:00 Rain\n</diary>"
    observed = await ModelObserver(ScriptedModel(answer)).observe([Message.user("x")], earlier=[entry(noted)])
    assert (
        observed.text == "Date: 2026-03-02\n- 🔴 09:05 User stated: I live in Rome\nDate: 2026-03-03\n- 🟢 09:00 Rain"
    )


def test_the_same_words_on_another_day_are_news() -> None:
    assert (
        without_repeats("Date: 2026-03-03\n- 🟢 rain", ["Date: 2026-03-02\n- 🟢 rain"]) == "Date: 2026-03-03\n- 🟢 rain"
    )


async def test_notes_that_only_repeat_are_kept_rather_than_nothing() -> None:
    text = "Date: 2026-03-02\n- 🟢 rain"
    observed = await ModelObserver(ScriptedModel(text, text)).observe([Message.user("Rain.")], earlier=[entry(text)])
    assert observed.text == text


def test_a_heading_goes_with_its_last_line() -> None:
    copied = "Date: 2026-03-02\n- 🟡 09:00 User asked [question] [#2]"
    assert without_form(f"{copied}\nDate: 2026-03-03\n- y") == "Date: 2026-03-03\n- y"


@pytest.mark.parametrize(
    "line",
    [
        "- 🔴 09:12 User's bug: KeyError in weights[new]",
        '- 🔴 09:12 User works on "[question] Export" by Friday',
        "- 🟡 09:12 Assistant explained what [activity] means in the list",
    ],
)
def test_a_fact_with_a_word_in_brackets_is_kept(line: str) -> None:
    assert without_form(line) == line


async def test_undated_messages_are_noted_without_the_place_for_their_time() -> None:
    answer = "<diary>\nDate: unknown\n- 🔴 HH:MM User stated that they live in Turku [#1]\n</diary>"
    undated = [Message.user("I live in Turku.", created_at=None)]
    observed = await ModelObserver(ScriptedModel(answer)).observe(undated, earlier=[])
    assert observed.text == "Date: unknown\n- 🔴 User stated that they live in Turku"


def test_notes_about_a_date_format_are_not_taken_for_the_form() -> None:
    text = "Date: 2026-03-02\n- 🔴 09:00 User stated: write dates as YYYY-MM-DD and times as HH:MM, ids in [brackets]"
    assert without_form(text) == text


async def test_a_model_that_only_copies_earlier_notes_is_asked_again_without_them() -> None:
    noted = "Date: 2026-03-02\n- 🔴 09:00 User stated: I am Ada"
    news = "Date: 2026-03-02\n- 🔴 09:05 User stated: I live in Rome"
    model = ScriptedModel(f"<diary>\n{noted}\n</diary>", f"<diary>\n{noted}\n{news}\n</diary>")
    observed = await ModelObserver(model).observe([Message.user("I live in Rome")], earlier=[entry(noted)])
    assert observed.text == news
    assert observed.calls == 2
    assert "I am Ada" in model.requests[0].text
    assert "I am Ada" not in model.requests[1].text
