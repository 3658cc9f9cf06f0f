"""The cases of the hooks around a model call: see ``cases``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

from diarist.chunks import Chunk
from diarist.exceptions import ModelError
from diarist.message_check import prompt_flaw
from diarist.message_list import Kept
from diarist.messages import Prompt
from diarist.models.base import Model, ModelRequest
from diarist.processors import base
from diarist.processors.base import StepResult
from diarist.processors.cases import Case
from diarist.processors.hooks import Hook


@dataclass(kw_only=True)
class RequestCase(Case):
    """``response`` is set where a processor answered in the model's place."""

    hook: ClassVar[str] = "process_llm_request"
    request: ModelRequest
    model: Model
    response: str | list[Chunk] | None = None

    def args(self, common: dict[str, Any]) -> base.ProcessLLMRequestArgs[Any]:
        return base.ProcessLLMRequestArgs(
            **common, prompt=self.request.prompt, request=self.request, model=self.model, step_number=self.step or 0
        )

    def take(self, hook: Hook, args: base.ProcessLLMRequestArgs[Any], result: Any) -> bool:
        if isinstance(result, dict):
            values = self._only(hook, cast(Any, result), {"prompt", "response"})
            if (response := values.get("response")) is not None:
                self.response = self._response(hook, response)
                return True
            result = values.get("prompt")
        if result is None:
            return False
        if not isinstance(result, Prompt):
            raise hook.not_allowed(result, "allowed: a Prompt, or a dict of prompt / response", self.step)
        self.request.prompt = result
        return False

    def _response(self, hook: Hook, value: Any) -> str | list[Chunk]:
        if isinstance(value, str):
            return value
        chunks: list[Any] = list(cast(Sequence[Any], value)) if isinstance(value, list | tuple) else [value]
        if wrong := [item for item in chunks if not isinstance(item, Chunk)]:
            raise hook.bad_result(f"{type(wrong[0]).__name__} as response; allowed: a text or chunks", self.step)
        return chunks

    def keep(self) -> Callable[[], None]:
        messages, request = super().keep(), Kept.of(self.request)
        prompt = deepcopy(self.request.prompt)

        def take_back() -> None:
            messages()
            request.put_back()
            self.request.prompt = prompt

        return take_back

    def flaw(self) -> str | None:
        return prompt_flaw(self.request.prompt)

    def copy(self) -> Self:
        prompt, tools = deepcopy(self.request.prompt), list(self.request.tools)
        return replace(self, messages=self.messages.copy(), request=replace(self.request, prompt=prompt, tools=tools))

    def outcome(self) -> dict[str, Any]:
        return {"prompt": self.request.prompt} if self.response is None else {"response": self.response}

    def content(self) -> dict[str, Any]:
        return {**super().content(), "prompt": repr(self.request.prompt), "response": self.response}


@dataclass(kw_only=True)
class ResponseCase(Case):
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

    def take(self, hook: Hook, args: base.ProcessLLMResponseArgs[Any], result: Any) -> bool:
        if result is not None:
            raise hook.not_allowed(result, "this hook only observes: return None", self.step)
        return False

    def keep(self) -> Callable[[], None]:
        messages, response = super().keep(), deepcopy(self.response)

        def take_back() -> None:
            messages()
            self.response[:] = response

        return take_back

    def outcome(self) -> None:
        return None


@dataclass(kw_only=True)
class ErrorCase(Case):
    """``retry`` and ``delay`` are what the processors asked for."""

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

    def take(self, hook: Hook, args: base.ProcessAPIErrorArgs[Any], result: Any) -> bool:
        if result is None:
            return False
        values = self._only(hook, result, {"retry", "delay"})
        delay = values.get("delay") or 0.0
        if not isinstance(delay, int | float) or not 0 <= delay < math.inf:
            raise hook.bad_result(f"the delay {delay!r}; allowed: seconds, from 0 on", self.step)
        retry = values.get("retry", False)
        if not isinstance(retry, bool):
            raise hook.bad_result(f"retry {retry!r}; allowed: True, False", self.step)
        self.retry = retry
        self.delay = float(delay) if self.retry else 0.0
        return self.retry

    def outcome(self) -> base.APIErrorResult | None:
        return {"retry": True, "delay": self.delay} if self.retry else None
