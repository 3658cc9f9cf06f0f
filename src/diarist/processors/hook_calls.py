"""The calls of hooks: a processor's arguments, and the effects of the values that it returns.

A ``HookCall`` is one moment of a run at which a hook is called. ``args`` builds a processor's argument, ``apply``
applies the returned value; ``copy`` and ``outcome`` serve the branches of a ``Parallel``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

from diarist.chunks import Chunk, FinishReason, Usage
from diarist.exceptions import ConfigError, ModelError
from diarist.message_check import flaw, part_flaw, prompt_flaw
from diarist.message_list import FieldValues, MessageList, Origin, SystemMessage
from diarist.messages import Json, Message, Prompt, ToolPart
from diarist.models.base import Model, ModelRequest
from diarist.processors import base
from diarist.processors.base import OutputResult, ProcessorArgs, StepResult
from diarist.processors.hooks import BadHookResult, result_as_json, wrong_type
from diarist.processors.setup import OVERRIDES, StepSetup
from diarist.tools import Tool


@dataclass(kw_only=True)
class HookCall(ABC):
    """One moment at which a hook is called.

    Attributes:
        hook: The hook's name.
        origin: The origin of messages that a processor adds here; None if the hook cannot return messages.
        step: The step's number, set by the pipeline; None outside the steps.
        shown: The messages that the last processor was shown, to compare with those that it returns.
        listed: The list in which it got them, ``args.messages``. If it changes this list, it must return it.
    """

    hook: ClassVar[str]
    origin: ClassVar[Origin | None] = None
    messages: MessageList
    step: int | None = None
    shown: tuple[Message, ...] = field(default=(), init=False)
    listed: list[Message] = field(default_factory=list[Message], init=False)

    @abstractmethod
    def args(self, common: dict[str, Any]) -> ProcessorArgs[Any]:
        """Build the argument for one processor; ``common`` has the fields that every hook gets."""

    def apply(self, result: Any) -> bool:
        """Apply the value that a processor returned; here, messages. Returns True if no further processor must run.

        A dict sets system messages as well; hooks of the response do not allow one. An empty list is no response, so it
        changes nothing there.

        Raises BadHookResult for a value that the hook does not allow.
        """
        is_response = self.origin == "response"
        if not is_response and isinstance(result, dict):
            values = _checked_dict(result, "messages", "system_messages")
            system, result = values.get("system_messages"), values.get("messages")
            if system is not None:
                items = list(cast(Sequence[Any], system)) if isinstance(system, list | tuple) else [system]
                if bad := [item for item in items if not isinstance(item, SystemMessage | str)]:
                    raise BadHookResult(f"{type(bad[0]).__name__} among system_messages; allowed: SystemMessage, str")
                self.messages.replace_system(items)
        if isinstance(result, MessageList | None) and tuple(self.listed) != self.shown:
            raise BadHookResult("no list of messages, but it changed args.messages; return that list")
        match result:
            case None:
                pass
            case MessageList():
                if result is not self.messages:
                    raise BadHookResult("a MessageList that is not this run's own")
            case list():
                returned = cast(list[Any], result)
                if bad := [item for item in returned if not isinstance(item, Message)]:
                    raise BadHookResult(f"a list with {type(bad[0]).__name__} in it; allowed: Message")
                for place, message in enumerate(returned):
                    if wrong := flaw(message):
                        raise BadHookResult(f"message {place}: {wrong}")
                if returned or not is_response:
                    self.messages.reconcile(self.shown, returned, default=self.origin or "context")
            case _:
                allowed = "allowed: None, list[Message], this run's MessageList"
                raise wrong_type(result, f"{allowed}{'' if is_response else ', or its dict'}")
        return False

    @abstractmethod
    def outcome(self) -> Any:
        """Return the outcome of a branch, in the form of the hook's return value."""

    def undo_functions(self) -> list[Callable[[], object]]:
        """Return functions that together undo later edits in place."""
        messages, before = self.messages, self.messages.snapshot(contents=True)
        return [lambda: messages.restore(before)]

    def flaw(self) -> str | None:
        """Describe an invalid change that a hook made in place; None if there is none."""
        return self.messages.flaw()

    def copy(self) -> Self:
        """Return a copy for one branch of a ``Parallel``."""
        return replace(self, messages=self.messages.copy())

    def content(self) -> dict[str, Any]:
        """Return copies of everything that a hook may change, by name."""
        messages = [repr([getattr(message, name) for name in _CONTENT]) for message in self.messages.all]
        return {"messages": messages, "system_messages": self.messages.system}

    def _show(self, messages: list[Message]) -> list[Message]:
        self.shown, self.listed = tuple(messages), messages
        return messages


