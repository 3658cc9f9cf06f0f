"""The base class of processors: hooks into every stage of a run, each with one typed argument."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypedDict, cast

from typing_extensions import TypeVar

from diarist.chunks import Chunk, FinishReason, Usage
from diarist.exceptions import InputError, ModelError, ProcessorAbort
from diarist.message_list import MessageList, SystemMessage
from diarist.messages import FilePart, Json, Message, Prompt, SourcePart, ToolPart
from diarist.run_context import CancelSignal, RunContext, Writer

if TYPE_CHECKING:
    from diarist.models.base import Model, ModelRequest, ModelSettings, OutputSchema, ToolChoice
    from diarist.tools import Tool

D = TypeVar("D", default=Any)
S = TypeVar("S", default=Any)
R = TypeVar("R")
MaybeAwaitable = R | Awaitable[R]


async def call_sync_or_async(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function of the application, sync or async."""
    answer = function(*given)
    return await answer if inspect.isawaitable(answer) else answer


class Drop:
    """Type of ``DROP``, which ``process_output_stream`` returns to drop a chunk on purpose."""


DROP = Drop()


@dataclass(slots=True, kw_only=True)
class StepResult:
    """One finished step.

    Attributes:
        text: Its text, after all processors.
        tool_calls: Its tool parts; they have results once the tools have run.
        messages: The messages that it added to the response.
        model: The id of the model that answered.
        request: The request that the model was given, after all processors: ``request.prompt``, ``.tools``,
            ``.settings``; ``request.text`` is the prompt as text. Not to be changed. None if no model was called.
    """

    step_number: int
    text: str
    reasoning: str = ""
    tool_calls: list[ToolPart] = field(default_factory=list[ToolPart])
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    messages: list[Message] = field(default_factory=list[Message])
    model: str = ""
    request: ModelRequest | None = field(default=None, repr=False, compare=False)

    @property
    def sources(self) -> list[SourcePart]:
        """Return the sources that the model cited in this step."""
        return [part for message in self.messages for part in message.parts if isinstance(part, SourcePart)]

    @property
    def files(self) -> list[FilePart]:
        """Return the files that the model made in this step, such as images."""
        return [part for message in self.messages for part in message.parts if isinstance(part, FilePart)]


@dataclass(slots=True, kw_only=True)
class ProcessorArgs(Generic[D, S]):
    """The fields that every hook gets.

    Attributes:
        state: The processor's own object for this request (``create_state``), the same in all hooks.
        retry_count: Retries of this step so far; 0 at first.
        message_list: The live messages of the run.
    """

    context: RunContext[D]
    message_list: MessageList
    processor_id: str
    state: S
    retry_count: int = 0

    @property
    def deps(self) -> D:
        return self.context.deps

    @property
    def request_context(self) -> dict[str, Any]:
        return self.context.request_context

    @property
    def writer(self) -> Writer:
        return self.context.writer

    @property
    def cancel(self) -> CancelSignal:
        return self.context.cancel

    @property
    def run_id(self) -> str:
        return self.context.run_id

    @property
    def thread_id(self) -> str | None:
        return self.context.thread_id

    @property
    def resource_id(self) -> str | None:
        return self.context.resource_id

    def add_usage(self, usage: Usage) -> None:
        """Count the tokens of a model call that this processor made in ``result.usage``."""
        self.context.usage += usage

    def abort(self, reason: str = "", *, retry: bool = False, metadata: Json = None) -> NoReturn:
        """Block the run; with ``retry``, ask for another attempt at this step, with ``reason`` as feedback.

        The default reason names this processor. Raises InputError for a reason that is not a text, even if the
        processor fails open.
        """
        if not isinstance(cast(object, reason), str):
            raise InputError(f"processor {self.processor_id!r}: abort() takes the reason as a text, not {reason!r}")
        if not reason.strip():
            what = "did not accept the answer" if retry else "blocked the run"
            reason = f"processor {self.processor_id!r} {what} without giving a reason"
        raise ProcessorAbort(reason, retry=retry, metadata=metadata, processor_id=self.processor_id)


