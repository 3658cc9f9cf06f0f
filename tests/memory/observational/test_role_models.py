"""Which model works as Observer and as Reflector, and what is tried when it fails."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from diarist import ModelEntry
from diarist.exceptions import AuthenticationError, BadRequestError, ConfigError, ModelAPIError, RateLimitError
from diarist.memory.observational.config import (
    ModelChoice,
    ObservationalMemoryConfig,
    ObservationConfig,
    ReflectionConfig,
)
from diarist.memory.observational.roles.base import Observed
from diarist.memory.observational.roles.extractive.observer import ExtractiveObserver
from diarist.memory.observational.roles.extractive.reflector import ExtractiveReflector
from diarist.memory.observational.roles.role_models import DEFAULT_MODEL, RoleModels
from diarist.messages import FilePart, Message, TextPart
from diarist.models.base import Model
from diarist.storage.records import Observation
from diarist.testing import Reply, ScriptedModel
from diarist.tokens import default_counter

NOTES = "Date: 2026-03-02\n- 🔴 09:12 User lives in Turku"
MORNING = datetime(2026, 3, 2, 9, 12, tzinfo=UTC)
MESSAGES = [Message.user("I live in Turku.", created_at=MORNING)]
PICTURE = FilePart(media_type="image/png", data=b"x", name="cat.png")
WITH_PICTURE = [Message(role="user", parts=[TextPart(text="My cat"), PICTURE], created_at=MORNING)]

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


def scripted(*replies: Any, name: str = "model") -> ScriptedModel:
    return ScriptedModel(*replies, name=name)


def limited() -> RateLimitError:
    return RateLimitError("slow down", retry_after=0)


async def observe(
    config: ObservationalMemoryConfig, messages: list[Message] = MESSAGES, actor: Model | None = None
) -> Observed:
    observer, _ = RoleModels(config, default_counter()).roles(actor)
    return await observer.observe(messages, earlier=[])


async def observe_with(model: ModelChoice, messages: list[Message] = MESSAGES) -> Observed:
    return await observe(ObservationalMemoryConfig(model=model), messages)


def test_a_misspelt_choice_is_told_the_one_that_needs_no_key() -> None:
    config = ObservationalMemoryConfig(model="extractiv")
    with pytest.raises(
        ConfigError, match=r"the Observer: model 'extractiv': write .*, or 'extractive', which needs no key"
    ):
        RoleModels(config, default_counter()).check()


async def test_each_role_has_its_own_model() -> None:
    observer, reflector = scripted(NOTES, name="o"), scripted(NOTES, name="r")
    config = ObservationalMemoryConfig(
        observation=ObservationConfig(model=observer), reflection=ReflectionConfig(model=reflector)
    )
    roles = RoleModels(config, default_counter()).roles(None)
    assert (await roles[0].observe(MESSAGES, earlier=[])).model == "scripted/o"
    assert (await roles[1].reflect([ENTRY], target_tokens=100)).model == "scripted/r"


@pytest.mark.parametrize("choice", [None, "default", True])
async def test_without_a_model_and_a_key_the_agents_own_is_taken(
    choice: ModelChoice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diarist")
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    actor = scripted(NOTES, name="actor")
    assert (await observe(ObservationalMemoryConfig(model=choice), actor=actor)).model == "scripted/actor"
    assert "Observer: no model is configured, the agent's own scripted/actor is used" in caplog.messages
    with pytest.raises(ConfigError, match=f"Observer has no model.*{DEFAULT_MODEL}"):
        await observe(ObservationalMemoryConfig(model=choice))


def test_extractive_needs_no_model() -> None:
    roles = RoleModels(ObservationalMemoryConfig(model="extractive"), default_counter()).roles(None)
    assert isinstance(roles[0], ExtractiveObserver)
    assert isinstance(roles[1], ExtractiveReflector)


@pytest.mark.parametrize(
    "choice",
    [
        ["anthropic/claude-haiku-4-5", "openai/gpt-5-mini"],
        [ModelEntry(model="openai/gpt-5-mini")],
        ["extractive", ScriptedModel()],
        [],
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_sent(
    choice: ModelChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError):
        RoleModels(ObservationalMemoryConfig(model=choice), default_counter()).roles(None)


# --- failures ------------------------------------------------------------------------------------------------


async def test_what_may_pass_is_tried_again_after_retry_after() -> None:
    model = scripted(limited(), limited(), NOTES)
    observed = await observe_with(ModelEntry(model=model, max_retries=2, backoff=3_600))
    assert (observed.text, observed.calls) == (NOTES, 3)
    assert observed.warnings == ("scripted/model failed (slow down), it was asked again",) * 2


async def test_the_retries_of_an_entry_come_to_an_end() -> None:
    model = scripted(limited(), limited(), NOTES)
    with pytest.raises(RateLimitError):
        await observe_with(ModelEntry(model=model, max_retries=1))
    assert len(model.requests) == 2


async def test_after_a_failure_the_next_model_is_asked() -> None:
    first, second = scripted(AuthenticationError("wrong key"), name="a"), scripted(NOTES, name="b")
    observed = await observe_with([first, ModelEntry(model=second, max_retries=0)])
    assert (observed.text, observed.model, observed.calls) == (NOTES, "scripted/b", 2)
    assert observed.warnings == ("scripted/a failed (wrong key), the next model was asked",)


async def test_the_failure_of_the_last_model_is_raised() -> None:
    models = [scripted(AuthenticationError("wrong key")), scripted(RateLimitError("slow down", retry_after=3_600))]
    with pytest.raises(RateLimitError):
        await observe_with(models)


async def test_each_model_keeps_to_the_settings_that_it_takes() -> None:
    picky, other = scripted(BadRequestError("no temperature"), NOTES, limited(), name="a"), scripted(NOTES, name="b")
    config = ObservationalMemoryConfig(model=[ModelEntry(model=picky, max_retries=0), other])
    observer, _ = RoleModels(config, default_counter()).roles(None)
    await observer.observe(MESSAGES, earlier=[])
    await observer.observe(MESSAGES, earlier=[])
    assert [request.settings.temperature for request in picky.requests] == [0.3, None, None]
    assert other.requests[0].settings.temperature == 0.3


# --- by size -------------------------------------------------------------------------------------------------


async def test_the_size_of_the_question_chooses() -> None:
    small, large = scripted(lambda _: NOTES, name="small"), scripted(lambda _: NOTES, name="large")

    def choose(tokens: int) -> ModelChoice:
        return small if tokens <= 4_000 else [large]

    assert (await observe_with(choose)).model == "scripted/small"
    long = [Message.user("word " * 5_000, created_at=MORNING)]
    assert (await observe_with(choose, long)).model == "scripted/large"


async def test_a_function_may_choose() -> None:
    seen: list[int] = []
    model = scripted(NOTES)

    def choose(tokens: int) -> ScriptedModel:
        seen.append(tokens)
        return model

    await observe_with(choose)
    count = default_counter().count
    assert seen == [sum(count(message.text) for message in model.requests[0].prompt)]


# --- options of the Observer ---------------------------------------------------------------------------------


def shown_files(model: ScriptedModel, request: int = -1) -> list[FilePart]:
    return [part for part in model.requests[request].prompt.messages[1].parts if isinstance(part, FilePart)]


@pytest.mark.parametrize("choice", [None, True])
async def test_attachments_are_shown_and_numbered(choice: bool | None) -> None:
    model = scripted(NOTES)
    options = ObservationConfig(model=model, observe_attachments=choice)
    await observe(ObservationalMemoryConfig(observation=options), WITH_PICTURE)
    assert shown_files(model) == [PICTURE]
    assert "(attachment 1: 'cat.png' image/png)" in model.requests[0].text
    assert "Attachment 1:" in model.requests[0].text


async def test_attachments_can_be_kept_from_the_observer() -> None:
    model = scripted(NOTES)
    options = ObservationConfig(model=model, observe_attachments=False)
    await observe(ObservationalMemoryConfig(observation=options), WITH_PICTURE)
    assert shown_files(model) == []
    assert "(attachment 1: 'cat.png' image/png)" in model.requests[0].text


@pytest.mark.parametrize("error", [BadRequestError("no images"), ModelAPIError("no images", status=500)])
async def test_a_model_without_eyes_reads_the_rest(error: ModelAPIError) -> None:
    model = scripted(error, NOTES)
    observed = await observe_with(model, WITH_PICTURE)
    assert (observed.text, observed.calls) == (NOTES, 2)
    assert observed.warnings == ("repeated without attachments, since: no images",)
    assert (len(shown_files(model, 0)), len(shown_files(model, 1))) == (1, 0)
    assert model.requests[1].settings.temperature == 0.3


async def test_a_model_that_refuses_settings_still_sees_attachments() -> None:
    refused = BadRequestError("no temperature")
    model = scripted(refused, refused, NOTES)
    await observe_with(model, WITH_PICTURE)
    assert shown_files(model) == [PICTURE]
    assert model.requests[-1].settings.temperature is None


async def test_a_title_is_asked_for_where_it_is_wanted() -> None:
    answer = f"<diary>\n{NOTES}\n</diary>\n<thread-title>\n“A cat in Turku”\n</thread-title>"
    model = scripted(answer, answer)
    wanted = ObservationConfig(model=model, thread_title=True)
    assert (await observe(ObservationalMemoryConfig(observation=wanted))).thread_title == "A cat in Turku"
    assert model.requests[0].text.count("<thread-title>") == 2
    unasked = await observe_with(model)
    assert unasked.thread_title is None
    assert "<thread-title>" not in model.requests[1].text


async def test_a_title_that_fits_may_stay() -> None:
    model = scripted("- 🔴 User sails")
    config = ObservationalMemoryConfig(observation=ObservationConfig(model=model, thread_title=True))
    observer, _ = RoleModels(config, default_counter()).roles(None)
    await observer.observe(MESSAGES, earlier=[replace(ENTRY, thread_title="Cats")])
    assert "So far the title is 'Cats'" in model.requests[0].text


@pytest.mark.parametrize(("tokens", "shown"), [(4_000, True), (0, False)])
async def test_so_much_of_the_diary_is_shown_as_is_allowed(tokens: int, shown: bool) -> None:
    model = scripted("- 🔴 User sails")
    config = ObservationalMemoryConfig(observation=ObservationConfig(model=model, previous_observer_tokens=tokens))
    observer, _ = RoleModels(config, default_counter()).roles(None)
    await observer.observe(MESSAGES, earlier=[ENTRY])
    assert (NOTES in model.requests[0].text) == shown


async def test_pauses_are_named_where_they_are_wanted() -> None:
    later = [*MESSAGES, Message.user("Back.", created_at=MORNING.replace(hour=11, minute=17))]
    model = scripted(NOTES, NOTES)
    await observe(ObservationalMemoryConfig(model=model, temporal_markers=True), later)
    await observe(ObservationalMemoryConfig(model=model), later)
    assert "(2 hours 5 minutes later)" in model.requests[0].text
    assert "later)" not in model.requests[1].text


async def test_several_threads_stand_apart_and_have_no_task_in_common() -> None:
    answer = Reply(text=f"<diary>\n{NOTES}\n</diary>\n<current-task>Feed the cat</current-task>")
    model = scripted(answer, answer)
    messages = [Message.user(text, thread_id=text, created_at=MORNING) for text in ("thread-a", "thread-b")]
    observed = await observe(ObservationalMemoryConfig(model=model, scope="resource"), messages)
    assert observed.current_task is None
    assert "(thread thread-a)" not in model.requests[0].text
    assert model.requests[0].text.count("Date: 2026-03-02 (thread ") == 2
    plain = ObservationalMemoryConfig(model=model, scope="resource", obscure_thread_ids=False)
    await observe(plain, messages)
    assert "(thread thread-a)" in model.requests[1].text
