"""The options of a call and their checks, and the protocol an agent's memory implements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Literal, Protocol, TypedDict, cast, get_args

from diarist.agent.result import AgentResult
from diarist.checks import function, one_of, text_list, whole
from diarist.exceptions import ConfigError
from diarist.message_list import MessageInput
from diarist.models.base import Model, ModelSettings
from diarist.processors.base import Processor, StepResult
from diarist.processors.builtin.steps import StepFunction
from diarist.processors.setup import checked_provider_options
from diarist.run_context import CancelSignal, MemoryOptions, OnDivergence, ThreadRef
from diarist.storage.records import Thread

StopWhen = Callable[[list[StepResult]], bool | Awaitable[bool]]
"""Takes the steps so far, the newest last; returns True to end the run after this step. Sync or async."""

Processors = Sequence[Processor[Any]] | Callable[[dict[str, Any]], Sequence[Processor[Any]]]
"""A list of processors, or a function of the call's ``request_context`` that returns one."""

Approvals = Mapping[str, bool | str]
"""Answers to tool calls that wait for approval, by call id: True runs the tool; False or a reason declines it."""


class MemoryLike(Protocol):
    """The interface of an agent's memory: processors for its pipeline, opened and closed with the agent.

    ``model`` is the agent's own, used where memory was given none. ``options`` are passed if a call has some.
    """

    def input_processors(self, model: Model, options: MemoryOptions | None = None, /) -> Sequence[Processor[Any]]: ...

    def output_processors(self, model: Model) -> Sequence[Processor[Any]]: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class RunOptions(TypedDict, total=False):
    """The options of a call that its types do not depend on. ``CallOptions`` describes them."""

    thread: str | ThreadRef | Thread
    resource: str
    read_only: bool
    last_messages: int | Literal[False]
    semantic_recall: bool
    on_divergence: OnDivergence
    request_context: dict[str, Any]
    model: str | Model | Any
    model_settings: ModelSettings
    provider_options: Mapping[str, dict[str, Any]]
    tool_choice: str
    active_tools: Sequence[str]
    max_steps: int
    max_processor_retries: int
    prepare_step: StepFunction
    input_processors: Processors
    output_processors: Processors
    error_processors: Processors
    processors: Processors
    extra_processors: Processors
    stop_when: StopWhen | Sequence[StopWhen]
    cancel: CancelSignal
    on_stop: Literal["drop", "keep"]
    on_step_finish: Callable[[StepResult], Any]
    on_finish: Callable[[Any], Any]
    on_error: Callable[[Exception], Any]
    on_abort: Callable[[Any], Any]


class ResumeOptions(RunOptions, total=False):
    """The options of ``resume`` and ``stream_resume`` that their types do not depend on."""

    of: AgentResult[Any] | None
    input: MessageInput | None


class CallOptions(RunOptions, total=False):
    """Options of ``generate`` and ``stream``; they override ``Agent(default_options=...)``.

    The conversation:
        thread: An id; a ``ThreadRef``, with title and metadata for a new thread; or a ``Thread``, which includes its
            resource. Without it, memory does nothing.
        resource: The owner of the thread. Without it, the thread belongs to no resource and shares nothing.
        read_only: True stores nothing of this call. Default: memory's setting, as for the next two.
        last_messages: Number of raw messages in the prompt; False for none.
        semantic_recall: Whether to recall earlier messages by meaning.
        on_divergence: For an input with a history that does not continue the thread, as when the client edits a
            question or wants another answer. ``"branch"`` (default) goes back to where they part and supersedes the
            rest; ``"append"`` supersedes nothing and stores what is new at the end; ``"error"`` raises InputError.

    The model:
        model, model_settings: As for ``Agent``.
        provider_options: By provider, passed on unchanged: ``{"openai": {"reasoning_effort": "low"}}``.
        tool_choice: ``"auto"`` (default), ``"none"``, ``"required"``, or the name of a tool. The last two apply until
            the run's first tool call, then ``"auto"``.
        active_tools: Names of the tools that the model may call. Default: all.
        output_type: A Pydantic model, dataclass, TypedDict or JSON schema for the answer.

    The run:
        deps: Passed to tools and processors.
        request_context: Values for this call, passed to tools and processors.
        max_steps: Limit of model calls. Default 5.
        stop_when: Functions of the steps so far; the run ends when one returns True.
        cancel: A ``CancelSignal``.
        on_stop: ``"drop"`` or ``"keep"`` the text of an unfinished answer if the run is cancelled.

    Processors:
        input_processors, output_processors, error_processors, processors: Replace the agent's lists for this call;
            memory's processors stay around them.
        extra_processors: Added to ``processors``.
        prepare_step: Called before each model call, after all processors.
        max_processor_retries: Retries per step that processors may ask for; if unset, asking for one blocks the run.

    Callbacks:
        on_step_finish: Called with each finished step.
        on_finish, on_error, on_abort: One of them is called at the end, with the result, the error, or the result of a
            cancelled run.
    """

    deps: Any
    output_type: Any


