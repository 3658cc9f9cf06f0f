"""The agent: instructions, a model, tools and a memory, and the calls that run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from diarist.agent.loop import Run
from diarist.agent.options import CallOptions, MemoryLike, merge_options
from diarist.agent.output import OutputType
from diarist.agent.result import AgentResult
from diarist.agent.setup import StepSetup, tools_by_name
from diarist.agent.stream import AgentStream, read
from diarist.agent.sync import run_sync
from diarist.exceptions import ConfigError
from diarist.message_list import MessageInput, MessageList, to_messages
from diarist.messages import new_id
from diarist.models.base import Model, ModelSettings
from diarist.models.resolve import resolve
from diarist.processors.base import Processor
from diarist.processors.pipeline import Pipeline, overrides
from diarist.run_context import CancelSignal, RunContext, ThreadRef, Writer
from diarist.tools import Tool


class Agent:
    """An agent.

    Args:
        model: ``"openai/gpt-5-mini"`` and the like, a ``Model``, or a pydantic-ai model object.
        name: For people and traces.
        instructions: What the model is told first; several texts become several system messages.
        tools: Functions with type hints, or ``Tool`` objects.
        memory: A ``Memory``; it acts in calls that name a ``thread``.
        input_processors: Run before the model, after memory's, in this order.
        output_processors: Run on what the model says, before memory's, in this order.
        max_steps: Model calls of one run; reaching it shows in ``result.stopped_by``.
        max_processor_retries: Attempts per step that a processor may ask for again; unset, asking blocks.
        model_settings: Temperature and the like.
        default_options: Defaults for every option of ``generate`` and ``stream``.

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
        tools: Sequence[Tool | Callable[..., Any]] = (),
        memory: MemoryLike | None = None,
        input_processors: Sequence[Processor[Any]] = (),
        output_processors: Sequence[Processor[Any]] = (),
        max_steps: int = 5,
        max_processor_retries: int | None = None,
        model_settings: ModelSettings | None = None,
        default_options: CallOptions | None = None,
    ) -> None:
        self.name = name
        self.model = resolve(model)
        self.instructions = [instructions] if isinstance(instructions, str) else list(instructions)
        self.tools = tools_by_name(tools)
        self.memory = memory
        self._model_settings = model_settings or ModelSettings()
        self._input, self._output = list(input_processors), list(output_processors)
        own: CallOptions = {"max_steps": max_steps}
        if max_processor_retries is not None:
            own["max_processor_retries"] = max_processor_retries
        self._defaults = merge_options(own, default_options or {})
        self._pipeline, self._judged = self._compile(self._input, self._output)

    async def generate(self, input: MessageInput, **options: Unpack[CallOptions]) -> AgentResult[Any]:
        """Run to the end.

        Args:
            input: A text, a message, or a list of messages or OpenAI-style dictionaries.
            options: See ``CallOptions``.

        Raises:
            ModelError: The model call failed.
            ProcessorError: A processor failed. (A processor that *blocks* gives a result with ``tripwire``.)
            OutputError: The answer does not fit ``output_type``.
            ThreadBusyError: Another run of the thread did not end in time.
        """
        return await read(self._run(input, options))

    def stream(self, input: MessageInput, **options: Unpack[CallOptions]) -> AgentStream[Any]:
        """The same run, chunk by chunk: ``async with agent.stream(...) as stream: async for chunk in stream``.

        A failing run ends with an ``error`` chunk, and ``await stream.result()`` raises.
        """
        return AgentStream(self._run(input, options))

    def generate_sync(self, input: MessageInput, **options: Unpack[CallOptions]) -> AgentResult[Any]:
        """``generate`` for synchronous code; all such calls of a process share one event loop."""
        return run_sync(self.generate(input, **options))

    async def close(self) -> None:
        """Wait for memory's background work and release the model's connections."""
        if self.memory is not None:
            await self.memory.settled()
        await self.model.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _compile(self, input: Sequence[Processor[Any]], output: Sequence[Processor[Any]]) -> tuple[Pipeline, bool]:
        """Memory's processors around the given ones; True if somebody but memory judges the final output."""
        first = _without(self.memory.input_processors(self.model) if self.memory else (), input)
        last = _without(self.memory.output_processors(self.model) if self.memory else (), output)
        judged = any(p.hold_output or overrides(p, "process_output_result") for p in output)
        return Pipeline([*first, *input], [*output, *last]), judged

    def _run(self, input: MessageInput, call: CallOptions) -> Run:
        options = merge_options(self._defaults, call)
        pipeline, judged = self._pipeline, self._judged
        if "input_processors" in options or "output_processors" in options:
            pipeline, judged = self._compile(
                options.get("input_processors", self._input), options.get("output_processors", self._output)
            )
        messages = MessageList(self.instructions)
        for message in to_messages(input):
            messages.add(message, "input")
        run_id = new_id("run")
        thread = options.get("thread")
        thread = ThreadRef(id=thread) if isinstance(thread, str) else thread
        if thread is not None and not thread.id:
            raise ConfigError("thread: the id is empty")
        context: RunContext[Any] = RunContext(
            run_id=run_id,
            deps=options.get("deps"),
            messages=messages,
            writer=Writer(run_id),
            cancel=options.get("cancel") or CancelSignal(),
            thread=thread,
            resource_id=options.get("resource") or (thread.id if thread else None),
            request_context=dict(options.get("request_context", {})),
            guarded=judged,
        )
        wanted = options.get("output_type")
        output_type = None if wanted is None else OutputType(wanted)
        settings = options.get("model_settings", ModelSettings()).over(self._model_settings)
        active = options.get("active_tools")
        setup = StepSetup(
            model=resolve(options["model"]) if "model" in options else self.model,
            tools=self.tools,
            tool_choice=options.get("tool_choice", "auto"),
            active_tools=None if active is None else list(active),
            model_settings=settings,
            provider_options={name: dict(values) for name, values in options.get("provider_options", {}).items()},
            structured_output=output_type.schema if output_type else None,
        )
        return Run(
            context=context,
            pipeline=pipeline.start(context),
            setup=setup,
            options=options,
            output_type=output_type,
        )


def _without(ours: Sequence[Processor[Any]], theirs: Sequence[Processor[Any]]) -> list[Processor[Any]]:
    """Memory's processors, but for those that the user listed himself under the same id."""
    listed = {processor.id for processor in theirs}
    return [processor for processor in ours if processor.id not in listed]
