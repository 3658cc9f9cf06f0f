"""Sends a run's chunks through the stream hooks to its reader, and holds them back until they are accepted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import Any, TypeVar

from diarist.agent.held_output import accepted_chunks
from diarist.chunks import (
    Chunk,
    DataChunk,
    FileChunk,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceChunk,
    StepStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallChunk,
    ToolResultChunk,
)
from diarist.concurrency import cancel_and_wait
from diarist.exceptions import DiaristError
from diarist.messages import (
    CUT_KEY,
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolPart,
    copy_json,
)
from diarist.processors.pipeline import PipelineRun
from diarist.processors.stream import StreamHooks
from diarist.run_context import RunContext

T = TypeVar("T")

AHEAD = 64
"""How many chunks a run may be ahead of its reader before it waits."""


class ChunkQueue:
    """A queue with one reader and several writers.

    Attributes:
        closed: No further chunk will come.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._chunks: deque[Chunk] = deque()
        self.closed = False
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    async def send(self, chunk: Chunk) -> None:
        """Add a chunk of the run; wait while the reader is far behind."""
        chunk.run_id = self._run_id
        self._chunks.append(chunk)
        _wake(self._reader)
        while len(self._chunks) >= AHEAD and not self.closed:
            waiter = asyncio.get_running_loop().create_future()
            self._writers.append(waiter)
            await waiter

    def finish(self, chunk: Chunk | None = None) -> None:
        """Add the last chunk and close; never waits."""
        if chunk is not None:
            chunk.run_id = self._run_id
            self._chunks.append(chunk)
        self.closed = True
        _wake(self._reader, *self._writers)

    async def next(self) -> Chunk:
        """Return the next chunk. Raises StopAsyncIteration at the end, and DiaristError if another task waits."""
        while not self._chunks:
            if self.closed:
                raise StopAsyncIteration
            if self._reader is not None and not self._reader.done():
                raise DiaristError("this stream is being read by another task already; read it in one place")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        chunk = self._chunks.popleft()
        if self._writers and len(self._chunks) < AHEAD:
            _wake(*self._writers)
            self._writers.clear()
        return chunk


def _wake(*waiters: asyncio.Future[None] | None) -> None:
    for waiter in waiters:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class MessageAssembler:
    """Builds the message of one step from its chunks.

    A block of text or reasoning is collected in ``_pieces`` until it ends or anything else begins; then it becomes a
    part. ``_block`` is the kind of the open block; without one, ``_pieces`` is empty.

    Attributes:
        args_errors: Per call id, why the model's arguments could not be read.
    """

    def __init__(self, run_id: str) -> None:
        self.args_errors: dict[str, str] = {}
        self._run_id = run_id
        self._parts: list[Part] = []
        self._block: type[TextPart | ReasoningPart] | None = None
        self._pieces: list[str] = []

    def add(self, chunk: Chunk) -> None:
        """Add a chunk. Chunks without a part, such as ``step-start``, are ignored."""
        match chunk:
            case TextDelta() | ReasoningDelta():
                kind = TextPart if isinstance(chunk, TextDelta) else ReasoningPart
                if self._block is not kind:
                    self._close()
                    self._block = kind
                self._pieces.append(chunk.payload.text)
            case TextStart():
                self._close()
            case ReasoningStart():
                self._close()
                self._block = ReasoningPart  # encrypted thinking has no text, only a signature
            case TextEnd() if self._block is TextPart:
                self._close(chunk)
            case ReasoningEnd() if self._block is ReasoningPart:
                self._close(chunk)
            case ToolCallChunk(payload=call):
                self._close()
                if call.args_error:
                    self.args_errors[call.tool_call_id] = call.args_error
                self._parts.append(
                    ToolPart(
                        call_id=call.tool_call_id,
                        name=call.tool_name,
                        args=copy_json(call.args),
                        provider_executed=call.provider_executed,
                        provider_data=call.provider_data,
                    )
                )
            case ToolResultChunk(payload=found):  # of a tool that the provider ran
                for part in self._parts:
                    if isinstance(part, ToolPart) and part.call_id == found.tool_call_id and part.provider_executed:
                        part.state, part.result = "result", found.result
                        part.provider_data = {**(part.provider_data or {}), **(found.provider_data or {})} or None
            case FileChunk(payload=file):
                self._close()
                self._parts.append(FilePart(media_type=file.media_type, data=file.data, url=file.url))
            case SourceChunk(payload=source):
                self._close()
                self._parts.append(SourcePart(url=source.url, title=source.title, id=source.id))
            case DataChunk() if not chunk.transient:
                self._close()
                self._parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))
            case _:
                pass

    def cut(self) -> Message | None:
        """Return the message so far of an answer that was stopped, marked as such; None if it says nothing.

        Unfinished reasoning is left out, since providers refuse it.
        """
        if self._block is ReasoningPart:
            self._block, self._pieces = None, []
        message = self.message()
        if message is None or not (message.text.strip() or message.tool_parts):
            return None
        message.metadata[CUT_KEY] = True
        return message

    def message(self) -> Message | None:
        """End the open block and return the message so far; None if the model said nothing."""
        self._close()
        if not self._parts:
            return None
        return Message(role="assistant", parts=list(self._parts), run_id=self._run_id)

    def _close(self, end: TextEnd | ReasoningEnd | None = None) -> None:
        """Finish the open block, if any; drop it if it is empty."""
        text = "".join(self._pieces)
        data = end.payload.provider_data if end else None
        if self._block is TextPart and text:
            self._parts.append(TextPart(text=text, provider_data=data))
        elif self._block is ReasoningPart:
            signature, provider = None, None
            if isinstance(end, ReasoningEnd):
                signature, provider = end.payload.signature, end.payload.provider
            if text or signature or data:
                self._parts.append(ReasoningPart(text=text, signature=signature, provider=provider, provider_data=data))
        self._block, self._pieces = None, []


