"""A proxy in front of a PostgreSQL server that can stop forwarding without closing a connection."""

from __future__ import annotations

import asyncio
from typing import Self, cast
from urllib.parse import parse_qs, urlsplit


class SilentProxy:
    """Forwards connections to a server. While silent, it holds the bytes back and delivers them when it resumes.

    Attributes:
        url: The database's address by way of this proxy.
        waited_for: Set once a client has sent something while the proxy is silent.
    """

    def __init__(self, url: str) -> None:
        self._far = urlsplit(url)
        self._forwarding, self.waited_for = asyncio.Event(), asyncio.Event()
        self._forwarding.set()
        self._last: tuple[bytes, int] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._forgotten: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._far.username}@127.0.0.1:{port}{self._far.path}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def go_silent(self) -> None:
        self.waited_for.clear()
        self._forwarding.clear()

    def go_silent_after(self, words: bytes, times: int = 1) -> None:
        """Go silent once a client has sent ``words`` that often; they still arrive, the answer does not."""
        self._last = words, times

    def forget_connections(self) -> None:
        """Close each connection made so far once its client sends something, as a firewall does with idle ones."""
        self._forgotten |= self._connections

    def resume(self) -> None:
        self._last = None
        self._forwarding.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = cast(asyncio.Task[None], asyncio.current_task())
            path = f"{parse_qs(self._far.query)['host'][0]}/.s.PGSQL.{self._far.port or 5432}"
            far_reader, far_writer = await asyncio.open_unix_connection(path)
            try:
                await asyncio.gather(
                    self._forward(line, reader, far_writer, asked=True),
                    self._forward(line, far_reader, writer, asked=False),
                )
            finally:
                far_writer.close()
        except ConnectionError:
            return  # one side has closed its connection
        finally:
            writer.close()

    async def _forward(
        self, line: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asked: bool
    ) -> None:
        while data := await reader.read(65536):
            if asked and line in self._forgotten:
                line.cancel()
            if asked and not self._forwarding.is_set():
                self.waited_for.set()
            await self._forwarding.wait()
            writer.write(data)
            await writer.drain()
            if asked and self._last is not None and self._last[0] in data:
                words, times = self._last
                self._last = (words, times - 1) if times > 1 else None
                if times == 1:
                    self.go_silent()
                    self.waited_for.set()
        await self._forwarding.wait()
        writer.close()
