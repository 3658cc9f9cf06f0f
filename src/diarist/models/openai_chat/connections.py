"""Connections to one server, kept for the next call, for any number of event loops."""

from __future__ import annotations

import asyncio
import atexit
import os
import ssl
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

from diarist.exceptions import ConfigError

if TYPE_CHECKING:
    import aiohttp

    _Holder = AsyncGenerator[aiohttp.ClientSession, None]

KEEP_IDLE = 60.0
"""Seconds that a connection is kept unused; a tool may take that long between two calls."""

_AT_ONCE = 1.0
"""Seconds within which a connection shows that it was closed before the request came."""

_PLAIN_BODY = 2**20
"""A longer body is sent in pieces, so that it does not hold up the event loop."""


@dataclass(slots=True)
class Way:
    """How a request went out. ``kept``: on a connection of an earlier one."""

    kept: bool = False


class Connections:
    """One session per event loop, which may run in different threads.

    Each is held by an async generator, which the loop closes when it ends (as ``asyncio.run`` does) and Python
    closes when nobody holds it any more: so no session is left open, whatever the caller forgets.
    """

    def __init__(self) -> None:
        self._held: dict[asyncio.AbstractEventLoop, tuple[_Holder, aiohttp.ClientSession]] = {}
        self._lock = threading.Lock()
        _open.add(self)

    async def post(self, url: str, body: bytes, **options: Any) -> aiohttp.ClientResponse:
        """Send a request.

        A server may close a connection at any time, llama.cpp's does after each streamed answer: who finds a kept one
        closed takes another, until there are only new ones. That shows at once: what breaks off later may have been
        worked on, and to ask again is the caller's decision.
        """
        from aiohttp import ClientOSError, ServerDisconnectedError

        session = await self.session()
        while True:
            way, began = Way(), time.monotonic()
            data = body if len(body) < _PLAIN_BODY else BytesIO(body)
            try:
                return await session.post(url, data=data, trace_request_ctx=way, **options)
            except (ClientOSError, ServerDisconnectedError):
                if not way.kept or time.monotonic() - began > _AT_ONCE:
                    raise

    async def session(self) -> aiohttp.ClientSession:
        """The session of the running loop."""
        loop = asyncio.get_running_loop()
        held = self._held.get(loop)
        if held is not None and not held[1].closed:
            return held[1]
        holder = _hold_session()
        session = await anext(holder)
        with self._lock:
            ended = [self._held.pop(known)[1] for known in list(self._held) if known.is_closed()]
            self._held[loop] = (holder, session)
        for old in ended:
            await old.close()
        return session

    async def close(self) -> None:
        """Close the running loop's connections."""
        with self._lock:
            held = self._held.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held[0].aclose()

    def close_at_exit(self) -> None:
        """Close what loops still hold that run in other threads, were left open, or were closed the hard way."""
        for loop, (holder, session) in self._held.items():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(_close(holder), loop).result(timeout=1)
            elif not loop.is_closed():
                loop.run_until_complete(holder.aclose())
            elif not session.closed:
                asyncio.run(session.close())


async def _hold_session() -> _Holder:
    import aiohttp

    _Holder = AsyncGenerator[aiohttp.ClientSession, None]

    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE, ssl=_trust())
    watch = aiohttp.TraceConfig()
    watch.on_connection_reuseconn.append(_note_reuse)
    session = aiohttp.ClientSession(
        connector=connector,
        trace_configs=[watch],
        cookie_jar=aiohttp.DummyCookieJar(),
        # Compressed events would wait in the compressor's buffer.
        headers={"Accept-Encoding": "identity", "Accept": "text/event-stream, application/json"},
    )
    async with session:
        yield session


async def _note_reuse(session: aiohttp.ClientSession, request: Any, params: object) -> None:
    request.trace_request_ctx.kept = True


async def _close(holder: _Holder) -> None:
    await holder.aclose()


def _trust() -> ssl.SSLContext | bool:
    """Certificates are always checked: against the system's authorities, or certifi's where it has none."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(os.scandir(paths.capath))):
        return True
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for an address (``HTTPS_PROXY``, ``NO_PROXY`` and so on).

    Raises ConfigError for a kind of proxy that cannot be used.
    """
    from urllib.request import getproxies, proxy_bypass  # slow to load

    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise ConfigError(f"the environment names the proxy {proxy!r}; only http and https proxies can be used")
    return proxy


_open: WeakSet[Connections] = WeakSet()


@atexit.register
def _close_all() -> None:
    for connections in list(_open):
        connections.close_at_exit()
