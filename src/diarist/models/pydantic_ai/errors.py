"""Map the provider library's errors to diarist's."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import httpx2
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
from diarist.models.api_errors import api_error

_CLASSIFIED: dict[type[lib.ModelAPIError], type[ModelAPIError]] = {
    lib.ModelContextWindowExceededError: ContextOverflowError,
    lib.ModelAuthenticationError: AuthenticationError,
    lib.ModelQuotaExceededError: AuthenticationError,
    lib.ModelRateLimitError: RateLimitError,
}


@contextmanager
def typed_errors(provider: str) -> Generator[None]:
    """Raise the library's errors as diarist's, with the original as the cause; let other errors pass."""
    try:
        yield
    except Exception as error:
        known = translate(error, provider)
        if known is None:
            raise
        raise known from error


@contextmanager
def unreadable_answers(provider: str) -> Generator[None]:
    """Raise ModelResponseError for the Python errors that malformed fields of an answer cause in the library."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        said = f"cannot read the answer of {provider} ({type(error).__name__}: {error})"
        raise ModelResponseError(said, provider=provider) from error


def translate(error: Exception, provider: str) -> ModelError | None:
    """Return diarist's error for an error of the library; None for other errors."""
    match error:
        case lib.ModelTimeoutError() | lib.ModelRequestTimeout() | httpx2.TimeoutException():
            return ModelTimeoutError(f"{provider} did not answer in time: {_root(error)}", provider=provider)
        case lib.ModelConnectionError() | httpx2.TransportError():
            return ModelConnectionError(f"the connection to {provider} failed: {_root(error)}", provider=provider)
        case lib.ModelAPIError():
            status = error.status_code if isinstance(error, lib.ModelHTTPError) else None
            if status is None and isinstance(error, lib.ModelRequestRejectedError):
                status = 400
            # The library has classified some errors by the provider's own rules.
            kind = next((ours for theirs, ours in _CLASSIFIED.items() if isinstance(error, theirs)), None)
            return api_error(
                provider,
                body=error.body,
                status=status,
                code=error.provider_error_code or "",
                type=error.provider_error_type or "",
                retry_after=error.retry_after,
                in_stream=error.in_stream,
                kind=kind,
                otherwise=error,
            )
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


def _root(error: BaseException) -> str:
    """Return the message of the innermost error; outer errors often contain only "Connection error."."""
    said = str(error)
    while error.__cause__ is not None:
        error = error.__cause__
        said = str(error) or said
    return said
