"""The part of ``Memory`` that tells what memory has done, now and as it goes on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from diarist.exceptions import InputError
from diarist.memory.observational.log.log_store import LogStore
from diarist.storage.base import Storage
from diarist.storage.records import Event, Thread

_PAGE = 200


class Events(ABC):
    """The event log of a diary: every ``data-om-*`` event of any process, without the words of the notes.

    Each diary keeps the newest ``storage.events_kept``; their ``seq`` rises by one.
    """

    storage: Storage

    @abstractmethod
    async def _thread(self, thread: str, resource: str | None) -> Thread:
        """The thread. Raises NotFoundError, and InputError where it belongs to another resource."""

    @abstractmethod
    def _logs(self) -> LogStore:
        """The logs of this memory."""

    async def events(
        self, *, thread: str, resource: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        """Events of the thread's diary with ``seq > after``, oldest first, at most ``limit``.

        Raises:
            NotFoundError: There is no such thread.
            InputError: It belongs to another resource; a limit below 1.
        """
        if limit < 1:
            raise InputError(f"limit must be at least 1, not {limit}")
        return await self.storage.list_events(await self._event_key(thread, resource), after=after, limit=limit)

    async def watch_events(
        self, *, thread: str, resource: str | None = None, after: int = 0, every: float = 0.5
    ) -> AsyncGenerator[Event]:
        """Events as they come, in order, each once, whichever process wrote them; it ends when you stop iterating.

        Args:
            after: Begin behind this ``seq``; the ``seq`` of the last event you saw goes on after an interruption.
            every: Seconds between two looks while nothing comes.

        Raises:
            NotFoundError, InputError: As ``events``, and where ``every`` is not positive.
            StorageError: The storage cannot be reached.
        """
        if every <= 0:
            raise InputError(f"every must be positive, not {every!r}")
        key = await self._event_key(thread, resource)
        while True:
            found = await self.storage.list_events(key, after=after, limit=_PAGE)
            for event in found:
                yield event
                after = event.seq
            if not found:
                await asyncio.sleep(every)

    async def _event_key(self, thread: str, resource: str | None) -> str:
        found = await self._thread(thread, resource)
        return self._logs().key(found.id, found.resource_id)
