"""Map errors of the connection and of the server to diarist's errors."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import orjson

from diarist.exceptions import ModelAPIError, ModelConnectionError, ModelError, ModelTimeoutError
from diarist.messages import as_text
from diarist.models.api_errors import api_error, implied_status, message_of, retry_after

if TYPE_CHECKING:
    import aiohttp


@contextmanager
def typed_errors(provider: str, *, server: str, total: float) -> Generator[None]:
    """Raise the HTTP library's errors as diarist's, with the original as the cause unless it shows a password; let
    other errors pass.

    ``server``: Its name in messages. ``total``: The limit of the whole call, in seconds.
    """
    from aiohttp import ClientError, ServerTimeoutError

    try:
        yield
    except ServerTimeoutError as error:
        raise ModelTimeoutError(f"{server} did not answer in time: {error}", provider=provider) from error
    except TimeoutError as error:
        said = f"the answer of {server} took longer than total_timeout ({total:g} s)"
        raise ModelTimeoutError(said, provider=provider) from error
    except (ClientError, OSError) as error:
        said = str(error) or type(error).__name__
        shown = re.sub(r"//\S*@", "//", said)  # without the user and password of a proxy
        raise ModelConnectionError(f"the connection to {server} failed: {shown}", provider=provider) from (
            error if shown == said else None
        )


def error_answer(
    provider: str, response: aiohttp.ClientResponse, body: bytes, *, server: str, url: str
) -> ModelAPIError:
    """Return the error for an answer with an error status.

    ``server``: Its name in messages. ``url``: The address asked, without secrets; for status 404 the message names it.
    """
    text = body.decode("utf-8", "replace")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = text
    code, kind = _names(parsed)
    status, headers = response.status, response.headers
    where = headers.get("Location")
    return api_error(
        provider,
        body=parsed,
        status=status,
        code=code,
        type=kind,
        retry_after=retry_after(headers.get("Retry-After"), headers.get("retry-after-ms")),
        otherwise=f"moved to {where}" if where else text[:500].strip() or response.reason or "",
        server=server,
        hint=_not_found(url, parsed) if status == 404 else "",
    )


def _not_found(url: str, body: object) -> str:
    """Return the address asked, with the likely mistake in it unless the server says that it has no such model."""
    base = url.removesuffix("/chat/completions")
    if re.search(r"/v\d", urlsplit(base).path) or "model" in message_of(body):
        return f" (asked: {url})"
    return f" (asked: {url}; most servers need /v1 in the address: base_url={f'{base}/v1'!r})"


def event_error(provider: str, event: dict[str, Any], *, server: str = "") -> ModelError | None:
    """Return the error that an event in an open stream, or a choice in it, reports; or None."""
    ended = event.get("finish_reason")
    if not event.get("error") and ended not in _FAILED and "error" not in (event.get("object"), event.get("type")):
        return None
    code, kind = _names(event)
    return api_error(
        provider,
        body=event,
        status=implied_status(code, kind),
        code=code,
        type=kind,
        in_stream=True,
        otherwise=f"it ended with {event.get('native_finish_reason') or ended}" if ended else as_text(event)[:500],
        server=server,
    )


_FAILED = ("error", "insufficient_system_resource")
"""Finish reasons of answers that the provider broke off: OpenRouter's, DeepSeek's."""


def _names(body: object) -> tuple[str, str]:
    """Return the code and the type of the error in a body."""
    fields = cast(dict[str, Any], body) if isinstance(body, dict) else {}
    if isinstance(fields.get("error"), dict):
        return _names(fields["error"])
    return str(fields.get("code") or ""), str(fields.get("type") or "")
