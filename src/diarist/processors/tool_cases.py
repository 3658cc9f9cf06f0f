"""The cases of the two tool hooks: see ``cases``."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from diarist.message_check import part_flaw
from diarist.message_list import Kept
from diarist.messages import Json, ToolPart
from diarist.processors import base
from diarist.processors.cases import Case
from diarist.processors.hooks import Hook
from diarist.tools import Tool


@dataclass(kw_only=True)
class ToolCallCase(Case):
    """``answered``: a processor answered for the tool or refused it, so that it does not run. ``args_error`` is
    None once a processor has given arguments."""

    hook: ClassVar[str] = "process_tool_call"
    call: ToolPart
    tool: Tool | None
    answered: bool = False
    args_error: str | None = None

    def args(self, common: dict[str, Any]) -> base.ProcessToolCallArgs[Any]:
        return base.ProcessToolCallArgs(
            **common, call=self.call, tool=self.tool, step_number=self.step or 0, args_error=self.args_error
        )

    def take(self, hook: Hook, args: base.ProcessToolCallArgs[Any], result: Any) -> bool:
        if result is None:
            return False
        values = self._only(hook, result, {"args", "result", "deny"})
        if "args" in values:
            if not isinstance(values["args"], dict):
                raise hook.bad_result(f"{type(values['args']).__name__} as args; allowed: a dict", self.step)
            self.call.args, self.args_error = hook.as_json(values["args"], self.step), None
        if "deny" in values:
            self.call.state, self.call.result, self.answered = "denied", hook.text(values, "deny", self.step), True
        elif "result" in values:
            self.call.state, self.call.result, self.answered = "result", hook.as_json(values["result"], self.step), True
        return self.answered

    def keep(self) -> Callable[[], None]:
        messages, call = super().keep(), Kept.of(self.call)

        def take_back() -> None:
            messages()
            call.put_back()

        return take_back

    def flaw(self) -> str | None:
        return part_flaw(self.call)

    def copy(self) -> Self:
        return replace(self, messages=self.messages.copy(), call=deepcopy(self.call))

    def outcome(self) -> dict[str, Json]:
        if not self.answered:
            return {"args": self.call.args}
        return {"deny" if self.call.state == "denied" else "result": self.call.result}

    def content(self) -> dict[str, Any]:
        return _content(self.call)


@dataclass(kw_only=True)
class ToolResultCase(Case):
    hook: ClassVar[str] = "process_tool_result"
    call: ToolPart
    tool: Tool | None

    def args(self, common: dict[str, Any]) -> base.ProcessToolResultArgs[Any]:
        return base.ProcessToolResultArgs(**common, call=self.call, tool=self.tool, step_number=self.step or 0)

    def take(self, hook: Hook, args: base.ProcessToolResultArgs[Any], result: Any) -> bool:
        if result is None:
            return False
        values = self._only(hook, result, {"result", "error"})
        if "error" in values:
            self.call.state, self.call.result = "error", hook.text(values, "error", self.step)
        elif "result" in values:
            self.call.state, self.call.result = "result", hook.as_json(values["result"], self.step)
        return False

    def keep(self) -> Callable[[], None]:
        return Kept.of(self.call).put_back  # of the call alone: other calls of the step run meanwhile

    def flaw(self) -> str | None:
        return part_flaw(self.call)

    def copy(self) -> Self:
        return replace(self, messages=self.messages.copy(), call=deepcopy(self.call))

    def outcome(self) -> dict[str, Json]:
        return {"error" if self.call.state == "error" else "result": self.call.result}

    def content(self) -> dict[str, Any]:
        return _content(self.call)


def _content(call: ToolPart) -> dict[str, Any]:
    """Of the call alone: other calls of the step run meanwhile."""
    return {"args": deepcopy(call.args), "result": (call.state, deepcopy(call.result))}
