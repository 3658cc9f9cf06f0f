"""Finds the thread or the diary that a call names."""

from __future__ import annotations

from diarist.checks import check_names
from diarist.exceptions import InputError, NotFoundError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.log.log_store import LogStore
from diarist.memory.run_lifecycle import check_owner
from diarist.storage.base import Storage
from diarist.storage.records import Thread


class Addressing:
    """Finds the thread or diary that a call names. ``shares_diary``: all threads of a resource share one diary."""

    def __init__(self, storage: Storage, config: ObservationalMemoryConfig | None) -> None:
        self._storage = storage
        self.shares_diary = config is not None and config.scope == "resource"
        self.logs = LogStore(storage, config.scope if config is not None else "thread")

    async def thread(self, thread: str, resource: str | None) -> Thread:
        """Return the thread. Raises NotFoundError, and InputError if it belongs to another resource."""
        check_names(thread=thread, resource=resource)
        found = await self._storage.get_thread(thread)
        if found is None:
            raise NotFoundError(f"there is no thread {thread!r} in {self._storage.location}")
        if resource is not None:
            check_owner(found, resource)
        return found

    async def diary(self, thread: str | None, resource: str | None) -> Thread:
        """Return the thread that owns the diary; for a resource alone, a thread without an id.

        Raises:
            NotFoundError: The thread or resource does not exist.
            InputError: The thread belongs to another resource, or no thread is given where one is required.
        """
        if thread is not None:
            return await self.thread(thread, resource)
        check_names(resource=resource)
        if not self.shares_diary:
            raise InputError("name a thread: each has a diary of its own, unless the memory has scope='resource'")
        if resource is None:
            raise InputError("name a thread or a resource")
        if not (
            (await self._storage.list_threads(resource_id=resource, limit=1)).items
            or (await self.logs.read("", resource)).version
            or (await self._storage.get_resource(resource)).version
        ):
            raise NotFoundError(f"there is no resource {resource!r} in {self._storage.location}")
        return Thread(id="", resource_id=resource)

    async def owner(self, thread: str | None, resource: str | None, *, refusal: str) -> str:
        """Return the resource of a thread, or the given one. ``refusal``: the error message if neither is given."""
        if thread is not None:
            return (await self.thread(thread, resource)).resource_id
        check_names(resource=resource)
        if resource is None:
            raise InputError(refusal)
        return resource