_CONTENT = ("id", "role", "parts", "created_at", "metadata", "sent")
"""The fields of a message that a hook may change; storage sets the others."""


def _checked_dict(result: Any, *allowed: str) -> dict[str, Any]:
    """Return a copy of the result, empty for None. Raises BadHookResult for any other type or key."""
    if result is None:
        return {}
    allowed_dict = f"a dict of {', '.join(sorted(allowed))}"
    if not isinstance(result, dict):
        raise wrong_type(result, f"allowed: None, {allowed_dict}")
    values = cast(dict[str, Any], result)
    if unknown := values.keys() - set(allowed):
        raise BadHookResult(f"unknown keys {sorted(unknown)}; allowed: {allowed_dict}")
    return dict(values)


@dataclass(kw_only=True)
class OnInput(HookCall):
    hook: ClassVar[str] = "process_input"
    origin: ClassVar[Origin | None] = "input"

    def args(self, common: dict[str, Any]) -> base.ProcessInputArgs[Any]:
        return base.ProcessInputArgs(
            **common, messages=self._show(self.messages.messages), system_messages=self.messages.system
        )

    def outcome(self) -> base.InputResult:
        return {"messages": self.messages.messages, "system_messages": self.messages.system}


_STEP_KEYS = ("messages", "message_list", "system_messages", "model", *OVERRIDES)


@dataclass(kw_only=True)
class OnInputStep(HookCall):
    """The setup of a step, before its prompt is built.

    Attributes:
        changed: The overrides that processors have returned.
        processor_id: The processor that was called last.
    """

    hook: ClassVar[str] = "process_input_step"
    origin: ClassVar[Origin | None] = "context"
    setup: StepSetup
    steps: list[StepResult]
    is_last: bool = False
    changed: dict[str, Any] = field(default_factory=dict[str, Any])
    processor_id: str = ""

    def args(self, common: dict[str, Any]) -> base.ProcessInputStepArgs[Any]:
        setup, self.processor_id = self.setup, common["processor_id"]
        return base.ProcessInputStepArgs(
            **common,
            messages=self._show(self.messages.messages),
            system_messages=self.messages.system,
            step_number=self.step or 0,
            is_last=self.is_last,
            steps=list(self.steps),
            model=setup.model,
            tools=dict(setup.tools),
            tool_choice=setup.tool_choice,
            active_tools=None if setup.active_tools is None else list(setup.active_tools),
            model_settings=setup.model_settings,
            provider_options={name: dict(values) for name, values in setup.provider_options.items()},
            structured_output=setup.structured_output,
        )

    def apply(self, result: Any) -> bool:
        if not isinstance(result, dict):
            return super().apply(result)
        values = _checked_dict(result, *_STEP_KEYS)
        if "messages" in values and "message_list" in values:
            raise BadHookResult("both 'messages' and 'message_list'")
        messages = values.pop("messages", values.pop("message_list", None))
        super().apply({"messages": messages, "system_messages": values.pop("system_messages", None)})
        try:
            self.setup.merge(values, self.processor_id)
        except ConfigError as error:
            raise BadHookResult(f"an override that cannot be used: {error}") from error
        self.changed |= values
        return False

    def copy(self) -> Self:
        setup = replace(self.setup, tools=dict(self.setup.tools))
        return replace(self, messages=self.messages.copy(), setup=setup, changed={})

    def outcome(self) -> dict[str, Any]:
        return {"messages": self.messages.messages, "system_messages": self.messages.system, **self.changed}

    def content(self) -> dict[str, Any]:
        setup = self.setup
        overridable = {name: copy(getattr(setup, name)) for name in OVERRIDES}
        return {**super().content(), **overridable, "model": setup.model}


