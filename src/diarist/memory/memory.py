"""Memory: one object that gives agents their memory processors, and people a way to look into it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, cast

from diarist.counting import count_parts
from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.memory.diary import Diary
from diarist.memory.history import MessageHistory
from diarist.memory.observational.background import Background
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.jobs import JobQueue
from diarist.memory.observational.processor import DiaryProcessor
from diarist.memory.observational.role_models import RoleModels
from diarist.memory.search import Search
from diarist.messages import Message, new_id
from diarist.models.base import Model
from diarist.processors.base import Processor
from diarist.storage.base import Storage
from diarist.storage.records import Page, Thread
from diarist.tokens import TokenCounter, default_counter

DEFAULT_LAST_MESSAGES = 10


class Memory(Diary, Search):
    """An agent's memory, kept in a storage. One object serves any number of agents.

    Args:
        storage: Default: an SQLite file ``memory.db`` in the working directory.
        last_messages: Messages of the thread to show the model, 10 by default; False for none. Not together
            with observational memory, which decides itself what is shown.
        observational_memory: True for the defaults, or a configuration. The diary then replaces older
            messages in the prompt.
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
        observational_memory: bool | ObservationalMemoryConfig = False,
        thread_wait: float = 30.0,
        token_counter: TokenCounter | None = None,
        await_background: bool = False,
        queue: JobQueue | None = None,
    ) -> None:
        self.config = _config(observational_memory)
        if self.config is not None and last_messages is not None:
            raise ConfigError(
                "last_messages has no effect with observational memory, which shows all messages that it has "
                "not observed yet; leave it out, or set observation.message_tokens"
            )
        if self.config is None and queue is not None:
            raise ConfigError("queue has no effect without observational memory; pass observational_memory=True")
        if thread_wait < 0:
            raise ConfigError(f"thread_wait must not be negative, not {thread_wait!r}")
        self.storage = storage if storage is not None else _default_storage()
        self.counter = token_counter or default_counter()
        self._last = _number_of_messages(last_messages)
        self._thread_wait = thread_wait
        self._await_background = await_background
        self._background = Background()
        self._queue = queue
        self._models = RoleModels(self.config, self.counter) if self.config else None
        if self._models is not None:
            self._models.check()
        self._processors: dict[Model | None, Processor[Any]] = {}
        self._engines: dict[Model | None, Engine] = {}

    # -- for the agent

    def input_processors(self, model: Model) -> Sequence[Processor[Any]]:
        """Processors that go before the user's. ``model``: the agent's, for what memory was given none."""
        return [self._processor(model)]

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
        if model not in self._processors:
            if self.config is None:
                self._processors[model] = MessageHistory(
                    self.storage, counter=self.counter, last_messages=self._last, thread_wait=self._thread_wait
                )
            else:
                self._processors[model] = DiaryProcessor(
                    self._engine(model),
                    self.storage,
                    counter=self.counter,
                    thread_wait=self._thread_wait,
                    await_background=self._await_background,
                )
        return self._processors[model]

    def _engine(self, model: Model | None) -> Engine:
        if self.config is None or self._models is None:
            raise ConfigError("this memory has no observational memory; pass observational_memory=True")
        if model not in self._engines:
            observer, reflector = self._models.roles(model)
            self._engines[model] = Engine(
                storage=self.storage,
                config=self.config,
                observer=observer,
                reflector=reflector,
                counter=self.counter,
                background=self._background,
                submit=self._queue.submit if self._queue is not None else None,
            )
        return self._engines[model]

    # -- for people

    async def messages(
        self,
        *,
        thread: str,
        resource: str | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[Message]:
        """The newest ``limit`` messages of a thread with ``seq < before``, oldest first.

        Raises NotFoundError, InputError.
        """
        await self._thread(thread, resource)
        rows = await self.storage.list_messages(thread, limit=limit, before=before, newest_first=True)
        return rows[::-1]

    async def save_messages(
        self, messages: Sequence[Message], *, thread: str, resource: str | None = None, title: str = ""
    ) -> int:
        """Add messages at the end of a thread, which is created if need be, all or none.

        Messages whose id the thread has already are skipped. Returns how many were new.

        Raises:
            InputError: The thread belongs to another resource.
            ThreadBusyError: A run of this thread is live.
        """
        found = await self.storage.get_thread(thread)
        if found is not None:
            _check_owner(found, resource or thread)
        known = await self.storage.existing_ids(thread, [message.id for message in messages])
        fresh = [message for message in messages if message.id not in known and message.role != "system"]
        if not fresh:
            return 0
        for message in fresh:
            message.part_tokens = count_parts(message, self.counter)
        owner = Thread(id=thread, resource_id=resource or thread, title=title)
        run = await self.storage.begin_run(new_id("run"), owner)
        try:
            await self.storage.append_messages(run, fresh, source="input")
        except BaseException:
            await self.storage.finish_run(run, "discarded")
            raise
        await self.storage.finish_run(run, "committed")
        return len(fresh)

    async def threads(
        self, *, resource: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[Thread]:
        """Threads, newest first."""
        return await self.storage.list_threads(resource_id=resource, limit=limit, cursor=cursor)

    async def close(self) -> None:
        """Finish background work, close the storage, and the models that memory made from ids."""
        await self.settled()
        if self._models is not None:
            await self._models.close()
        await self.storage.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _thread(self, thread: str, resource: str | None) -> Thread:
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


def _default_storage() -> Storage:
    from diarist.storage.sqlite import SQLiteStorage  # SQLAlchemy takes a while, and other storages do without

    return SQLiteStorage("memory.db")
