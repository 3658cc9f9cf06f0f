"""Observational memory for runs of OpenAI's Agents SDK."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary, finalize

from agents import (
    Agent,
    FunctionTool,
    InputGuardrailTripwireTriggered,
    Model,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunHooks,
    Session,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    TResponseInputItem,
)
from agents.models import get_default_model
from agents.run import AgentRunner, CallModelData, ModelInputData
from agents.tool_context import ToolContext

from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError, InputError, described
from diarist.integrations.history import UNREAD, History
from diarist.integrations.openai_agents.hooks import RunnerHooks
from diarist.integrations.openai_agents.messages import ItemReader, arrange, has_summary
from diarist.integrations.openai_agents.model import AgentsModel
from diarist.integrations.openai_agents.session import MemorySession, Wrapper
from diarist.integrations.threads import is_deleted
from diarist.memory import Memory, Turn
from diarist.memory.memory import checked_memory
from diarist.messages import Message
from diarist.models.base import Model as OurModel
from diarist.run_context import ThreadRef
from diarist.storage.records import Thread, thread_and_resource
from diarist.tools import ToolDefinition

logger = logging.getLogger("diarist")

Items = list[TResponseInputItem]

_TRIPWIRES = (
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)

_NO_SESSION = (
    "memory sees no session of this run: pass session=om.session to the runner, beside run_config=om.run_config(). "
    "It cannot work with a conversation on OpenAI's servers (conversation_id, previous_response_id, "
    "auto_previous_response_id). If you resume a run in a new process, pass hooks=om.hooks, too"
)

_NO_RUN_CONFIG = "memory cannot select messages: pass run_config=om.run_config() beside session=om.session"


class ObservationalMemory:
    """Memory of one conversation, for the SDK's runner::

        om = ObservationalMemory(memory, thread="trip", resource="ada")
        await Runner.run(agent, text, session=om.session, run_config=om.run_config(), hooks=om.hooks)

    Args:
        thread, resource: As for ``memory.turn``.
        session: A session of yours, which keeps the items. Default: a list in this object. Runs of other objects are
            not in it, but in memory.
        model: A model, or its id, for the Observer, the Reflector and titles, if they have none of their own. Default:
            the model of the agent that runs.
        read_only, last_messages, semantic_recall: As for ``memory.turn``.
        fail_open: True: a failure of memory does not end the run; the items go out as they are, and ``degraded`` says
            why. False: it is raised.
        on_event: Receives memory's ``data-om-*`` events. They are not in the SDK's stream.

    Attributes:
        session: For ``Runner.run(session=...)``.
        hooks: For ``Runner.run(hooks=...)``. Optional: with them, memory also knows answers that a guardrail blocked,
            answers that are the output of a tool, and handoffs with a filter.
        degraded: Why memory did not take part in the last model call, or could not take notes; otherwise empty.

    Raises:
        ConfigError: The session keeps its items on OpenAI's servers.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        thread: str | ThreadRef | Thread,
        resource: str | None = None,
        session: Session | None = None,
        model: str | OurModel | None = None,
        read_only: bool | None = None,
        last_messages: int | Literal[False] | None = None,
        semantic_recall: bool | None = None,
        fail_open: bool = True,
        on_event: Callable[[DataChunk], object] | None = None,
    ) -> None:
        self._memory, self._thread, self._model = checked_memory(memory), thread, model
        self._fail_open, self._on_event = fail_open, on_event
        self._read_only = memory.read_only if read_only is None else read_only
        self._options: dict[str, Any] = {
            "thread": thread,
            "resource": resource,
            "read_only": read_only,
            "last_messages": last_messages,
            "semantic_recall": semantic_recall,
            "fail_open": fail_open,
            "on_event": on_event,
        }
        ref, _ = thread_and_resource(thread, resource)
        if ref is None:
            raise ConfigError("ObservationalMemory needs a thread: thread='trip'")
        self._thread_id = ref.id
        self._unfinished = _UNFINISHED.setdefault(memory, {}).setdefault(ref.id, set())
        self._reader = ItemReader()
        self._named: set[str] = set()
        self._started = self._configured = False
        self.session = MemorySession(ref.id, session, opened=self._opened, added=self._added)
        self.hooks = self.hooks_with(None)
        self.degraded = ""

    def run_config(self, theirs: RunConfig | None = None) -> RunConfig:
        """Return a configuration for the runner: a copy of yours, or the default, with memory's filter.

        A ``call_model_input_filter`` of yours sees what memory sends.
        """
        config = theirs or RunConfig()
        self._configured = True

        async def select(data: CallModelData[Any]) -> ModelInputData:
            sent = await self._send(data, config)
            if config.call_model_input_filter is None:
                return sent
            filtered = config.call_model_input_filter(replace(data, model_data=sent))
            return await filtered if isawaitable(filtered) else filtered

        return replace(config, call_model_input_filter=select)

    def hooks_with(self, theirs: RunHooks[Any] | None) -> RunHooks[Any]:
        """Return ``hooks`` that also call your own."""
        return RunnerHooks(
            theirs, tool_starts=self._tool_starts, handed_off=self._handed_off, agent_ends=self._agent_ends
        )

    @property
    def tools(self) -> list[FunctionTool]:
        """Memory's tools, such as ``recall``, for ``Agent(tools=[...])``. They work on the conversation that runs."""
        return [_function_tool(tool) for tool in self._memory.tools]

    # -- the runner's calls, in their order

    async def _opened(self, wrapper: Wrapper) -> None:
        """A run reads the session: at its start, and sometimes later."""
        run = _CURRENT.get()
        if run is None or run.wrapper is not wrapper:
            await self._start(wrapper)

    async def _start(self, wrapper: Wrapper) -> _Run:
        """Begin a run, and end those that a failure left without an end."""
        if not self._configured:
            raise ConfigError(_NO_RUN_CONFIG)
        self._started = True
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        for run in [run for run in self._unfinished if run.task is task or run.is_over]:
            await run.end()
        run = _Run(self, wrapper, task, self._unfinished)
        _CURRENT.set(run)
        return run

    async def _send(self, data: CallModelData[Any], config: RunConfig) -> ModelInputData:
        """Return what to send to the model."""
        given = data.model_data
        run = _CURRENT.get()
        if run is None or run.memory is not self:
            if not self._started:
                raise ConfigError(_NO_SESSION)
            return given
        if not run.goes_on_with(given.input, data.agent):
            return given
        self.degraded = ""
        try:
            sent = await self._selected(run, data, config)
        except (ConfigError, InputError):
            raise
        except Exception as error:  # any error: it would end the user's run
            if not self._fail_open:
                raise
            logger.exception("memory of thread %s did not take part in a model call", self.session.session_id)
            self.degraded, sent = described(error), None
        return sent or given

    async def _selected(self, run: _Run, data: CallModelData[Any], config: RunConfig) -> ModelInputData | None:
        items = run.without_summary(data.model_data.input)
        run.given, run.added, run.agent, run.in_step, run.done = items, [], data.agent, True, False
        try:
            history = self._reader.read(items)
            if run.turn is None and await self._needs_all(history):
                self._reader = ItemReader()
                history = self._reader.read(items)
        except InputError as error:
            raise ValueError(str(error)) from error  # not the caller's mistake
        turn, run.start = run.turn, min(run.start, self._reader.stored)  # a handoff filter may change earlier items
        if turn is None:
            run.start = self._reader.stored
            turn = self._turn(data, config)
            await run.open(turn)
        elif run.start == len(history.entries):
            raise ValueError("a handoff filter left no message for the next agent")
        self._name_unknown(history.unknown)
        entries = list(history.entries)
        given = entries[run.start :]
        view = await turn.prompt([entry.message for entry in given])
        for entry, message_id in zip(given, view.ids, strict=True):  # memory has ids for messages without one
            entry.message.id = message_id
        self.degraded = view.degraded or view.warning
        if view.degraded:
            return None
        instructions = [data.model_data.instructions, *view.system]
        return ModelInputData(
            input=arrange(items, entries, view), instructions="\n\n".join(filter(None, instructions)) or None
        )

    async def _needs_all(self, history: History[int]) -> bool:
        """Return True if memory must be given its messages again: nothing else is new, or its thread was deleted."""
        stored = self._reader.stored
        return stored > 0 and (stored == len(history.entries) or await is_deleted(self._memory, self._thread_id))

    def _turn(self, data: CallModelData[Any], config: RunConfig) -> Turn:
        return self._memory.turn(**self._options, model=self._model or _model_of(data.agent, config), deps=data.context)

    def _name_unknown(self, kinds: Sequence[str]) -> None:
        if new := [kind for kind in kinds if kind not in self._named]:
            self._named |= {*new}
            if self._on_event is not None:
                self._on_event(DataChunk(UNREAD, {"types": cast(Any, new)}, transient=True))

    async def _added(self, wrapper: Wrapper, items: Items) -> None:
        """A run has added items: the question, a finished step, or the answer."""
        run = _CURRENT.get()
        if run is None or run.wrapper is not wrapper:
            run = await self._start(wrapper)
        if run.agent is None and run.has_input and "assistant" in map(_kind, items):  # memory did not see the call
            logger.warning("a run of thread %s went on without memory: %s", self.session.session_id, _NO_RUN_CONFIG)
            self.degraded = _NO_RUN_CONFIG
        run.has_input = True
        if run.turn is None or run.is_input(items):
            return
        run.in_step = False
        run.added += items
        try:
            await self._store(run)
        except Exception as error:  # any error: the session has the items, and the user's run goes on
            if not self._fail_open:
                raise
            logger.exception("memory of thread %s did not store a turn", self.session.session_id)
            self.degraded = described(error)

    async def _store(self, run: _Run) -> None:
        """Commit the turn if the run is over, or waits for approval of a call."""
        messages = self.messages_of(run)
        waits = any(part.state == "call" for message in messages for part in message.tool_parts)
        kinds = [_kind(item) for item in run.added]
        if not (run.answered or waits or kinds[-1] == "assistant" or "mcp_approval_request" in kinds):
            return
        turn = run.close()
        if turn is not None:
            if run.ending is not None:
                run.ending.cancel()
            await turn.commit(messages)
            if not turn.degraded and not self._read_only:
                self._reader.keep()
            if run.stops_loop:
                await self._memory.settled(here=True)

    def messages_of(self, run: _Run) -> list[Message]:
        """Return what the run has so far, for its turn."""
        return [entry.message for entry in self._reader.read([*run.given, *run.added]).entries[run.start :]]

    def _tool_starts(self) -> None:
        """A tool of a run starts, perhaps before the run is seen: a resumed run starts with the approved tools."""
        self._started = True

    def _handed_off(self) -> None:
        """Another agent goes on with the run. A filter of the handoff may change the items that it is given."""
        run = _CURRENT.get()
        if run is not None and run.memory is self:
            run.in_step = False

    def _agent_ends(self) -> None:
        """A run has an answer, which guardrails can still block."""
        run = _CURRENT.get()
        if run is not None and run.memory is self:
            run.answered = True