@dataclass(kw_only=True)
class OnRequest(HookCall):
    """The request before it is sent; ``response`` is set if a processor answered in the model's place."""

    hook: ClassVar[str] = "process_llm_request"
    request: ModelRequest
    model: Model
    response: str | list[Chunk] | None = None

    def args(self, common: dict[str, Any]) -> base.ProcessLLMRequestArgs[Any]:
        return base.ProcessLLMRequestArgs(
            **common, prompt=self.request.prompt, request=self.request, model=self.model, step_number=self.step or 0
        )

    def apply(self, result: Any) -> bool:
        if isinstance(result, dict):
            values = _checked_dict(result, "prompt", "response")
            response = values.get("response")
            if response is not None:
                self.response = response if isinstance(response, str) else _chunks(response)
                return True
            result = values.get("prompt")
        if result is None:
            return False
        if not isinstance(result, Prompt):
            raise wrong_type(result, "allowed: a Prompt, or a dict of prompt / response")
        self.request.prompt = result
        return False

    def undo_functions(self) -> list[Callable[[], object]]:
        request, prompt = self.request, deepcopy(self.request.prompt)
        return [*super().undo_functions(), FieldValues.of(request).put_back, lambda: setattr(request, "prompt", prompt)]

    def flaw(self) -> str | None:
        return prompt_flaw(self.request.prompt)

    def copy(self) -> Self:
        prompt, tools = deepcopy(self.request.prompt), list(self.request.tools)
        return replace(self, messages=self.messages.copy(), request=replace(self.request, prompt=prompt, tools=tools))

    def outcome(self) -> dict[str, Any]:
        return {"prompt": self.request.prompt} if self.response is None else {"response": self.response}

    def content(self) -> dict[str, Any]:
        return {**super().content(), "prompt": repr(self.request.prompt), "response": self.response}


def _chunks(response: Any) -> list[Chunk]:
    items = list(cast(Sequence[Any], response)) if isinstance(response, list | tuple) else [response]
    if wrong := [item for item in items if not isinstance(item, Chunk)]:
        raise BadHookResult(f"{type(wrong[0]).__name__} as response; allowed: a text or chunks")
    return items


@dataclass(kw_only=True)
class OnResponse(HookCall):
    """The complete response of the model, which processors may only read."""

    hook: ClassVar[str] = "process_llm_response"
    request: ModelRequest
    model: Model
    response: list[Chunk]
    from_cache: bool

    def args(self, common: dict[str, Any]) -> base.ProcessLLMResponseArgs[Any]:
        return base.ProcessLLMResponseArgs(
            **common,
            request=self.request,
            response=self.response,
            model=self.model,
            step_number=self.step or 0,
            from_cache=self.from_cache,
        )

    def apply(self, result: Any) -> bool:
        if result is not None:
            raise wrong_type(result, "this hook only observes: return None")
        return False

    def undo_functions(self) -> list[Callable[[], object]]:
        response, before = self.response, deepcopy(self.response)
        return [*super().undo_functions(), response.clear, lambda: response.extend(before)]

    def outcome(self) -> None:
        return None


@dataclass(kw_only=True)
class OnError(HookCall):
    """A failed model call; ``retry`` and ``delay`` are set by the processors."""

    hook: ClassVar[str] = "process_api_error"
    error: ModelError
    model: Model
    steps: list[StepResult]
    retry_count: int
    retry: bool = False
    delay: float = 0.0

    def args(self, common: dict[str, Any]) -> base.ProcessAPIErrorArgs[Any]:
        common["retry_count"] = self.retry_count
        return base.ProcessAPIErrorArgs(
            **common,
            error=self.error,
            messages=self.messages.messages,
            model=self.model,
            step_number=self.step or 0,
            steps=list(self.steps),
        )

    def apply(self, result: Any) -> bool:
        values = _checked_dict(result, "retry", "delay")
        delay = values.get("delay") or 0.0
        if not isinstance(delay, int | float) or not 0 <= delay < math.inf:
            raise BadHookResult(f"the delay {delay!r}; allowed: seconds, from 0 on")
        retry = values.get("retry", False)
        if not isinstance(retry, bool):
            raise BadHookResult(f"retry {retry!r}; allowed: True, False")
        self.retry = retry
        self.delay = float(delay) if self.retry else 0.0
        return self.retry

    def outcome(self) -> base.APIErrorResult | None:
        return {"retry": True, "delay": self.delay} if self.retry else None


@dataclass(kw_only=True)
class _OnTool(HookCall):
    call: ToolPart
    tool: Tool | None

    def flaw(self) -> str | None:
        return part_flaw(self.call)

    def copy(self) -> Self:
        return replace(self, messages=self.messages.copy(), call=deepcopy(self.call))

    def content(self) -> dict[str, Any]:
        return {"args": deepcopy(self.call.args), "result": (self.call.state, deepcopy(self.call.result))}


