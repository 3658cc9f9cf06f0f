"""The context of one request: its ids, messages, dependencies, writer, cancel signal and usage."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from diarist.checks import flags, message_limit
from diarist.chunks import Chunk, DataChunk, Usage, as_json
from diarist.concurrency import inner_cancel_as_error
from diarist.exceptions import InputError
from diarist.message_list import MessageList
from diarist.messages import Json, Message
from diarist.prompt_cache import MemoryReport
from diarist.sync import running_loop

D = TypeVar("D", default=Any)

Outcome = Literal["committed", "discarded", "interrupted"]
"""How a run ended. ``committed``: with an answer. ``discarded``: blocked, nothing is kept. ``interrupted``: by an error
or a cancellation."""

OnDivergence = Literal["branch", "append", "error"]
"""Chooses, for input that leaves the active branch of its thread: go back to the last common message, add new messages
at the end, or raise InputError."""

EndCallback = Callable[[Outcome], Awaitable[None]]

ApprovalCallback = Callable[[Message, Sequence[str]], Awaitable[None]]
"""Called with a message and the ids of its approved tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRef:
    """The thread of a call. Title and metadata are stored if the call creates the thread."""

    id: str
    title: str = ""
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """Options of memory for one call. None: as the memory is configured.

    Attributes:
        read_only: True: store nothing of this call.
        last_messages: Maximum number of the thread's messages to show; 0 or False shows none.
        semantic_recall: Show messages close in meaning to the question.

    Raises ConfigError for values of other types.
    """

    read_only: bool | None = None
    last_messages: int | Literal[False] | None = None
    semantic_recall: bool | None = None

    def __post_init__(self) -> None:
        for name, value in (("read_only", self.read_only), ("semantic_recall", self.semantic_recall)):
            if value is not None:
                flags("", **{name: value})
        if self.last_messages is not None:
            message_limit("", "last_messages", self.last_messages)


class CancelSignal:
    """Signal to cancel runs: pass it to a call as ``cancel=``, then call ``cancel()``.

    ``cancel()`` works from any thread and from a signal handler. A signal passed to several calls ends them all; if
    ``cancel()`` was called before, a call ends at once.

    Attributes:
        cancelled: True after ``cancel()``. A sync tool can check it between two pieces of work.
        reason: The argument of ``cancel()``; empty before.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.cancelled = False
        self._scopes: dict[asyncio.Timeout, asyncio.AbstractEventLoop] = {}

    def __repr__(self) -> str:
        return f"CancelSignal(cancelled={self.cancelled}, reason={self.reason!r})"

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """End the run: its model call and tools stop; finished steps and results of finished tools are kept."""
        if self.cancelled:
            return
        self.cancelled, self.reason = True, reason
        for scope, loop in list(self._scopes.items()):
            loop.call_soon_threadsafe(self._end, scope)  # also wakes the loop if a signal handler interrupted its wait

    @asynccontextmanager
    async def scope(self) -> AsyncGenerator[None]:
        """Cancel the block when the signal is cancelled, or at its first ``await`` if it was before.

        Raises RunCancelled then; but CancelledError if something else cancelled the task as well, such as the scope of
        an outer run that uses the same signal.
        """
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes[scope] = asyncio.get_running_loop()
                if self.cancelled:
                    self._end(scope)
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise RunCancelled from error
        finally:
            self._scopes.pop(scope, None)

    def check(self) -> None:
        """Raise RunCancelled if the signal was cancelled, even if a tool or hook swallowed the cancellation."""
        if self.cancelled:
            raise RunCancelled

    def _end(self, scope: asyncio.Timeout) -> None:
        if self._scopes.pop(scope, None) is not None:
            scope.reschedule(0)


class RunCancelled(Exception):
    """The run's own ``CancelSignal`` was cancelled."""


