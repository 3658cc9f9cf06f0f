"""Memory: one object that gives agents their memory processors, and gives applications access to the stored data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from functools import cached_property, lru_cache, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

from diarist.checks import check_names, flags, function, message_limit, one_of, seconds, texts
from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError
from diarist.memory.access import Access
from diarist.memory.background import Background
from diarist.memory.context import MemoryContext, read_context
from diarist.memory.diary import Diary
from diarist.memory.forgetting import Forgetting
from diarist.memory.history import HistoryProcessor
from diarist.memory.message_filter import MessageFilter, MessageRange, with_neighbours
from diarist.memory.messages import Messages
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.receipt import Receipt
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.semantic.embedding_jobs import EmbeddingJobs
from diarist.memory.semantic.hybrid import hybrid_search
from diarist.memory.semantic.processor import SemanticRecallProcessor
from diarist.memory.semantic.setup import VectorOption, semantic_index
from diarist.memory.sync import SyncDiary, SyncMessages, SyncThreads, SyncWorking, sync_turn
from diarist.memory.threads import Threads
from diarist.memory.titles import TitleConfig, Titles
from diarist.memory.turn import NamedModel, Turn
from diarist.memory.working.config import WorkingMemoryConfig
from diarist.memory.working.observer_updates import ObserverUpdates
from diarist.memory.working.processor import WorkingMemoryProcessor
from diarist.memory.working_memory import Working
from diarist.messages import Json
from diarist.models.base import Model
from diarist.models.embedders import Embedder
from diarist.models.resolve import resolve
from diarist.processors.base import Processor
from diarist.processors.pipeline import Pipeline
from diarist.prompt_cache import PromptHistory
from diarist.run_context import MemoryOptions, OnDivergence, ThreadRef
from diarist.storage.base import Storage, checked_storage
from diarist.storage.records import Hit, Page, Thread, own_resource, thread_and_resource
from diarist.sync import blocking, run_sync
from diarist.tokens import TokenCounter, checked_counter
from diarist.tools import ToolDefinition

if TYPE_CHECKING:  # loaded if there is observational memory
    from diarist.memory.observational.engine import Engine
    from diarist.memory.observational.jobs import JobQueue
    from diarist.memory.observational.roles.role_models import RoleModels

_Config = TypeVar("_Config")

DEFAULT_LAST_MESSAGES = 10
_MODELS_CACHED = 64
"""Maximum number of models with cached processors and engines: a program may create a model per request."""


class Memory:
    """An agent's memory, kept in a storage. One object serves any number of agents.

    Args:
        storage: Default: an SQLite file ``memory.db`` in the working directory.
        last_messages: Maximum number of the thread's messages to show the model, 10 by default; False for none. They
            start with a user message, so fewer may be shown. Cannot be combined with observational memory, which
            selects the messages itself.
        working_memory: True for the defaults, or a configuration: a short text about the user that is in every
            prompt and that the agent keeps up to date.
        semantic_recall: True for the defaults, or a configuration: the model is shown messages similar in meaning to
            the question, from all threads of the user. Needs an ``embedder``.
        vector: The vector store. Default: the SQLite file of the messages, or memory if they are in memory. With an
            ``embedder``, ``Memory.recall`` and the tool ``recall`` search it, even without ``semantic_recall``. Without
            an embedder, it is only used by ``forget``, to delete vectors that another ``Memory`` stored. False: no
            vector store.
        embedder: An ``Embedder`` or its id, such as ``openai/text-embedding-3-small``; ``wordllama`` works offline.
        observational_memory: True for the defaults, or a configuration. The diary then replaces older
            messages in the prompt.
        generate_title: True, or a configuration: a model titles untitled threads in the background, based on the
            first message.
        read_only: Agents read memory but write nothing: no messages, notes, titles or changes of working memory.
            Methods that your application calls directly still write.
        thread_wait: Seconds to wait until another call of the same thread has ended.
        token_counter: Default: o200k_base.
        await_background: Make every call wait at its end for the background work of its thread. For platforms
            that run nothing between two calls, such as serverless functions.
        queue: Hands background work to worker processes (``diarist worker``), such as
            ``diarist.memory.queue.PostgresQueue``. By default this process does the work.

    Attributes:
        threads: Create, find, change, copy, delete, export and import threads.
        messages: Read, save, change and search messages.
        diary: Read and change the diary, and observe or reflect on demand.
        working: Read and change the working memory.
        sync: The same for synchronous code.

    Raises:
        ConfigError: Options contradict each other, or a named model cannot be used.
    """

    def __init__(
        self,
        *,
        storage: Storage | None = None,
        last_messages: int | Literal[False] | None = None,
        working_memory: bool | WorkingMemoryConfig = False,
        semantic_recall: bool | SemanticRecallConfig = False,
        vector: VectorOption = None,
        embedder: str | Embedder | None = None,
        observational_memory: bool | ObservationalMemoryConfig = False,
        generate_title: bool | TitleConfig = False,
        read_only: bool = False,
        thread_wait: float = 30.0,
        token_counter: TokenCounter | None = None,
        await_background: bool = False,
        queue: JobQueue | None = None,
    ) -> None:
        flags("Memory", read_only=read_only, await_background=await_background)
        seconds("Memory", "thread_wait", thread_wait, zero=True)
        self.config = _chosen("observational_memory", observational_memory, ObservationalMemoryConfig)
        working = _chosen("working_memory", working_memory, WorkingMemoryConfig)
        recall = _chosen("semantic_recall", semantic_recall, SemanticRecallConfig)
        titles = _chosen("generate_title", generate_title, TitleConfig)
        self.read_only = read_only
        if read_only and (generate_title is not False or queue is not None):
            raise ConfigError("read_only contradicts generate_title and queue, which write to memory")
        if read_only and working is not None:
            working = replace(working, read_only=True, kept_by="actor")
        if self.config is not None and last_messages is not None:
            raise ConfigError(
                "last_messages has no effect with observational memory, which shows all messages that it has "
                "not observed yet; leave it out, or set observation.message_tokens"
            )
        if self.config is None and queue is not None:
            raise ConfigError("queue has no effect without observational memory; pass observational_memory=True")
        if storage is None:
            from diarist.storage.sqlite import SQLiteStorage  # other storages work without sqlite3

            storage = SQLiteStorage("memory.db")
        self.storage = checked_storage(storage)
        self.counter = checked_counter("Memory", token_counter)
        if last_messages is None:
            last_messages = DEFAULT_LAST_MESSAGES
        message_limit("", "last_messages", last_messages)
        self._last_messages = int(last_messages)
        self._working_config = working
        self._working_processors = self._make_working_processors(read_only)  # refuses an unusable schema
        self._await_background = await_background
        self._background = Background()
        self._queue = queue
        working_updates = None
        if working is not None and working.kept_by == "observer":
            _check_observer(working, self.config)
            working_updates = ObserverUpdates(self.storage, working)
        self._role_models: RoleModels | None = None
        if self.config is not None:
            from diarist.memory.observational.roles.role_models import RoleModels

            self._role_models = RoleModels(self.config, self.counter, working_updates=working_updates)
            self._role_models.check()
        self.semantic = semantic_index(self.storage, recall, vector, embedder)
        self._embedding = EmbeddingJobs(self.semantic, vector, self.storage, self._background)
        self._recall_config = recall
        self._titles = (
            Titles(self.storage, titles, self._background, wait=await_background) if titles is not None else None
        )
        # Made once per model and options, not per call.
        self._processors = lru_cache(_MODELS_CACHED)(self._make_processors)
        self._pipeline = lru_cache(_MODELS_CACHED)(self._make_pipeline)
        self._turn_models: dict[str, Model] = {}
        self._prompts = PromptHistory()
        self._engine = lru_cache(_MODELS_CACHED)(self._make_engine)
        self._open_blocks = 0
        self._access = Access(self.storage, self.counter, self.config, self._embedding, thread_wait=thread_wait)
        self._forgetting = Forgetting(self._access)
        self.threads = Threads(self._access, self._forgetting)
        self.messages = Messages(self._access, self._forgetting)
        self.diary = Diary(self._access, self._forgetting, lambda: self._engine(None))
        self.working = Working(self._access, working)

    @cached_property
    def sync(self) -> SyncMemory:
        """The same methods for synchronous code, such as scripts and notebooks: ``memory.sync.threads.list()``.

        They take the same arguments, return the results themselves, and work beside a running event loop, which they
        block. They share the event loop of ``generate_sync``.
        """
        return SyncMemory(self, self._background)

    @property
    def tools(self) -> list[ToolDefinition]:
        """Memory's own tools for the model, such as ``recall``: those of ``TurnView.tools``, known before a turn."""
        found = [tool for processor in self._working_processors for tool in processor.offered]
        if self.config is not None and self.config.retrieves is not None:
            from diarist.memory.observational.recall_tool import unbound_recall

            recall = unbound_recall(self.config, self.storage, by_meaning=self.semantic is not None)
            found.append(recall.definition)
        return found

    def __repr__(self) -> str:
        kinds = {
            "working_memory": self.working.config is not None,
            "semantic_recall": self._recall_config is not None,
            "observational_memory": self.config is not None,
            "generate_title": self._titles is not None,
            "read_only": self.read_only,
        }
        shown = [f"{name}=True" for name, used in kinds.items() if used]
        if self.config is None:
            shown.append(f"last_messages={self._last_messages}")
        return f"Memory({', '.join([repr(self.storage), *shown])})"

    # -- for the agent

    def input_processors(self, model: Model, options: MemoryOptions | None = None, /) -> Sequence[Processor[Any]]:
        """Return the processors to run before the user's.

        Args:
            model: The agent's, used where memory has no model of its own.
            options: The options of one call.

        Raises:
            ConfigError: ``last_messages`` with observational memory, or ``semantic_recall`` without an embedder.
        """
        return self._processors(model, MemoryOptions() if options is None else options)

    def output_processors(self, model: Model) -> Sequence[Processor[Any]]:
        """Return the processors to run after the user's: none, since messages are stored when the run ends."""
        return []

    async def settled(self, *, here: bool = False) -> None:
        """Wait until all background work is done, in every event loop. With a queue, wait until the queue has it.

        ``here``: wait only for the work of the current event loop, such as before it stops.
        """
        await self._background.settled(here=here)

    async def run_worker(self, *, concurrency: int = 4, grace: float = 20.0) -> None:
        """Process queued background work until cancelled, as ``diarist worker`` does.

        The event log of each diary records the results.

        Args:
            concurrency: Maximum number of concurrent jobs; each spends most of its time waiting for a model.
            grace: Seconds that running jobs get to finish after a cancellation; unfinished jobs return to the queue.

        Raises:
            ConfigError: There is no queue; or the Observer or the Reflector has no model, since a worker has no agent's
                model.
            StorageError: The queue cannot be opened. Later failures are logged and retried.
        """
        if self._queue is None:
            raise ConfigError("this memory has no queue; pass queue=PostgresQueue(...)")
        if concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, not {concurrency!r}")
        if grace < 0:
            raise ConfigError(f"grace must not be negative, not {grace!r}")
        await self._queue.run(self._engine(None).work, concurrency=concurrency, grace=grace)

    def _turn_model(self, model_id: str) -> Model:
        """Return the model that a loop of the caller's own calls.

        It is only a name if each role has a model of its own. Otherwise the roles without one use it, so memory must be
        able to call it. Raises ConfigError if there is no key for it.
        """
        if model_id not in self._turn_models:
            self._turn_models[model_id] = self._make_turn_model(model_id)
        return self._turn_models[model_id]

    def _make_turn_model(self, model_id: str) -> Model:
        try:
            if self._titles is not None:
                self._titles.processor(None)
            if self.config is not None:
                self._engine(None)
            return NamedModel(model_id)
        except ConfigError as missing:  # a role has no model
            if not model_id:
                raise
            try:
                return resolve(model_id)
            except ConfigError as unusable:
                raise ConfigError(f"{missing}; or give a model_id that memory can call ({unusable})") from missing

    def _make_pipeline(self, model: Model, options: MemoryOptions) -> Pipeline:
        return Pipeline(self.input_processors(model, options))

    def _make_processors(self, model: Model, options: MemoryOptions) -> Sequence[Processor[Any]]:
        read_only = self.read_only or options.read_only is True
        if options.last_messages is not None and self.config is not None:
            raise ConfigError(
                "last_messages has no effect with observational memory, which selects the messages itself"
            )
        last = self._last_messages if options.last_messages is None else int(options.last_messages)
        return (
            *(self._working_processors if read_only is self.read_only else self._make_working_processors(read_only)),
            *self._make_recall_processors(options.semantic_recall, read_only),
            self._make_history_processor(model, read_only, last),
            *([self._titles.processor(model)] if self._titles is not None and not read_only else []),
        )

    def _make_working_processors(self, read_only: bool) -> Sequence[WorkingMemoryProcessor]:
        config = self._working_config
        if config is None:
            return ()
        if read_only:
            config = replace(config, read_only=True, kept_by="actor")
        return (WorkingMemoryProcessor(self.storage, config, counter=self.counter),)

    def _make_recall_processors(self, wanted: bool | None, read_only: bool) -> Sequence[Processor[Any]]:
        """Return the processor of semantic recall, which embeds messages even if the call does not want to search."""
        if self.semantic is None:
            if wanted:
                raise ConfigError("semantic_recall needs an embedder: pass embedder=... to Memory")
            return ()
        config = self._recall_config or (SemanticRecallConfig() if wanted else None)
        return (
            SemanticRecallProcessor(
                self.semantic,
                None if wanted is False else config,
                self.storage,
                counter=self.counter,
                embedding=None if read_only else self._embedding,
                await_background=self._await_background,
                timezone=self.config.timezone if self.config is not None else "UTC",
                obscured=self.config.obscures_threads if self.config is not None else False,
            ),
        )

    def _make_history_processor(self, model: Model, read_only: bool, last: int) -> Processor[Any]:
        if self.config is None:
            return HistoryProcessor(self._access, last, read_only=read_only)
        from diarist.memory.observational.processor import DiaryProcessor, ReadOnlyDiary

        kind = ReadOnlyDiary if read_only else DiaryProcessor
        index = self.semantic
        return kind(
            self._engine(model),
            self._access,
            await_background=self._await_background,
            search=partial(hybrid_search, index, self.storage, tolerant=True) if index is not None else None,
            prompts=self._prompts,
        )

    def _make_engine(self, model: Model | None) -> Engine:
        config, models = self.config, self._role_models
        if config is None or models is None:
            raise ConfigError("this memory has no observational memory; pass observational_memory=True")
        from diarist.memory.observational.engine import Engine

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

    # -- for applications

    async def context(self, *, thread: str, resource: str | None = None) -> MemoryContext:
        """Return what memory would add to the next prompt of a thread, without starting a run. Writes nothing and calls
        no model.

        Left out is what depends on the next message: its memory note (date, current task, news of other threads), and
        messages that semantic recall finds for it. ``result.steps[0].request`` has both. A thread that does not exist
        yet has no messages, but may share the working memory and the diary of ``resource``.

        Raises:
            InputError: The thread belongs to another resource.
            StorageError: The storage cannot be read.
        """
        check_names(thread=thread, resource=resource)
        if await self.storage.get_thread(thread) is None:
            found = Thread(id=thread, resource_id=resource or own_resource(thread))
        else:
            found = await self._access.thread(thread, resource)
        history = HistoryProcessor(self._access, self._last_messages, read_only=True)
        return await read_context(self._access, found, working=self._working_processors, history=history)

    def turn(
        self,
        *,
        thread: str | ThreadRef | Thread,
        resource: str | None = None,
        model_id: str = "",
        model: str | Model | None = None,
        read_only: bool | None = None,
        last_messages: int | Literal[False] | None = None,
        semantic_recall: bool | None = None,
        on_divergence: OnDivergence = "branch",
        fail_open: bool = True,
        on_event: Callable[[DataChunk], object] | None = None,
        deps: Any = None,
    ) -> Turn:
        """Return the memory of one turn, for a loop that calls the model itself: ``async with memory.turn(...)``.

        Args:
            thread: The conversation: an id; a ``ThreadRef``, with title and metadata for a new thread; or a ``Thread``.
            resource: The owner of the thread. Without it, the thread shares nothing with others.
            model_id: The model that the loop calls, such as ``"openai/gpt-5-mini"``. If its key is set, it is also the
                default of ``model``.
            model: A model, or its id, for the Observer, the Reflector and titles, if they have none of their own.
            read_only, last_messages, semantic_recall: In place of memory's own options, for this turn.
            on_divergence: As for a call of an agent: what to do if the given history does not continue the thread.
            fail_open: True: a failure of memory is never raised into the loop. The given messages are then sent alone,
                within a second (up to six if the event loop is busy), and ``degraded`` says why; the end of the turn
                tries to store them once more. False: it is raised.
            on_event: Receives memory's ``data-om-*`` events.
            deps: Passed to memory's tools.

        Raises:
            ConfigError: An option is invalid, or contradicts another; or the Observer, the Reflector or the titles have
                no model, and ``model_id`` has no key.
            InputError: The resource is empty or reserved.
        """
        flags("memory.turn", fail_open=fail_open)
        options = MemoryOptions(read_only=read_only, last_messages=last_messages, semantic_recall=semantic_recall)
        one_of("memory.turn", "on_divergence", on_divergence, get_args(OnDivergence))
        function("memory.turn", "on_event", on_event)
        texts("memory.turn", model_id=model_id)
        ref, owner = thread_and_resource(thread, resource)
        if ref is None or owner is None:
            raise ConfigError("memory.turn needs a thread: thread='trip'")
        called = self._turn_model(model_id) if model is None else resolve(model)
        return Turn(
            pipeline=self._pipeline(called, options),
            background=self._background,
            model=called,
            thread=ref,
            resource=owner,
            on_divergence=on_divergence,
            fail_open=fail_open,
            on_event=on_event,
            deps=deps,
        )

    async def recall(
        self,
        query: str,
        *,
        resource: str | None = None,
        thread: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        metadata: Mapping[str, Json] | None = None,
        threshold: float | None = None,
        message_range: MessageRange = 0,
        limit: int = 10,
        cursor: str | None = None,
    ) -> Page[Hit]:
        """Find messages of a resource or thread that are similar in meaning to ``query`` or contain all its words.

        By meaning it finds embedded messages only; ``messages.embed`` embeds missing ones, such as after an import.
        Results are ranked best first by reciprocal rank fusion of both searches, each with up to a hundred matches. If
        the storage has no text search, only meaning counts.

        Args:
            resource: The resource to search; with ``thread``, the thread must belong to it.
            since, until, metadata: As for ``messages.list``.
            message_range: As for ``messages.search``.
            threshold: Minimum similarity of matches by meaning, for ``cosine`` from -1 to 1. None: no minimum.
            limit: Hits per page.
            cursor: The cursor of the previous page of the same search.

        Raises:
            ConfigError: This memory has no vectors.
            InputError: Neither ``resource`` nor ``thread`` is given; the thread belongs to another resource; or another
                argument is invalid, such as an empty query, an invalid cursor, or a time without a time zone.
            NotFoundError: The thread does not exist.
            ModelError: The embedder failed.
        """
        index = self._embedding.index()
        wanted = MessageFilter(since=since, until=until, metadata=metadata)
        owner = await self._access.resource_of(thread, resource)
        page = await hybrid_search(
            index,
            self.storage,
            query,
            resource_id=owner,
            thread_id=thread,
            limit=limit,
            cursor=cursor,
            wanted=wanted,
            threshold=threshold,
        )
        return replace(page, items=await with_neighbours(self.storage, page.items, message_range))

    async def forget(
        self,
        *,
        message_ids: Collection[str] | None = None,
        thread: str | None = None,
        resource: str | None = None,
    ) -> Receipt:
        """Delete messages of a thread (``message_ids`` and ``thread``), a whole thread, or all data of a resource.
        The id of a question that a client edited under it names each of its texts.

        Deleting a message also deletes the diary entries made from it, in earlier generations too; a title made from
        it; and the memory notes sent after it, except their date. If a reflection is deleted, the entries that it had
        replaced come back, provided they were made from other messages only. The other messages of a deleted entry
        become raw again, and are observed when they are due. If ``diary.edit`` has removed words from an entry, the
        entry is emptied instead of deleted, and still covers its other messages. Deleting a resource also deletes its
        working memory.

        Entries made from other messages stay, even if the Observer wrote them with notes of a deleted message in its
        prompt. ``mentioning_ids`` of the receipt lists those that still contain a name or number from the deleted
        messages.

        A client that sends its history again does not restore deleted messages: the thread keeps their ids, places and
        roles. If the whole thread was deleted, such a history starts a new thread.

        Not deleted: the text of other messages, including answers to a deleted one; copies that a live run has already
        loaded; a live run's own messages, which ``forget`` cannot find before the run ends; the id of a deleted
        resource, as the key of rows without text; costs of a ``StorageLedger``; and data that has left this storage.

        When the call returns, the storage's files no longer contain the data. If some may, ``left_on_disk`` of the
        receipt gives the reason. SQLite rewrites its file for this.

        Repeating the call is safe: it deletes any remaining data, and missing messages, threads and resources are not
        an error. After a crash, the next call, or the next use of the thread, completes the deletion.

        Returns:
            The data that this call deleted.

        Raises:
            InputError: No target is given; ``message_ids`` without ``thread``; or the thread belongs to another
                resource.
            StorageError: Some data may remain; repeat the call.
        """
        return await self._forgetting.forget(message_ids=message_ids, thread=thread, resource=resource)

    async def close(self) -> None:
        """Finish background work, and close the storage, the vector store, and the models that memory created from ids.

        They reopen at their next use. If one fails to close, the others are still closed.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.storage.close)
            stack.push_async_callback(self._embedding.close)
            for part in (self.semantic, self._role_models, self._titles, *self._turn_models.values()):
                if part is not None:
                    stack.push_async_callback(part.close)
            await self.settled()

    async def __aenter__(self) -> Self:
        """Keep memory open until the block ends. Agents keep it open in the same way: the last block closes it.

        Raises ConfigError if the embedder's vectors do not have the length it declares.
        """
        if self.semantic is not None and not self._open_blocks:
            await self.semantic.check()
        self._open_blocks += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_blocks -= 1
        await (self.settled() if self._open_blocks else self.close())


class SyncMemory:
    """The methods of a ``Memory`` for synchronous code: ``memory.sync``.

    Attributes:
        threads, messages, diary, working: As for ``Memory``.
    """

    def __init__(self, memory: Memory, background: Background) -> None:
        self._memory, self._background = memory, background
        self.threads = SyncThreads(memory.threads)
        self.messages = SyncMessages(memory.messages)
        self.diary = SyncDiary(memory.diary)
        self.working = SyncWorking(memory.working)
        self.turn = sync_turn(memory.turn)
        self.context = blocking(memory.context)
        self.recall = blocking(memory.recall)
        self.forget = blocking(memory.forget)

    def settled(self) -> None:
        """Wait until all background work is done. Raises DiaristError if it runs on the event loop of this thread."""
        self._background.check_elsewhere()
        run_sync(self._memory.settled())

    def close(self) -> None:
        """Finish background work and close everything, as ``Memory.close`` does. Raises as ``settled`` does."""
        self._background.check_elsewhere()
        run_sync(self._memory.close())


def checked_memory(value: object) -> Memory:
    """Return ``value``. Raises ConfigError if it is no memory."""
    if isinstance(value, Memory):
        return value
    raise ConfigError(f"memory must be a Memory, such as Memory(observational_memory=True), not {value!r}")


def _chosen(option: str, value: bool | _Config, kind: type[_Config]) -> _Config | None:
    """Return the configuration of an option that is True, False or a configuration; None if it is off."""
    if value is True:
        return kind()
    if value is False:
        return None
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{option} is True, False or {article} {kind.__name__}, not {value!r}")
    return value if getattr(value, "enabled", True) else None


def _check_observer(working: WorkingMemoryConfig, diary: ObservationalMemoryConfig | None) -> None:
    """Raise ConfigError if the Observer cannot keep this working memory."""
    if diary is None:
        raise ConfigError("working_memory.kept_by='observer' needs an Observer; pass observational_memory=True")
    if diary.observer_model == "extractive":
        raise ConfigError("working_memory.kept_by='observer' needs a model: the extractive Observer writes notes only")
    if working.scope == "thread" and diary.scope == "resource":
        raise ConfigError(
            "working_memory.kept_by='observer' with scope='thread' needs observational memory of that scope: in "
            "resource scope the Observer reads several threads at once"
        )
