"""A turn of a loop of your own: memory for programs that call the model themselves.

A ``Turn`` runs memory's processors as an agent's loop does, so both leave the same messages, diary and prompts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from diarist.chunks import Chunk, DataChunk
from diarist.concurrency import cancel_and_wait, shield_until_done
from diarist.encoding import parse_arguments
from diarist.exceptions import ConfigError, ContextOverflowError, DiaristError, InputError, described
from diarist.memory.background import Background
from diarist.memory.divergence import fold_results, key_of
from diarist.message_list import MessageInput, MessageList, Snapshot, SystemMessage, to_messages
from diarist.messages import Json, Message, Part, Prompt, PromptMessage, ToolPart, as_text, new_id
from diarist.models.base import Model, ModelRequest, ModelSettings
from diarist.processors.hook_calls import OnError, OnInputStep, OnRequest, OnResponse
from diarist.processors.pipeline import Pipeline
from diarist.processors.setup import StepSetup
from diarist.prompt_cache import MemoryReport
from diarist.prompting import build_prompt, join_results
from diarist.run_context import CancelSignal, OnDivergence, Outcome, RunContext, ThreadRef, Writer
from diarist.tools import Tool, ToolContext

T = TypeVar("T")

logger = logging.getLogger("diarist")

LONGEST_FAILURE = 1.0
"""Seconds until a turn with ``fail_open`` stops waiting for memory that does not answer. Time in which the event loop
is busy with other work does not count."""
_SLICE, _BUSIEST = 0.05, 5
"""Seconds of waiting after which a turn looks how busy the event loop was; the most busy time that does not count, as a
multiple of ``LONGEST_FAILURE``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """The next request, as memory wants it sent. Shared with other turns: do not change it.

    Attributes:
        prompt: The whole prompt: the given system messages, memory's, then the other messages. Pass it to
            ``diarist.convert.to_openai`` or ``to_anthropic``.
        system: Memory's system texts, in order. They follow the caller's instructions, and stay the same, byte for
            byte, until the diary changes.
        ids: The id of each given message, in order: the stored one, if the thread has it. A tool's result has the id of
            the message with its call, and a system message has an empty one.
        order: The ids of the messages of ``prompt``, in order.
        keep: The ids of the given messages that can be sent as they were given: never a call without its result.
        brought: Messages of ``prompt`` that cannot be sent as given: stored messages that the caller left out, and
            given messages from which calls without a result were removed.
        notes: By the id of a user message, the memory note to put before its text.
        cache: Indexes of ``prompt.messages`` after which a provider should set a cache breakpoint, at most four.
        tools: Memory's tools for the model, such as ``recall``. ``Turn.call`` runs them.
        degraded: Why memory did not take part, so that the prompt has the given messages alone; empty if it did.
        warning: Why memory could not take notes, or waits after a failure before it takes notes again; empty if it
            could. The prompt has all that memory knows.
    """

    prompt: Prompt
    system: list[str]
    ids: list[str]
    order: list[str]
    keep: list[str]
    brought: list[Message]
    notes: dict[str, str]
    cache: list[int]
    tools: list[Tool]
    degraded: str = ""
    warning: str = ""

    @property
    def messages(self) -> list[PromptMessage]:
        """The messages of the prompt without system messages, ready to send. Notes are inside."""
        return [message for message in self.prompt.messages if message.role != "system"]

    def arrange(
        self, given: Sequence[T], *, make: Callable[[Message], Iterable[T]], note: Callable[[T, str], T]
    ) -> list[T]:
        """Return the prompt's messages in the caller's own form, without system messages.

        Args:
            given: The caller's messages, one for each that ``Turn.prompt`` was given. Kept ones are returned unchanged,
                except those with a note.
            make: Converts a message of ``brought``.
            note: Returns a user message with a memory note before its text.
        """
        theirs: dict[str, list[T]] = defaultdict(list)
        for message_id, message in zip(self.ids, given, strict=True):
            theirs[message_id].append(message)
        ours = {message.id: message for message in self.brought}
        out: list[T] = []
        for message_id in self.order:
            found = list(make(ours[message_id])) if message_id in ours else list(theirs[message_id])
            if found and message_id in self.notes:
                found[0] = note(found[0], self.notes[message_id])
            out += found
        return out

    def __repr__(self) -> str:
        failures = {"degraded": self.degraded, "warning": self.warning}
        named = "".join([f", {name}={text!r}" for name, text in failures.items() if text])
        return f"TurnView({len(self.prompt.messages)} messages, {len(self.brought)} brought{named})"


