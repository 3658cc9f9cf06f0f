"""A configuration that contradicts itself is refused where it is written, with the option's name."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from diarist.exceptions import ConfigError
from diarist.memory.observational.config import (
    ObservationalMemoryConfig,
    ObservationConfig,
    ReflectionConfig,
    RetrievalConfig,
)
from diarist.memory.observational.decide import Limits, limits_of


def test_defaults() -> None:
    config = ObservationalMemoryConfig()
    observation = config.observation
    assert (observation.message_tokens, config.reflection.observation_tokens) == (30_000, 40_000)
    assert (observation.buffered_tokens, observation.retained_tokens, observation.batch_tokens) == (
        6_000,
        6_000,
        24_000,
    )
    assert limits_of(config).least_tokens == 3_000
    assert config.observer_model is None


def test_numbers_are_shares_or_tokens() -> None:
    config = ObservationConfig(message_tokens=30_000, buffer_tokens=5_000, buffer_activation=0.7, block_after=1.5)
    assert (config.buffered_tokens, config.retained_tokens, config.batch_tokens) == (5_000, 9_000, 21_000)
    assert ObservationConfig(buffer_activation=4_000).retained_tokens == 4_000
    assert ObservationConfig(buffer_activation=1).retained_tokens == 0
    assert ObservationConfig(block_after=36_000).block_after == 36_000
    unbuffered = ObservationConfig(buffer_tokens=False)
    assert (unbuffered.buffered_tokens, unbuffered.batch_tokens) == (None, 10_000)
    assert limits_of(ObservationalMemoryConfig(observation=unbuffered)).least_tokens == 1_000
    assert ObservationConfig(observer_batch_tokens=700).batch_tokens == 700


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"message_tokens": 0}, "message_tokens"),
        ({"message_tokens": True}, "message_tokens"),
        ({"message_tokens": 0.5}, "^message_tokens must be a whole number from 1 on, not 0.5"),
        ({"message_tokens": "300"}, "message_tokens must be a whole number from 1 on, not '300'"),
        ({"buffer_tokens": "300"}, "buffer_tokens must be a number"),
        ({"buffer_activation": "0.5"}, "buffer_activation must be a number"),
        ({"block_after": None}, "block_after must be a number, not None"),
        ({"previous_observer_tokens": "1"}, "previous_observer_tokens must be a whole number"),
        ({"buffer_tokens": 30_000}, "buffer_tokens"),
        ({"buffer_tokens": 0}, "buffer_tokens"),
        ({"buffer_tokens": True}, "buffer_tokens"),
        ({"buffer_tokens": -0.2}, "buffer_tokens"),
        ({"buffer_activation": 0}, "buffer_activation"),
        ({"buffer_activation": 1.5}, "buffer_activation"),
        ({"buffer_activation": 30_000}, "buffer_activation"),
        ({"block_after": 0.9}, "block_after"),
        ({"block_after": 1}, "block_after"),
        ({"block_after": 30_000}, "block_after"),
        ({"observer_batch_tokens": 0}, "observer_batch_tokens"),
        ({"previous_observer_tokens": -1}, "previous_observer_tokens"),
        ({"tool_result_tokens": 0}, "tool_result_tokens"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch"),
        ({"model_settings": {"temperature": 1}}, r"model_settings must be ModelSettings\(\.\.\.\), not {"),
    ],
)
def test_impossible_observation_options(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ObservationConfig(**wrong)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), pytest.param(10**400, id="huge")])
@pytest.mark.parametrize("name", ["buffer_tokens", "buffer_activation", "block_after"])
def test_numbers_are_finite(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a finite number, not "):
        ObservationConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"model": "a/b", "observation": ObservationConfig(model="c/d")}, r"observation\.model"),
        ({"model": "a/b", "reflection": ReflectionConfig(model="c/d")}, r"reflection\.model"),
        ({"share_token_budget": True}, "share_token_budget needs"),
        ({"scope": "planet"}, "scope"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": ZoneInfo("Europe/Rome")}, "timezone .* is not a known IANA name"),
        ({"observe_timeout": 0}, "observe_timeout"),
        ({"background_timeout": 0}, "background_timeout"),
        ({"activate_after_idle": 0}, "activate_after_idle"),
        ({"activate_after_idle": "5 minutes"}, "activate_after_idle"),
        ({"activate_after_idle": True}, "activate_after_idle"),
        ({"retrieval": {"max_tokens": 5}}, r"retrieval must be a bool or RetrievalConfig\(\.\.\.\), not dict"),
        ({"hooks": {}}, r"hooks must be MemoryHooks\(\.\.\.\), not {}"),
    ],
)
def test_impossible_options(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ObservationalMemoryConfig(**wrong)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"observation_tokens": 0}, "observation_tokens"),
        ({"buffer_activation": 0}, "buffer_activation"),
        ({"buffer_activation": 1.1}, "buffer_activation"),
        ({"buffer_activation": True}, "buffer_activation"),
        ({"block_after": 1}, "block_after"),
        ({"block_after": 40_000}, "block_after"),
        ({"model_settings": None}, r"model_settings must be ModelSettings\(\.\.\.\), not None"),
    ],
)
def test_impossible_reflection_options(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ReflectionConfig(**wrong)


def test_recall_needs_room() -> None:
    with pytest.raises(ConfigError, match=r"retrieval\.max_tokens must be a whole number from 200 on, not 60"):
        RetrievalConfig(max_tokens=60)


def test_block_after_counts_only_with_buffering() -> None:
    def limits(**observation: Any) -> Limits:
        reflection = ReflectionConfig(block_after=1.5, buffer_activation=0.25)
        observed = ObservationConfig(**observation)
        return limits_of(ObservationalMemoryConfig(observation=observed, reflection=reflection))

    assert limits().block_tokens == 36_000
    assert limits(block_after=50_000).block_tokens == 50_000
    assert limits(buffer_tokens=False, block_after=50_000).block_tokens == 30_000
    assert (limits().reflection_start_tokens, limits().reflection_block_tokens) == (10_000, 60_000)
    assert limits(buffer_tokens=False).reflection_block_tokens == 40_000


def test_a_shared_budget_needs_buffering_switched_off() -> None:
    shared = ObservationalMemoryConfig(share_token_budget=True, observation=ObservationConfig(buffer_tokens=False))
    assert not shared.buffers


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, None), ("auto", "auto"), (90, 90.0), ("90s", 90.0), ("5m", 300.0), ("1.5h", 5400.0)]
)
def test_pauses_are_seconds_or_words(given: Any, seconds: Any) -> None:
    assert ObservationalMemoryConfig(activate_after_idle=given).idle_seconds == seconds


def test_thread_ids_are_obscured_where_threads_meet() -> None:
    assert not ObservationalMemoryConfig().obscures_threads
    assert ObservationalMemoryConfig(obscure_thread_ids=True).obscures_threads
    assert ObservationalMemoryConfig(scope="resource").obscures_threads
    assert not ObservationalMemoryConfig(scope="resource", obscure_thread_ids=False).obscures_threads


def test_retrieval_is_a_switch_or_settings() -> None:
    assert ObservationalMemoryConfig().retrieves is None
    assert ObservationalMemoryConfig(retrieval=True).retrieves == RetrievalConfig(max_tokens=2_000, search=True)
    assert ObservationalMemoryConfig(retrieval=RetrievalConfig(max_tokens=500)).retrieves == RetrievalConfig(
        max_tokens=500
    )


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="mesage_tokens"):
        ObservationConfig(mesage_tokens=3)  # type: ignore[call-arg]


def test_a_role_takes_its_own_model_then_the_common_one_then_the_other_roles() -> None:
    common = ObservationalMemoryConfig(model="a/b")
    assert (common.observer_model, common.reflector_model) == ("a/b", "a/b")
    one = ObservationalMemoryConfig(reflection=ReflectionConfig(model="c/d"))
    assert (one.observer_model, one.reflector_model) == ("c/d", "c/d")
    both = ObservationalMemoryConfig(
        observation=ObservationConfig(model="a/b"), reflection=ReflectionConfig(model="c/d")
    )
    assert (both.observer_model, both.reflector_model) == ("a/b", "c/d")


def test_a_dictionary_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match=r"observation must be ObservationConfig\(\.\.\.\), not {"):
        ObservationalMemoryConfig(observation={"message_tokens": 5})  # type: ignore[arg-type]
