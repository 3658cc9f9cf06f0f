"""What may stand for a role's model: an id, a model, a list of them, or a choice by the size of the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from diarist.exceptions import ConfigError
from diarist.models.base import Model
from diarist.models.entry import ModelEntry

FixedModel = str | Model | ModelEntry | Sequence[str | Model | ModelEntry]
"""A model, with its retries where it is an entry, or models that are tried one after the other."""

ModelSelector = Callable[[int], FixedModel]
"""Called with the tokens of the input, before each call."""

ModelChoice = FixedModel | ModelSelector | Literal[True] | None
"""A model's id (``"openai/gpt-5-mini"``), a model, a ``ModelEntry``, a list of these, a ``ModelSelector`` such as
``ByInputTokens``, ``"extractive"`` (no model at all), ``"default"`` or True, or None."""


@dataclass(frozen=True, slots=True)
class ByInputTokens:
    """Takes the model by the size of the input: a small one for most calls, a roomy one for the rest.

    Attributes:
        up_to: The model by the most tokens that it is given, ``{8_000: "openai/gpt-5-nano", 1_000_000:
            "google/gemini-2.5-flash"}``. Longer inputs go to the model with the highest limit.

    Raises:
        ConfigError: There is no model, or a limit that is not positive.
    """

    up_to: Mapping[int, FixedModel]

    def __post_init__(self) -> None:
        if not self.up_to:
            raise ConfigError("ByInputTokens needs at least one model, such as {8_000: 'openai/gpt-5-mini'}")
        for limit in self.up_to:
            if isinstance(limit, bool) or limit <= 0:
                raise ConfigError(f"a limit of ByInputTokens must be a positive number of tokens, not {limit!r}")
        object.__setattr__(self, "up_to", dict(sorted(self.up_to.items())))

    def __call__(self, input_tokens: int) -> FixedModel:
        """The model for an input of that size."""
        fits = (model for limit, model in self.up_to.items() if input_tokens <= limit)
        return next(fits, self.up_to[max(self.up_to)])
