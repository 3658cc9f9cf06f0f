"""Map errors of the connection and of the server to diarist's errors."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import orjson

from diarist.exceptions import ModelAPIError, ModelConnectionError, ModelError, ModelTimeoutError
from diarist.models.api_errors import api_error, implied_status, retry_after

if TYPE_CHECKING:
    from collections.abc import Mapping


@contextmanager
def typed_errors(provider: str, *, total: float) -> Generator[None]:
    """Raise the HTTP library's errors as diarist's, with the original as the cause; let other errors pass.

    ``total``: The limit of the whole call, in seconds.
    """
    from aiohttp import ClientError, ServerTimeoutError

    try:
        yield
    except ServerTimeoutError as error:
        raise ModelTimeoutError(f"{provider} did not answer in time: {error}", provider=provider) from error
    except TimeoutError as error:
        said = f"the answer of {provider} took longer than total_timeout ({total:g} s)"
        raise ModelTimeoutError(said, provider=provider) from error
    except (ClientError, OSError) as error:
        said = str(error) or type(error).__name__
        raise ModelConnectionError(f"the connection to {provider} failed: {said}", provider=provider) from error


def error_answer(provider: str, status: int, body: bytes, headers: Mapping[str, str], reason: str) -> ModelAPIError:
    """Return the error for an answer with an error status. ``reason`` is the message to use if the body has none."""
    text = body.decode("utf-8", "replace")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = text
    code, kind = _names(parsed)
    where = headers.get("Location")
    return api_error(
        provider,
        body=parsed,
        status=status,
        code=code,
        type=kind,
        retry_after=retry_after(headers.get("Retry-After"), headers.get("retry-after-ms")),
        otherwise=f"moved to {where}" if where else text[:500].strip() or reason,
    )


def event_error(provider: str, event: dict[str, Any]) -> ModelError | None:
    """Return the error that an event in an open stream reports, or None."""
    if not event.get("error") and event.get("object") != "error":
        return None
    code, kind = _names(event)
    return api_error(provider, body=event, status=implied_status(code, kind), code=code, type=kind, in_stream=True)


def _names(body: object) -> tuple[str, str]:
    """Return the code and the type of the error in a body."""
    fields = cast(dict[str, Any], body) if isinstance(body, dict) else {}
    inner = fields.get("error")
    error = cast(dict[str, Any], inner) if isinstance(inner, dict) else fields
    return str(error.get("code") or ""), str(error.get("type") or "")
