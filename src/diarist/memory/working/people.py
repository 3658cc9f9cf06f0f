"""The part of ``Memory`` with which people read working memory and change it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from diarist.exceptions import ConfigError, InputError
from diarist.memory.working.config import WorkingMemoryConfig
from diarist.memory.working.merging import apply, object_of
from diarist.memory.working.shapes import check_size, shape_of
from diarist.memory.working.store import WorkingMemoryStore
from diarist.messages import Json
from diarist.storage.base import Storage
from diarist.storage.codec import check_names, from_json, to_json
from diarist.storage.records import Thread, WorkingMemory


class WorkingMemories(ABC):
    """Reading and changing the working memory of a thread or a resource.

    Name the ``thread``; in resource scope, which is that of its resource, ``resource`` alone will do.
    """

    storage: Storage
    working: WorkingMemoryConfig | None

    @abstractmethod
    async def _thread(self, thread: str, resource: str | None) -> Thread:
        """The thread. Raises NotFoundError, and InputError where it belongs to another resource."""

    async def working_memory(self, *, thread: str | None = None, resource: str | None = None) -> str | dict[str, Json]:
        """The working memory, without what live runs have changed: a text, or with a schema the JSON object.

        Empty while nothing is known.

        Raises:
            ConfigError: This memory keeps none.
            NotFoundError: There is no such thread.
            InputError: The thread belongs to another resource, or the scope needs another name.
        """
        config = self._working_config()
        stored = await self._working_store(config).read(await self._working_key(config, thread, resource))
        return _value(stored, config)

    async def update_working_memory(
        self,
        value: str | Mapping[str, Any],
        *,
        thread: str | None = None,
        resource: str | None = None,
        replace: bool = False,
    ) -> str | dict[str, Json]:
        """Change the working memory, from the next run on; also one that is read-only to the model.

        A text replaces what live runs have written until now as well: it does not come back when they end.

        Args:
            value: The whole new text, empty to have it empty; with a schema the fields that change: they are merged
                deeply, None removes a field, a list replaces the whole list.
            replace: With a schema: the whole new object, nothing is merged.

        Returns:
            What it is then.

        Raises:
            InputError: The value does not fit; the thread belongs to another resource.
            ConfigError, NotFoundError: As for ``working_memory``.
        """
        config = self._working_config()
        key = await self._working_key(config, thread, resource)
        shape = shape_of(config)

        def change(memory: WorkingMemory) -> WorkingMemory:
            if not isinstance(cast(Any, value), str if shape.replaces else Mapping):
                kind = "a text, as it has a template" if shape.replaces else "a mapping, as it has a schema"
                raise InputError(f"value: the working memory is {kind}, not {value!r}")
            if isinstance(value, str):
                check_size(value.strip())
                older = tuple(update for update in memory.updates if update.text is None)
                return WorkingMemory(key=memory.key, text=value.strip(), updates=older, version=memory.version)
            current = "" if replace else memory.text
            update = shape.update(from_json(to_json(dict(value))), current, "")
            return _with_text(memory, apply(current, [update] if update else []))

        return _value(await self._working_store(config).update(key, change), config)

    def _working_config(self) -> WorkingMemoryConfig:
        if self.working is None:
            raise ConfigError("this memory keeps no working memory; pass working_memory=True")
        return self.working

    def _working_store(self, config: WorkingMemoryConfig) -> WorkingMemoryStore:
        return WorkingMemoryStore(self.storage, config.scope)

    async def _working_key(self, config: WorkingMemoryConfig, thread: str | None, resource: str | None) -> str:
        check_names(thread=thread, resource=resource)
        if thread is not None:
            found = await self._thread(thread, resource)
            return self._working_store(config).key(found.id, found.resource_id)
        if resource is None or config.scope == "thread":
            raise InputError(f"name whose working memory: {'thread=' if config.scope == 'thread' else 'resource='}")
        return self._working_store(config).key("", resource)


def _with_text(memory: WorkingMemory, text: str) -> WorkingMemory:
    return WorkingMemory(key=memory.key, text=text, updates=memory.updates, version=memory.version)


def _value(memory: WorkingMemory, config: WorkingMemoryConfig) -> str | dict[str, Json]:
    return memory.text if config.schema is None else object_of(memory.text)