class NamedModel(Model):
    """The model of a loop of the caller's own: memory knows its name, and cannot call it."""

    def __init__(self, model_id: str) -> None:
        self.provider, _, self.name = model_id.partition("/")

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        raise ConfigError(f"{self.id} is called by your own loop; give memory.turn(model=...) a model to call")


class _Events(Writer):
    """Passes events to the caller when they are written."""

    def __init__(self, run_id: str, on_event: Callable[[DataChunk], object] | None) -> None:
        super().__init__(run_id)
        self._on_event = on_event

    def custom(self, chunk: DataChunk) -> None:
        if self._on_event is not None:
            try:
                self._on_event(chunk)
            except Exception:
                logger.exception("on_event failed; the turn is not affected")


@dataclass(frozen=True, slots=True)
class _LoopHistory:
    """The loop's history at one call.

    Attributes:
        ids: An id per given message; empty for system messages.
        system: The system texts.
        messages: The other messages, with the tools' results inside their calls.
        inserted: Those that the loop inserted before known ones, by the id of the next known one.
    """

    ids: list[str]
    system: list[str]
    messages: list[Message]
    inserted: dict[str, list[Message]]


class Turn:
    """Memory for one turn of a loop of your own: one question and the model calls that answer it.

    ``async with memory.turn(...) as turn`` opens it. Leaving the block stores the turn; an exception ends it as
    interrupted, which keeps the finished steps. For the arguments, see ``Memory.turn``.

    Attributes:
        degraded: Why memory does not take part; empty if it does.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        background: Background,
        model: Model,
        thread: ThreadRef,
        resource: str,
        on_divergence: OnDivergence,
        fail_open: bool,
        on_event: Callable[[DataChunk], object] | None,
        deps: Any,
    ) -> None:
        self._processors = pipeline
        self._background = background
        self._model = model
        self._on_divergence: OnDivergence = on_divergence
        self._thread, self._resource, self._deps = thread, resource, deps
        self._fail_open = fail_open
        self._on_event = on_event
        self._known: list[Message] = []  # the loop's messages so far, with the tools' results inside their calls
        self._asked: set[str] = set()  # ids of the messages of the first call: the question
        self._last_input: MessageInput | None = None
        self._tools: dict[str, Tool] = {}
        self._ended = False
        self._failed = False  # memory failed before the run began: the turn goes on without it, and stores at its end
        self.degraded = ""
        self._begin()

    def _begin(self) -> None:
        """Start with a run that has no messages and is not stored yet."""
        run_id = new_id("run")
        self._context: RunContext[Any] = RunContext(
            run_id=run_id,
            deps=self._deps,
            messages=MessageList(),
            writer=_Events(run_id, self._on_event),
            cancel=CancelSignal(),
            thread=self._thread,
            resource_id=self._resource,
            on_divergence=self._on_divergence,
            edits_in_place=False,
        )
        self._pipeline = self._processors.start(self._context)
        self._added: dict[str, list[Part]] = {}  # the messages that the run has, by id, with their parts
        self._before: Snapshot | None = None  # the run's messages before memory prepared the current step
        self._request: ModelRequest | None = None
        self._step = 0
        self._opened = False

    @property
    def run_id(self) -> str:
        """The id of the stored run."""
        return self._context.run_id

    @property
    def report(self) -> MemoryReport:
        """Memory's report on the turn, as in ``AgentResult.memory``."""
        return self._context.report

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        try:
            if kind is None:
                await self.commit()
        finally:
            if not self._ended:
                await self._end("interrupted")

    async def prompt(self, messages: MessageInput) -> TurnView:
        """Return the request for the next model call. Call it before each one.

        Stores the messages that are new since the last call, runs memory work that is due, and selects the messages to
        send. After a failed model call, call it again with the same messages.

        Args:
            messages: The loop's own history so far: the user's new message, perhaps earlier ones before it, and the
                model's answers and the tools' results of this turn. Messages of the thread may be missing, and may be
                given again. A message that the loop later inserts before known ones is sent, but not stored. A user
                message that moves, such as a reminder at the end of each request, keeps its first place.

        Raises:
            InputError: A message cannot be read, the thread belongs to another resource, or the turn has ended.
            StorageError: Memory failed, and ``fail_open`` is False.
        """
        self._check_open()
        history = self._read(messages)
        if not history.messages:
            raise InputError("there is nothing to answer: all messages are system messages")
        if self._failed:
            return self._view(history, None)
        self.degraded = self.report.warning = ""
        try:
            is_prepared = await self._attempt(self._prepare(history))
            self._failed = not is_prepared and not self._opened
        except BaseException:
            if not self._opened:  # the caller may correct the messages
                self._known, self._asked = [], set()
            raise
        finally:
            if not self._opened:
                self._abandon_run()
        return self._view(history, self._request.prompt if is_prepared and self._request is not None else None)

    async def commit(self, messages: MessageInput | None = None) -> None:
        """Store the turn's new messages and end it. Leaving the block does the same.

        If memory failed before the turn began and still does not answer, it stores the turn in the background, and
        ``degraded`` says so.

        Args:
            messages: The loop's history with the final answer. Default: the list that ``prompt`` was given last, with
                everything that was added to it since.

        Raises:
            InputError: A message cannot be read, or the turn has ended.
            StorageError: The messages cannot be stored, and ``fail_open`` is False.
        """
        self._check_open()
        given = self._last_input if messages is None else messages
        if given is not None:
            self._read(given)
            self.degraded = ""
            await self._attempt(self._store(), bounded=self._failed, at_end=True)
        if not self._ended:
            await self._end("committed")

    async def discard(self) -> None:
        """End the turn without keeping any of its messages, such as after a guardrail blocked it."""
        self._check_open()
        await self._end("discarded")

    async def overflowed(self, error: BaseException | str) -> bool:
        """Make room after the provider refused the prompt as too long.

        Returns:
            True if the next ``prompt`` is shorter: call it again. False if memory cannot make it shorter.
        """
        self._check_open()
        if not self._opened:
            return False
        overflow = error if isinstance(error, ContextOverflowError) else ContextOverflowError(str(error))
        messages = self._context.messages
        call = OnError(messages=messages, error=overflow, model=self._model, steps=[], retry_count=0)
        return await self._attempt(self._pipeline.ask(call)) and call.retry

    async def call(self, name: str, args: dict[str, Json] | str, *, call_id: str = "") -> str:
        """Run one of memory's tools (``TurnView.tools``) and return its result for the model; errors are results, too.

        ``args`` may be the JSON text of the model. Raises InputError for a tool that memory does not have.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise InputError(f"memory has no tool {name!r}; it has: {', '.join(self._tools) or 'none'}")
        if isinstance(args, str):
            args, wrong = parse_arguments(args)
            if wrong:
                return wrong
        try:
            return as_text(
                await cast(Any, tool.bind(args, ToolContext(run=self._context, call_id=call_id, tool_name=name))())
            )
        except DiaristError as error:
            return str(error)

    # -- a step

    def _read(self, messages: MessageInput) -> _LoopHistory:
        """Read the loop's history, and add what is new in it to ``_known``."""
        given = to_messages(messages)
        self._last_input = messages
        folded, folded_places = fold_results([message for message in given if message.role != "system"])
        new, inserted = self._recognize(folded)
        is_first_call = not self._known
        latest = {message.id: message for message in folded}
        self._known = [latest.get(message.id, message) for message in self._known] + new
        if is_first_call:
            self._asked = {message.id for message in folded}
        at_place = iter(folded_places)
        ids = ["" if message.role == "system" else folded[next(at_place)].id for message in given]
        return _LoopHistory(ids, [m.text for m in given if m.role == "system" and m.text], folded, inserted)

    def _recognize(self, folded: Sequence[Message]) -> tuple[list[Message], dict[str, list[Message]]]:
        """Give the messages that the loop gave before their known ids. Return the new messages, and as in
        ``_LoopHistory`` those that the loop inserted.

        A loop may keep no ids, so a message is also known by its content. Such messages are looked for in order; a
        user message may also have moved. Messages before a known one are inserted, unless it has moved behind them.
        Answers before all known messages are earlier ones of the thread, given again.
        """
        place_of_id = {message.id: place for place, message in enumerate(self._known)}
        places_of: dict[object, list[int]] = defaultdict(list)  # indexes in _known, by content
        for place, message in enumerate(self._known):
            places_of[key_of(message)].append(place)
        taken = {place_of_id[message.id] for message in folded if message.id in place_of_id}
        next_place = 0
        new: list[Message] = []
        waiting: list[Message] = []  # inserted, or new if no known message follows
        inserted: dict[str, list[Message]] = {}
        for message in folded:
            place = place_of_id.get(message.id)
            if place is None:
                free = [place for place in places_of[key_of(message)] if place not in taken]
                in_order = [place for place in free if place >= next_place]
                place = next(iter(in_order or (free if message.role == "user" else ())), None)
            if place is None:
                waiting.append(message)
                continue
            message.id = self._known[place].id
            taken.add(place)
            has_answer = any([one.role != "user" for one in waiting])
            if next_place and (place < next_place or (has_answer and message.role == "user")):
                new += waiting  # the known message has moved behind them
            elif waiting and (next_place or not has_answer):  # otherwise earlier messages of the thread, given again
                inserted[message.id] = waiting
            next_place, waiting = max(next_place, place + 1), []
        return new + waiting, inserted

    async def _store(self) -> None:
        """Add the messages that are new, or have new results, to the run; the first ones begin it."""
        messages = self._context.messages
        answered = False  # the model was called since the last time
        for message in self._known:
            if self._added.get(message.id) != message.parts:
                is_asked = message.id in self._asked
                answered |= message.id not in self._added and not is_asked
                messages.add(message, "input" if is_asked or message.role != "assistant" else "response")
                self._added[message.id] = list(message.parts)
                self._before = None
        if not self._opened:
            if isinstance(self._last_input, str):
                self._context.made = frozenset(self._asked)
            await self._pipeline.open()
            self._opened = True
        self._context.finished = {message.id for message in messages.of("input", "response")}
        if answered:
            if (request := self._request) is not None:
                await self._pipeline.ask(
                    OnResponse(messages=messages, request=request, model=self._model, response=[], from_cache=False)
                )
            self._step += 1

    async def _prepare(self, history: _LoopHistory) -> None:
        """Run memory's processors for the next model call, and build its request."""
        await self._store()
        messages, pipeline, model = self._context.messages, self._pipeline, self._model
        pipeline.state.step_number = self._step
        if self._before is not None:  # the same call again
            messages.restore(self._before)
        messages.replace_system([SystemMessage(text) for text in history.system])
        self._before = messages.snapshot()
        setup = StepSetup(model=model, tools={}, model_settings=ModelSettings(), provider_options={})
        await pipeline.ask(OnInputStep(messages=messages, setup=setup, steps=[]))
        request = ModelRequest(
            prompt=build_prompt(messages.system, self._window(history), cache_breakpoints=True, reuse=True),
            tools=[tool.definition for tool in setup.tools.values()],
        )
        await pipeline.ask(OnRequest(messages=messages, request=request, model=model))
        self._request, self._tools = request, setup.tools

    def _window(self, history: _LoopHistory) -> list[Message]:
        """Return the run's messages for the prompt, with those that the loop inserted."""
        window = self._context.messages.messages
        if not history.inserted:
            return window
        places = {message.id: place for place, message in enumerate(window)}
        stored = _stored_ids(history.messages, window)
        shown = places.keys() | stored.keys()
        at = [  # memory's notes may cover the next message
            (places.get(stored.get(next_id, next_id), 0), [one for one in messages if one.id not in shown])
            for next_id, messages in history.inserted.items()
        ]
        for place, messages in reversed(sorted(at, key=lambda one: one[0])):
            window[place:place] = messages
        return window

    def _view(self, history: _LoopHistory, prompt: Prompt | None) -> TurnView:
        """Return the view of a request; None: memory failed, so the given messages are sent alone."""
        window, tools = self._window(history), list(self._tools.values())
        if "tool" in [message.role for message in window]:
            window = join_results(window)
        if prompt is None:
            window, tools = history.messages, []
            prompt = build_prompt([SystemMessage(text) for text in history.system], window, cache_breakpoints=True)
        stored = _stored_ids(history.messages, window)
        # A call whose result only memory has is not sent as it was given: that would be half of a pair.
        complete = {stored.get(message.id, message.id) for message in history.messages if not has_open_calls(message)}
        sent = {message.message_id for message in prompt.messages}
        order, keep, brought, notes = list[str](), list[str](), list[Message](), dict[str, str]()
        for message in window:
            if message.id not in sent:
                continue
            order.append(message.id)
            if message.rendered is None and has_open_calls(message):  # a rendered message has none
                parts = [part for part in message.parts if not isinstance(part, ToolPart) or part.state != "call"]
                brought.append(replace(message, parts=parts))
            elif message.id in complete:
                keep.append(message.id)
            else:
                brought.append(message)
            if message.sent is not None and message.sent.text and message.role == "user":
                notes[message.id] = message.sent.text
        texts = [message.text for message in takewhile(lambda message: message.role == "system", prompt.messages)]
        return TurnView(
            prompt=prompt,
            system=texts[len(history.system) :],
            ids=[stored.get(message_id, message_id) for message_id in history.ids],
            order=order,
            keep=keep,
            brought=brought,
            notes=notes,
            cache=[index for index, message in enumerate(prompt.messages) if message.cache],
            tools=tools,
            degraded=self.degraded,
            warning=self.report.warning,
        )

    # -- the end, and failures

    def _abandon_run(self) -> None:
        """End a run that failed to begin, in the background, so that it does not hold the thread; prepare another."""
        context = self._context
        self._background.start(f"{context.run_id}:end", lambda: context.end("discarded"))
        self._begin()

    async def _end(self, outcome: Outcome) -> None:
        self._ended = True
        try:
            await shield_until_done(partial(self._context.end, outcome))
            await self._context.settled()
        except Exception as error:
            if not self._fail_open:
                raise
            self._stand_aside(f"the end of the turn was not stored: {described(error)}")

    def _check_open(self) -> None:
        if self._ended:
            raise InputError("this turn has ended; open another with memory.turn(...)")

    async def _end_late(self, storing: asyncio.Task[None]) -> None:
        """Wait for the turn's messages to be stored, and end it."""
        try:
            await storing
        finally:
            await self._end("committed")

    async def _attempt(self, work: Coroutine[Any, Any, None], *, bounded: bool = True, at_end: bool = False) -> bool:
        """Do memory's work. With ``fail_open``, return False if it fails, or if ``bounded`` and it does not answer.

        Mistakes of the caller are raised either way. Waiting for the Observer or the Reflector is no failure. At the
        end of the turn, neither is waiting for another turn of the thread; and what takes too long then goes on in the
        background.
        """
        if not self._fail_open:
            await work
            return True
        task, now = asyncio.create_task(work), asyncio.get_running_loop().time
        started, busy = now(), 0.0
        try:
            while not task.done():
                # After a wait, the work has its full time to answer again.
                context = self._context
                waits_until = max(context.waits_until, context.begins_at if at_end else 0)
                left = max(started, waits_until) + busy + LONGEST_FAILURE - now()
                if bounded and left <= 0:
                    why = context.waits_for or f"memory did not answer within {LONGEST_FAILURE:g} s"
                    if at_end:
                        self._ended = self._background.start(f"{self.run_id}:end", partial(self._end_late, task))
                        self._stand_aside(f"{why}; it stores the turn in the background")
                    else:
                        task.cancel()
                        task.add_done_callback(_log_late_error)
                        self._stand_aside(why)
                    return False
                # A wait for the Observer may be over long before its time.
                due = now() + min(left, LONGEST_FAILURE, _SLICE)
                await asyncio.wait({task}, timeout=due - now() if bounded else None)
                busy = min(busy + max(0.0, now() - due), _BUSIEST * LONGEST_FAILURE)
        except asyncio.CancelledError:
            await cancel_and_wait(task)
            raise
        try:
            task.result()
        except (InputError, ConfigError):
            raise
        except Exception as error:
            self._stand_aside(described(error))
            return False
        return True

    def _stand_aside(self, why: str) -> None:
        self.degraded = why
        logger.warning("the turn of thread %s goes on without memory: %s", self._thread.id, why)


def _stored_ids(given: Sequence[Message], window: Sequence[Message]) -> dict[str, str]:
    """Return the ids under which the thread has given messages, which may have no lasting ones. Of equal messages, the
    last ones are the same."""
    given_ids, shown = {message.id for message in given}, {message.id for message in window}
    loose = defaultdict[object, list[str]](list)
    for message in given:
        if message.id not in shown:
            loose[key_of(message)].append(message.id)
    stored: dict[str, str] = {}
    for message in reversed(window) if loose else ():
        if message.id not in given_ids and (same := loose.get(key_of(message))):
            stored[same.pop()] = message.id
    return stored


def has_open_calls(message: Message) -> bool:
    """Return True if a tool call in an assistant's message has no result in it."""
    if message.role != "assistant":
        return False
    return any([isinstance(part, ToolPart) and part.state == "call" for part in message.parts])


def _log_late_error(task: asyncio.Task[None]) -> None:
    """Take the error of a task that nothing waits for any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("memory answered too late: %s", error)
