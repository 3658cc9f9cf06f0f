"""A model with what is tried when it fails: retries of its own, then the next entry."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ConfigError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelTimeoutError,
    RateLimitError,
)
from diarist.models.resolve import resolve

LONGEST_WAIT = 60.0
"""Seconds; a provider that asks for more is not waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model of a list of fallbacks.

    Attributes:
        model: Id or model.
        max_retries: Further calls after a failure that may pass: a rate limit, a timeout, a cut connection, a
            server error. None: the model's ``default_retries``, which is 2.
        backoff: Seconds before the first retry, doubled for each further one, give or take a quarter; a provider's
            Retry-After counts instead, where there is one.
    """

    model: Any
    max_retries: int | None = None
    backoff: float = 0.5

    def __post_init__(self) -> None:
        retries: Any = 0 if self.max_retries is None else self.max_retries
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ConfigError(f"ModelEntry: max_retries must be a whole number from 0 on, not {retries!r}")
        backoff: Any = self.backoff
        if isinstance(backoff, bool) or not isinstance(backoff, int | float) or not backoff >= 0:
            raise ConfigError(f"ModelEntry: backoff must be a number of seconds from 0 on, not {backoff!r}")

    def delay(self, error: Exception, retries: int) -> float | None:
        """Seconds to wait before retry number ``retries`` (from 0), or None where there is to be none."""
        allowed = self.model.default_retries if self.max_retries is None else self.max_retries
        if retries >= allowed or not may_pass(error):
            return None
        asked = error.retry_after if isinstance(error, ModelAPIError) else None
        if asked is not None:
            return asked if asked <= LONGEST_WAIT else None
        return min(LONGEST_WAIT, self.backoff * 2**retries * random.uniform(0.75, 1.25))


def may_pass(error: Exception) -> bool:
    """Whether the same call may go well later."""
    if isinstance(error, RateLimitError | ModelTimeoutError | ModelConnectionError):
        return True
    if isinstance(error, AuthenticationError | BadRequestError | ContentFilterError):
        return False
    return isinstance(error, ModelAPIError) and (error.status is None or error.status >= 500)


def entries_of(model: Any) -> list[ModelEntry]:
    """One model, or a list of models and entries, resolved. Raises ConfigError as ``resolve`` does."""
    items: list[Any] = list(cast(Sequence[Any], model)) if isinstance(model, list | tuple) else [model]
    if not items:
        raise ConfigError("the list of models is empty")
    out: list[ModelEntry] = []
    for item in items:
        entry = item if isinstance(item, ModelEntry) else ModelEntry(model=item)
        out.append(ModelEntry(model=resolve(entry.model), max_retries=entry.max_retries, backoff=entry.backoff))
    return out
