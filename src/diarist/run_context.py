"""What belongs to one request: its ids, messages, dependencies, writer, cancel signal and what it spent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from diarist.chunks import Chunk, DataChunk, Usage
from diarist.concurrency import at_work, contained
from diarist.message_list import MessageList
from diarist.messages import Json, Message
from diarist.prompt_cache import MemoryReport

D = TypeVar("D")

Outcome = Literal["committed", "discarded", "interrupted"]
"""How a run ended: well; blocked, so that nothing of it may stay; or broken off by an error or the caller."""

EndCallback = Callable[[Outcome], Awaitable[None]]

ApprovalCallback = Callable[[Message, Sequence[str]], Awaitable[None]]
"""Gets a message and the ids of those of its tool calls that were approved and are about to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRef:
    """A thread as a call names it; title and metadata are used when the thread is created."""

    id: str
    title: str = ""
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])


class CancelSignal:
    """Hand one to a call as ``cancel=`` and call ``cancel()``, from any thread, to end that run.

    A signal given to several calls ends them all; given before a call, it ends that call at once.

    Attributes:
        cancelled: ``cancel()`` was called. A sync tool can look at it between two pieces of work.
        reason: What ``cancel()`` was told; empty before.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.cancelled = False
        self._tasks: dict[asyncio.Task[Any], int] = {}  # how many runs of a task: a hook may run another agent
        self._told: set[asyncio.Task[Any]] = set()

    def cancel(self, reason: str = "cancelled by the caller") -> None:
        """End the run: its model call and tools stop; finished steps are kept, and results of tools that had ended."""
        if self.cancelled:
            return
        self.cancelled, self.reason = True, reason
        for task in list(self._tasks):
            if task.get_loop() is _running_loop():
                self._tell(task)
            else:
                task.get_loop().call_soon_threadsafe(self._tell, task)

    def attach(self) -> None:
        """The current task is the run; a signal given before takes effect at its first wait."""
        task = _current_task()
        self._tasks[task] = self._tasks.get(task, 0) + 1
        if self.cancelled:
            self._tell(task)

    async def checkpoint(self) -> None:
        """End the current task's run here if the signal was given, also where a tool or hook has swallowed it."""
        if not self.cancelled:
            return
        task = _current_task()
        if task.cancelling() == 0:  # not told yet, or somebody took it for his own
            self._told.add(task)
            task.cancel()
        await asyncio.sleep(0)
        raise asyncio.CancelledError(self.reason)

    def take(self) -> bool:
        """Whether it was this signal, and nobody else, that cancelled the current task.

        False inside another run of the same task, which has to hear of the cancellation too.
        """
        task = _current_task()
        if self._tasks.get(task, 0) > 1:
            return False
        told = task in self._told
        self._told.discard(task)
        return told and task.uncancel() == 0

    async def detach(self) -> None:
        """This run of the current task is no longer to be cancelled, nor by a signal that has not taken effect yet."""
        task = _current_task()
        left = self._tasks.pop(task, 0) - 1
        if left > 0:
            self._tasks[task] = left
        elif self.take():
            try:
                await asyncio.sleep(0)  # it would arrive here
            except asyncio.CancelledError:
                if task.cancelling():  # this one is somebody else's
                    raise

    def _tell(self, task: asyncio.Task[Any]) -> None:
        if task in self._tasks and task not in self._told:
            self._told.add(task)
            task.cancel()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "a run is always somebody's task"
    return task


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Writer:
    """Where processors and tools put chunks of their own: ``writer.custom(DataChunk("data-x", {...}))``.

    Sync tools may write too, from their worker threads.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._queue: deque[Chunk] = deque()
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def custom(self, chunk: DataChunk) -> None:
        """Send a chunk to the client, in order with the others of this run."""
        self.put(chunk)

    def put(self, chunk: Chunk) -> None:
        """Send a chunk of any type; the loop's own door."""
        chunk.run_id = self._run_id
        self._queue.append(chunk)
        if self._loop is None or self._loop is _running_loop():
            self._arrived.set()
        elif not self._loop.is_closed():  # a worker thread that outlived its run's loop writes to nobody
            self._loop.call_soon_threadsafe(self._arrived.set)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def drain(self) -> list[Chunk]:
        """Take what has been written since the last time."""
        # One by one: a worker thread may write meanwhile.
        return [self._queue.popleft() for _ in range(len(self._queue))]

    async def arrived(self) -> None:
        """Wait until something is written, or ``wake`` is called."""
        self._loop = asyncio.get_running_loop()
        await self._arrived.wait()
        self._arrived.clear()

    def wake(self) -> None:
        """Let whoever waits for something to be written look whether there is still a reason to wait."""
        self._arrived.set()