class Writer:
    """Sends chunks of processors and tools: ``writer.custom(DataChunk("data-x", {...}))``.

    Sync tools may write too, from their worker threads.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._queue: deque[DataChunk] = deque()
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def custom(self, chunk: DataChunk) -> None:
        """Send a chunk to the client, in order with the others of this run, with its data as JSON as it is now.

        Raises InputError for something else.
        """
        given: Any = chunk
        if not isinstance(given, DataChunk):
            remedy = f"write DataChunk('data-...', {given!r:.100})"
            if isinstance(given, Chunk):
                remedy = "return chunks of text, reasoning and tools from process_output_stream"
            raise InputError(f"writer.custom takes a DataChunk, not {type(given).__name__}; {remedy}")
        self._queue.append(replace(chunk, data=as_json(chunk.data), run_id=self._run_id))
        if self._loop is None or self._loop is running_loop():
            self._arrived.set()
        elif not self._loop.is_closed():  # a closed loop has no reader for a worker thread's chunks
            self._loop.call_soon_threadsafe(self._arrived.set)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def take(self) -> DataChunk:
        """Return the next chunk that was written."""
        return self._queue.popleft()

    def discard(self) -> None:
        """Drop the chunks that were written and not taken."""
        self._queue.clear()

    async def arrived(self) -> None:
        """Wait until something is written, or ``wake`` is called."""
        self._loop = asyncio.get_running_loop()
        await self._arrived.wait()
        self._arrived.clear()

    def wake(self) -> None:
        """Make ``arrived`` return, so that its caller can check whether to keep waiting."""
        self._arrived.set()


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class RunContext(Generic[D]):
    """The context of one request.

    Attributes:
        thread: The thread of the request; if None, memory does nothing.
        resource_id: The owner of the thread (a user, a project); ``@thread:<id>`` if the caller passed none.
        deps: The application's own object, as passed in ``deps=``.
        request_context: Arbitrary values of this request, as passed in ``request_context=``.
        report: Memory's report on the run; it becomes ``result.memory``.
        guarded: True if one of the application's processors holds output back, or has ``process_output_result``.
        edits_in_place: True if a hook, a callback or a tool may change messages in place. If False, the run shares
            remembered messages with other runs, and memory does not look for changes between two steps.
        on_divergence: What to do if the input leaves the active branch of the thread: see ``OnDivergence``.
        waits_for: Why the run cannot begin yet, such as another run of the thread; empty if it can.
        begins_at: Time of the event loop until which the run waits to begin, or when it stopped waiting.
        waits_until: Time of the event loop until which memory may wait for a model or an embedder, or when it
            last began or ended such a wait; 0 if there was none.
        answers: Ids of the tool calls that this run answers: by approvals, or with the client's results.
        made: Ids of input messages that this call created from a text: no thread has them yet.
        usage: Tokens of the model calls that processors made.
        processor_calls: The model's id and the tokens of each of these calls.
        tool_names: The names of the current step's tools.
        has_schema: True if the current step's answer has to be JSON that fits a schema.
        finished: Ids of the input and response messages to keep if the run fails: those present when its last step
            was finished.
        store_approval: Stores the approval of tool calls before they run. If it fails, they do not run.
    """

    run_id: str
    deps: D
    messages: MessageList
    writer: Writer
    cancel: CancelSignal
    thread: ThreadRef | None = None
    resource_id: str | None = None
    request_context: dict[str, Any] = field(default_factory=dict[str, Any])
    guarded: bool = False
    edits_in_place: bool = True
    on_divergence: OnDivergence = "branch"
    waits_for: str = ""
    begins_at: float = 0
    waits_until: float = 0
    answers: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    report: MemoryReport = field(default_factory=MemoryReport)
    usage: Usage = field(default_factory=Usage)
    processor_calls: list[tuple[str, Usage]] = field(default_factory=list[tuple[str, Usage]])
    tool_names: frozenset[str] = frozenset()
    has_schema: bool = False
    finished: set[str] = field(default_factory=set[str])
    store_approval: ApprovalCallback | None = None
    _endings: list[EndCallback] = field(default_factory=list[EndCallback])
    _waits: list[Callable[[], Awaitable[object]]] = field(default_factory=list[Callable[[], Awaitable[object]]])

    @property
    def thread_id(self) -> str | None:
        return self.thread.id if self.thread else None

    @contextmanager
    def counting(self) -> Generator[None]:
        """Make ``count_usage`` count for this run inside the block."""
        token = _current.set(weakref.ref(self))
        try:
            yield
        finally:
            _current.reset(token)

    @property
    def has_endings(self) -> bool:
        """Return True if ``on_end`` was called."""
        return bool(self._endings)

    def on_end(self, callback: EndCallback, *, first: bool = False) -> None:
        """Await ``callback(outcome)`` when the run has ended, to commit or drop staged work. ``first``: before the
        callbacks registered so far, for work that belongs to the run in storage, which one of them ends."""
        self._endings.insert(0 if first else len(self._endings), callback)

    def wait_at_end(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Await ``wait()`` after all ``on_end`` callbacks, for work that continues without the run. A cancelled call
        does not wait."""
        self._waits.append(wait)

    async def settled(self) -> None:
        """Await everything registered with ``wait_at_end``."""
        for wait in self._waits:
            await wait()

    async def end(self, outcome: Outcome) -> None:
        """Call the ``on_end`` callbacks, each exactly once, in order."""
        endings, self._endings = self._endings, []
        errors: list[BaseException] = []
        for callback in endings:
            try:
                await inner_cancel_as_error(callback(outcome))
            except BaseException as error:  # the other callbacks still have to run
                errors.append(error)
        if errors:
            for further in errors[1:]:
                errors[0].add_note(f"another failure at the end of the run: {further!r}")
            raise errors[0]


# A weak reference: timers, connections and tasks created during a run keep its context variables for life, and must
# not keep all its messages alive.
_current: ContextVar[weakref.ref[RunContext[Any]] | None] = ContextVar("diarist_run", default=None)


def count_usage(model_id: str, usage: Usage) -> None:
    """Add a processor's model call to the current run, if any; the agent's own steps are counted already."""
    current = _current.get()
    run = None if current is None else current()
    if run is not None:
        run.usage += usage
        run.processor_calls.append((model_id, usage))