@dataclass(slots=True, kw_only=True)
class ProcessInputArgs(ProcessorArgs[D, S], Generic[D, S]):
    """``messages``: the conversation without system messages."""

    messages: list[Message]
    system_messages: list[SystemMessage]


@dataclass(slots=True, kw_only=True)
class ProcessInputStepArgs(ProcessorArgs[D, S], Generic[D, S]):
    """The setup of the step after the processors before this one; return the fields to change.

    ``is_last``: True if ``max_steps`` allows no step after this one. ``structured_output`` is the schema that the
    answer must fit, if any.
    """

    messages: list[Message]
    system_messages: list[SystemMessage]
    step_number: int
    is_last: bool
    steps: list[StepResult]
    model: Model
    tools: dict[str, Tool]
    tool_choice: ToolChoice
    active_tools: list[str] | None
    model_settings: ModelSettings
    provider_options: dict[str, dict[str, Any]]
    structured_output: OutputSchema | None


@dataclass(slots=True, kw_only=True)
class ProcessLLMRequestArgs(ProcessorArgs[D, S], Generic[D, S]):
    """The provider's prompt just before the call; edits affect only this call and are never stored."""

    prompt: Prompt
    request: ModelRequest
    model: Model
    step_number: int


@dataclass(slots=True, kw_only=True)
class ProcessOutputStreamArgs(ProcessorArgs[D, S], Generic[D, S]):
    """One chunk. ``stream_parts`` are the original chunks of this step so far, this one included; ``part`` is the
    hooks' own copy, to edit or to replace.

    The object is reused for every chunk of a stream: keep ``part``, not the args.
    """

    part: Chunk
    stream_parts: list[Chunk]


@dataclass(slots=True, kw_only=True)
class ProcessLLMResponseArgs(ProcessorArgs[D, S], Generic[D, S]):
    """The model's complete response, before any processor changed it. Do not edit it.

    ``response``: the model's own chunks; the last one is ``ModelFinish``. ``from_cache``: True if a processor answered
    in the model's place.
    """

    request: ModelRequest
    response: list[Chunk]
    model: Model
    step_number: int
    from_cache: bool = False


@dataclass(slots=True, kw_only=True)
class ProcessAPIErrorArgs(ProcessorArgs[D, S], Generic[D, S]):
    """A model call that failed. ``retry_count``: number of retries that this hook has requested at this step.

    The classes of ``error`` are in ``diarist.exceptions``. Change ``message_list`` and return ``{"retry": True}`` to
    try again; changes of stored messages are stored with the run.
    """

    error: ModelError
    messages: list[Message]
    model: Model
    step_number: int
    steps: list[StepResult]


@dataclass(slots=True, kw_only=True)
class ProcessToolCallArgs(ProcessorArgs[D, S], Generic[D, S]):
    """One tool call, before any tool of the step runs.

    ``tool`` is None for an unknown name. ``args_error`` says why the model's arguments could not be read; return
    ``args`` to replace them.
    """

    call: ToolPart
    tool: Tool | None
    step_number: int
    args_error: str | None = None


@dataclass(slots=True, kw_only=True)
class ProcessToolResultArgs(ProcessorArgs[D, S], Generic[D, S]):
    """One finished tool call, with its outcome in ``call.state`` and ``call.result``, before the result is used."""

    call: ToolPart
    tool: Tool | None
    step_number: int


@dataclass(slots=True, kw_only=True)
class ProcessOutputStepArgs(ProcessorArgs[D, S], Generic[D, S]):
    """The model's complete response of this step, before its tools run."""

    messages: list[Message]
    system_messages: list[SystemMessage]
    step_number: int
    steps: list[StepResult]
    text: str
    tool_calls: list[ToolPart]
    finish_reason: FinishReason
    usage: Usage


@dataclass(slots=True, kw_only=True)
class OutputResult:
    """The run at the time when ``process_output_result`` is called."""

    text: str
    usage: Usage
    finish_reason: FinishReason
    steps: list[StepResult]


