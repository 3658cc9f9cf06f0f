"""The part of ``Memory`` that tells what memory has done, now and as it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from diarist.exceptions import InputError
from diarist.memory.addressing import Addressing
from diarist.storage.codec import check_limit
from diarist.storage.records import Event

_PAGE = 200


class Events(Addressing):
    """The event log of a diary: every ``data-om-*`` event of any process, without the words of the notes.

    Each diary keeps the newest ``storage.events_kept``; their ``seq`` rises by one.
    """

    async def events(
        self, *, thread: str | None = None, resource: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        """Events of the thread's diary with ``seq > after``, oldest first, at most ``limit``.

        Args:
            resource: Alone, with ``scope="resource"``: events of the diary of this resource.

        Raises:
            NotFoundError: There is no such thread, or resource.
            InputError: The thread belongs to another resource, or a thread must be named; a limit below 1.
        """
        check_limit(limit, least=1)
        return await self.storage.list_events(await self._event_key(thread, resource), after=after, limit=limit)

    async def watch_events(
        self, *, thread: str | None = None, resource: str | None = None, after: int = 0, every: float = 0.5
    ) -> AsyncGenerator[Event]:
        """Events as they come, in order, each once, whichever process wrote them; it ends when you stop iterating.

        Args:
            resource: Alone, as for ``events``.
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

    async def _event_key(self, thread: str | None, resource: str | None) -> str:
        found = await self._whose(thread, resource)
        return self._logs().key(found.id, found.resource_id)
