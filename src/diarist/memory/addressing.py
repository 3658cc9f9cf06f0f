"""Which diary a call is about."""

from __future__ import annotations

from abc import ABC, abstractmethod

from diarist.exceptions import InputError, NotFoundError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.log.log_store import LogStore
from diarist.storage.base import Storage
from diarist.storage.codec import check_names
from diarist.storage.records import Thread


class Addressing(ABC):
    """Finds the diary that a call names: by a thread, or with ``scope="resource"`` by a resource alone."""

    storage: Storage
    config: ObservationalMemoryConfig | None

    @abstractmethod
    async def _thread(self, thread: str, resource: str | None) -> Thread:
        """The thread. Raises NotFoundError, and InputError where it belongs to another resource."""

    def _logs(self) -> LogStore:
        """The logs that this memory keeps: one place decides whose they are."""
        return LogStore(self.storage, self.config.scope if self.config is not None else "thread")

    async def _whose(self, thread: str | None, resource: str | None) -> Thread:
        """The thread whose diary is named; for a resource alone one without an id, which stands for all of its.

        Raises:
            NotFoundError: There is no such thread, or resource.
            InputError: The thread belongs to another resource, or a thread must be named.
        """
        check_names(thread=thread, resource=resource)
        if thread is not None:
            return await self._thread(thread, resource)
        if self.config is None or self.config.scope == "thread":
            raise InputError("name a thread: each has a diary of its own, unless the memory has scope='resource'")
        if resource is None:
            raise InputError("name a thread or a resource")
        if not (
            (await self.storage.list_threads(resource_id=resource, limit=1)).items
            or (await self._logs().read("", resource)).version
            or (await self.storage.get_resource(resource)).version
        ):
            raise NotFoundError(f"there is no resource {resource!r} in {self.storage.location}")
        return Thread(id="", resource_id=resource)