@dataclass(slots=True, kw_only=True)
class RunContext(Generic[D]):
    """One request.

    Attributes:
        thread: The thread it belongs to; None without one, and then memory does nothing.
        resource_id: Whose thread it is (a user, a project); the thread's own id where the caller named none.
        deps: The application's own object, as passed in ``deps=``.
        request_context: Free values of this request, as passed in ``request_context=``.
        report: What memory tells about the run; it becomes ``result.memory``.
        guarded: A processor of the user's judges the output at the end, or holds it back until accepted.
        edits_in_place: Somebody may change what messages say in place between two steps: a hook, a callback, a tool of
            the agent's. What others change so is stored when the run ends.
        made: Ids of the input messages that this call has made of a text: no thread has them.
        usage: Tokens of the model calls that processors made.
        finished: Ids of the input and response messages that are kept if the run is broken off: those that stood
            when its last step was finished.
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
    made: frozenset[str] = frozenset()
    report: MemoryReport = field(default_factory=MemoryReport)
    usage: Usage = field(default_factory=Usage)
    finished: set[str] = field(default_factory=set[str])
    _endings: list[EndCallback] = field(default_factory=list[EndCallback])
    _waits: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])
    _approvals: list[ApprovalCallback] = field(default_factory=list[ApprovalCallback])

    @property
    def thread_id(self) -> str | None:
        return self.thread.id if self.thread else None

    @contextmanager
    def counting(self) -> Generator[None]:
        """Let ``count_usage`` count for this run inside the block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @property
    def has_endings(self) -> bool:
        """Whether somebody waits to hear how the run ends."""
        return bool(self._endings)

    def on_end(self, callback: EndCallback) -> None:
        """Have ``callback(outcome)`` awaited when the run has ended: commit or drop what was staged for it."""
        self._endings.append(callback)

    def wait_at_end(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Have ``wait()`` awaited once everyone has heard of the end: for work that goes on without the run. Who
        cancels the call is not kept waiting."""
        self._waits.append(wait)

    async def settled(self) -> None:
        """Wait as was asked for."""
        for wait in self._waits:
            await wait()

    def on_approval(self, callback: ApprovalCallback) -> None:
        """Have ``callback`` awaited before approved tool calls run: note for good that they did."""
        self._approvals.append(callback)

    async def approve(self, message: Message, call_ids: Sequence[str]) -> None:
        """Tell everyone who asked that these calls of ``message`` run now. What one raises keeps them from it."""
        for callback in self._approvals:
            await callback(message, call_ids)

    async def end(self, outcome: Outcome) -> None:
        """Tell everyone who asked, each exactly once, in the order in which they asked."""
        endings, self._endings = self._endings, []
        errors: list[BaseException] = []
        me = asyncio.current_task()
        for callback in endings:
            try:
                await contained(callback(outcome))
            except BaseException as error:  # whatever it is: the others still have to hear of the end
                if not at_work(me):
                    raise
                errors.append(error)
        if errors:
            for further in errors[1:]:
                errors[0].add_note(f"another failure at the end of the run: {further!r}")
            raise errors[0]


_current: ContextVar[RunContext[Any] | None] = ContextVar("diarist_run", default=None)


def count_usage(usage: Usage) -> None:
    """Add the tokens of a model call to the run that it was made for, if any; those of an agent's own steps are
    counted already."""
    run = _current.get()
    if run is not None:
        run.usage += usage