@dataclass(kw_only=True)
class OnToolResult(_OnTool):
    """A finished call. Only this call may be edited in place: the step's other calls run at the same time.

    An ``error`` for a denied call replaces the reason: the call stays denied.
    """

    hook: ClassVar[str] = "process_tool_result"

    def args(self, common: dict[str, Any]) -> ProcessorArgs[Any]:
        return base.ProcessToolResultArgs(**common, call=self.call, tool=self.tool, step_number=self.step or 0)

    def apply(self, result: Any) -> bool:
        values = _checked_dict(result, "result", "error")
        if "error" in values:
            self.call.result = _text(values, "error")
            self.call.state = "denied" if self.call.state == "denied" else "error"
        elif "result" in values:
            self.call.state, self.call.result = "result", result_as_json(values["result"])
        return False

    def undo_functions(self) -> list[Callable[[], object]]:
        return [FieldValues.of(self.call).put_back]

    def outcome(self) -> dict[str, Json]:
        return {"result" if self.call.state == "result" else "error": self.call.result}


@dataclass(kw_only=True)
class OnToolCall(_OnTool):
    """A call before its tool runs.

    ``answered``: a processor answered for the tool or denied the call. ``args_error`` is None once a processor has
    given arguments.
    """

    hook: ClassVar[str] = "process_tool_call"
    answered: bool = False
    args_error: str | None = None

    def args(self, common: dict[str, Any]) -> ProcessorArgs[Any]:
        return base.ProcessToolCallArgs(
            **common, call=self.call, tool=self.tool, step_number=self.step or 0, args_error=self.args_error
        )

    def apply(self, result: Any) -> bool:
        values = _checked_dict(result, "args", "result", "deny")
        if "args" in values:
            if not isinstance(values["args"], dict):
                raise BadHookResult(f"{type(values['args']).__name__} as args; allowed: a dict")
            self.call.args, self.args_error = result_as_json(values["args"]), None
        if "deny" in values:
            self.call.state, self.call.result, self.answered = "denied", _text(values, "deny"), True
        elif "result" in values:
            self.call.state, self.call.result, self.answered = "result", result_as_json(values["result"]), True
        return self.answered

    def undo_functions(self) -> list[Callable[[], object]]:
        return [*super().undo_functions(), FieldValues.of(self.call).put_back]

    def outcome(self) -> dict[str, Json]:
        if not self.answered:
            return {"args": self.call.args}
        return {"deny" if self.call.state == "denied" else "result": self.call.result}


def _text(values: dict[str, Any], name: str) -> str:
    if not isinstance(value := values[name], str):
        raise wrong_type(value, f"allowed as {name!r}: a text")
    return value


@dataclass(kw_only=True)
class OnOutputStep(HookCall):
    """The response of a step; ``added`` makes the step's result from the current messages."""

    hook: ClassVar[str] = "process_output_step"
    origin: ClassVar[Origin | None] = "response"
    steps: list[StepResult]
    added: Callable[[MessageList], StepResult]
    finish_reason: FinishReason
    usage: Usage

    def args(self, common: dict[str, Any]) -> base.ProcessOutputStepArgs[Any]:
        step = self.added(self.messages)
        return base.ProcessOutputStepArgs(
            **common,
            messages=self._show(self.messages.messages),
            system_messages=self.messages.system,
            step_number=self.step or 0,
            steps=[*self.steps, step],
            text=step.text,
            tool_calls=step.tool_calls,
            finish_reason=self.finish_reason,
            usage=self.usage,
        )

    def outcome(self) -> list[Message]:
        return self.messages.messages


@dataclass(kw_only=True)
class OnOutputResult(HookCall):
    """The complete answer; ``result`` makes the run's result from the current messages."""

    hook: ClassVar[str] = "process_output_result"
    origin: ClassVar[Origin | None] = "response"
    result: Callable[[MessageList], OutputResult]

    def args(self, common: dict[str, Any]) -> base.ProcessOutputResultArgs[Any]:
        result = self.result(self.messages)
        return base.ProcessOutputResultArgs(**common, messages=self._show(self.messages.response), result=result)

    def outcome(self) -> list[Message]:
        return self.messages.response
