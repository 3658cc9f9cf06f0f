"""The options of one call, and the protocol of what an agent needs from a memory."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, cast

from diarist.agent.option_checks import check_options
from diarist.exceptions import ConfigError
from diarist.models.base import Model, ModelSettings
from diarist.processors.base import InputStepResult, ProcessInputStepArgs, Processor, StepResult
from diarist.run_context import CancelSignal, ThreadRef
from diarist.storage.codec import checked_metadata, refuse_empty
from diarist.storage.records import Thread

PrepareStep = Callable[[ProcessInputStepArgs[Any]], InputStepResult | Awaitable[InputStepResult | None] | None]

StopWhen = Callable[[list[StepResult]], bool]
"""Gets the steps so far, the newest last; True ends the run after this step."""

Processors = Sequence[Processor[Any]] | Callable[[dict[str, Any]], Sequence[Processor[Any]]]
"""A list of processors, or a function of the call's ``request_context`` that makes one for each call."""


class MemoryLike(Protocol):
    """What an agent asks of a memory: processors for its pipeline, and an end to background work.

    ``model`` is the agent's own, for what memory does where it was given none.
    """

    def input_processors(self, model: Model) -> Sequence[Processor[Any]]: ...

    def output_processors(self, model: Model) -> Sequence[Processor[Any]]: ...

    async def settled(self) -> None: ...


class CallOptions(TypedDict, total=False):
    """Options of ``generate``, ``stream`` and ``Agent(default_options=...)``; a call's own value wins.

    ``thread``: id, ``ThreadRef`` with title and metadata for a new one, or a ``Thread``, which says whose it is;
    without it memory does nothing. ``resource``: whose thread it is; default the thread's own id. ``deps`` and
    ``request_context`` are handed to tools and processors. ``max_steps``: model calls of one run (5).
    ``max_processor_retries``: attempts that processors may send back per step; unset, sending one back blocks.
    ``prepare_step``: called before each model call, after all processors.
    ``input_processors``, ``output_processors``, ``error_processors`` and
    ``processors`` replace the agent's lists for this call; memory's stay around them. ``extra_processors`` are
    added to ``processors`` instead. ``output_type``: a Pydantic model, dataclass, TypedDict or JSON schema for the
    answer. ``stop_when``: functions of the steps so far; one that holds ends the run. ``cancel``: a
    ``CancelSignal``. ``on_step_finish`` gets each finished step; ``on_finish`` the result, ``on_error`` the error or
    ``on_abort`` the result of a cancelled run, exactly one of these once.
    """

    thread: str | ThreadRef | Thread
    resource: str
    deps: Any
    request_context: dict[str, Any]
    model: str | Model | Any
    model_settings: ModelSettings
    provider_options: Mapping[str, dict[str, Any]]
    tool_choice: str
    active_tools: Sequence[str]
    max_steps: int
    max_processor_retries: int
    prepare_step: PrepareStep
    input_processors: Processors
    output_processors: Processors
    error_processors: Processors
    processors: Processors
    extra_processors: Processors
    output_type: Any
    stop_when: StopWhen | Sequence[StopWhen]
    cancel: CancelSignal
    on_step_finish: Callable[[StepResult], Any]
    on_finish: Callable[[Any], Any]
    on_error: Callable[[Exception], Any]
    on_abort: Callable[[Any], Any]


def conditions(value: StopWhen | Sequence[StopWhen] | None) -> tuple[StopWhen, ...]:
    """``stop_when`` as a tuple."""
    if value is None:
        return ()
    return (value,) if callable(value) else tuple(value)


def conversation(options: CallOptions) -> tuple[ThreadRef | None, str | None]:
    """The thread of a call and whose it is; None and None without one. Raises ConfigError, InputError."""
    thread: Any = options.get("thread")
    refuse_empty(resource=options.get("resource"))
    owner: Any = options.get("resource") or getattr(thread, "resource_id", None)
    if owner is not None and not isinstance(owner, str):
        raise ConfigError(f"resource must be the id of a resource, not {owner!r}")
    if thread is None:
        return None, owner
    if inspect.isawaitable(thread):
        if inspect.iscoroutine(thread):
            thread.close()
        raise ConfigError("thread is awaitable and was not awaited: thread=await memory.create_thread(...)")
    if isinstance(thread, Thread):
        thread = ThreadRef(id=thread.id, title=thread.title, metadata=thread.metadata)
    ref: Any = ThreadRef(id=thread) if isinstance(thread, str) else thread
    if not isinstance(ref, ThreadRef) or not isinstance(cast(Any, ref.id), str):
        raise ConfigError(f"thread must be an id, a ThreadRef or a Thread, not {thread!r}")
    if not ref.id:
        raise ConfigError("thread: the id is empty")
    if not isinstance(cast(Any, ref.title), str):
        raise ConfigError(f"thread: the title must be a text, not {ref.title!r}")
    checked_metadata(ref.metadata)
    return ref, owner or ref.id


def merge_options(defaults: CallOptions, call: CallOptions) -> CallOptions:
    """The call's options over the defaults; None is as good as not given.

    Raises ConfigError for an unknown or impossible one.
    """
    if not isinstance(cast(Any, call), Mapping):
        raise ConfigError(f"options of a call must be a dictionary, not {call!r}")
    if unknown := call.keys() - CallOptions.__annotations__.keys():
        raise ConfigError(f"unknown options {sorted(unknown)}; known: {', '.join(CallOptions.__annotations__)}")
    given = {name: value for name, value in call.items() if value is not None}
    check_options(given)
    return cast(CallOptions, {**defaults, **given})
