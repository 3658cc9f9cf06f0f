"""Every hook of every processor runs here, and nowhere else.

``Pipeline`` is compiled once per agent: per hook a tuple of bound functions, so that a hook nobody
overrides costs nothing. ``PipelineRun`` is a pipeline at work on one request: it holds the processors'
states, applies what they return, and names processor and hook in every error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from diarist.chunks import Chunk
from diarist.exceptions import ConfigError, ProcessorResultError
from diarist.message_list import MessageList, Source, SystemMessage
from diarist.messages import Message
from diarist.processors.base import (
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMRequestArgs,
    Processor,
    ProcessOutputResultArgs,
    ProcessOutputStepArgs,
)
from diarist.processors.hooks import Hook
from diarist.processors.streaming import StreamRun
from diarist.run_context import RunContext

logger = logging.getLogger("diarist")

INPUT_HOOKS = ("process_input", "process_input_step", "process_llm_request")
OUTPUT_HOOKS = ("process_output_stream", "process_output_step", "process_output_result")

_warned: set[type] = set()


class Pipeline:
    """The processors of an agent or of one call, by hook.

    Attributes:
        hold_output: A processor withholds a step's chunks until it was accepted.

    Raises:
        ConfigError: Two processors of a list share an id, or a list holds something else than processors.
    """

    def __init__(self, input: Sequence[Processor[Any]] = (), output: Sequence[Processor[Any]] = ()) -> None:
        self._processors: list[Processor[Any]] = []
        for list_name, processors in (("input_processors", input), ("output_processors", output)):
            _check(list_name, processors)
            self._processors += [p for p in processors if not any(p is known for known in self._processors)]
        self.hooks = {
            **{name: self._bind(name, input) for name in INPUT_HOOKS},
            **{name: self._bind(name, output) for name in OUTPUT_HOOKS},
        }
        self.hold_output = any(p.hold_output for p in output)

    def _bind(self, name: str, processors: Sequence[Processor[Any]]) -> tuple[Hook, ...]:
        hooks: list[Hook] = []
        for processor in processors:
            if not overrides(processor, name):
                continue
            slot = next(i for i, known in enumerate(self._processors) if known is processor)
            hooks.append(Hook.of(processor, name, slot))
        return tuple(hooks)

    def start(self, context: RunContext[Any]) -> PipelineRun:
        return PipelineRun(self, context, [processor.create_state() for processor in self._processors])


def overrides(processor: Processor[Any], hook: str) -> bool:
    """Whether a processor has a hook of its own."""
    return getattr(type(processor), hook) is not getattr(Processor, hook)


def _check(list_name: str, processors: Sequence[Processor[Any]]) -> None:
    seen: set[str] = set()
    for processor in processors:
        if not isinstance(cast(Any, processor), Processor):
            raise ConfigError(f"{list_name}: {processor!r} is no processor; subclass Processor and pass an instance")
        if processor.id in seen:
            raise ConfigError(f"{list_name}: two processors have the id {processor.id!r}; give one another id")
        seen.add(processor.id)


class PipelineRun:
    """A pipeline at work on one request.

    Attributes:
        retry_count: Attempts of the current step that were rejected.
        step_number: The current step; None outside the steps.
        silent, answering: Slots of the processors whose stream hook returned None, and something else.
    """

    def __init__(self, pipeline: Pipeline, context: RunContext[Any], states: list[Any]) -> None:
        self._pipeline = pipeline
        self._context = context
        self._states = states
        self.silent: set[int] = set()
        self.answering: set[int] = set()
        self.retry_count = 0
        self.step_number: int | None = None

    @property
    def hold_output(self) -> bool:
        return self._pipeline.hold_output

    # -- hooks in the order of a request

    async def process_input(self) -> None:
        messages = self._context.messages
        for hook in self._pipeline.hooks["process_input"]:
            shown = messages.messages
            args = ProcessInputArgs(**self.base(hook), messages=list(shown), system_messages=messages.system)
            result = await hook.call(args, self.step_number)
            if isinstance(result, dict):
                result = cast(dict[str, Any], result)
                self._only(hook, result, {"messages", "system_messages"})
                if (system := result.get("system_messages")) is not None:
                    messages.replace_system(self._system(hook, system))
                result = result.get("messages")
            self._apply(hook, shown, result, default="input")

    async def process_input_step(
        self,
        make_args: Callable[[dict[str, Any]], ProcessInputStepArgs[Any]],
        merge: Callable[[dict[str, Any]], None],
        last: Callable[[Any], Any] | None,
    ) -> None:
        """Run the hook; ``make_args`` builds the args from the step as it stands, ``merge`` takes overrides.

        ``last`` is the call's ``prepare_step``, which runs after all processors.
        """
        hooks = list(self._pipeline.hooks["process_input_step"])
        if last is not None:
            hooks.append(Hook.of(_PREPARE_STEP, "prepare_step", -1, last))
        messages = self._context.messages
        for hook in hooks:
            args = make_args(self.base(hook))
            shown = list(args.messages)
            result = await hook.call(args, self.step_number)
            if isinstance(result, dict):
                result = dict(cast(dict[str, Any], result))
                self._only(hook, result, _STEP_KEYS)
                if "messages" in result and "message_list" in result:
                    raise self._bad(hook, "both 'messages' and 'message_list'")
                changed = result.pop("messages", result.pop("message_list", None))
                if (system := result.pop("system_messages", None)) is not None:
                    messages.replace_system(self._system(hook, system))
                try:
                    merge(result)
                except ConfigError as error:
                    raise self._bad(hook, f"an override that cannot be used: {error}") from error
                result = changed
            self._apply(hook, shown, result, default="context")

    async def process_llm_request(
        self, make_args: Callable[[dict[str, Any]], ProcessLLMRequestArgs[Any]], set_prompt: Callable[[Any], None]
    ) -> Any | None:
        """Run the hook; returns a response where a processor answered in the model's place."""
        from diarist.messages import Prompt

        for hook in self._pipeline.hooks["process_llm_request"]:
            result = await hook.call(make_args(self.base(hook)), self.step_number)
            if isinstance(result, dict):
                result = cast(dict[str, Any], result)
                self._only(hook, result, {"prompt", "response"})
                if (response := result.get("response")) is not None:
                    return self._response(hook, response)
                result = result.get("prompt")
            if result is None:
                continue
            if not isinstance(result, Prompt):
                raise self._bad(hook, f"{type(result).__name__}; allowed: a Prompt, or a dict of prompt / response")
            set_prompt(result)
        return None

    def open_stream(self) -> StreamRun:
        """The stream hooks for one step's chunks."""
        return StreamRun(self, self._pipeline.hooks["process_output_stream"])

    def warn_of_silence(self) -> None:
        """Name the stream processors that returned None for every chunk of the run, each class once."""
        for hook in self._pipeline.hooks["process_output_stream"]:
            kind = type(hook.processor)
            if hook.slot in self.silent - self.answering and kind not in _warned:
                _warned.add(kind)
                logger.warning(
                    "processor %r returned None for every chunk of a run, so that all of them were dropped; return "
                    "the chunk from process_output_stream, or DROP where dropping is meant",
                    hook.processor.id,
                )

    async def process_output_step(self, make_args: Callable[[dict[str, Any]], ProcessOutputStepArgs[Any]]) -> None:
        for hook in self._pipeline.hooks["process_output_step"]:
            args = make_args(self.base(hook))
            shown = list(args.messages)
            self._apply(hook, shown, await hook.call(args, self.step_number), default="response", empty_is_none=True)

    async def process_output_result(self, make_args: Callable[[dict[str, Any]], ProcessOutputResultArgs[Any]]) -> None:
        for hook in self._pipeline.hooks["process_output_result"]:
            args = make_args(self.base(hook))
            shown = list(args.messages)
            self._apply(hook, shown, await hook.call(args, self.step_number), default="response", empty_is_none=True)

    # -- calling and applying

    def base(self, hook: Hook) -> dict[str, Any]:
        """The arguments that every hook gets."""
        return {
            "context": self._context,
            "message_list": self._context.messages,
            "processor_id": hook.processor.id,
            "state": self._states[hook.slot] if hook.slot >= 0 else {},
            "retry_count": self.retry_count,
        }

    def _bad(self, hook: Hook, what: str) -> ProcessorResultError:
        return hook.bad_result(what, self.step_number)

    def _only(self, hook: Hook, result: dict[str, Any], allowed: set[str]) -> None:
        if unknown := result.keys() - allowed:
            raise self._bad(hook, f"unknown keys {sorted(unknown)}; allowed: {', '.join(sorted(allowed))}")

    def _response(self, hook: Hook, value: Any) -> str | list[Chunk]:
        if isinstance(value, str):
            return value
        chunks: list[Any] = list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [value]
        if wrong := [item for item in chunks if not isinstance(item, Chunk)]:
            raise self._bad(hook, f"{type(wrong[0]).__name__} as response; allowed: a text or chunks")
        return chunks

    def _system(self, hook: Hook, value: Any) -> list[SystemMessage | str]:
        items = list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [value]
        if bad := [item for item in items if not isinstance(item, SystemMessage | str)]:
            raise self._bad(hook, f"{type(bad[0]).__name__} among system_messages; allowed: SystemMessage, str")
        return items

    def _apply(
        self, hook: Hook, shown: Sequence[Message], result: Any, *, default: Source, empty_is_none: bool = False
    ) -> None:
        messages = self._context.messages
        match result:
            case None:
                return
            case MessageList():
                if result is not messages:
                    raise self._bad(hook, "a MessageList that is not this run's own")
            case list():
                returned = cast(list[Any], result)
                if bad := [item for item in returned if not isinstance(item, Message)]:
                    raise self._bad(hook, f"a list with {type(bad[0]).__name__} in it; allowed: Message")
                if returned or not empty_is_none:
                    messages.reconcile(shown, returned, default=default)
            case _:
                raise self._bad(
                    hook, f"{type(result).__name__}; allowed: None, list[Message], this run's MessageList, or its dict"
                )


class _PrepareStep(Processor[Any]):
    id = "prepare-step"


_PREPARE_STEP = _PrepareStep()
_STEP_KEYS = {
    "messages",
    "message_list",
    "system_messages",
    "model",
    "tools",
    "tool_choice",
    "active_tools",
    "model_settings",
    "provider_options",
    "structured_output",
}