@dataclass(slots=True, kw_only=True)
class ProcessOutputResultArgs(ProcessorArgs[D, S], Generic[D, S]):
    """``messages``: the run's response messages."""

    messages: list[Message]
    result: OutputResult


class InputResult(TypedDict, total=False):
    """Return value of ``process_input``: messages and system messages."""

    messages: Sequence[Message]
    system_messages: Sequence[SystemMessage | str]


class InputStepResult(TypedDict, total=False):
    """Return value of ``process_input_step`` and ``prepare_step``; missing keys change nothing."""

    messages: Sequence[Message]
    message_list: MessageList
    system_messages: Sequence[SystemMessage | str]
    model: Any
    tools: Mapping[str, Tool] | Sequence[Any]
    tool_choice: str
    active_tools: Sequence[str]
    model_settings: ModelSettings
    provider_options: Mapping[str, dict[str, Any]]
    structured_output: OutputSchema | None


class LLMRequestResult(TypedDict, total=False):
    """Return value of ``process_llm_request``: another prompt, or the response itself (the model is not called)."""

    prompt: Prompt
    response: Sequence[Chunk] | str


class APIErrorResult(TypedDict, total=False):
    """Return value of ``process_api_error``. ``delay``: seconds to wait first."""

    retry: bool
    delay: float


class ToolCallResult(TypedDict, total=False):
    """Return value of ``process_tool_call``: other arguments, a result instead of the tool's, or a refusal that the
    model sees."""

    args: dict[str, Json]
    result: Json
    deny: str


class ToolResultResult(TypedDict, total=False):
    """Return value of ``process_tool_result``: another result, or an error that the model sees instead."""

    result: Json
    error: str


InputHookResult = MessageList | list[Message] | InputResult | None
InputStepHookResult = MessageList | list[Message] | InputStepResult | None
LLMRequestHookResult = Prompt | LLMRequestResult | None
StreamHookResult = Chunk | Sequence[Chunk] | Drop | None
OutputHookResult = MessageList | list[Message] | None


