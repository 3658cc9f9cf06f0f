"""Memory: one object that gives agents their memory processors, and people a way to look into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self, cast

from diarist.counting import ensure_counted
from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.memory.diary import Diary
from diarist.memory.ending import end_run
from diarist.memory.history import MessageHistory
from diarist.memory.messages import Messages
from diarist.memory.moving.people import Moving
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.log.removal import finish_earlier_removals
from diarist.memory.observational.processor import DiaryProcessor
from diarist.memory.observational.roles.role_models import RoleModels
from diarist.memory.observational.work.background import Background
from diarist.memory.observational.work.jobs import JobQueue
from diarist.memory.opening import open_run
from diarist.memory.options import check_flags, check_seconds, checked_storage
from diarist.memory.reading import ReadOnlyDiary, ReadOnlyHistory
from diarist.memory.recent import Recent
from diarist.memory.recording import unstored
from diarist.memory.search import Search
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.semantic.hybrid import HybridSearch
from diarist.memory.semantic.people import Embedding, Recalling
from diarist.memory.semantic.processor import SemanticRecall
from diarist.memory.semantic.setup import Vector, semantic_config, semantic_index, vectors_beside
from diarist.memory.titles import TitleConfig, Titles, title_config
from diarist.memory.working.config import WorkingMemoryConfig, working_memory_config
from diarist.memory.working.keeping import Keeper, check_keeper
from diarist.memory.working.people import WorkingMemories
from diarist.memory.working.processor import WorkingMemoryProcessor
from diarist.message_list import MessageInput, to_messages
from diarist.messages import Message, new_id
from diarist.models.base import Model
from diarist.models.embedders import Embedder
from diarist.processors.base import Processor
from diarist.storage.base import Storage
from diarist.storage.codec import check_metadata_of, check_names
from diarist.storage.records import Thread
from diarist.tokens import TokenCounter, default_counter

DEFAULT_LAST_MESSAGES = 10


class Memory(Recalling, Diary, Search, Messages, Moving, WorkingMemories):
    """An agent's memory, kept in a storage. One object serves any number of agents.

    Args:
        storage: Default: an SQLite file ``memory.db`` in the working directory.
        last_messages: Messages of the thread to show the model, 10 by default; False for none. Not together
            with observational memory, which decides itself what is shown.
        working_memory: True for the defaults, or a configuration: a small text about the user, in every prompt, that
            the agent keeps up to date.
        semantic_recall: True for the defaults, or a configuration: messages that mean something like the question are
            shown with it, from all threads of the user. Needs an ``embedder``.
        vector: Where vectors are kept. Default: beside the messages, in the same SQLite file or in memory. With an
            ``embedder`` it also serves ``recall`` and the tool of that name, without ``semantic_recall``;
            without one, what another memory made is removed from it when messages are forgotten. False: none.
        embedder: An ``Embedder`` or its id, such as ``openai/text-embedding-3-small``; ``wordllama`` works offline.
        observational_memory: True for the defaults, or a configuration. The diary then replaces older
            messages in the prompt.
        generate_title: True, or a configuration: threads without a title get one in the background, made by a model
            from the first message.
        read_only: Agents see memory and leave nothing in it: no messages, notes, titles or changes of working
            memory. What people call by hand is not affected.
        thread_wait: Seconds that a call waits for another call of the same thread.
        token_counter: Default: o200k_base.
        await_background: Let every call wait at its end until the background work of its thread is done: for
            places where nothing runs between two calls, such as serverless functions.
        queue: Hands background work to worker processes (``diarist worker``), such as
            ``diarist.memory.queue.PostgresQueue``. By default it is done in this process.

    Raises:
        ConfigError: Options that contradict each other, or a model that is named and cannot be used.
    """

    def __init__(
        self,
        *,
        storage: Storage | None = None,
        last_messages: int | Literal[False] | None = None,
        working_memory: bool | WorkingMemoryConfig = False,
        semantic_recall: bool | SemanticRecallConfig = False,
        vector: Vector = None,
        embedder: str | Embedder | None = None,
        observational_memory: bool | ObservationalMemoryConfig = False,
        generate_title: bool | TitleConfig = False,
        read_only: bool = False,
        thread_wait: float = 30.0,
        token_counter: TokenCounter | None = None,
        await_background: bool = False,
        queue: JobQueue | None = None,
    ) -> None:
        check_flags(read_only=read_only, await_background=await_background)
        check_seconds("thread_wait", thread_wait, zero=True)
        self.config = _config(observational_memory)
        self.working = working_memory_config(working_memory)
        self.read_only = read_only
        if read_only and (generate_title is not False or queue is not None):
            raise ConfigError("read_only contradicts generate_title and queue: nothing is written, nothing observed")
        if read_only and self.working is not None:
            self.working = replace(self.working, read_only=True, kept_by="actor")
        if self.config is not None and last_messages is not None:
            raise ConfigError(
                "last_messages has no effect with observational memory, which shows all messages that it has "
                "not observed yet; leave it out, or set observation.message_tokens"
            )
        if self.config is None and queue is not None:
            raise ConfigError("queue has no effect without observational memory; pass observational_memory=True")
        self.storage = _storage(storage)
        self.counter = token_counter or default_counter()
        self._last = _number_of_messages(last_messages)
        self._working = (
            [WorkingMemoryProcessor(self.storage, self.working, counter=self.counter)] if self.working else []
        )
        self._thread_wait = thread_wait
        self._await_background = await_background
        self._background = Background()
        self._queue = queue
        check_keeper(self.working, self.config)
        keeper = Keeper(self.storage, self.working) if self.working and self.working.kept_by == "observer" else None
        self._models = RoleModels(self.config, self.counter, keeper=keeper) if self.config else None
        if self._models is not None:
            self._models.check()
        recalls = semantic_config(semantic_recall)
        self.semantic = semantic_index(self.storage, recalls, vector, embedder)
        self._vectors = vectors_beside(self.storage, vector, self.semantic)
        self._embedding = Embedding(self.semantic, self._background)
        self._semantic = [self._recaller(recalls)] if self.semantic is not None else []
        titles = title_config(generate_title)
        self._titles = (
            Titles(self.storage, titles, self._background, wait=await_background) if titles is not None else None
        )
        self._processors: Recent[Model, Processor[Any]] = Recent()
        self._engines: Recent[Model | None, Engine] = Recent()

    # -- for the agent

    def input_processors(self, model: Model) -> Sequence[Processor[Any]]:
        """Processors that go before the user's. ``model``: the agent's, for what memory was given none."""
        titles = [self._titles.processor(model)] if self._titles is not None else []
        return [*self._working, *self._semantic, self._processor(model), *titles]

    def output_processors(self, model: Model) -> Sequence[Processor[Any]]:
        """Processors that go after the user's: none, since messages are stored when the run ends."""
        return []

    async def settled(self) -> None:
        """Wait until all background work is done, whichever event loop it runs in; with a queue, handed over."""
        await self._background.settled()

    async def run_worker(self, *, concurrency: int = 4, grace: float = 20.0) -> None:
        """Do the background work that is in the queue, and what comes, until cancelled: what ``diarist worker`` does.

        What it does is told in the event log of each diary.

        Args:
            concurrency: Jobs at a time; each is mostly the wait for a model.
            grace: Seconds that running jobs get to finish once this is cancelled; the rest goes back to the queue.

        Raises:
            ConfigError: There is no queue, or a role has no model: a worker has no agent whose model it could use.
            StorageError: The queue cannot be opened. Later failures are logged, and it tries again.
        """
        if self._queue is None:
            raise ConfigError("this memory has no queue; pass queue=PostgresQueue(...)")
        if concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, not {concurrency!r}")
        if grace < 0:
            raise ConfigError(f"grace must not be negative, not {grace!r}")
        await self._queue.run(self._engine(None).work, concurrency=concurrency, grace=grace)

    def _processor(self, model: Model) -> Processor[Any]:
        return self._processors.get(model, lambda: self._made_processor(model))

    def _made_processor(self, model: Model) -> Processor[Any]:
        if self.read_only:
            return self._reader(model)
        if self.config is None:
            return MessageHistory(
                self.storage, counter=self.counter, last_messages=self._last, thread_wait=self._thread_wait
            )
        return DiaryProcessor(
            self._engine(model),
            self.storage,
            counter=self.counter,
            thread_wait=self._thread_wait,
            await_background=self._await_background,
            search=self._hybrid(),
        )

    def _reader(self, model: Model) -> Processor[Any]:
        if self.config is None:
            return ReadOnlyHistory(self.storage, counter=self.counter, last_messages=self._last)
        return ReadOnlyDiary(self._engine(model), self.storage, counter=self.counter, search=self._hybrid())

    def _hybrid(self) -> HybridSearch | None:
        """What the tool ``recall`` looks by; None: by words alone."""
        return HybridSearch(self.semantic, self.storage, tolerant=True) if self.semantic is not None else None

    def _recaller(self, config: SemanticRecallConfig | None) -> SemanticRecall:
        assert self.semantic is not None
        return SemanticRecall(
            self.semantic,
            config,
            self.storage,
            counter=self.counter,
            embed=self._embedding.start if not self.read_only else lambda thread: None,
            settle=self._embedding.settled if self._await_background else None,
            timezone=self.config.timezone if self.config is not None else "UTC",
            obscured=self.config.obscures_threads if self.config is not None else False,
        )

    def _engine(self, model: Model | None) -> Engine:
        config, models = self.config, self._models
        if config is None or models is None:
            raise ConfigError("this memory has no observational memory; pass observational_memory=True")
        return self._engines.get(model, lambda: self._made_engine(config, models, model))

    def _made_engine(self, config: ObservationalMemoryConfig, models: RoleModels, model: Model | None) -> Engine:
        observer, reflector = models.roles(model)
        return Engine(
            storage=self.storage,
            config=config,
            observer=observer,
            reflector=reflector,
            counter=self.counter,
            background=self._background,
            submit=self._queue.submit if self._queue is not None else None,
        )

    # -- for people

    async def save_messages(
        self, messages: MessageInput, *, thread: str, resource: str | None = None, title: str = ""
    ) -> int:
        """Add messages at the end of a thread, which is created if need be, all or none.

        Messages whose id the thread has already are skipped. Returns how many were new.

        Args:
            messages: As for ``generate``: a text, a message, or a list of messages or OpenAI-style dictionaries.

        Raises:
            InputError: The thread belongs to another resource; or it is none of these (names the entry).
            ThreadBusyError: Another run or call of this thread did not end within ``thread_wait``.
        """
        if isinstance(messages, list | tuple) and not messages:
            return 0
        messages = to_messages(messages)
        check_metadata_of(messages)
        check_names(thread=thread, resource=resource)
        found = await self.storage.get_thread(thread)
        if found is not None:
            _check_owner(found, resource or thread)
        fresh = await self._unknown(thread, messages)
        if not fresh:
            return 0
        fresh = list(map(unstored, fresh))
        ensure_counted(fresh, self.counter)
        owner = Thread(id=thread, resource_id=resource or thread, title=title)
        run = await open_run(self.storage, new_id("run"), owner, wait=self._thread_wait)
        try:
            fresh = await self._unknown(thread, fresh)  # what this call waited for may have brought them
            numbers = await self.storage.append_messages(run, fresh, source="input")
            if numbers[:1] == [1]:
                await finish_earlier_removals(self.storage, owner, self.counter)
        except BaseException:
            await end_run(self.storage, run, "discarded")
            raise
        await end_run(self.storage, run, "committed")
        self._embedding.start(owner)
        return len(fresh)

    async def _unknown(self, thread: str, messages: Sequence[Message]) -> list[Message]:
        """Those that the thread does not have, without system messages."""
        known = await self.storage.existing_ids(thread, [message.id for message in messages])
        return [message for message in messages if message.id not in known and message.role != "system"]

    async def close(self) -> None:
        """Finish background work, close the storage, and the models that memory made from ids."""
        await self.settled()
        if self._titles is not None:
            await self._titles.close()
        if self._models is not None:
            await self._models.close()
        if self.semantic is not None:
            await self.semantic.close()
        await self._vectors.close()
        await self.storage.close()

    async def __aenter__(self) -> Self:
        """Raises ConfigError where the embedder gives vectors of another length than it says."""
        if self.semantic is not None:
            await self.semantic.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _thread(self, thread: str, resource: str | None) -> Thread:
        check_names(thread=thread, resource=resource)
        found = await self.storage.get_thread(thread)
        if found is None:
            raise NotFoundError(f"there is no thread {thread!r} in {self.storage.location}")
        if resource is not None:
            _check_owner(found, resource)
        return found


def _check_owner(thread: Thread, resource: str) -> None:
    if thread.resource_id != resource:
        raise InputError(f"thread {thread.id!r} does not belong to resource {resource!r}")


def _config(value: bool | ObservationalMemoryConfig) -> ObservationalMemoryConfig | None:
    """The configuration of observational memory; None where it is off."""
    if value is True:
        return ObservationalMemoryConfig()
    if value is False:
        return None
    if not isinstance(cast(Any, value), ObservationalMemoryConfig):
        raise ConfigError(f"observational_memory is True, False or an ObservationalMemoryConfig, not {value!r}")
    return value if value.enabled else None


def _number_of_messages(value: int | None) -> int:
    if value is None:
        return DEFAULT_LAST_MESSAGES
    if value is True or not isinstance(cast(Any, value), int) or value < 0:
        raise ConfigError(f"last_messages must be a whole number from 0 on, or False, not {value!r}")
    return int(value)


def _storage(value: Storage | None) -> Storage:
    if value is None:
        from diarist.storage.sqlite import SQLiteStorage  # SQLAlchemy takes a while, and other storages do without

        return SQLiteStorage("memory.db")
    return checked_storage(value)
