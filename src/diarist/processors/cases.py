"""Per hook: what its processors are shown, and what their results do.

A *case* is one moment of a run at which a hook is asked. ``args`` says what a processor sees, ``take`` applies
what it returned; ``copy`` and ``outcome`` let the branches of a ``Parallel`` work side by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, cast

from diarist.chunks import Usage
from diarist.exceptions import ConfigError
from diarist.message_check import flaw
from diarist.message_list import MessageList, Source, SystemMessage
from diarist.messages import Message
from diarist.payloads import FinishReason
from diarist.processors import base
from diarist.processors.base import OutputResult, ProcessorArgs, StepResult
from diarist.processors.hooks import Hook
from diarist.processors.setup import OVERRIDES, StepSetup


@dataclass(kw_only=True)
class Case(ABC):
    """One moment at which a hook is asked.

    Attributes:
        hook: The hook's name.
        source: What messages count as that a processor adds here.
        edits_messages: What the hook returns may hold messages.
        takes_dict: They may stand in a dict.
        step: The step's number; None outside the steps.
        shown: The messages that the last processor was shown, as they were before it worked.
    """

    hook: ClassVar[str]
    source: ClassVar[Source] = "context"
    edits_messages: ClassVar[bool] = False
    takes_dict: ClassVar[bool] = False
    messages: MessageList
    step: int | None = None
    shown: tuple[Message, ...] = field(default=(), init=False)

    @abstractmethod
    def args(self, common: dict[str, Any]) -> ProcessorArgs[Any]:
        """The argument for one processor; ``common`` is what every hook gets."""

    @abstractmethod
    def take(self, hook: Hook, args: Any, result: Any) -> bool:
        """Apply what a processor returned; True when nobody after it is to be asked.

        Raises ProcessorResultError for what the hook does not allow.
        """

    def keep(self) -> Callable[[], None]:
        """A function that takes back what a hook changes in place after this."""
        messages, before = self.messages, self.messages.snapshot(contents=True)
        return lambda: messages.restore(before)

    def flaw(self) -> str | None:
        """What nobody can use of what a hook may have changed in place, in words; None if all is well."""
        return self.messages.flaw()

    def copy(self) -> Self:
        """The same case for a branch that works beside others."""
        return replace(self, messages=self.messages.copy())

    @abstractmethod
    def outcome(self) -> Any:
        """What a branch came to, in the form that the hook returns."""

    def content(self) -> dict[str, Any]:
        """What a hook may have changed, by name, in a form that later edits in place do not reach."""
        return {"messages": [_stored(m) for m in self.messages.all], "system_messages": self.messages.system}

    def _only(self, hook: Hook, result: Any, allowed: set[str]) -> dict[str, Any]:
        if not isinstance(result, dict):
            raise hook.not_allowed(result, f"allowed: None, {_keys(allowed)}", self.step)
        values = cast(dict[str, Any], result)
        if unknown := values.keys() - allowed:
            raise hook.bad_result(f"unknown keys {sorted(unknown)}; allowed: {_keys(allowed)}", self.step)
        return dict(values)

    def _show(self, messages: list[Message]) -> list[Message]:
        self.shown = tuple(messages)
        return messages

    def _take_messages(self, hook: Hook, result: Any, *, empty_is_none: bool = False) -> None:
        match result:
            case None:
                return
            case MessageList():
                if result is not self.messages:
                    raise hook.bad_result("a MessageList that is not this run's own", self.step)
            case list():
                returned = cast(list[Any], result)
                if bad := [item for item in returned if not isinstance(item, Message)]:
                    raise hook.bad_result(f"a list with {type(bad[0]).__name__} in it; allowed: Message", self.step)
                for place, message in enumerate(returned):
                    if wrong := flaw(message):
                        raise hook.bad_result(f"message {place}: {wrong}", self.step)
                if returned or not empty_is_none:
                    self.messages.reconcile(self.shown, returned, default=self.source)
            case _:
                allowed = "allowed: None, list[Message], this run's MessageList"
                raise hook.not_allowed(result, f"{allowed}{', or its dict' * self.takes_dict}", self.step)

    def _take_system(self, hook: Hook, value: Any) -> None:
        if value is None:
            return
        items: list[Any] = list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [value]
        if bad := [item for item in items if not isinstance(item, SystemMessage | str)]:
            what = f"{type(bad[0]).__name__} among system_messages; allowed: SystemMessage, str"
            raise hook.bad_result(what, self.step)
        self.messages.replace_system(items)


@dataclass(kw_only=True)
class InputCase(Case):
    hook: ClassVar[str] = "process_input"
    edits_messages: ClassVar[bool] = True
    takes_dict: ClassVar[bool] = True
    source: ClassVar[Source] = "input"

    def args(self, common: dict[str, Any]) -> base.ProcessInputArgs[Any]:
        return base.ProcessInputArgs(
            **common, messages=self._show(self.messages.messages), system_messages=self.messages.system
        )

    def take(self, hook: Hook, args: base.ProcessInputArgs[Any], result: Any) -> bool:
        if isinstance(result, dict):
            values = self._only(hook, cast(Any, result), {"messages", "system_messages"})
            self._take_system(hook, values.get("system_messages"))
            result = values.get("messages")
        self._take_messages(hook, result)
        return False

    def outcome(self) -> base.InputResult:
        return {"messages": self.messages.messages, "system_messages": self.messages.system}


@dataclass(kw_only=True)
class InputStepCase(Case):
    hook: ClassVar[str] = "process_input_step"
    edits_messages: ClassVar[bool] = True
    takes_dict: ClassVar[bool] = True
    setup: StepSetup
    steps: list[StepResult]
    changed: dict[str, Any] = field(default_factory=dict[str, Any])

    def args(self, common: dict[str, Any]) -> base.ProcessInputStepArgs[Any]:
        setup = self.setup
        return base.ProcessInputStepArgs(
            **common,
            messages=self._show(self.messages.messages),
            system_messages=self.messages.system,
            step_number=self.step or 0,
            steps=list(self.steps),
            model=setup.model,
            tools=dict(setup.tools),
            tool_choice=setup.tool_choice,
            active_tools=None if setup.active_tools is None else list(setup.active_tools),
            model_settings=setup.model_settings,
            provider_options={name: dict(values) for name, values in setup.provider_options.items()},
            structured_output=setup.structured_output,
        )

    def take(self, hook: Hook, args: base.ProcessInputStepArgs[Any], result: Any) -> bool:
        if isinstance(result, dict):
            values = self._only(hook, cast(Any, result), _STEP_KEYS)
            if "messages" in values and "message_list" in values:
                raise hook.bad_result("both 'messages' and 'message_list'", self.step)
            result = values.pop("messages", values.pop("message_list", None))
            self._take_system(hook, values.pop("system_messages", None))
            try:
                self.setup.merge(values)
            except ConfigError as error:
                raise hook.bad_result(f"an override that cannot be used: {error}", self.step) from error
            self.changed |= values
        self._take_messages(hook, result)
        return False

    def copy(self) -> Self:
        setup = replace(self.setup, tools=dict(self.setup.tools))
        return replace(self, messages=self.messages.copy(), setup=setup, changed={})

    def outcome(self) -> dict[str, Any]:
        return {"messages": self.messages.messages, "system_messages": self.messages.system, **self.changed}

    def content(self) -> dict[str, Any]:
        setup = self.setup
        more = {item.name: copy(getattr(setup, item.name)) for item in fields(setup) if item.name != "model"}
        return {**super().content(), **more, "model": setup.model}


@dataclass(kw_only=True)
class OutputStepCase(Case):
    """``added`` makes the step's result of the messages, as they are now."""

    hook: ClassVar[str] = "process_output_step"
    edits_messages: ClassVar[bool] = True
    source: ClassVar[Source] = "response"
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

    def take(self, hook: Hook, args: base.ProcessOutputStepArgs[Any], result: Any) -> bool:
        self._take_messages(hook, result, empty_is_none=True)
        return False

    def outcome(self) -> list[Message]:
        return self.messages.messages


@dataclass(kw_only=True)
class OutputResultCase(Case):
    """``result`` makes the run's result of the messages, as they are now."""

    hook: ClassVar[str] = "process_output_result"
    edits_messages: ClassVar[bool] = True
    source: ClassVar[Source] = "response"
    result: Callable[[MessageList], OutputResult]

    def args(self, common: dict[str, Any]) -> base.ProcessOutputResultArgs[Any]:
        result = self.result(self.messages)
        return base.ProcessOutputResultArgs(**common, messages=self._show(self.messages.response), result=result)

    def take(self, hook: Hook, args: base.ProcessOutputResultArgs[Any], result: Any) -> bool:
        self._take_messages(hook, result, empty_is_none=True)
        return False

    def outcome(self) -> list[Message]:
        return self.messages.response


def _stored(message: Message) -> str:
    """A message but for what storage notes on it."""
    return repr(replace(message, seq=None, part_tokens=None, thread_id=None, resource_id=None, run_id=None))


_STEP_KEYS = {"messages", "message_list", "system_messages", "model", "structured_output", *OVERRIDES}


def _keys(names: set[str]) -> str:
    return f"a dict of {', '.join(sorted(names))}"
