"""Keeping a run alive while somebody is at it."""

from __future__ import annotations

import asyncio
import logging

from diarist.concurrency import stop
from diarist.exceptions import RunLostError, StorageError
from diarist.storage.base import Storage
from diarist.storage.records import Run

logger = logging.getLogger("diarist")


class Heartbeat:
    """Says three times in each ``ttl`` seconds that a run lives, until ``end``; before the first time, when most runs
    have ended, it is a timer and no task."""

    def __init__(self, storage: Storage, run: Run, ttl: float) -> None:
        self._storage = storage
        self._run = run
        self._ttl = ttl
        self._timer = asyncio.get_running_loop().call_later(ttl / 3, self._begin)
        self._task: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            try:
                await self._storage.heartbeat(self._run, ttl=self._ttl)
            except RunLostError:
                return  # the next write says so
            except StorageError as error:
                logger.warning("heartbeat of run %s failed: %s", self._run.id, error)
            await asyncio.sleep(self._ttl / 3)

    async def end(self) -> None:
        """Be silent from now on."""
        self._timer.cancel()
        if self._task is not None:
            await stop(self._task)
