"""``OpenAIChatModel``: one call is one POST, its answer a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from diarist.chunks import Chunk
from diarist.exceptions import ConfigError, ModelResponseError
from diarist.models.base import Model, ModelRequest
from diarist.models.openai_chat.connections import Connections, proxy_for
from diarist.models.openai_chat.dialects import Dialect, dialect_for
from diarist.models.openai_chat.failures import error_answer, typed_errors
from diarist.models.openai_chat.reader import AnswerReader
from diarist.models.openai_chat.request import build_body, extra_headers
from diarist.models.openai_chat.sse import EventParser

if TYPE_CHECKING:
    import aiohttp

CONNECT = 10.0
"""Seconds to connect, TLS included, where ``settings.timeout`` is not shorter."""

SILENCE = 600.0
"""Seconds without a byte where ``settings.timeout`` says nothing: models may think that long."""

_AFTER_DONE = 0.5
"""Seconds for the server to end its answer after it has said that it is done; then the connection is dropped."""


class OpenAIChatModel(Model):
    """A model behind chat completions, without any provider's library.

    The HTTP library is loaded at the first call. Calls may run side by side and in several event loops; each loop
    keeps connections of its own for the next call.

    Args:
        provider: Such as ``"groq"``; options under this name in ``provider_options`` go into the body as they are
            and win over everything else there (None removes a field, ``extra_headers`` are headers).
        name: The model's name there.
        base_url: The server's address, ``/chat/completions`` follows it. Default: the provider's own.
        api_key: Sent as bearer token; None sends none.
        dialect: The server's habits. Default: by provider, name and address.

    Raises:
        ConfigError: No address is known, or it is no http(s) address.

    What is sent:
        - System messages at the front are joined, with a blank line between them, into one.
        - Reasoning goes back only to the server that made it, in the field it came in.
        - ``request.output`` is asked for natively where the server can; elsewhere it is left out, and the prompt
          has to ask for it.
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
        self._connections = Connections()
        self._headers = {"Content-Type": "application/json", "User-Agent": "diarist"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        body = build_body(request, model=self.name, provider=self.provider, dialect=self._dialect)
        reader = AnswerReader(provider=self.provider, maker=self._dialect.maker)
        with typed_errors(self.provider):
            async with await self._post(request, body) as response:
                await self._check(response)
                if response.content_type == "application/json":
                    for chunk in reader.read_whole(await response.read()):
                        yield chunk
                    reader.done = True
                events = EventParser()
                while not reader.done and (received := await response.content.readany()):
                    for event in events.feed(received):
                        for chunk in reader.read(event):
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

    async def _post(self, request: ModelRequest, body: bytes) -> aiohttp.ClientResponse:
        from aiohttp import ClientTimeout

        silence = request.settings.timeout or SILENCE
        more = extra_headers(request, self.provider)
        return await self._connections.post(
            self._url,
            body,
            headers={**self._headers, **more} if more else self._headers,
            timeout=ClientTimeout(total=None, connect=min(CONNECT, silence), sock_read=silence),
            allow_redirects=False,  # the key is for this server alone
            proxy=self._proxy,
        )

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raises what an answer with an error status stands for."""
        if response.status != 200:
            body = await response.read()
            raise error_answer(self.provider, response.status, body, response.headers, response.reason or "")
        if response.content_type == "text/html":
            said = f"{self._url} answered with a web page; is it the address of an API?"
            raise ModelResponseError(said, provider=self.provider)


def _endpoint(base_url: str) -> str:
    address, mark, query = base_url.partition("?")
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"base_url {base_url!r}: write an address that starts with http:// or https://")
    return f"{address.rstrip('/')}/chat/completions{mark}{query}"


async def _await_end(response: aiohttp.ClientResponse) -> None:
    """Read to the end of an answer that is complete, so that its connection can be used again."""
    from aiohttp import ClientError

    with suppress(TimeoutError, ClientError):
        async with asyncio.timeout(_AFTER_DONE):
            while not response.content.at_eof():
                await response.content.readany()
