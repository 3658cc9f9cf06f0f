"""Observational memory as a capability of a Pydantic AI agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from operator import is_
from traceback import walk_stack
from typing import Any, TypeVar, cast

from pydantic_ai import RunContext, Tool
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, AgentNode, NodeResult, WrapRunHandler
from pydantic_ai.exceptions import RetryModelRequest
from pydantic_ai.messages import (
    CapabilityEvent,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolReturnPart,
)
from pydantic_ai.models import Model as LibModel
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.result import StreamedRunResultSync
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import FunctionToolset

from diarist.chunks import DataChunk
from diarist.concurrency import being_cancelled
from diarist.exceptions import ConfigError, ContextOverflowError
from diarist.integrations.history import UNREAD, History
from diarist.integrations.pydantic_ai.messages import Place, arrange, to_neutral
from diarist.integrations.threads import is_deleted
from diarist.memory import Memory, Turn
from diarist.memory.memory import checked_memory
from diarist.messages import Json, Message
from diarist.models import LibraryModel
from diarist.models.pydantic_ai.errors import translate
from diarist.tools import ToolDefinition

K = TypeVar("K")
V = TypeVar("V")

_SERVER_STATE = ("openai_previous_response_id", "openai_conversation_id")
_SYNCHRONOUS = (AbstractAgent.run_sync.__code__, StreamedRunResultSync.__exit__.__code__)
"""The functions that run an event loop until a run ends."""

_REMEMBERED = 16
"""Maximum number of threads, and of models, that a capability keeps for the next run."""


@dataclass(kw_only=True)
class MemoryEvent(CapabilityEvent, namespace="diarist"):
    """An event of memory in the run's event stream.

    Attributes:
        type: Such as ``data-om-observation-end``.
        values: The values of the event, as JSON.
    """

    type: str = ""
    values: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class _Thread:
    """The messages of the last call, and the same in the library's form: only what follows them is read again.

    Attributes:
        stored: Number of entries that memory has. It need not get them again.
    """

    messages: Sequence[ModelMessage] = ()
    history: History[Place] = field(default_factory=History[Place])
    stored: int = 0

    def read(self, messages: Sequence[ModelMessage]) -> list[Message]:
        """Return the messages that memory may not have."""
        known = len(self.messages)
        if len(messages) < known or not all(map(is_, self.messages, messages)):
            self.history, self.stored, known = History[Place](), 0, 0
        self.messages = list(messages)
        to_neutral(messages, self.history, known=known)
        return [entry.message for entry in self.history.entries[self.stored :]]


class ObservationalMemory(AbstractCapability[AgentDepsT]):
    """Gives an agent a memory: ``Agent(model, capabilities=[ObservationalMemory(memory)])``.

    Each request has the diary at the end of the instructions, and the messages that the diary does not cover. The
    agent's own message history stays complete and unchanged. A run is a turn of the thread: it is stored when it ends,
    and as interrupted if it fails or is cancelled.

    If the Observer and the Reflector have no model of their own, they use the run's model. Their calls appear in no
    stream, usage or trace of the run.

    Args:
        memory: May serve any number of agents.
        resource: The owner of the thread, such as the id of a user: a text, or a function of the run's context. None:
            the thread shares nothing with others.
        thread: The conversation: a text, or a function of the run's context. Default: the run's ``conversation_id``,
            which is new in each run that has neither ``conversation_id=`` nor ``message_history=``.
        fail_open: True: a failure of memory does not end the run. The messages are then sent as they are. False: it is
            raised.
        on_event: Receives memory's ``data-om-*`` events. The run's event stream has those that come before its last
            request, as ``MemoryEvent``.

    Raises:
        ConfigError: From a run with ``openai_previous_response_id`` or ``openai_conversation_id``: with these, OpenAI
            keeps the conversation.
        InputError: From a run on a thread of another resource.
        StorageError: From a run, if memory failed and ``fail_open`` is False.
    """

    id: str | None = "observational-memory"

    def __init__(
        self,
        memory: Memory,
        *,
        resource: str | Callable[[RunContext[AgentDepsT]], str] | None = None,
        thread: str | Callable[[RunContext[AgentDepsT]], str] | None = None,
        fail_open: bool = True,
        on_event: Callable[[DataChunk], object] | None = None,
    ) -> None:
        self.memory = checked_memory(memory)
        self._resource, self._thread = resource, thread
        self._fail_open, self._on_event = fail_open, on_event
        self._threads: dict[str, _Thread] = {}
        self._models: dict[int, LibraryModel] = {}
        self._turn: Turn | None = None
        self._state = _Thread()
        self._events: list[DataChunk] = []
        self._unread: set[str] = set()
        self._at_error: list[ModelMessage] = []

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> ObservationalMemory[AgentDepsT]:
        """Return a copy with the state of one run."""
        run = copy(self)
        run._turn, run._state, run._events, run._unread, run._at_error = None, _Thread(), [], set(), []
        return run

    def get_toolset(self) -> FunctionToolset[AgentDepsT] | None:
        """Return memory's own tools, such as ``recall``."""
        tools = [self._tool(definition) for definition in self.memory.tools]
        return FunctionToolset(tools, id=self.id) if tools else None

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Keep the run as one turn of the thread. A synchronous run ends when its notes are made."""
        try:
            return await self._keep_run(ctx, handler)
        finally:
            if _stops_loop() and not being_cancelled():
                await self.memory.settled(here=True)

    async def _keep_run(self, ctx: RunContext[AgentDepsT], handler: WrapRunHandler) -> AgentRunResult[Any]:
        thread = self._value(self._thread, ctx) or ctx.conversation_id
        if thread is None:
            raise ConfigError("the run has no conversation_id; pass thread= to ObservationalMemory")
        state = self._state = self._threads.pop(thread, self._state)
        if state.stored and await is_deleted(self.memory, thread):
            state.stored = 0
        self._turn = self.memory.turn(
            thread=thread,
            resource=self._value(self._resource, ctx),
            model=self._model(cast(LibModel, ctx.model)),
            fail_open=self._fail_open,
            on_event=self._receive,
            deps=ctx.deps,
        )
        async with self._turn as turn:
            try:
                result = await handler()
            except Exception:
                # Keep the results of tools that the run could not send to the model, as after a usage limit.
                last = self._at_error[-1] if self._at_error else None
                has_results = isinstance(last, ModelRequest) and any(isinstance(p, ToolReturnPart) for p in last.parts)
                if has_results and last not in state.messages:
                    await turn.commit(state.read(self._at_error))
                raise
            if given := state.read(result.all_messages()):
                await turn.commit(given)
        state.stored = 0 if turn.degraded or self.memory.read_only else state.history.complete
        _keep(self._threads, thread, state)
        return result

    async def prepare_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Replace the messages of an attempt, and add the diary to its instructions."""
        _check_settings(request_context.model_settings)
        given, state = self._state.read(request_context.messages), self._state
        if not given:  # the same question again
            given, state.stored = state.history.messages, 0
        if self._turn is None or not given:
            return request_context
        if unread := [kind for kind in state.history.unknown if kind not in self._unread]:
            self._unread.update(unread)
            self._receive(DataChunk(UNREAD, {"types": list[Json](unread)}))
        view = await self._turn.prompt(given)
        for message, stored_id in zip(given, view.ids, strict=True):  # memory may have it under another id
            message.id = stored_id
        events, self._events = self._events, []
        for event in events:
            await ctx.emit(MemoryEvent(type=event.type, values=event.to_dict()["data"]))
        if view.degraded:
            return request_context
        parameters = request_context.model_request_parameters
        given = parameters.instruction_parts or []
        # Providers can cache the part of the system prompt before the first dynamic block.
        dynamic = any(part.dynamic for part in given)
        diary = [InstructionPart(text, dynamic=dynamic) for text in view.system]
        system = request_context.model.system
        return replace(
            request_context,
            messages=arrange(request_context.messages, state.history, view, stored=state.stored, system=system),
            model_request_parameters=replace(parameters, instruction_parts=[*given, *diary]),
        )

    async def on_model_request_error(
        self, ctx: RunContext[AgentDepsT], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Try again with a shorter prompt after the provider refused one as too long."""
        overflow = translate(error, request_context.model.system)
        if isinstance(overflow, ContextOverflowError) and self._turn and await self._turn.overflowed(overflow):
            raise RetryModelRequest from error
        raise error

    async def on_node_run_error(
        self, ctx: RunContext[AgentDepsT], *, node: AgentNode[AgentDepsT], error: Exception
    ) -> NodeResult[AgentDepsT]:
        """Remember the messages of a run that may fail: another capability can still rescue it."""
        self._at_error = list(ctx.messages)
        raise error

    def _receive(self, event: DataChunk) -> None:
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def _model(self, model: LibModel) -> LibraryModel:
        """Return the run's model for memory's own calls, without the run's instrumentation."""
        while isinstance(model, InstrumentedModel):
            model = model.wrapped
        ours = self._models.pop(id(model), None) or LibraryModel.around(model)
        _keep(self._models, id(model), ours)  # holds the model, so no other one gets its id
        return ours

    def _tool(self, definition: ToolDefinition) -> Tool[AgentDepsT]:
        async def call(ctx: RunContext[AgentDepsT], **args: Any) -> str:
            if self._turn is None or self._turn.degraded:
                return "Memory is not available now."
            return await self._turn.call(definition.name, args, call_id=ctx.tool_call_id or "")

        return Tool[AgentDepsT].from_schema(
            call, definition.name, definition.description, definition.parameters, takes_ctx=True
        )

    @staticmethod
    def _value(option: str | Callable[[RunContext[AgentDepsT]], str] | None, ctx: RunContext[AgentDepsT]) -> str | None:
        return option(ctx) if callable(option) else option


def _stops_loop() -> bool:
    """Return True in a synchronous run: its event loop stops with the run, and background work on it would, too."""
    return any(frame.f_code in _SYNCHRONOUS for frame, _ in walk_stack(None))


def _keep(values: dict[K, V], key: K, value: V) -> None:
    """Add a value as the newest, and drop the oldest of too many."""
    values[key] = value
    while len(values) > _REMEMBERED:
        del values[next(iter(values))]


def _check_settings(settings: ModelSettings | None) -> None:
    """Raise ConfigError for settings with which the provider keeps the conversation."""
    for name in _SERVER_STATE:
        if settings is not None and settings.get(name) is not None:
            raise ConfigError(
                f"{name} keeps the conversation at OpenAI, where memory cannot select messages; remove it"
            )