class _Run:
    """A run of the SDK, as far as it is seen.

    Attributes:
        given: The items of the last model call.
        added: What the run has added to the session since.
        start: Number of entries that the thread had before the turn.
        agent: The agent of the last model call.
        has_input: The run has added items, first of all its input.
        in_step: A model call, or its tools, are at work: other calls are of agents that run as tools.
        answered: The run has an answer that is not in the session yet.
        done: The turn is committed.
        over: Has a result as soon as the SDK has ended the run.
        ending: Ends the turn when the run or ``task`` has ended, if it is open then.
    """

    def __init__(
        self, memory: ObservationalMemory, wrapper: Wrapper, task: asyncio.Task[Any], unfinished: set[_Run]
    ) -> None:
        self.memory, self.wrapper, self.task = memory, wrapper, task
        self._unfinished = unfinished
        self.turn: Turn | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ending: asyncio.Task[None] | None = None
        self.given: Items = []
        self.added: Items = []
        self.start = 0
        self.agent: Agent[Any] | None = None
        self.has_input = self.in_step = self.answered = self.done = False

    @property
    def stops_loop(self) -> bool:
        """True in ``Runner.run_sync``: its event loop stops with the run, and background work on it would, too."""
        return getattr(self.task.get_coro(), "cr_code", None) is AgentRunner.run.__code__

    @property
    def is_over(self) -> bool:
        """True if the runner, or its task, has ended."""
        return self.task.done() or self.over.done()

    def goes_on_with(self, items: Items, agent: Agent[Any]) -> bool:
        """Return True if this model call is of the run itself, not of an agent that runs as a tool."""
        if not self.in_step and not self.done:
            return True
        seen = [*self.given, *self.added]
        return (self.done or agent is self.agent) and items[: len(seen)] == seen

    def without_summary(self, items: Items) -> Items:
        """Return the items of this run in place of the SDK's summary of them: ``nest_handoff_history``."""
        seen = [*self.given, *self.added]
        return items if self.turn is None or items[: len(seen)] == seen or not has_summary(items) else seen

    def is_input(self, items: Items) -> bool:
        """Return True for items that the last model call was given; a streamed run stores its question after it."""
        return (not self.added and self.given[-len(items) :] == items) or not any(map(_is_output, items))

    async def open(self, turn: Turn) -> None:
        """Keep the turn of this run, and end it with the run."""
        self.turn = turn
        self._unfinished.add(self)
        self.ending = asyncio.create_task(self._end_with_run())
        _ENDING.add(self.ending)
        self.ending.add_done_callback(_ENDING.discard)
        await asyncio.sleep(0)  # let it see the runner, which now waits for this call

    def close(self) -> Turn | None:
        """Return the turn that is to be ended."""
        turn, self.turn, self.done = self.turn, None, True
        return turn

    async def end(self) -> None:
        """End the turn now: another run of the thread begins."""
        if self.ending is not None and self.over.get_loop() is asyncio.get_running_loop():
            _finish(self.over)
            await asyncio.wait({self.ending})
        else:  # its event loop may have stopped
            await self.abandon()
            self._unfinished.discard(self)

    async def _end_with_run(self) -> None:
        """End a turn that is still open when its run has ended: the run failed."""
        task, over = self.task, self.over
        if runner := _runner_of(task):
            finalize(runner, _finish, over).atexit = False
            del runner  # so that it is freed when it ends, also if the task lives on and keeps the error
        with suppress(asyncio.CancelledError):  # at its end, asyncio.run cancels this task, and waits for it
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        if self.turn is not None:
            await self.abandon(task.exception() if task.done() and not task.cancelled() else None)
        self._unfinished.discard(self)

    async def abandon(self, error: BaseException | None = None) -> None:
        """End the turn of a run that failed: discarded, if a guardrail is known to have ended it; or with the finished
        steps."""
        answered, turn = self.answered, self.close()
        if turn is None:
            return
        try:
            if answered or isinstance(error, _TRIPWIRES):
                await turn.discard()
            elif self.added:  # a finished step that no model call was given
                await turn.commit(self.memory.messages_of(self))
            else:
                await turn.__aexit__(InterruptedError, InterruptedError(), None)
        except Exception:  # any error: it must not end the next run
            logger.exception("the turn of a failed run was not ended")


