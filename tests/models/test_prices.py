from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diarist.chunks import Usage
from diarist.exceptions import InputError
from diarist.models import cost
from diarist.testing import ScriptedModel


def test_each_kind_of_token_has_its_price() -> None:
    plain = cost("openai/gpt-5-mini", Usage(input_tokens=1_000_000))
    cached = cost("openai/gpt-5-mini", Usage(input_tokens=1_000_000, cached_tokens=1_000_000))
    answer = cost("openai/gpt-5-mini", Usage(output_tokens=1_000_000))
    assert plain is not None
    assert cached is not None
    assert answer is not None
    assert 0 < cached < plain < answer


@pytest.mark.parametrize(
    "model_id",
    ["openai/gpt-5", "openai-responses/gpt-5", "anthropic/claude-sonnet-5", "google/gemini-2.5-flash"],
)
def test_known_models(model_id: str) -> None:
    assert cost(model_id, Usage(input_tokens=1000, output_tokens=1000))


@pytest.mark.parametrize("model_id", ["openai/no-such-model", "ollama/qwen3", "scripted/model", "nonsense"])
def test_unknown_models_have_no_price(model_id: str) -> None:
    assert cost(model_id, Usage(input_tokens=1000)) is None


tokens = st.integers(min_value=0, max_value=100_000)


@given(tokens, tokens, tokens)
def test_a_price_is_never_negative(plain: int, cached: int, output: int) -> None:
    usage = Usage(input_tokens=plain + cached, cached_tokens=cached, output_tokens=output)
    price = cost("anthropic/claude-sonnet-5", usage)
    assert price is not None
    assert (price > 0) == (usage.total_tokens > 0)


def test_a_model_in_place_of_its_id_is_refused() -> None:
    model: Any = ScriptedModel()
    with pytest.raises(InputError, match="model_id must be a text, not ScriptedModel"):
        cost(model, Usage())
