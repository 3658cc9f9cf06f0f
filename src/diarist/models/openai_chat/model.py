"""``OpenAIChatModel``: a call is one POST, answered by a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from diarist.chunks import Chunk
from diarist.exceptions import ConfigError, ModelResponseError
from diarist.models.base import TOTAL_TIMEOUT, Model, ModelRequest
from diarist.models.openai_chat.connections import Connections, proxy_for, without_secrets
from diarist.models.openai_chat.dialects import Dialect, dialect_for
from diarist.models.openai_chat.errors import error_answer, typed_errors
from diarist.models.openai_chat.reader import AnswerReader
from diarist.models.openai_chat.request import build_body, extra_headers
from diarist.models.openai_chat.sse import EventParser
from diarist.models.providers import clean_key

if TYPE_CHECKING:
    import aiohttp

CONNECT = 10.0
"""Seconds to connect, including TLS, unless ``settings.timeout`` is shorter."""

SILENCE = 600.0
"""Seconds to wait for the next byte if ``settings.timeout`` is not set: models may reason that long."""

_AFTER_DONE = 0.5
"""Seconds to wait after ``[DONE]`` for the end of the answer, before the connection is dropped."""


class OpenAIChatModel(Model):
    """A model with the chat completions protocol, without a provider's library.

    The HTTP library is loaded at the first call. Calls may run concurrently and in several event loops; each loop keeps
    its own connections.

    Args:
        provider: Such as ``"groq"``. Options under this name in ``provider_options`` go into the body unchanged and
            override its other fields. None removes a field. ``extra_headers`` are sent as headers instead.
        name: The provider's name of the model.
        base_url: The server's address, without ``/chat/completions``. Default: the provider's.
        api_key: Sent as bearer token, if given.
        dialect: The server's variant of the protocol. Default: by provider, name and address.

    Raises:
        ConfigError: The provider is unknown, there is no http(s) address, or the key has a control character in it.

    The request:
        - Leading system messages are joined into one, with blank lines between them. So are user messages in a row,
          except for OpenAI: many chat templates demand that roles alternate.
        - Reasoning is sent only to the provider that made it, in its original field.
        - ``request.output`` is sent if the server supports schemas; otherwise the prompt must describe the format.
    """

    def __init__(
        self,
        *,
        provider: str,
        name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        self.provider = provider
        self.name = name
        self._dialect = dialect or dialect_for(provider, name, base_url)
        self._url = _endpoint(base_url or self._dialect.base_url)
        self._shown_url = without_secrets(self._url)
        self._server = provider  # its name in messages
        if provider == "openai" and urlsplit(self._url).hostname != "api.openai.com":
            self._server = f"the server at {self._shown_url.removesuffix('/chat/completions')}"
        self._connections = Connections()
        self._headers = {"Content-Type": "application/json", "User-Agent": "diarist"}
        if key := clean_key(provider, api_key):
            self._headers["Authorization"] = f"Bearer {key}"

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        body = build_body(request, model=self.name, provider=self.provider, dialect=self._dialect)
        reader = AnswerReader(provider=self.provider, maker=self._dialect.maker, server=self._server)
        total = request.settings.total_timeout or TOTAL_TIMEOUT
        with typed_errors(self.provider, server=self._server, total=total):
            async with self._post(request, body, total) as response:
                await self._check(response)
                first = await response.content.readany()
                if response.content_type == "application/json" or first.startswith(b"{"):  # the server does not stream
                    for chunk in reader.read_whole(first + await response.content.read()):
                        yield chunk
                    reader.done = True
                events = EventParser()
                while not reader.done and (received := first or await response.content.readany()):
                    first = b""
                    for chunk in reader.read(events.feed(received)):
                        yield chunk
                if not reader.done:
                    for chunk in reader.read_last(events.end()):
                        yield chunk
                for chunk in reader.finish():
                    yield chunk
                await _await_end(response)

    async def close(self) -> None:
        """Close this event loop's connections."""
        await self._connections.close()

    @cached_property
    def _proxy(self) -> str | None:
        return proxy_for(self._url)

    def _post(
        self, request: ModelRequest, body: bytes, total: float
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        from aiohttp import ClientTimeout

        silence = request.settings.timeout or SILENCE
        more = extra_headers(request, self.provider)
        return self._connections.post(
            self._url,
            body,
            headers={**self._headers, **more} if more else self._headers,
            timeout=ClientTimeout(total=total, connect=min(CONNECT, silence), sock_read=silence),
            allow_redirects=False,  # the key is only for this server
            proxy=self._proxy,
        )

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raise the error for an answer with an error status, or for a web page."""
        if response.status != 200:
            body = await response.read()
            raise error_answer(self.provider, response, body, server=self._server, url=self._shown_url)
        if response.content_type == "text/html":
            raise ModelResponseError(
                f"{self._shown_url} answered with a web page; is it the address of an API?", provider=self.provider
            )


def _endpoint(base_url: str) -> str:
    address, mark, query = base_url.partition("?")
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"base_url {base_url!r}: write an address that starts with http:// or https://")
    try:
        urlsplit(address)
    except ValueError as error:
        raise ConfigError(f"base_url {base_url!r} is not an address: {error}") from error
    return f"{address.rstrip('/')}/chat/completions{mark}{query}"


async def _await_end(response: aiohttp.ClientResponse) -> None:
    """Read a complete answer to its end, so that its connection can be reused."""
    from aiohttp import ClientError

    with suppress(TimeoutError, ClientError):
        async with asyncio.timeout(_AFTER_DONE):
            while not response.content.at_eof():
                await response.content.readany()
