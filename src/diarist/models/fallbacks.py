"""Lists of fallback models, each with its own retries."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from diarist.checks import seconds, whole
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

_OVERLOADED = re.compile(r"overloaded|temporarily unavailable|try again later|server_error", re.IGNORECASE)

LONGEST_WAIT = 60.0
"""Maximum delay in seconds. If a provider asks for more, there is no retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model in a list of fallback models.

    Attributes:
        model: A model or its id.
        max_retries: Retries after a transient failure: a rate limit, a timeout, a broken connection, a server error.
            None: the model's ``default_retries``, usually 2.
        backoff: Seconds before the first retry, doubled for each further one, with a jitter of 25 %. A provider's
            Retry-After takes precedence.
    """

    model: Any
    max_retries: int | None = None
    backoff: float = 0.5

    def __post_init__(self) -> None:
        whole("ModelEntry", "max_retries", 0 if self.max_retries is None else self.max_retries, least=0)
        seconds("ModelEntry", "backoff", self.backoff, zero=True)

    def delay(self, error: Exception, retries: int) -> float | None:
        """Return the seconds before retry number ``retries`` (from 0), or None for no retry."""
        allowed = self.model.default_retries if self.max_retries is None else self.max_retries
        if retries >= allowed or not is_transient(error):
            return None
        asked = error.retry_after if isinstance(error, ModelAPIError) else None
        if asked is not None:
            return asked if asked <= LONGEST_WAIT else None
        return min(LONGEST_WAIT, self.backoff * 2**retries * random.uniform(0.75, 1.25))


def is_transient(error: Exception) -> bool:
    """Return True for a transient failure: connection errors, timeouts, rate limits, status 5xx, an overloaded server,
    and errors inside an open stream that are not the request's fault."""
    match error:
        case ModelConnectionError() | ModelTimeoutError() | RateLimitError():
            return True
        case AuthenticationError() | BadRequestError() | ContentFilterError():
            return False
        case ModelAPIError():
            return error.status is None or error.status >= 500 or bool(_OVERLOADED.search(f"{error}\n{error.body}"))
        case _:
            return False


def entries_of(model: Any) -> list[ModelEntry]:
    """Return resolved entries for a model or a list of models and entries. Raises ConfigError as ``resolve`` does."""
    items: list[Any] = list(cast(Sequence[Any], model)) if isinstance(model, list | tuple) else [model]
    if not items:
        raise ConfigError("the list of models is empty")
    entries = [item if isinstance(item, ModelEntry) else ModelEntry(model=item) for item in items]
    return [replace(entry, model=resolve(entry.model)) for entry in entries]
