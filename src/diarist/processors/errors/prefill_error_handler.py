"""Retry with a user turn when a provider refuses a prompt that ends with an assistant message."""

from __future__ import annotations

import re
from typing import Any

from diarist.exceptions import BadRequestError, ConfigError
from diarist.messages import Message
from diarist.processors.base import APIErrorResult, ProcessAPIErrorArgs, Processor

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

    Raises:
        ConfigError: ``text`` is empty.

    Example::

        Agent(model="anthropic/claude-sonnet-5", error_processors=[PrefillErrorHandler()])
    """

    def __init__(self, text: str = "Continue.") -> None:
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
