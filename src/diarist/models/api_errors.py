"""Map error answers of providers to diarist's errors, for all clients."""

from __future__ import annotations

import re
from typing import Any, cast

from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextOverflowError,
    ModelAPIError,
    ModelTimeoutError,
    RateLimitError,
)
from diarist.messages import as_text, utc_now

_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|context (window|size|length)|prompt is too long"
    r"|input is too long|input token count|reduce the length of the messages|too many (input )?tokens",
    re.IGNORECASE,
)
"""Messages of providers and servers for a prompt that is too long: OpenAI, Anthropic, Google, Bedrock, vLLM, llama.cpp
("exceeds the available context size"), Ollama, Together."""

_FILTERED = re.compile(
    r"content_filter|content_policy_violation|content management policy|responsibleai"
    r"|(input|prompt) was flagged|flagged_input|requires moderation|content violates",
    re.IGNORECASE,
)
"""Messages of filters: OpenAI, Azure, OpenRouter, xAI. The last two send status 403, as for a key without rights."""

_EXHAUSTED = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "exceeded_current_quota_error",
    }
)
"""Codes for an account without credit or quota. They come with status 429, but a retry does not help."""

_REFUSED = frozenset({400, 404, 405, 410, 413, 415, 422})
"""Statuses of a request that fails again at every retry."""

_IMPLIED_STATUS = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    "model_not_found": 404,
    "invalid_api_key": 401,
    "authentication_error": 401,
}
"""Equivalent HTTP statuses of error codes that come without a status, inside an open stream."""


def api_error(
    provider: str,
    *,
    body: object,
    status: int | None = None,
    code: str = "",
    type: str = "",
    retry_after: float | None = None,
    in_stream: bool = False,
    kind: type[ModelAPIError] | None = None,
    otherwise: object = "",
    server: str = "",
    hint: str = "",
) -> ModelAPIError:
    """Return diarist's error for an error answer.

    Args:
        body: The answer as text or parsed JSON.
        status: Its HTTP status; inside a stream, the equivalent status, if known.
        code, type: The provider's names for the error, if the client knows them.
        in_stream: The error came inside an open stream; ``error.status`` is then None.
        kind: The error class, if the client knows it.
        otherwise: The message to use if the body has none.
        server: The server's name in the message, if it is not the provider's.
        hint: Added at the end of the message.
    """
    said = "" if body is None else as_text(body)
    if status == 403 and _FILTERED.search(said):  # not a matter of the key, as clients assume
        kind = ContentFilterError
    where = " inside its answer" if in_stream else f" (HTTP {status})" if status else ""
    return (kind or _kind(status, code, type, said))(
        f"{server or provider} answered with an error{where}: {message_of(body) or otherwise}{hint}",
        provider=provider,
        status=None if in_stream else status,
        body=said,
        retry_after=retry_after,
    )


def _kind(status: int | None, code: str, type: str, body: str) -> type[ModelAPIError]:
    said = f"{code} {type} {body}"
    if code in _EXHAUSTED or type in _EXHAUSTED or status in (401, 402, 403):
        return AuthenticationError
    if status in _REFUSED or code == "context_length_exceeded":
        if _FILTERED.search(said):
            return ContentFilterError
        return ContextOverflowError if _OVERFLOW.search(said) else BadRequestError
    if status == 429:
        return RateLimitError
    if status in (408, 504):
        return ModelTimeoutError
    return ModelAPIError


def implied_status(code: str, type: str) -> int | None:
    """Return the equivalent status of an error without one. Gateways send the number itself as the code."""
    if code.isdigit() and 400 <= int(code) < 600:
        return int(code)
    return _IMPLIED_STATUS.get(code) or _IMPLIED_STATUS.get(type)


def retry_after(header: str | None, milliseconds: str | None = None) -> float | None:
    """Return the seconds of a ``Retry-After`` header (a number or a date) or OpenAI's ``retry-after-ms``, or None."""
    for value, scale in ((milliseconds, 1000), (header, 1)):
        try:
            if value is not None and (seconds := float(value) / scale) < float("inf"):
                return max(0.0, seconds)
        except ValueError:
            pass
    from email.utils import parsedate_to_datetime  # rarely needed, slow to import

    try:
        return max(0.0, (parsedate_to_datetime(header or "") - utc_now()).total_seconds())
    except (ValueError, TypeError):  # not a date, or without a time zone
        return None


def message_of(body: object) -> str:
    """Return the message in an error body: ``error.message`` or ``message``."""
    if not isinstance(body, dict):
        return ""
    fields = cast(dict[str, Any], body)
    inner = fields.get("error")
    if isinstance(inner, dict):
        return message_of(cast(dict[str, Any], inner))
    message = inner if isinstance(inner, str) else fields.get("message")
    return message if isinstance(message, str) else ""
