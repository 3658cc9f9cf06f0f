"""Observational memory as a standalone processor, to be placed among other processors by hand."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, cast

from diarist.checks import flags, seconds
from diarist.exceptions import ConfigError
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.processor import DiaryProcessor
from diarist.memory.observational.roles.role_models import RoleModels
from diarist.storage.base import Storage, checked_storage
from diarist.tokens import TokenCounter, default_counter


class ObservationalMemory(DiaryProcessor):
    """Observational memory as a processor, the same that ``Memory(observational_memory=...)`` gives an agent.

    List it among the input processors, in any position; listing it among the output processors too has no effect.
    Closing the agent finishes the background work of this processor, and closes the processor and its storage. Do not
    combine it with a ``Memory`` that shows the last messages.

    Args:
        storage: The storage for messages and diary.
        config: As for ``Memory``. It must name the models of Observer and Reflector, unless there is a key for the
            default model.
        token_counter: Default: o200k_base.
        thread_wait: Seconds to wait until another call of the same thread has ended.
        await_background: Let every call wait at its end until the background work of its thread is done.

    Raises:
        ConfigError: Options contradict each other, ``enabled`` is False, or a model cannot be used.
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
        flags("ObservationalMemory", await_background=await_background)
        seconds("ObservationalMemory", "thread_wait", thread_wait, zero=True)
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
        """Finish background work, and close the storage and the models that this object created from ids."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._storage.close)
            stack.push_async_callback(self._models.close)
            await self.settled()
