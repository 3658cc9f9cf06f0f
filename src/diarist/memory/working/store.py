"""Reading and saving working memories: compare-and-set with retries, and updates that wait for the end of a run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from diarist.exceptions import ConflictError
from diarist.memory.working.merging import drop, take_in
from diarist.storage.base import Storage
from diarist.storage.records import Run, Scope, WorkingMemory

MAX_ATTEMPTS = 20
_JITTER = 0.01


class WorkingMemoryStore:
    """The working memories of a storage: one per resource, or one per thread.

    The update of a run waits in the value, where nobody reads it, until the run has ended; the state of the run in
    storage then decides whether it counts. Whoever reads next takes in what the run itself could not, because its
    process died.
    """

    def __init__(self, storage: Storage, scope: Scope) -> None:
        self._storage = storage
        self._scope: Scope = scope

    def key(self, thread_id: str, resource_id: str) -> str:
        return f"thread:{thread_id}" if self._scope == "thread" else f"resource:{resource_id}"

    async def read(self, key: str) -> WorkingMemory:
        """The working memory with the updates of all runs that have ended well; those of live runs still wait.

        Raises StorageError.
        """
        return await self.update(key, lambda memory: memory)

    async def update(self, key: str, change: Callable[[WorkingMemory], WorkingMemory]) -> WorkingMemory:
        """Read, change, save; and all of it again when somebody else saved in between.

        Args:
            change: May raise to give up.

        Returns:
            The working memory as it is stored now.

        Raises:
            ConflictError: Twenty attempts in a row lost the race.
        """
        attempt = 0
        while True:
            attempt += 1
            memory = await self._storage.get_working_memory(key)
            changed = change(await self._settled(memory))
            if changed == memory:
                return memory
            try:
                return await self._storage.save_working_memory(changed)
            except ConflictError:
                if attempt == MAX_ATTEMPTS:
                    raise
                await asyncio.sleep(random.uniform(0, _JITTER * attempt))

    async def _settled(self, memory: WorkingMemory) -> WorkingMemory:
        for run_id in dict.fromkeys(update.run_id for update in memory.updates):
            run = await self._storage.get_run(run_id)
            if run is None or not _is_open(run):
                memory = take_in(memory, {run_id}) if _counts(run) else drop(memory, {run_id})
        return memory


def _is_open(run: Run) -> bool:
    return run.state in ("live", "suspended")


def _counts(run: Run | None) -> bool:
    """Whether what the run did counts: not where it was discarded or its thread is gone, nor where it broke off before
    those had judged it who judge its output."""
    if run is None or run.state == "discarded":
        return False
    return run.state == "committed" or not run.guarded
