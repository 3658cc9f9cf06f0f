"""Thresholds of one thread alone."""

from __future__ import annotations

import pytest

from diarist.exceptions import ConfigError
from diarist.memory.observational.config import (
    ObservationalMemoryConfig,
    ObservationConfig,
    ReflectionConfig,
    apply_overrides,
    effective_config,
)
from diarist.memory.observational.decide import limits_of

CONFIG = ObservationalMemoryConfig(
    observation=ObservationConfig(message_tokens=20_000, instruction="Prices."),
    reflection=ReflectionConfig(observation_tokens=10_000),
    timezone="Europe/Rome",
)


def test_overrides_go_over_the_configuration() -> None:
    merged = apply_overrides(
        CONFIG,
        {
            "message_tokens": 5_000,
            "buffer_tokens": 500,
            "buffer_activation": 0.5,
            "block_after": 6_000,
            "observation_tokens": 3_000,
            "reflection_buffer_activation": 0.8,
            "reflection_block_after": 1.5,
        },
    )
    limits = limits_of(merged)
    assert (limits.message_tokens, limits.buffer_tokens) == (5_000, 500)
    assert (limits.retained_tokens, limits.block_tokens, limits.observation_tokens) == (2_500, 6_000, 3_000)
    assert (limits.reflection_start_tokens, limits.reflection_block_tokens) == (2_400, 4_500)
    assert (merged.observation.instruction, merged.timezone) == ("Prices.", "Europe/Rome")
    assert CONFIG.observation.message_tokens == 20_000


def test_without_overrides_it_is_the_same() -> None:
    assert apply_overrides(CONFIG, {}) is CONFIG


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ({"message_tokens": 0}, "message_tokens"),
        ({"message_tokens": "many"}, "message_tokens"),
        ({"message_tokens": 10.5}, "message_tokens"),
        ({"message_tokens": True}, "message_tokens"),
        ({"buffer_tokens": 20_000}, "buffer_tokens"),
        ({"message_tokens": 3_000, "block_after": 3_000}, "block_after"),
        ({"reflection_buffer_activation": 2}, "buffer_activation"),
        ({"mesage_tokens": 3}, "mesage_tokens"),
        ({"timezone": "UTC"}, "timezone"),
    ],
)
def test_overrides_are_checked_with_the_whole(overrides: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        apply_overrides(CONFIG, overrides)


def test_a_shared_budget_stays_without_buffering() -> None:
    shared = ObservationalMemoryConfig(share_token_budget=True, observation=ObservationConfig(buffer_tokens=False))
    assert apply_overrides(shared, {"message_tokens": 5_000}).share_token_budget
    with pytest.raises(ConfigError, match="share_token_budget"):
        apply_overrides(shared, {"buffer_tokens": 0.2})


def test_overrides_that_fit_no_longer_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert effective_config(CONFIG, {"buffer_tokens": 20_000}) is CONFIG
    assert "buffer_tokens" in caplog.text
    assert effective_config(CONFIG, {"message_tokens": 9_000}).observation.message_tokens == 9_000
