"""A model of OpenAI's Agents SDK, called by memory: for the Observer, the Reflector and titles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import Context

import openai
from agents import Model as SdkModel
from agents import ModelResponse, ModelSettings, ModelTracing

from diarist.chunks import (
    Chunk,
    IdPayload,
    ModelFinish,
    ModelFinishPayload,
    TextDelta,
    TextEnd,
    TextPayload,
    TextStart,
    Usage,
)
from diarist.concurrency import cancel_and_wait
from diarist.exceptions import ModelConnectionError, ModelError, ModelTimeoutError
from diarist.integrations.openai_agents.messages import from_prompt
from diarist.models.api_errors import api_error
from diarist.models.base import Model, ModelRequest


class AgentsModel(Model):
    """The user's model as one of the library. Its calls are in no stream, usage or trace of the user's run."""

    def __init__(self, build: Callable[[], SdkModel], name: str, *, store: bool | None) -> None:
        """
        Args:
            build: Returns the model; called at each call, as the SDK does.
            name: As the user gives it to an agent, such as ``gpt-5-mini`` or ``litellm/anthropic/claude``.
            store: The user's setting, if there is one: False asks OpenAI to keep no answers.
        """
        provider, _, rest = name.rpartition("/")
        self.provider, self.name = provider or "openai", rest
        self._build, self._store = build, store

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        call = asyncio.get_running_loop().create_task(self._call(request), context=Context())
        try:
            response = await asyncio.shield(call)
        except asyncio.CancelledError:
            await cancel_and_wait(call)
            raise
        except Exception as error:
            raise _typed(error, self.provider) from error
        text = "".join(
            getattr(part, "text", "") for item in response.output if item.type == "message" for part in item.content
        )
        yield TextStart(payload=IdPayload(id="0"))
        yield TextDelta(payload=TextPayload(text=text, id="0"))
        yield TextEnd(payload=IdPayload(id="0"))
        used = response.usage
        usage = Usage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cached_tokens=used.input_tokens_details.cached_tokens,
            reasoning_tokens=used.output_tokens_details.reasoning_tokens,
        )
        yield ModelFinish(
            payload=ModelFinishPayload(reason="stop", usage=usage, response_id=response.response_id or "")
        )

    async def _call(self, request: ModelRequest) -> ModelResponse:
        messages = request.prompt.messages
        # Sampling and limits of the request are not sent: a model may refuse them.
        return await self._build().get_response(
            "\n\n".join(message.text for message in messages if message.role == "system") or None,
            from_prompt([message for message in messages if message.role != "system"]),
            ModelSettings(store=self._store),
            [],
            None,
            [],
            ModelTracing.DISABLED,
            previous_response_id=None,
            conversation_id=None,
            prompt=None,
        )


def _typed(error: Exception, provider: str) -> ModelError:
    match error:
        case openai.APITimeoutError():
            return ModelTimeoutError(f"{provider} did not answer in time: {error}", provider=provider)
        case openai.APIConnectionError():
            return ModelConnectionError(f"the connection to {provider} failed: {error}", provider=provider)
        case openai.APIStatusError():
            return api_error(
                provider, body=error.body, status=error.status_code, code=error.code or "", otherwise=error
            )
        case _:
            return ModelError(f"{provider} failed: {error}", provider=provider)