_CURRENT: ContextVar[_Run | None] = ContextVar("diarist_openai_agents_run", default=None)
"""The run of this context. Tools inherit it, and agents that run as tools."""

_UNFINISHED: WeakKeyDictionary[Memory, dict[str, set[_Run]]] = WeakKeyDictionary()
"""Runs with an open turn, by memory and thread."""

_ENDING: set[asyncio.Task[None]] = set()


def _runner_of(task: asyncio.Task[Any]) -> Any:
    """Return the coroutine of the runner that a waiting task is in, the innermost of several; None: it is not seen,
    since the task runs it in an async generator or an object that can be awaited."""
    found, waits = None, cast(Any, task.get_coro())
    while waits is not None:
        if getattr(waits, "cr_code", None) is AgentRunner.run.__code__:
            found = waits
        waits = getattr(waits, "cr_await", None)
    return found


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _function_tool(tool: ToolDefinition) -> FunctionTool:
    async def call(context: ToolContext[Any], raw: str) -> str:
        run = _CURRENT.get()
        if run is None or run.turn is None:
            return "memory does not take part in this run"
        return await run.turn.call(tool.name, raw, call_id=context.tool_call_id)

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.parameters,
        on_invoke_tool=call,
        strict_json_schema=False,
    )


def _model_of(agent: Agent[Any], config: RunConfig) -> OurModel:
    """Return the model that the SDK calls for this agent, for memory's own calls."""
    chosen = config.model or agent.model
    settings = agent.model_settings.resolve(config.model_settings)
    if isinstance(chosen, Model):
        return AgentsModel(lambda: chosen, str(getattr(chosen, "model", type(chosen).__name__)), store=settings.store)
    name = chosen
    return AgentsModel(lambda: config.model_provider.get_model(name), name or get_default_model(), store=settings.store)


def _kind(item: TResponseInputItem) -> str:
    """Return the role of a message, and the type of another item."""
    found = cast(dict[str, Any], item)
    return str(found.get("role") or found.get("type"))


def _is_output(item: TResponseInputItem) -> bool:
    return _kind(item) not in ("user", "system", "developer")
