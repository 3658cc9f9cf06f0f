"""``ObservationalMemoryMiddleware``: observational memory as one argument of ``create_agent``."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Command

from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError
from diarist.integrations.langchain.model import ChatModel
from diarist.integrations.langchain.open_turn import Mark, OpenTurn
from diarist.integrations.threads import is_deleted
from diarist.memory import Memory
from diarist.memory.memory import checked_memory
from diarist.sync import run_sync
from diarist.tools import ToolDefinition

Request: TypeAlias = ModelRequest[Any]
Response: TypeAlias = ModelResponse[Any] | AIMessage | ExtendedModelResponse[Any]
ToolResult: TypeAlias = ToolMessage | Command[Any]
Named: TypeAlias = str | Callable[[Runtime[Any]], str | None] | None

_THREADS = 1000
"""Threads to keep a mark of, those with the latest turns."""

_SERVER_STATE = ("previous_response_id", "conversation", "use_previous_response_id")


class ObservationalMemoryMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Gives an agent of ``create_agent`` observational memory, in all its entry points.

    Memory changes only what the model is sent. The agent's state and checkpoints stay as they are. Put it in
    ``middleware`` before those that change messages, and behind those that set the system prompt.

    Args:
        memory: Such as ``Memory(storage=..., observational_memory=True)``. Without models of its own, it calls the
            agent's.
        thread: The id of the conversation, or a function that returns it from LangGraph's ``Runtime``. Default: the
            ``thread_id`` of the run.
        resource: The owner of the thread, usually the user; an id or such a function. Default: the thread shares
            nothing with others.
        fail_open: True: a failure of memory is never raised into the agent; the model is then sent the agent's own
            messages. False: it is raised.
        on_event: Receives memory's ``data-om-*`` events. ``stream_mode="custom"`` has them, too, as dictionaries.

    Raises:
        ConfigError: When the agent calls its model: there is neither ``thread=`` nor a ``thread_id``, or the provider
            keeps the conversation, as with ``previous_response_id``.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        thread: Named = None,
        resource: Named = None,
        fail_open: bool = True,
        on_event: Callable[[DataChunk], object] | None = None,
    ) -> None:
        super().__init__()
        self._memory = checked_memory(memory)
        self.tools = [_to_theirs(tool) for tool in memory.tools]
        self._thread, self._resource = thread, resource
        self._fail_open = fail_open
        self._on_event = on_event
        self._turns: dict[tuple[object, str], OpenTurn] = {}
        self._threads: dict[OpenTurn, str] = {}
        self._idle: deque[tuple[object, str]] = deque(maxlen=256)
        self._stored: dict[str, Mark] = {}
        self._model: BaseChatModel | None = None

    def wrap_model_call(self, request: Request, handler: Callable[[Request], ModelResponse[Any]]) -> Response:
        _refuse_server_state(request)
        turn = run_sync(self._turn(request.runtime, request.model))
        while True:
            try:
                with turn.at_work():  # from the start: another run of the thread must not end it
                    return handler(run_sync(turn.prepare(request)))
            except ContextOverflowError as error:
                if not run_sync(turn.overflowed(error)):
                    raise
            except BaseException as error:
                if _stops(error):
                    run_sync(turn.end())
                raise

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[ModelResponse[Any]]]
    ) -> Response:
        _refuse_server_state(request)
        turn = await self._turn(request.runtime, request.model)
        while True:
            try:
                with turn.at_work():  # from the start: another run of the thread must not end it
                    return await handler(await turn.prepare(request))
            except ContextOverflowError as error:
                if not await turn.overflowed(error):
                    raise
            except BaseException as error:
                if _stops(error):
                    await turn.end()
                raise

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        if request.tool is not None and request.tool in self.tools:
            return run_sync(self._call(request))
        if (turn := self._turns.get(_key(get_runtime()))) is None:
            return handler(request)
        try:
            with turn.at_work():
                return handler(request)
        except BaseException as error:
            if _stops(error):
                run_sync(turn.end())
            raise

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        if request.tool is not None and request.tool in self.tools:
            return await self._call(request)
        if (turn := self._turns.get(_key(get_runtime()))) is None:
            return await handler(request)
        try:
            with turn.at_work():
                return await handler(request)
        except BaseException as error:
            if _stops(error):
                await turn.end()
            raise

    def after_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        run_sync(self._commit(state["messages"], runtime))

    async def aafter_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        await self._commit(state["messages"], runtime)

    # -- private

    async def _turn(self, runtime: Runtime[Any], model: BaseChatModel | None) -> OpenTurn:
        """Return the turn of this run of the agent. It is opened at the first call; turns of the same thread that
        stopped without an end are then ended."""
        key = _key(runtime)
        if (found := self._turns.get(key)) is not None:
            return found
        info = runtime.execution_info
        thread_id: object = None if info is None else info.thread_id  # LangGraph also takes a UUID or a number
        thread = _named(self._thread, runtime) or ("" if thread_id is None else str(thread_id))
        if not thread:
            raise ConfigError(
                "ObservationalMemoryMiddleware needs a thread: give the agent's runs a thread_id, or give the "
                "middleware thread='trip', or a function of the runtime"
            )
        self._model = model = model or self._model
        ours = None if model is None else ChatModel(model)
        resource = _named(self._resource, runtime)
        for turn in [turn for turn, its in list(self._threads.items()) if its == thread and not turn.busy]:
            await turn.end()
        if thread in self._stored and await is_deleted(self._memory, thread):
            self._stored.pop(thread, None)
        if (found := self._turns.get(key)) is not None:  # another tool of the same step has opened it meanwhile
            return found

        def left(idle: bool) -> None:
            self._turns.pop(key, None)
            self._threads.pop(opened, None)
            if idle:
                self._idle.append(key)

        opened = OpenTurn(
            lambda emit: self._memory.turn(
                thread=thread, resource=resource, model=ours, fail_open=self._fail_open, on_event=emit
            ),
            ids=thread_id is not None,  # with a checkpointer they last
            stored=self._stored.get(thread, Mark()),
            fail_open=self._fail_open,
            on_event=self._on_event,
            on_end=left,
        )
        self._turns[key], self._threads[opened] = opened, thread
        return opened

    async def _commit(self, messages: list[AnyMessage], runtime: Runtime[Any]) -> None:
        key = _key(runtime)
        turn = self._turns.get(key)
        if turn is None and key in self._idle:  # a middleware took long between the last model call and the end
            turn = await self._turn(runtime, None)
        if turn is None:
            return
        thread = self._threads[turn]
        self._stored.pop(thread, None)
        if (mark := await turn.commit(messages)).length and not self._memory.read_only:
            self._stored[thread] = mark
            if len(self._stored) > _THREADS:
                del self._stored[next(iter(self._stored))]

    async def _call(self, request: ToolCallRequest) -> ToolMessage:
        """Run a tool of memory."""
        call = request.tool_call
        turn = await self._turn(get_runtime(), None)
        with turn.at_work():
            text = await turn.call(call["name"], call["args"], call["id"] or "", request.state["messages"])
        return ToolMessage(text, tool_call_id=call["id"] or "", name=call["name"])


def _key(runtime: Runtime[Any]) -> tuple[object, str]:
    """Return a key of one run of an agent; an agent that another one calls has a different key."""
    info = runtime.execution_info
    return runtime.control, "" if info is None else info.checkpoint_ns.rpartition("|")[0]


def _named(name: Named, runtime: Runtime[Any]) -> str | None:
    return name(runtime) if callable(name) else name


def _to_theirs(tool: ToolDefinition) -> BaseTool:
    """Return a tool of memory for the model. The middleware runs its calls."""

    def run(**_: Any) -> str:
        raise NotImplementedError(f"{tool.name} runs within an agent that has the middleware")

    return StructuredTool(name=tool.name, description=tool.description, args_schema=tool.parameters, func=run)


def _stops(error: BaseException) -> bool:
    """Return True if the agent stops here. After other errors, it may call the model or the tool again."""
    return isinstance(error, GraphBubbleUp) or not isinstance(error, Exception)


def _refuse_server_state(request: Request) -> None:
    """Raise ConfigError if the provider keeps the conversation, since memory could then leave nothing out."""
    settings: dict[str, Any] = {**getattr(request.model, "model_kwargs", {}), **request.model_settings}
    settings |= getattr(request.model, "kwargs", {})  # of ``model.bind``
    for name in _SERVER_STATE:
        if settings.get(name) or getattr(request.model, name, None):
            raise ConfigError(
                f"memory cannot leave anything out of a conversation that the provider keeps: remove {name!r}"
            )
