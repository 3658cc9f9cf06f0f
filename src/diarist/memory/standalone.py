"""Working memory and semantic recall as standalone processors, to be ordered by hand."""

from __future__ import annotations

from contextlib import AsyncExitStack

from diarist.checks import flags, instance
from diarist.exceptions import ConfigError
from diarist.memory.background import Background
from diarist.memory.observational.roles.transcript import load_zone
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.semantic.embedding_jobs import EmbeddingJobs
from diarist.memory.semantic.processor import SemanticRecallProcessor
from diarist.memory.semantic.setup import VectorOption, semantic_index
from diarist.memory.working.config import WorkingMemoryConfig
from diarist.memory.working.processor import WorkingMemoryProcessor
from diarist.models.embedders import Embedder
from diarist.storage.base import Storage, checked_storage
from diarist.tokens import TokenCounter, checked_counter


class WorkingMemory(WorkingMemoryProcessor):
    """Shows the model its working memory and gives it a tool to update it, as ``Memory(working_memory=...)`` does.

    List it among the input processors, with the processor that stores the run's messages in the same storage
    (``MessageHistory``, ``ObservationalMemory`` or the agent's ``Memory``). Closing the agent closes the storage, which
    opens again at its next use.

    Args:
        storage: The storage of the run's messages.
        config: As for ``Memory``; the Observer cannot keep this working memory.
        token_counter: Default: o200k_base.

    Raises:
        ConfigError: An option is invalid, or ``config`` has ``kept_by="observer"`` or ``enabled=False``.
    """

    def __init__(
        self, storage: Storage, config: WorkingMemoryConfig | None = None, *, token_counter: TokenCounter | None = None
    ) -> None:
        config = WorkingMemoryConfig() if config is None else config
        instance("WorkingMemory", "config", config, WorkingMemoryConfig)
        if not config.enabled:
            raise ConfigError("config has enabled=False: leave WorkingMemory out of the agent's processors instead")
        if config.kept_by == "observer":
            raise ConfigError("kept_by='observer' needs Memory(working_memory=..., observational_memory=...)")
        super().__init__(checked_storage(storage), config, counter=checked_counter("WorkingMemory", token_counter))

    async def close(self) -> None:
        await self._storage.close()


class SemanticRecall(SemanticRecallProcessor):
    """Shows the model messages close in meaning to the question, as ``Memory(semantic_recall=...)`` does, and embeds
    the run's messages in the background.

    List it among the input processors, with one that stores the run's messages in the same storage. Closing the agent
    finishes the background work, and closes the storage, the vector store and an embedder created from an id.

    Args:
        storage: The storage of the messages.
        config: As for ``Memory``.
        embedder: An ``Embedder`` or its id, such as ``openai/text-embedding-3-small``; ``wordllama`` works offline.
        vector: The vector store. Default: next to the messages, as for ``Memory``.
        token_counter: Default: o200k_base.
        timezone: Time zone of the dates that the model is shown, as an IANA name.
        await_background: Let every call wait at its end until its messages are embedded.

    Raises:
        ConfigError: An option is invalid, or the storage has no default vector store.
    """

    def __init__(
        self,
        storage: Storage,
        config: SemanticRecallConfig | None = None,
        *,
        embedder: str | Embedder,
        vector: VectorOption = None,
        token_counter: TokenCounter | None = None,
        timezone: str = "UTC",
        await_background: bool = False,
    ) -> None:
        flags("SemanticRecall", await_background=await_background)
        load_zone(timezone)
        config = SemanticRecallConfig() if config is None else config
        instance("SemanticRecall", "config", config, SemanticRecallConfig)
        storage, counter = checked_storage(storage), checked_counter("SemanticRecall", token_counter)
        index = semantic_index(storage, config, vector, embedder)
        if index is None:
            raise ConfigError("semantic recall needs a vector store: leave out vector=False")
        self._background = Background()
        self._jobs = EmbeddingJobs(index, vector, storage, self._background)
        super().__init__(
            index,
            config,
            storage,
            counter=counter,
            embedding=self._jobs,
            await_background=await_background,
            timezone=timezone,
        )

    async def settled(self) -> None:
        """Wait until all background work is done."""
        await self._background.settled()

    async def close(self) -> None:
        """Finish background work, and close the storage, the vector store, and an embedder created from an id."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._storage.close)
            stack.push_async_callback(self._jobs.close)
            stack.push_async_callback(self._index.close)
            await self.settled()