def listed(value: Any) -> tuple[Any, ...]:
    """Return a list as a tuple, and any other value as a tuple of one."""
    return tuple(cast(list[Any], value)) if isinstance(value, list | tuple) else (value,)


def memory_options(options: CallOptions) -> MemoryOptions | None:
    """Return the options that the call has for memory; None if it has none."""
    if options.keys().isdisjoint(MEMORY_OPTIONS):
        return None
    return MemoryOptions(**{name: options.get(name) for name in MEMORY_OPTIONS})


def merge_options(defaults: CallOptions, call: CallOptions) -> CallOptions:
    """Return the call's options over the defaults; None counts as not given. Raises ConfigError."""
    if not isinstance(cast(Any, call), Mapping):
        raise ConfigError(f"options of a call must be a dictionary, not {call!r}")
    known = CallOptions.__annotations__
    if unknown := sorted(call.keys() - known.keys()):
        raise ConfigError(f"unknown options {unknown}{_remedy(unknown[0])}; known: {', '.join(known)}")
    given = {name: value for name, value in call.items() if value is not None}
    check_options(given)
    return cast(CallOptions, {**defaults, **given})


def _remedy(unknown: str) -> str:
    """Return the end of an error message, which says how to write an unknown option; empty if that is not known."""
    if unknown in ModelSettings.__annotations__:
        return f"; write model_settings=ModelSettings({unknown}=...)"
    if unknown in ("instructions", "tools", "memory", "name"):
        return f"; write Agent({unknown}=...)"
    if unknown in _NAMES_ELSEWHERE:
        return f"; did you mean {_NAMES_ELSEWHERE[unknown]!r}?"
    near = get_close_matches(unknown, CallOptions.__annotations__, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first option with a value that is not allowed."""
    for name, value in options.items():
        match name:
            case _ if name in MEMORY_OPTIONS:
                MemoryOptions(**{name: value})
            case "max_steps":
                whole("", name, value, least=1)
            case "max_processor_retries":
                whole("", name, value, least=0)
            case "on_divergence":
                one_of("", name, value, get_args(OnDivergence))
            case "on_stop":
                one_of("", name, value, ("drop", "keep"))
            case "prepare_step" | "on_step_finish" | "on_finish" | "on_error" | "on_abort":
                function("", name, value)
            case "stop_when":
                if not all(map(callable, listed(value))):
                    raise ConfigError(
                        f"{name} must be a function of the steps, or a list of such functions, not {value!r}"
                    )
            case "active_tools" if isinstance(value, Collection):
                text_list("", name, value)
            case "provider_options":
                checked_provider_options(value)
            case _ if name in _KINDS and not isinstance(value, _KINDS[name][0]):
                raise ConfigError(f"{name} must be {_KINDS[name][1]}, not {value!r}")
            case _:
                pass


_NAMES_ELSEWHERE = {
    "conversation_id": "thread",
    "session_id": "thread",
    "user": "resource",
    "user_id": "resource",
    "response_format": "output_type",
    "response_model": "output_type",
}
"""Names of other libraries for our options."""

MEMORY_OPTIONS = tuple(option.name for option in fields(MemoryOptions))

_KINDS: dict[str, tuple[type, str]] = {
    "request_context": (Mapping, "a dictionary"),
    "model_settings": (ModelSettings, "ModelSettings(temperature=..., ...)"),
    "active_tools": (Collection, "a list of texts"),
    "tool_choice": (str, "'auto', 'none', 'required' or the name of a tool"),
    "cancel": (CancelSignal, "a CancelSignal"),
}
