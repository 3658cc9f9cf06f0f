"""``memory.working``: read and change the working memory of a thread or a resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from diarist.checks import check_names
from diarist.exceptions import ConfigError, InputError
from diarist.memory.access import Access
from diarist.memory.working.config import WorkingMemoryConfig
from diarist.memory.working.shapes import check_size, shape_of
from diarist.memory.working.store import WorkingMemoryStore, apply, object_of
from diarist.messages import Json
from diarist.storage.codec import from_json, to_json
from diarist.storage.records import WorkingMemory


class Working:
    """The working memory of a thread or a resource.

    Pass the ``thread``; in resource scope, where all threads of a resource share it, the ``resource`` alone is enough.

    Attributes:
        config: The configuration of working memory; None if this memory has none.
    """

    def __init__(self, access: Access, config: WorkingMemoryConfig | None) -> None:
        self._access, self.config = access, config

    def __repr__(self) -> str:
        return f"Working({self._access.storage!r})"

    async def get(self, *, thread: str | None = None, resource: str | None = None) -> str | dict[str, Json]:
        """Return the working memory, without changes of live runs: a text, or the JSON object if there is a schema.

        It is empty until something has been stored.

        Raises:
            ConfigError: This memory has no working memory.
            NotFoundError: The thread does not exist.
            InputError: The thread belongs to another resource, or the scope needs another argument.
        """
        config, store, key = await self._find(thread, resource)
        return _value(await store.read(key), config)

    async def update(
        self,
        value: str | Mapping[str, Any],
        *,
        thread: str | None = None,
        resource: str | None = None,
        replace: bool = False,
    ) -> str | dict[str, Json]:
        """Change the working memory, from the next run on, even if it is read-only to the model.

        A text also replaces the changes that live runs have made so far; the end of those runs does not apply them.

        Args:
            value: The whole new text; an empty text clears it. With a schema, the fields to change: they are merged
                deeply, None removes a field, and a list replaces the whole list.
            replace: With a schema: replace the whole object instead of merging.

        Returns:
            The new working memory.

        Raises:
            InputError: The value does not fit; the thread belongs to another resource.
            ConfigError, NotFoundError: As for ``get``.
        """
        config, store, key = await self._find(thread, resource)
        shape = shape_of(config)
        if not isinstance(cast(Any, value), str if shape.replaces else Mapping):
            kind = "a text, as it has a template" if shape.replaces else "a mapping, as it has a schema"
            raise InputError(f"value: the working memory is {kind}, not {value!r}")

        def change(memory: WorkingMemory) -> WorkingMemory:
            if isinstance(value, str):
                check_size(value.strip())
                older = tuple(update for update in memory.updates if update.text is None)
                return WorkingMemory(key=memory.key, text=value.strip(), updates=older, version=memory.version)
            current = "" if replace else memory.text
            update = shape.update(from_json(to_json(dict(value))), current, "")
            text = apply(current, [update] if update else [])
            return WorkingMemory(key=memory.key, text=text, updates=memory.updates, version=memory.version)

        return _value(await store.update(key, change), config)

    async def _find(
        self, thread: str | None, resource: str | None
    ) -> tuple[WorkingMemoryConfig, WorkingMemoryStore, str]:
        """Return the configuration, the store, and the key of the working memory in it."""
        config = self.config
        if config is None:
            raise ConfigError("this memory keeps no working memory; pass working_memory=True")
        store = WorkingMemoryStore(self._access.storage, config.scope)
        if thread is not None:
            found = await self._access.thread(thread, resource)
            return config, store, store.key(found.id, found.resource_id)
        check_names(resource=resource)
        if resource is None or config.scope == "thread":
            raise InputError(
                f"pass {'thread=' if config.scope == 'thread' else 'resource='} to select the working memory"
            )
        return config, store, store.key("", resource)


def _value(memory: WorkingMemory, config: WorkingMemoryConfig) -> str | dict[str, Json]:
    return memory.text if config.schema is None else object_of(memory.text)
