"""Errors of the provider library as errors of ours."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import httpx2
import orjson
from pydantic_ai import exceptions as lib

from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextOverflowError,
    ModelAPIError,
    ModelConnectionError,
    ModelError,
    ModelResponseError,
    ModelTimeoutError,
    RateLimitError,
)

_OVERFLOW = re.compile(
    r"context_length_exceeded|maximum context length|context (window|size|length)|prompt is too long"
    r"|input is too long|input token count|reduce the length of the messages|too many (input )?tokens",
    re.IGNORECASE,
)
"""How providers and servers say that a prompt is too long, where the library did not recognise it: OpenAI,
Anthropic, Google, Bedrock, vLLM, llama.cpp ("exceeds the available context size"), Ollama, Together."""

_FILTERED = re.compile(
    r"content_filter|content_policy_violation|content management policy|responsibleai", re.IGNORECASE
)


@contextmanager
def typed_errors(provider: str) -> Generator[None]:
    """Raise the library's errors as ours, with the original as the cause; let everything else pass."""
    try:
        yield
    except Exception as error:
        known = translate(error, provider)
        if known is None:
            raise
        raise known from error


def translate(error: Exception, provider: str) -> ModelError | None:
    """The error of ours that stands for ``error``; None if it is not the library's business."""
    match error:
        case lib.ModelTimeoutError() | lib.ModelRequestTimeout() | httpx2.TimeoutException():
            return ModelTimeoutError(f"{provider} did not answer in time: {_root(error)}", provider=provider)
        case lib.ModelConnectionError() | httpx2.TransportError():
            return ModelConnectionError(f"the connection to {provider} failed: {_root(error)}", provider=provider)
        case lib.ModelAPIError():
            return _api_error(error, provider)
        case lib.ContentFilterError():
            return ContentFilterError(str(error), provider=provider)
        case lib.UnexpectedModelBehavior():
            return ModelResponseError(f"cannot read the answer of {provider}: {error}", provider=provider)
        case lib.UserError() | NotImplementedError():
            return BadRequestError(f"{provider} cannot be sent this request: {error}", provider=provider)
        case RuntimeError() if str(error).startswith("Unsupported"):
            return BadRequestError(f"{provider} cannot be sent this request: {error}", provider=provider)
        case _:
            return None


def _api_error(error: lib.ModelAPIError, provider: str) -> ModelAPIError:
    status = error.status_code if isinstance(error, lib.ModelHTTPError) else None
    body = _text(error.body)
    where = " inside its answer" if error.in_stream else f" (HTTP {status})" if status else ""
    return _kind(error, status, body)(
        f"{provider} answered with an error{where}: {_message(error.body) or error}",
        provider=provider,
        # Inside an open stream the library fills in the status the error would have had before it.
        status=None if error.in_stream else status,
        body=body,
        retry_after=error.retry_after,
    )


def _kind(error: lib.ModelAPIError, status: int | None, body: str) -> type[ModelAPIError]:
    said = f"{error.provider_error_code} {error.provider_error_type} {body}"
    refused = isinstance(error, lib.ModelRequestRejectedError) or status in (400, 404, 413, 422)
    match error:
        case lib.ModelContextWindowExceededError():
            return ContextOverflowError
        case lib.ModelAuthenticationError() | lib.ModelQuotaExceededError():
            return AuthenticationError
        case lib.ModelRateLimitError():
            return RateLimitError
        case _ if refused and _FILTERED.search(said):
            return ContentFilterError
        case _ if refused and _OVERFLOW.search(said):
            return ContextOverflowError
        case _ if refused:
            return BadRequestError
        case _ if status in (408, 504):
            return ModelTimeoutError
        case _:
            return ModelAPIError


def _root(error: BaseException) -> str:
    """What the innermost error says; those around it often say no more than "Connection error."."""
    said = str(error)
    while error.__cause__ is not None:
        error = error.__cause__
        said = str(error) or said
    return said


def _text(body: object) -> str:
    if body is None or isinstance(body, str):
        return body or ""
    return orjson.dumps(body, default=str).decode()


def _message(body: object) -> str:
    """The sentence in an error body, which providers keep in ``error.message`` or ``message``."""
    if not isinstance(body, dict):
        return ""
    fields = cast(dict[str, Any], body)
    inner = fields.get("error")
    if isinstance(inner, dict):
        return _message(cast(dict[str, Any], inner))
    message = inner if isinstance(inner, str) else fields.get("message")
    return message if isinstance(message, str) else ""
