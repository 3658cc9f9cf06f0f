"""The agent: instructions, a model, tools and a memory, and the calls that run it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, cast, overload
from weakref import WeakValueDictionary

from diarist.agent.loop import AgentRun
from diarist.agent.options import (
    MEMORY_OPTIONS,
    Approvals,
    CallOptions,
    MemoryLike,
    Processors,
    ResumeOptions,
    RunOptions,
    check_options,
    memory_options,
    merge_options,
)
from diarist.agent.result import AgentResult
from diarist.agent.resume import check_approvals
from diarist.agent.stream import AgentStream
from diarist.checks import text_or_texts, texts
from diarist.concurrency import CLEANUP_GRACE
from diarist.exceptions import ConfigError, InputError
from diarist.message_list import MessageInput, MessageList, to_messages
from diarist.messages import new_id
from diarist.models.base import Model, ModelSettings
from diarist.models.fallbacks import ModelEntry, entries_of
from diarist.models.output_type import OutputType
from diarist.processors.base import Processor
from diarist.processors.compose import leaves
from diarist.processors.pipeline import Pipeline
from diarist.processors.placement import check_history, check_list, check_places
from diarist.processors.setup import StepSetup, checked_provider_options, tools_by_name
from diarist.run_context import CancelSignal, RunContext, Writer
from diarist.storage.records import Thread, own_resource, thread_and_resource
from diarist.sync import run_sync
from diarist.tools import DepsT, NamedFunction, Tool

logger = logging.getLogger("diarist")

T = TypeVar("T")

_warned: WeakValueDictionary[int, MemoryLike] = WeakValueDictionary()
"""Memories that were used without a thread, by ``id()``: they need not be hashable."""

_PROCESSOR_LISTS = ("input_processors", "output_processors", "error_processors", "processors", "extra_processors")

_SEE_MESSAGES = ("prepare_step", "on_step_finish", "stop_when")
"""Options with a function that gets messages of the run, and may change them in place."""

_UNTIL_CANCELLED = 0.1
"""Seconds for a cancellation to reach its run when the agent is closed."""

_NO_TOOLS = tuple[NamedFunction, ...]()
"""Typed, because type checkers cannot infer ``deps`` from ``()``."""


class Agent(Generic[DepsT]):
    """A model with instructions, tools, processors and a memory.

    The type parameter is the type of the ``deps`` of its calls. Type checkers read it from the tools' ``ToolContext``;
    or write it: ``Agent[Deps](...)``.

    Args:
        model: ``"openai/gpt-5-mini"`` and the like, a ``Model``, or a pydantic-ai model object; or a list of these
            and of ``ModelEntry``, tried in order when one fails.
        name: Shown to people and in traces.
        instructions: The system prompt; several texts become several system messages.
        tools: Functions with type hints, or ``Tool`` objects.
        memory: A ``Memory``. It is used in calls that name a ``thread``, and is closed with the agent. The first call
            without a thread logs a warning.
        input_processors: Run before the model, after memory's processors, in this order.
        output_processors: Run on the model's output, before memory's processors, in this order.
        error_processors: Called, with all others that have ``process_api_error``, when a model call failed.
        processors: Appended to each of these lists for which they have hooks. Each of the four arguments may also be
            a function that takes the call's ``request_context`` and returns the list.
        max_steps: Limit of model calls in one run; a run that reaches it has ``result.stopped_by == "max_steps"``.
        max_processor_retries: Retries per step that processors may ask for; if unset, asking for one blocks the run.
        model_settings: Temperature and the like.
        default_options: Defaults for the options of ``generate`` and ``stream``.

    Raises:
        ConfigError: A model without credentials, a tool without a usable signature, two processors with one
            id, an unknown option.
    """

    def __init__(
        self,
        *,
        model: str | Model | Any,
        name: str = "agent",
        instructions: str | Sequence[str] = "",
        tools: Sequence[Tool[DepsT] | NamedFunction] = _NO_TOOLS,
        memory: MemoryLike | None = None,
        input_processors: Processors = (),
        output_processors: Processors = (),
        error_processors: Processors = (),
        processors: Processors = (),
        max_steps: int = 5,
        max_processor_retries: int | None = None,
        model_settings: ModelSettings | None = None,
        default_options: CallOptions | None = None,
    ) -> None:
        texts("Agent", name=name)
        self.name = name
        self._entries = entries_of(model)
        self.model: Model = self._entries[0].model
        self.instructions = list(text_or_texts("Agent", "instructions", instructions))
        self.tools = tools_by_name(tools)
        if memory is not None and (isinstance(memory, type) or not hasattr(memory, "input_processors")):
            raise ConfigError(f"memory must be a Memory(...), not {memory!r}")
        self.memory = memory
        self._model_settings = ModelSettings() if model_settings is None else model_settings
        own: CallOptions = {
            "max_steps": max_steps,
            "input_processors": input_processors,
            "output_processors": output_processors,
            "error_processors": error_processors,
            "processors": processors,
        }
        if max_processor_retries is not None:
            own["max_processor_retries"] = max_processor_retries
        check_options({**own, "model_settings": self._model_settings})
        self._defaults = merge_options(own, {} if default_options is None else default_options)
        fixed: list[Processor[Any]] = []
        depends_on_call = False  # True if a list is a function of the call's request_context
        for option in _PROCESSOR_LISTS:
            given: Any = self._defaults.get(option)
            if callable(given) and not isinstance(given, type):
                depends_on_call = True
            else:
                fixed += check_list(option, _processors(option, self._defaults))
        self._closed_with_agent = list({id(processor): processor for processor in leaves(fixed)}.values())
        self._pipeline = None if depends_on_call else self._compile(self._defaults)
        self._live: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}  # as AgentRun.live

    @overload
    async def generate(
        self, input: MessageInput, *, output_type: type[T], deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentResult[T]: ...
    @overload
    async def generate(
        self, input: MessageInput, *, output_type: None = None, deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentResult[None]: ...
    @overload
    async def generate(
        self, input: MessageInput, *, output_type: Any, deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentResult[Any]: ...
    async def generate(self, input: MessageInput, **options: Unpack[CallOptions]) -> AgentResult[Any]:
        """Run the agent to the end and return the result.

        Args:
            input: A text, a message, or a list of messages or OpenAI-style dictionaries.
            options: See ``CallOptions``. With ``output_type=Invoice``, the result is an ``AgentResult[Invoice]``.

        Raises:
            ModelError: The model call failed.
            ProcessorError: A processor failed. (A processor that *blocks* gives a result with ``tripwire``.)
            OutputError: The answer does not fit ``output_type``.
            ThreadBusyError: Another run of the thread did not end in time.
        """
        return await self._new_run(input, options).execute()

    @overload
    def stream(
        self, input: MessageInput, *, output_type: type[T], deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentStream[T]: ...
    @overload
    def stream(
        self, input: MessageInput, *, output_type: None = None, deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentStream[None]: ...
    @overload
    def stream(
        self, input: MessageInput, *, output_type: Any, deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentStream[Any]: ...
    def stream(self, input: MessageInput, **options: Unpack[CallOptions]) -> AgentStream[Any]:
        """Stream a run chunk by chunk: ``async with agent.stream(...) as stream: async for chunk in stream``.

        A failing run ends with an ``error`` chunk, and ``await stream.result()`` raises.
        """
        return AgentStream(self._new_run(input, options))

    @overload
    def generate_sync(
        self, input: MessageInput, *, output_type: type[T], deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentResult[T]: ...
    @overload
    def generate_sync(
        self, input: MessageInput, *, output_type: None = None, deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentResult[None]: ...
    @overload
    def generate_sync(
        self, input: MessageInput, *, output_type: Any, deps: DepsT | None = None, **options: Unpack[RunOptions]
    ) -> AgentResult[Any]: ...
    def generate_sync(self, input: MessageInput, **options: Unpack[CallOptions]) -> AgentResult[Any]:
        """Call ``generate`` from synchronous code; all such calls of a process share one event loop."""
        return run_sync(self.generate(input, **options))

    @overload
    async def resume(
        self, approvals: Approvals, *, output_type: type[T], deps: DepsT | None = None, **options: Unpack[ResumeOptions]
    ) -> AgentResult[T]: ...
    @overload
    async def resume(
        self,
        approvals: Approvals,
        *,
        output_type: None = None,
        deps: DepsT | None = None,
        **options: Unpack[ResumeOptions],
    ) -> AgentResult[None]: ...
    @overload
    async def resume(
        self, approvals: Approvals, *, output_type: Any, deps: DepsT | None = None, **options: Unpack[ResumeOptions]
    ) -> AgentResult[Any]: ...
    async def resume(
        self,
        approvals: Approvals,
        *,
        of: AgentResult[Any] | None = None,
        input: MessageInput | None = None,
        **options: Unpack[CallOptions],
    ) -> AgentResult[Any]:
        """Continue a run that ended with ``stopped_by == "approval"``, also in another process.

        Args:
            approvals: Per call id of ``result.pending``: True runs the tool; False or a reason declines it.
            of: The result of that run. With memory, it may take the place of ``thread`` and ``resource``.
            input: New input of the user.
            options: As for ``generate``; with memory and without ``of``, the same ``thread``.

        Raises:
            InputError: A call does not wait for approval, its answer is not True, False or a text, or ``of`` is a run
                of another thread.
            ConfigError: The agent's processors are not the processors that the run had.
        """
        return await self._resumed_run(approvals, of, input, options).execute()

    @overload
    def stream_resume(
        self, approvals: Approvals, *, output_type: type[T], deps: DepsT | None = None, **options: Unpack[ResumeOptions]
    ) -> AgentStream[T]: ...
    @overload
    def stream_resume(
        self,
        approvals: Approvals,
        *,
        output_type: None = None,
        deps: DepsT | None = None,
        **options: Unpack[ResumeOptions],
    ) -> AgentStream[None]: ...
    @overload
    def stream_resume(
        self, approvals: Approvals, *, output_type: Any, deps: DepsT | None = None, **options: Unpack[ResumeOptions]
    ) -> AgentStream[Any]: ...
    def stream_resume(
        self,
        approvals: Approvals,
        *,
        of: AgentResult[Any] | None = None,
        input: MessageInput | None = None,
        **options: Unpack[CallOptions],
    ) -> AgentStream[Any]:
        """Continue a run as ``resume`` does, and stream it chunk by chunk."""
        return AgentStream(self._resumed_run(approvals, of, input, options))

    async def close(self) -> None:
        """Close the memory after its background work, and the connections of the model and of the processors.

        First waits until cancelled runs are stored, at most two seconds. What was closed opens again at its next use.
        Models given to processors as objects stay open, and so do processors that are passed to a call or made by a
        function: close them yourself. If closing one fails, the others are still closed.

        ``async with agent:`` does the same at its end, but leaves a memory open that another ``async with`` still uses.
        """
        await self._close(None if self.memory is None else self.memory.close)

    async def __aenter__(self) -> Self:
        if self.memory is not None:
            await self.memory.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        memory = self.memory
        await self._close(None if memory is None else lambda: memory.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        models = [entry.model.id for entry in self._entries]
        shown = [repr(self.name), f"model={(models[0] if len(models) == 1 else models)!r}"]
        if self.tools:
            shown.append(f"tools={list(self.tools)!r}")
        if self.memory is not None:
            shown.append(f"memory={self.memory!r}")
        return f"Agent({', '.join(shown)})"

    async def _close(self, close_memory: Callable[[], Awaitable[object]] | None) -> None:
        await self._wait_for_cancelled_runs()
        async with AsyncExitStack() as stack:
            for entry in self._entries:
                stack.push_async_callback(entry.model.close)
            for processor in self._closed_with_agent:
                stack.push_async_callback(processor.close)
            if close_memory is not None:
                await close_memory()  # first: background work may use the agent's model

    async def _wait_for_cancelled_runs(self) -> None:
        """Wait until cancelled runs are stored. If the process ended before that, their threads would stay locked.

        A cancellation that has just been requested may take a moment to reach its run, through a stream and a server.
        """
        loop, caller = asyncio.get_running_loop(), asyncio.current_task()
        runs = {end: task for end, task in list(self._live.items()) if task is not caller and end.get_loop() is loop}
        if runs:
            await asyncio.wait(runs, timeout=_UNTIL_CANCELLED)
        cancelled = [end for end, task in runs.items() if task and task.cancelling() and not end.done()]
        if cancelled:
            await asyncio.wait(cancelled, timeout=CLEANUP_GRACE)

    def _compile(self, options: CallOptions) -> Pipeline:
        """Return the pipeline of a call: the processors of its lists, with memory's around them."""
        lists = {option: _processors(option, options) for option in _PROCESSOR_LISTS}
        lists["processors"] += lists.pop("extra_processors")
        for option, processors in lists.items():
            check_list(option, processors)
        check_places(lists)
        for_all = lists["processors"]
        input = [*lists["input_processors"], *for_all]
        output = [*lists["output_processors"], *for_all]
        judges = [p for p in leaves(output) if p.handles("process_output_result")]
        repeats_only = all(p.redacts_stream for p in judges) and not any(
            p.handles("process_output_step") for p in output
        )
        guarded = any(p.hold_output for p in output) or bool(judges and not repeats_only)
        call_options = memory_options(options)
        if self.memory is None:
            if call_options is not None:
                raise ConfigError(
                    f"{', '.join(MEMORY_OPTIONS)} are options of memory, and agent {self.name!r} has none"
                )
        else:
            if call_options is None:
                before = self.memory.input_processors(self.model)
            else:
                before = self.memory.input_processors(self.model, call_options)
            input = [*_without(before, input), *input]
            output = [*output, *_without(self.memory.output_processors(self.model), output)]
        check_history(input)
        return Pipeline(input, output, [*lists["error_processors"], *for_all], guarded=guarded)

    def _resumed_run(
        self,
        approvals: Approvals,
        of: AgentResult[Any] | None,
        input: MessageInput | None,
        options: CallOptions,
    ) -> AgentRun:
        answers = check_approvals(approvals)
        if not isinstance(of, AgentResult | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"of must be the result of the run that stopped, not {type(of).__name__}")
        stored_in = of.thread_id if of is not None and any(message.seq for message in of.messages) else None
        if of is not None and stored_in and not (options.get("thread") or self._defaults.get("thread")):
            options = {**options, "thread": Thread(id=stored_in, resource_id=of.resource_id or own_resource(stored_in))}
        run = self._new_run([] if input is None else input, options, empty=input is None)
        if stored_in and run.context.thread_id != stored_in:
            raise InputError(f"of is a run of the thread {stored_in!r}, but thread is {run.context.thread_id!r}")
        if of is not None:
            for message in of.conversation:
                run.context.messages.add(message, "memory")
        run.approvals = answers
        run.context.answers |= answers.keys()
        run.context.edits_in_place = True  # answers change the messages of the waiting calls
        return run

    def _new_run(self, input: MessageInput, call: CallOptions, *, empty: bool = False) -> AgentRun:
        """Return the run of a call. ``empty`` allows a run without input: one that is resumed."""
        options = merge_options(self._defaults, call)
        compiled = self._pipeline
        if compiled is None or not call.keys().isdisjoint((*_PROCESSOR_LISTS, *MEMORY_OPTIONS)):
            compiled = self._compile(options)
        messages = MessageList(self.instructions)
        if not empty:
            if isinstance(input, str) and not input.strip():  # most providers refuse it
                raise InputError("the input is an empty text")
            for message in to_messages(input):
                messages.add(message, "input")
        answers: frozenset[str] = frozenset()
        for message in reversed(messages.input):  # the client's results, if any
            if message.role != "tool":
                break
            answers |= {part.call_id for part in message.tool_parts}
        run_id = new_id("run")
        thread, resource = thread_and_resource(options.get("thread"), options.get("resource"))
        if thread is None and self.memory is not None:
            self._warn_without_thread(self.memory)
        context: RunContext[Any] = RunContext(
            run_id=run_id,
            deps=options.get("deps"),
            messages=messages,
            writer=Writer(run_id),
            cancel=options.get("cancel") or CancelSignal(),
            thread=thread,
            resource_id=resource,
            request_context=dict(options.get("request_context", {})),
            guarded=compiled.guarded,
            edits_in_place=compiled.edits_in_place
            or not options.keys().isdisjoint(_SEE_MESSAGES)
            or any(tool.takes_context for tool in self.tools.values()),
            on_divergence=options.get("on_divergence", "branch"),
            answers=answers,
            made=frozenset(message.id for message in messages.input) if isinstance(input, str) else frozenset(),
        )
        output_type = OutputType(options["output_type"]) if "output_type" in options else None
        settings = self._model_settings
        if "model_settings" in options:
            settings = options["model_settings"].over(settings)
        entries: list[ModelEntry] = entries_of(options["model"]) if "model" in options else self._entries
        setup = StepSetup(
            model=entries[0].model,
            tools=self.tools,
            tool_choice=options.get("tool_choice", "auto"),
            active_tools=list(options["active_tools"]) if "active_tools" in options else None,
            model_settings=settings,
            provider_options=checked_provider_options(options.get("provider_options", {})),
            structured_output=output_type.schema if output_type else None,
        )
        return AgentRun(
            context=context,
            pipeline=compiled.start(context),
            setup=setup,
            options=options,
            output_type=output_type,
            entries=entries,
            name=self.name,
            live=self._live,
        )

    def _warn_without_thread(self, memory: MemoryLike) -> None:
        """Warn once per memory, not once per agent: a program may create an agent for each request."""
        if id(memory) not in _warned:
            _warned[id(memory)] = memory
            logger.warning(
                "agent %r has a memory and was called without a thread: nothing of this call is remembered. Name the "
                "conversation: thread='trip', and its owner: resource='ada'; or leave memory= out. (Logged once.)",
                self.name,
            )


def _processors(option: str, options: CallOptions) -> list[Any]:
    """Return the list of processors in an option; if it is a function, the list that the function returns."""
    value: Any = options.get(option, ())
    if isinstance(value, Processor):
        raise ConfigError(f"{option} must be a list of processors; put the processor {value.id!r} into a list: [...]")
    if isinstance(value, type):
        raise ConfigError(f"{option} must be a list of processors, such as [{value.__name__}()], not a class")
    if callable(value):
        value = value(dict(options.get("request_context", {})))
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{option} must be a list of processors, not {type(value).__name__}")
    return list(cast(Sequence[Any], value))


def _without(memorys: Sequence[Processor[Any]], applications: Sequence[Processor[Any]]) -> list[Processor[Any]]:
    """Return memory's processors without those that the application replaced with one of the same id."""
    replaced = {processor.id for processor in applications}
    return [processor for processor in memorys if processor.id not in replaced]