class StreamWriter:
    """Sends a run's chunks through the stream hooks, into the step's message, and to the ``queue`` if there is one.

    The way of a chunk::

        send, drain  ->  feed (stream hooks)  ->  _emit (message; held back?)  ->  forward (reader)

    ``send`` takes a chunk of the model or the step, ``drain`` the chunks that processors and tools have written;
    ``forward`` alone is for chunks that belong to no message.

    Attributes:
        has_hooks: A processor has ``process_output_stream``.
        unkept: Data sent between steps, to be stored with the next step's message.
        before_guards: Chunks are held back because the input guards have not passed yet.
        before_verdict: Chunks are held back because the step was not accepted yet.
        begun: The reader has this step's ``step-start``.
    """

    def __init__(self, context: RunContext[Any], pipeline: PipelineRun, queue: ChunkQueue | None) -> None:
        self._run_id = context.run_id
        self._writer = context.writer
        self._pipeline = pipeline
        self.has_hooks = pipeline.has("process_output_stream")
        self._queue = queue
        self._hooks: StreamHooks | None = None
        self._complete = False
        self._assembler: MessageAssembler | None = None  # None between steps
        self._added: Callable[[], list[Message]] = list  # as in ``begin_step``; between steps, no messages
        self._held: deque[Chunk] = deque()  # not empty only while one of the two flags is set, or during ``_flush``
        self.unkept: list[DataChunk] = []
        self.before_guards = False
        self.before_verdict = False
        self.begun = False

    # -- steps

    def begin_step(
        self, assembler: MessageAssembler, added: Callable[[], list[Message]], *, hold: bool, guards: bool
    ) -> None:
        """Begin a step: send its chunks through new stream hooks, and put them into its message.

        Args:
            added: Returns the messages that the step added, for data that arrives after they are complete.
        """
        self.leave()
        self._assembler, self._added = assembler, added
        self.before_verdict, self.before_guards, self.begun = hold, guards, False

    def complete(self) -> None:
        """Mark the response as complete: from now on, hooks may return no new text, and messages accept only data."""
        self._complete = True
        if self._hooks is not None:
            self._hooks.complete = True

    async def end_step(self, error: BaseException | None = None) -> None:
        """Leave the step. After an error, send the data chunks that were written before it, but do not store them."""
        self.leave(error)
        if isinstance(error, Exception):
            stored_later = len(self.unkept)
            await self.drain()  # opens new stream hooks
            del self.unkept[stored_later:]
            self.leave()
        self._held.clear()
        self.before_verdict = self.before_guards = False

    def leave(self, error: BaseException | None = None) -> None:
        """Close the open stream hooks, which ends their spans, and go back to the state between steps."""
        if self._hooks is not None:
            self._hooks.close(error)
        self._hooks, self._complete = None, False
        self._assembler, self._added = None, list  # a bound method would create a reference cycle

    async def release(self, parts: Sequence[Part], running: Collection[str] = ()) -> None:
        """Send the reader the chunks of an accepted step, made again from ``parts``. Needed only if ``before_verdict``.

        Args:
            running: Ids of calls that have no result yet.
        """
        parts = list(parts)
        for chunk in self.unkept:  # the reader has these already
            with suppress(ValueError):
                parts.remove(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))
        self._held = accepted_chunks(self._held, parts, running)
        self.before_verdict = False
        await self._flush()

    async def guards_passed(self) -> None:
        """Send the reader the chunks that were held back for the input guards."""
        self.before_guards = False
        await self._flush()

    async def _flush(self) -> None:
        while self._held and not (self.before_guards or self.before_verdict):
            await self.forward(self._held.popleft())

    # -- chunks

    async def send(self, chunk: Chunk) -> None:
        """Send a chunk as the stream hooks return it, after the chunks that they wrote."""
        passed: Iterable[Chunk] = await self.feed(chunk) if self.has_hooks else (chunk,)
        if self._writer:
            await self.drain()
        if self.has_hooks and isinstance(chunk, StepStart):  # drop text that hooks still held from a failed attempt
            passed = dropwhile(lambda each: not isinstance(each, StepStart | DataChunk), passed)
        await self._emit(passed)

    async def drain(self) -> None:
        """Send the chunks that processors and tools have written."""
        while self._writer:
            chunk = self._writer.take()  # one by one: another chunk may be written, and sent, while a hook waits
            await self._emit(await self.feed(chunk))

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, and send the chunks that it writes at once; all are sent before an error is raised.

        Without a reader, there is no hurry: they are sent at the end, and ``work`` needs no task of its own.
        """
        if self._queue is None:
            try:
                result = await work
            except Exception:
                await self.drain()
                raise
            await self.drain()
            return result
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._writer.wake())
        try:
            while not task.done():
                await self._writer.arrived()
                await self.drain()
            await self.drain()
            return await task
        finally:
            await cancel_and_wait(task)

    async def feed(self, chunk: Chunk) -> Sequence[Chunk]:
        """Return the chunks that the stream hooks return for a chunk."""
        chunk.run_id = self._run_id
        if not self.has_hooks:
            return (chunk,)
        if self._hooks is None:  # the first chunk opens them
            self._hooks = self._pipeline.open_stream()
            self._hooks.complete = self._complete
        return await self._hooks.feed(chunk)

    async def forward(self, chunk: Chunk) -> None:
        """Send the reader a chunk, without putting it into a message."""
        self.begun = self.begun or isinstance(chunk, StepStart)
        if self._queue is not None:
            await self._queue.send(chunk)

    async def _emit(self, chunks: Iterable[Chunk]) -> None:
        """Put chunks into the step's message, and send them to the reader or hold them back."""
        for chunk in chunks:
            if self._assembler is None:
                if not isinstance(chunk, DataChunk):  # text that a hook still held from a failed attempt
                    continue
                if not chunk.transient:
                    self.unkept.append(chunk)
            elif not self._complete:
                self._assembler.add(chunk)
            elif isinstance(chunk, DataChunk) and not chunk.transient:
                if added := self._added():
                    added[0].parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))
                else:
                    chunk.transient = True  # the step left no message to store it with
            if self.before_guards or self.before_verdict or self._held:
                self._held.append(chunk)
            elif isinstance(chunk, StepStart):
                await self.forward(chunk)
            elif self._queue is not None:  # as ``forward``, without a call per chunk
                await self._queue.send(chunk)
