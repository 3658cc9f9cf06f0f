"""One call of the model: what it is sent, and what comes of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

from diarist.agent.call_ids import CallIds
from diarist.agent.step_input import CallFailed, replay
from diarist.chunks import Chunk, ModelFinish, ModelFinishPayload, Usage
from diarist.message_list import MessageList
from diarist.models.base import ModelRequest
from diarist.processors.model_cases import RequestCase, ResponseCase
from diarist.processors.pipeline import PipelineRun
from diarist.processors.setup import StepSetup
from diarist.prompting import build_prompt
from diarist.tracing import client_span


def make_request(messages: MessageList, setup: StepSetup, feedback: str | None) -> ModelRequest:
    """The request of a step; ``feedback`` is why the attempt before was rejected."""
    prompt = build_prompt(
        messages.system, messages.messages, feedback=feedback, cache_breakpoints=setup.model.cache_breakpoints
    )
    return ModelRequest(
        prompt=prompt,
        tools=[tool.definition for tool in setup.offered.values()],
        tool_choice=setup.tool_choice,
        settings=setup.model_settings,
        output=setup.structured_output,
        provider_options=setup.provider_options,
    )


class ModelCall:
    """A call that all ``process_llm_request`` hooks have seen.

    Attributes:
        finish: How the model ended, and its tokens; ``error`` and none before it has said so.
    """

    def __init__(self, case: RequestCase, pipeline: PipelineRun) -> None:
        self._case = case
        self._pipeline = pipeline
        self.finish = ModelFinishPayload(reason="error", usage=Usage())

    async def run(
        self,
        take: Callable[[Chunk], Awaitable[None]],
        during: Callable[[Coroutine[Any, Any, None]], Awaitable[None]],
    ) -> None:
        """Hand every chunk to ``take``, then ask ``process_llm_response`` inside ``during``. Raises CallFailed where
        the model fails."""
        model, settings = self._case.model, self._case.request.settings
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": model.provider,
            "gen_ai.request.model": model.name,
            "gen_ai.request.temperature": settings.temperature,
            "gen_ai.request.max_tokens": settings.max_output_tokens,
            "gen_ai.request.top_p": settings.top_p,
        }
        with client_span(f"chat {model.name}", **attributes) as current:
            whole = await self._read(take)
            if self._pipeline.has(ResponseCase.hook):
                await during(self._pipeline.ask(self._response(whole)))
            if current.recording:
                current.set(
                    **{
                        "gen_ai.response.model": self.finish.model or None,
                        "gen_ai.response.id": self.finish.response_id or None,
                        "gen_ai.response.finish_reasons": [self.finish.reason],
                        "gen_ai.usage.input_tokens": self.finish.usage.input_tokens,
                        "gen_ai.usage.output_tokens": self.finish.usage.output_tokens,
                        "gen_ai.usage.cache_read.input_tokens": self.finish.usage.cached_tokens,
                    }
                )

    async def _read(self, take: Callable[[Chunk], Awaitable[None]]) -> list[Chunk]:
        """The response as it came."""
        case, whole, ids = self._case, list[Chunk](), CallIds()
        source = case.model.stream(case.request) if case.response is None else replay(case.response)
        try:
            while True:
                try:
                    chunk = ids.own(await anext(source))
                except StopAsyncIteration:
                    return whole
                except Exception as error:
                    raise CallFailed(error, case.model) from error
                whole.append(chunk)
                if isinstance(chunk, ModelFinish):
                    self.finish = chunk.payload
                else:
                    await take(chunk)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    def _response(self, whole: list[Chunk]) -> ResponseCase:
        case = self._case
        return ResponseCase(
            messages=case.messages,
            step=case.step,
            request=case.request,
            model=case.model,
            response=whole,
            from_cache=case.response is not None,
        )
