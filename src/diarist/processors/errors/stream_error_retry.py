"""Failures that pass by themselves: wait as long as the provider asks, and try again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
)
from diarist.processors.base import APIErrorResult, ProcessAPIErrorArgs, Processor
from diarist.processors.builtin.options import function_list, not_negative

ErrorMatcher = Callable[[ModelError], bool]
"""Whether an error is worth another try."""

_OVERLOADED = re.compile(r"overloaded|temporarily unavailable|try again later|server_error", re.IGNORECASE)


def is_transient(error: ModelError) -> bool:
    """Whether an error tends to pass: a cut connection, a timeout, a rate limit, status 5xx, an overloaded server,
    or any error of the provider's inside an open stream that is not named as the request's own fault."""
    match error:
        case ModelConnectionError() | ModelTimeoutError() | RateLimitError():
            return True
        case AuthenticationError() | BadRequestError() | ContentFilterError():
            return False
        case ModelAPIError():
            return error.status is None or error.status >= 500 or bool(_OVERLOADED.search(f"{error}\n{error.body}"))
        case _:
            return False


class StreamErrorRetry(Processor[Any]):
    """Repeats a model call that failed in passing, also when it failed in the middle of its stream.

    What had been received of the failed call is dropped. An authentication error is never repeated, whatever
    the matchers say.

    Args:
        max_retries: Retries per step. Default 1.
        matchers: Functions of the error; any that returns True asks for a retry. They stand beside the default
            rule (``is_transient``) and are asked after it.
        max_delay: Seconds to wait at most; a provider that asks for more gets no retry here, so that a fallback
            model can take over. Default 30.

    Raises:
        ConfigError: Something else than a number from 0 on, matchers that are no functions.

    Example::

        Agent(model="openai/gpt-5-mini", error_processors=[StreamErrorRetry(max_retries=2)])
    """

    edits_in_place = False

    def __init__(self, max_retries: int = 1, *, matchers: Sequence[ErrorMatcher] = (), max_delay: float = 30.0) -> None:
        not_negative("StreamErrorRetry", "max_retries", max_retries)
        not_negative("StreamErrorRetry", "max_delay", max_delay)
        self.max_retries = max_retries
        self.max_delay = max_delay
        self._matchers = (is_transient, *function_list("StreamErrorRetry", "matchers", matchers))

    def create_state(self) -> Counter[int]:
        """Retries by step."""
        return Counter()

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        """Ask for a retry after the provider's own delay."""
        error, done = args.error, args.state
        if isinstance(error, AuthenticationError) or done[args.step_number] >= self.max_retries:
            return None
        if not any(matches(error) for matches in self._matchers):
            return None
        delay = (error.retry_after if isinstance(error, ModelAPIError) else None) or 0.0
        if delay > self.max_delay:
            return None
        done[args.step_number] += 1
        return {"retry": True, "delay": max(delay, 0.0)}
