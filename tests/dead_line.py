"""A line to a PostgreSQL server that goes dead: nothing arrives any more, and nothing is closed."""

from __future__ import annotations

import asyncio
from typing import Self
from urllib.parse import parse_qs, urlsplit


class DeadLine:
    """Carries connections to a server, until it dies and after it is mended; what was sent meanwhile arrives then.

    Attributes:
        url: The database at the far end, by this line.
        waited_for: Somebody has sent something since it died.
    """

    def __init__(self, url: str) -> None:
        self._far = urlsplit(url)
        self._whole, self.waited_for = asyncio.Event(), asyncio.Event()
        self._whole.set()
        self._last: tuple[bytes, int] | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"postgresql://{self._far.username}@127.0.0.1:{port}{self._far.path}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in list(self._carrying):
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def dies(self) -> None:
        self.waited_for.clear()
        self._whole.clear()

    def dies_after(self, words: bytes, times: int = 1) -> None:
        """Once this was sent so many times: it still arrives, the answer does not."""
        self._last = words, times

    def is_mended(self) -> None:
        self._last = None
        self._whole.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = f"{parse_qs(self._far.query)['host'][0]}/.s.PGSQL.{self._far.port or 5432}"
            far_reader, far_writer = await asyncio.open_unix_connection(there)
            try:
                await asyncio.gather(
                    self._carry(reader, far_writer, asked=True), self._carry(far_reader, writer, asked=False)
                )
            finally:
                far_writer.close()
        except ConnectionError:
            return  # one side has gone
        finally:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asked: bool) -> None:
        while data := await reader.read(65536):
            if asked and not self._whole.is_set():
                self.waited_for.set()
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
            if asked and self._last is not None and self._last[0] in data:
                words, times = self._last
                self._last = (words, times - 1) if times > 1 else None
                if times == 1:
                    self.dies()
                    self.waited_for.set()
        await self._whole.wait()
        writer.close()
