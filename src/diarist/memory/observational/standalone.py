"""Observational memory as a processor of its own, for those who want to place it among others themselves."""

from __future__ import annotations

from typing import Any, cast

from diarist.exceptions import ConfigError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.processor import DiaryProcessor
from diarist.memory.observational.roles.role_models import RoleModels
from diarist.memory.options import check_flags, check_seconds, checked_storage
from diarist.storage.base import Storage
from diarist.tokens import TokenCounter, default_counter


class ObservationalMemory(DiaryProcessor):
    """Stores a run's messages, shows the model the diary and what it does not cover yet, and has the
    conversation observed when it is due: what ``Memory(observational_memory=...)`` gives an agent.

    List it among the input processors, before or behind others; among the output processors too if you
    like, which changes nothing. An agent closes it with itself, after its background work; the storage is yours
    to close. It stands instead of a ``Memory``, not beside one that shows the last messages.

    Args:
        storage: Where messages and diary are kept.
        config: As for ``Memory``. The model of both roles must be named, unless the default one's key is present.
        token_counter: Default: o200k_base.
        thread_wait: Seconds that a call waits for another call of the same thread.
        await_background: Let every call wait at its end until the background work of its thread is done.

    Raises:
        ConfigError: Options that contradict each other, ``enabled=False``, or a model that cannot be used.
    """

    def __init__(
        self,
        storage: Storage,
        config: ObservationalMemoryConfig | None = None,
        *,
        token_counter: TokenCounter | None = None,
        thread_wait: float = 30.0,
        await_background: bool = False,
    ) -> None:
        check_flags(await_background=await_background)
        check_seconds("thread_wait", thread_wait, zero=True)
        storage = checked_storage(storage)
        config = ObservationalMemoryConfig() if config is None else config
        if not isinstance(cast(Any, config), ObservationalMemoryConfig):
            raise ConfigError(f"config must be an ObservationalMemoryConfig, not {config!r}")
        if not config.enabled:
            raise ConfigError(
                "config has enabled=False: leave ObservationalMemory out of the agent's processors instead"
            )
        counter = token_counter or default_counter()
        self._models = RoleModels(config, counter)
        observer, reflector = self._models.roles(None)
        engine = Engine(storage=storage, config=config, observer=observer, reflector=reflector, counter=counter)
        super().__init__(engine, storage, counter=counter, thread_wait=thread_wait, await_background=await_background)

    async def settled(self) -> None:
        """Wait until all background work is done."""
        await self._engine.background.settled()

    async def close(self) -> None:
        """Finish background work and close the models that were made here from ids."""
        await self.settled()
        await self._models.close()
