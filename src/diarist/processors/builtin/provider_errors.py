"""Retry model calls that failed for a transient reason, or because the prompt ends with an assistant message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from diarist.checks import function_list, not_negative, texts, whole
from diarist.exceptions import AuthenticationError, BadRequestError, ConfigError, ModelAPIError, ModelError
from diarist.messages import Message
from diarist.models.fallbacks import is_transient
from diarist.processors.base import APIErrorResult, ProcessAPIErrorArgs, Processor

ErrorMatcher = Callable[[ModelError], bool]
"""Returns True for an error that is worth a retry."""


class StreamErrorRetry(Processor[Any]):
    """Retries a model call that failed for a transient reason, even in the middle of its stream.

    The partial answer of the failed call is dropped. Authentication errors are never retried.

    Args:
        max_retries: Retries per step. Default 1.
        matchers: Functions of the error, in addition to ``is_transient``. If one returns True, the call is retried.
        max_delay: Longest delay in seconds. If the provider asks for more, the call is not retried, so that a
            fallback model can take over. Default 30.

    Example::

        Agent(model="openai/gpt-5-mini", error_processors=[StreamErrorRetry(max_retries=2)])
    """

    edits_in_place = False

    def __init__(self, max_retries: int = 1, *, matchers: Sequence[ErrorMatcher] = (), max_delay: float = 30.0) -> None:
        whole("StreamErrorRetry", "max_retries", max_retries, least=0)
        not_negative("StreamErrorRetry", "max_delay", max_delay)
        self.max_retries = max_retries
        self.max_delay = max_delay
        self._matchers = (is_transient, *function_list("StreamErrorRetry", "matchers", matchers))

    def create_state(self) -> Counter[int]:
        """Return an empty count of retries by step."""
        return Counter()

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        """Request a retry after the delay that the provider asks for."""
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


_REFUSED = re.compile(
    r"assistant message prefill|must end with a user message|end with a user (role|turn)"
    r"|expected last role user|last message is from the assistant|prefill(ing)? (is )?not supported",
    re.IGNORECASE,
)
"""Error texts of Anthropic (since its 4.6 models), Bedrock, Google, Mistral and vLLM."""


class PrefillErrorHandler(Processor[Any]):
    """Adds a short user turn and retries, if the provider refuses a prompt that does not end with a user turn.

    Some models continue a prompt that ends with an assistant message; others refuse it. The turn is sent in
    this run only and never stored. Retries once per step; if the provider refuses again, its error is raised.

    Args:
        text: Text of the user turn. Default ``"Continue."``.

    Example::

        Agent(model="anthropic/claude-sonnet-5", error_processors=[PrefillErrorHandler()])
    """

    def __init__(self, text: str = "Continue.") -> None:
        texts("PrefillErrorHandler", text=text)
        if not text.strip():
            raise ConfigError("PrefillErrorHandler: text must not be empty")
        self.text = text

    def create_state(self) -> set[int]:
        """Return an empty set of the steps that were retried."""
        return set()

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        """Request one retry with a user turn at the end."""
        error, tried = args.error, args.state
        if not isinstance(error, BadRequestError) or not _REFUSED.search(f"{error}\n{error.body}"):
            return None
        shown = args.message_list.messages
        if args.step_number in tried or not shown or shown[-1].role != "assistant":
            return None
        tried.add(args.step_number)
        args.message_list.add(Message.user(self.text), "context")
        return {"retry": True}
