"""The memory turn of one run of an agent: opened at its first model call, ended with the agent, or when it stops."""

from __future__ import annotations

import asyncio
import logging
import operator
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, NamedTuple, TypeAlias, cast

from langchain.agents.middleware.types import ModelRequest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage, convert_to_messages

from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError, InputError, described
from diarist.integrations.history import UNREAD, History
from diarist.integrations.langchain.messages import arrange, outline, to_neutral, with_texts, without_half_pairs
from diarist.memory import Turn
from diarist.messages import Json, Message, TextPart

logger = logging.getLogger("diarist")

IDLE = 5.0
"""Seconds without a model call or a tool, and without an end, after which the turn is ended as interrupted."""

_ELSEWHERE = 1.0
"""Seconds to wait for the event loop of a turn to end it."""

_OVERFLOWS = 5
"""How often a prompt is made shorter, at most, before the provider's error is raised."""

Request: TypeAlias = ModelRequest[Any]


class Mark(NamedTuple):
    """A thread's history at the end of a turn: how many messages it had, and a hash of their ids."""

    length: int = 0
    digest: int = 0


def mark_of(messages: Sequence[AnyMessage]) -> Mark:
    return Mark(len(messages), hash(tuple([message.id for message in messages])))


class OpenTurn:
    """A turn, and what the agent of LangChain has given to it so far.

    It belongs to the event loop that it was made in; only ``end`` and ``at_work`` may be used from elsewhere.

    Args:
        open_turn: Returns the turn, given a function that receives its events.
        ids: True if the messages' ids last.
        stored: The end of the thread's turn before. Memory has the messages up to it, so they are not read again.
        on_end: Called once with True if the turn ends because nothing went on.
    """

    def __init__(
        self,
        open_turn: Callable[[Callable[[DataChunk], object]], Turn],
        *,
        ids: bool,
        stored: Mark,
        fail_open: bool,
        on_event: Callable[[DataChunk], object] | None,
        on_end: Callable[[bool], object],
    ) -> None:
        self._ids, self._stored = ids, stored
        self._fail_open = fail_open
        self._on_event, self._on_end = on_event, on_end
        self._write: Callable[[Any], object] | None = None
        self._turn = open_turn(self._emit)
        self._messages: Sequence[AnyMessage] = ()
        self._history = History[int]()
        self._earlier: dict[str, list[int]] = {}
        self._unread: list[int] = []
        self._start = 0
        self._told: set[str] = set()
        self._overflows = 0
        self._opening = asyncio.Lock()
        self._lock = threading.Lock()
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._at_work, self._last = 0, self._loop.time()
        self._watcher = self._loop.create_task(self._watch(), context=Context())

    @property
    def busy(self) -> bool:
        """True while a model call or a tool runs."""
        return self._at_work > 0

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Keep the turn open inside the block."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                self._last = self._loop.time()

    async def prepare(self, request: Request) -> Request:
        """Return the request as memory wants it sent."""
        self._attend(request.runtime.stream_writer)
        try:
            # An earlier middleware may have added messages in other forms, such as dictionaries.
            given = cast(list[AnyMessage], convert_to_messages(request.messages))
            history = self._read(given)
            if not history.entries:  # such as types that only the provider knows
                return request
            system = request.system_message
            prefix = [Message(role="system", parts=[TextPart(text=system.text)])] if system and system.text else []
            view = await self._turn.prompt([*prefix, *history.messages])
            if failure := view.degraded or view.warning:
                self._degraded(failure)
            if view.degraded:
                return request.override(messages=without_half_pairs(given))
            brought = {message.id for message in view.brought}
            new = zip(view.ids[len(prefix) :], history.entries, strict=True)
            sent = arrange(
                given,
                self._earlier | {message_id: entry.places for message_id, entry in new if message_id not in brought},
                order=view.order,
                brought=view.brought,
                notes=view.notes,
                always=self._always(),
            )
        except (InputError, ConfigError):
            raise
        except Exception as error:
            if not self._fail_open:
                raise
            self._degraded(f"memory failed: {described(error)}")
            return request
        return request.override(messages=sent, system_message=with_texts(system, view.system))

    async def overflowed(self, error: BaseException) -> bool:
        """Make room after the provider refused the prompt; return True if the next one is shorter."""
        self._overflows += 1
        return self._overflows <= _OVERFLOWS and await self._turn.overflowed(error)

    async def call(self, name: str, args: dict[str, Json], call_id: str, messages: Sequence[AnyMessage]) -> str:
        """Run a tool of memory. ``messages``: the agent's, if the turn has not seen any yet."""
        async with self._opening:
            if not self._messages:  # an agent goes on with tools after a pause
                await self._turn.prompt(self._read(messages).messages)
        try:
            return await self._turn.call(name, args, call_id=call_id)
        except InputError as error:  # memory does not take part now
            return str(error)

    async def commit(self, messages: Sequence[AnyMessage]) -> Mark:
        """Store the turn's messages and end it. Return how far the thread's messages are stored."""
        if not self._leave(idle=False):
            return Mark()
        history = self._read(messages)
        if not history.entries:
            await self._turn.discard()
            return self._stored
        await self._turn.commit(history.messages)
        return Mark() if self._turn.degraded else mark_of(messages)

    async def end(self, *, idle: bool = False) -> None:
        """End the turn as interrupted, which keeps its finished steps. Usable from any event loop."""
        if not self._leave(idle=idle):
            return
        here = asyncio.get_running_loop()
        if here is self._loop:
            await self._interrupt()
            return
        try:
            if self._loop.is_running():
                await asyncio.wait_for(
                    asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._interrupt(), self._loop)), _ELSEWHERE
                )
            else:
                await asyncio.wait_for(self._interrupt(), _ELSEWHERE)
        except TimeoutError:
            logger.warning("the turn of an agent that stopped could not be ended; its time to live ends it")

    # -- private

    async def _interrupt(self) -> None:
        stopped = asyncio.CancelledError()
        await self._turn.__aexit__(type(stopped), stopped, None)

    def _leave(self, *, idle: bool) -> bool:
        """Stop watching; return False if the turn was left before."""
        with self._lock:
            if self._ended:
                return False
            self._ended = True
        self._write = None
        self._on_end(idle)
        if self._loop.is_running() and asyncio.current_task() is not self._watcher:
            self._loop.call_soon_threadsafe(self._watcher.cancel)
        return True

    async def _watch(self) -> None:
        """End the turn if its agent does not go on: LangGraph does not tell it of errors, pauses and streams that the
        reader left."""
        try:
            waited = 0.0
            while self.busy or waited < IDLE:
                await asyncio.sleep(IDLE - waited if waited < IDLE else IDLE)
                waited = self._loop.time() - self._last
        except asyncio.CancelledError:  # the turn has ended, or the program's event loop ends
            await self.end()
            raise
        await self.end(idle=True)

    def _read(self, messages: Sequence[AnyMessage]) -> History[int]:
        """Return the history of the messages that are new to the thread. None is read twice."""
        known = len(self._messages)
        if known and known <= len(messages) and all(map(operator.is_, self._messages, messages)):
            history = to_neutral(messages, ids=self._ids, after=self._history, start=known)
        else:
            start = self._stored.length if self._ids and self._stored == mark_of(messages[: self._stored.length]) else 0
            history = to_neutral(messages, ids=self._ids, start=start)
            if start and not history.entries:  # the same question again
                start, history = 0, to_neutral(messages, ids=self._ids)
            self._earlier = outline(messages[:start])
            self._unread = [
                place
                for place, message in enumerate(messages[:start])
                if not isinstance(message, HumanMessage | AIMessage | ToolMessage)
            ]
            self._start = start
        self._messages, self._history = list(messages), history
        if unread := [kind for kind in history.unknown if kind not in self._told]:
            self._told.update(unread)
            self._emit(DataChunk(UNREAD, {"types": list[Json](unread)}, run_id=self._turn.run_id))
        return history

    def _always(self) -> list[int]:
        """Return the places of messages that memory does not know: they are always sent."""
        read = {place for entry in self._history.entries for place in entry.places}
        return self._unread + [place for place in range(self._start, len(self._messages)) if place not in read]

    def _attend(self, write: Callable[[Any], object]) -> None:
        """Send events to this stream of the agent from now on."""
        context = copy_context()  # LangGraph's writers read the context of the node
        self._write = lambda event: context.copy().run(write, event)

    def _degraded(self, why: str) -> None:
        """Send an event that says why memory does not take part, once."""
        if why not in self._told:
            self._told.add(why)
            self._emit(DataChunk("data-om-degraded", {"reason": why}, run_id=self._turn.run_id))

    def _emit(self, event: DataChunk) -> None:
        if self._on_event is not None:
            self._on_event(event)
        if (write := self._write) is not None:
            write(event.to_dict())
