"""Reusable connections to one server, for any number of event loops."""

from __future__ import annotations

import asyncio
import atexit
import os
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from diarist.exceptions import ConfigError

if TYPE_CHECKING:
    import aiohttp

    _Holder = AsyncGenerator[aiohttp.ClientSession, None]

KEEP_IDLE = 60.0
"""Seconds that an idle connection is kept, so that it can be reused after a tool that runs that long."""

_STALE_WITHIN = 1.0
"""Seconds within which an error of a reused connection means that the server had already closed it."""

_PLAIN_BODY = 2**20
"""Body size in bytes; longer bodies are sent in pieces, so that they do not block the event loop."""


@dataclass(eq=False)
class _LoopSession:
    """A session of one loop, the generator that closes it, and the number of live calls that use it."""

    holder: _Holder
    session: aiohttp.ClientSession
    calls: int = 0


class Connections:
    """A session for each event loop; loops may run in different threads.

    The session of a loop is held by an async generator. It is closed when the loop ends (as with ``asyncio.run``) or
    when this object is garbage-collected, so no session stays open if the caller forgets to close it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[asyncio.AbstractEventLoop, _LoopSession] = {}
        # This refers to the sessions, so that their generators close them before they are garbage-collected themselves.
        weakref.finalize(self, self._sessions.clear).atexit = False
        _open.add(self)

    @asynccontextmanager
    async def post(self, url: str, body: bytes, **options: Any) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request, and yield the response.

        A server may close an idle connection at any time; llama.cpp's server does after each streamed answer. If a
        reused connection fails at once, the request is sent again on a new connection. If it fails later, or is new,
        the server may have processed the request, so the caller decides about a retry.
        """
        from aiohttp import ClientOSError, ServerDisconnectedError

        trace = SimpleNamespace(reused=False)  # set by ``_note_reuse``
        async with self._session() as session:
            began = time.monotonic()
            try:
                response = await session.post(url, data=_data(body), trace_request_ctx=trace, **options)
            except (ClientOSError, ServerDisconnectedError):
                if not trace.reused or time.monotonic() - began > _STALE_WITHIN:
                    raise
            else:
                async with response:
                    yield response
                return
        async with _new_session(reuse=False) as fresh, fresh.post(url, data=_data(body), **options) as response:
            yield response

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[aiohttp.ClientSession]:
        """Yield the session of the running loop."""
        loop = asyncio.get_running_loop()
        entry = self._sessions.get(loop)
        if entry is None or entry.session.closed:
            entry = await self._open(loop)
        entry.calls += 1
        try:
            yield entry.session
        finally:
            entry.calls -= 1
            if not entry.calls and self._sessions.get(loop) is not entry:  # it was closed during these calls
                await entry.holder.aclose()

    async def _open(self, loop: asyncio.AbstractEventLoop) -> _LoopSession:
        holder = _hold_session()
        opened = _LoopSession(holder, await anext(holder))
        with self._lock:
            ended = [self._sessions.pop(known).session for known in list(self._sessions) if known.is_closed()]
            self._sessions[loop] = opened
        for old in ended:
            await old.close()
        return opened

    async def close(self) -> None:
        """Close this loop's connections. Those of live calls are closed when the calls have ended."""
        with self._lock:
            entry = self._sessions.pop(asyncio.get_running_loop(), None)
        if entry is not None and not entry.calls:
            await entry.holder.aclose()

    def close_at_exit(self) -> Iterator[Future[None]]:
        """Close the sessions of loops that are still open, or were closed without ending their generators."""
        for loop, entry in self._sessions.items():
            if loop.is_running():
                yield asyncio.run_coroutine_threadsafe(_close(entry.holder), loop)
            elif not loop.is_closed():
                loop.run_until_complete(entry.holder.aclose())
            elif not entry.session.closed:
                asyncio.run(entry.session.close())

    def forget(self) -> None:
        """Drop all sessions in a forked child process, where the threads of their loops do not exist."""
        _parents_sessions.append(list(self._sessions.values()))
        self._sessions.clear()
        self._lock = threading.Lock()


def _data(body: bytes) -> bytes | BytesIO:
    return body if len(body) < _PLAIN_BODY else BytesIO(body)


async def _hold_session() -> _Holder:
    """Yield a session, and close it when the generator is closed."""
    async with _new_session(reuse=True) as session:
        yield session


def _new_session(*, reuse: bool) -> aiohttp.ClientSession:
    import aiohttp

    keep: dict[str, Any] = {"keepalive_timeout": KEEP_IDLE} if reuse else {"force_close": True}
    watch = aiohttp.TraceConfig()
    watch.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=_trust(), **keep),
        trace_configs=[watch],
        cookie_jar=aiohttp.DummyCookieJar(),
        # Compressed events would be delayed in the compressor's buffer.
        headers={"Accept-Encoding": "identity", "Accept": "text/event-stream, application/json"},
    )


async def _note_reuse(session: aiohttp.ClientSession, request: Any, params: object) -> None:
    request.trace_request_ctx.reused = True


async def _close(holder: _Holder) -> None:
    await holder.aclose()


def _trust() -> ssl.SSLContext | bool:
    """Return the trusted certificate authorities: the system's, or certifi's if the system has none."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(os.scandir(paths.capath))):
        return True
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def proxy_for(url: str) -> str | None:
    """Return the environment's proxy for an address (``HTTPS_PROXY``, ``NO_PROXY`` and so on), or None. A proxy without
    a scheme is an http proxy.

    Raises ConfigError for an unsupported kind of proxy.
    """
    from urllib.request import getproxies, proxy_bypass  # slow to load

    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        kind = urlsplit(proxy).scheme  # the rest may have a password
        raise ConfigError(f"the environment sets a {kind} proxy; only http and https proxies are supported")
    return proxy


def without_secrets(url: str) -> str:
    """Return an address without user, password and query, which may hold keys."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


_open: weakref.WeakSet[Connections] = weakref.WeakSet()
_parents_sessions: list[object] = []
"""Sessions that a forked child keeps alive. Freeing them would affect the parent's loops through shared pipes."""


@atexit.register
def _close_all() -> None:
    wait([each for connections in list(_open) for each in connections.close_at_exit()], timeout=1)  # one may hang


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: [connections.forget() for connections in list(_open)])