class Processor(Generic[D, S]):
    """Base class of processors: override the hooks you need, each ``def`` or ``async def``.

    A hook that is not overridden costs nothing. Returning None changes nothing, except from
    ``process_output_stream``, where it drops the chunk.

    ``agent.resume`` continues a run that waits for approval, perhaps in another process, and creates new states there.
    Override both ``dump_state`` and ``load_state`` to keep the state.

    Attributes:
        id: Default: the class name in kebab case; unique within a list.
        name, description: Shown to people.
        process_data_parts: True: ``process_output_stream`` also gets ``data-*`` chunks.
        hold_output: True: a step's chunks are held back from the client until ``process_output_step`` (at the last step
            also ``process_output_result``) has accepted them. The client gets them as the hooks changed them.
        on_error: ``"fail"``: an exception in a hook ends the run. ``"continue"``: the processor fails open, that is,
            the exception is logged and the hook has no effect.
        redacts_stream: True, for a processor that redacts in ``process_output_stream``: its ``process_output_result``
            only repeats this, in case other processors have changed the messages since. An unfinished run is kept
            without it, unless another processor has ``process_output_step``. A subclass with a
            ``process_output_result`` of its own has to set it again.
        run_in_parallel: True, for a guard of the input: ``process_input`` gets a snapshot and runs at the same time as
            the first model call. Until it has passed, nothing reaches the client and no tool runs.
        opens_run: True, for memory: ``process_input`` also runs when a run is resumed without new input.
        stores_run: True, for memory: the processor stores the run and its messages; a run has one such processor.
        loads_history: True, for memory: the processor loads the messages of the run's thread.
        needs_history: True, for memory: an agent with the processor needs one with ``loads_history``.
        output_option: Name of an option that was set, and has no effect in ``input_processors``: the agent refuses a
            processor that is only there.
        input_option: Name of an option that was left out, and without which the processor must also be in
            ``input_processors``: the agent refuses one that is only in ``output_processors``.
        edits_in_place: False promises that no hook edits a message or chunk of the run, or a message of the prompt
            except system messages, in place. Hooks may still return or add others, and replace messages of the
            prompt. If all processors promise it, chunks and messages are not copied, and a message is rendered only
            once. Not inherited: a subclass has to set it again.
    """

    id: str = ""
    name: str = ""
    description: str = ""
    process_data_parts: bool = False
    hold_output: bool = False
    on_error: Literal["fail", "continue"] = "fail"
    redacts_stream: bool = False
    run_in_parallel: bool = False
    opens_run: bool = False
    stores_run: bool = False
    loads_history: bool = False
    needs_history: bool = False
    output_option: str = ""
    input_option: str = ""
    edits_in_place: bool = True

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "id" not in cls.__dict__:
            cls.id = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__).lower()
        if "edits_in_place" not in cls.__dict__:
            cls.edits_in_place = True
        if "process_output_result" in cls.__dict__ and "redacts_stream" not in cls.__dict__:
            cls.redacts_stream = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def handles(self, hook: str) -> bool:
        """Return True if this processor has the hook of that name."""
        return getattr(type(self), hook) is not getattr(Processor, hook)

    def create_state(self) -> S:
        """Return a new state object for one request, of the type ``State`` in ``Processor[Deps, State]``."""
        return cast(S, {})

    def dump_state(self, state: S) -> Json:
        """Return the state as JSON, to be stored with a tool call that waits for approval.

        A state without a JSON form raises ``ProcessorResultError`` in the run.
        """

    def load_state(self, data: Json) -> S:
        """Return the state for the data of ``dump_state``. Called instead of ``create_state`` when a run is resumed."""
        return cast(S, None)

    async def close(self) -> None:
        """Release resources such as a model's connections; the processor may be used again afterwards.

        ``agent.close()`` closes the agent's processors, but not those that are passed to a call or made by a function.
        """

    def process_input(self, args: ProcessInputArgs[D, S]) -> MaybeAwaitable[InputHookResult]:
        """Validate or change the input. Called once, before the first step."""

    def process_input_step(self, args: ProcessInputStepArgs[D, S]) -> MaybeAwaitable[InputStepHookResult]:
        """Change messages, model, tools or settings of a step. Called before each model call."""

    def process_llm_request(self, args: ProcessLLMRequestArgs[D, S]) -> MaybeAwaitable[LLMRequestHookResult]:
        """Change the prompt for one model call, just before the call, or answer in the model's place."""

    def process_output_stream(self, args: ProcessOutputStreamArgs[D, S]) -> MaybeAwaitable[StreamHookResult]:
        """Return the given chunk, another one or several; None or ``DROP`` to drop it. Called for each chunk."""

    def process_llm_response(self, args: ProcessLLMResponseArgs[D, S]) -> MaybeAwaitable[None]:
        """Observe the complete response, or write it to a cache. Called before any processor changes it."""

    def process_api_error(self, args: ProcessAPIErrorArgs[D, S]) -> MaybeAwaitable[APIErrorResult | None]:
        """Repair the messages and ask for a retry. Called after a failed model call."""

    def process_tool_call(self, args: ProcessToolCallArgs[D, S]) -> MaybeAwaitable[ToolCallResult | None]:
        """Change a tool's arguments, answer for it, or refuse the call. Called before the tool runs."""

    def process_tool_result(self, args: ProcessToolResultArgs[D, S]) -> MaybeAwaitable[ToolResultResult | None]:
        """Change a tool's result. Called after the tool ran."""

    def process_output_step(self, args: ProcessOutputStepArgs[D, S]) -> MaybeAwaitable[OutputHookResult]:
        """Judge or change the model's response. Called before the step's tools run."""

    def process_output_result(self, args: ProcessOutputResultArgs[D, S]) -> MaybeAwaitable[OutputHookResult]:
        """Judge or change the answer. Called once, when the answer is complete."""
