"""A chat model of LangChain behind the library's interface, for the Observer, the Reflector and titles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any

from langchain_core import exceptions as lib
from langchain_core.language_models import BaseChatModel

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
from diarist.exceptions import ContextOverflowError, ModelError
from diarist.integrations.langchain.messages import from_prompt
from diarist.models.base import Model, ModelRequest

_PROVIDERS = {"google_genai": "google", "google_vertexai": "google-cloud", "aws": "bedrock", "mistralai": "mistral"}


class ChatModel(Model):
    """Calls a ``BaseChatModel`` for text.

    A call runs in an empty context, without callbacks: it appears in no stream, callback, trace or usage of the agent
    that it works for. The request's settings are not sent; the chat model has its own.
    """

    default_retries = 0  # chat models retry by themselves

    def __init__(self, model: BaseChatModel) -> None:
        package = type(model).__module__.partition(".")[0].removeprefix("langchain_")
        self.provider = _PROVIDERS.get(package, package)
        self.name = str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)
        self._model = model

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        call = self._model.ainvoke(from_prompt(request.prompt), {"callbacks": []})
        task = asyncio.get_running_loop().create_task(call, context=Context())
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            await cancel_and_wait(task)
            raise
        except lib.ContextOverflowError as error:
            raise ContextOverflowError(str(error), provider=self.provider) from error
        except Exception as error:
            raise ModelError(f"{self.id} failed: {error}", provider=self.provider) from error
        yield TextStart(payload=IdPayload(id="1"))
        yield TextDelta(payload=TextPayload(text=answer.text, id="1"))
        yield TextEnd(payload=IdPayload(id="1"))
        usage: Any = answer.usage_metadata or {}
        read = Usage(
            input_tokens=usage.get("input_tokens", 0),
            output_tokens=usage.get("output_tokens", 0),
            cached_tokens=usage.get("input_token_details", {}).get("cache_read", 0),
            cache_write_tokens=usage.get("input_token_details", {}).get("cache_creation", 0),
            reasoning_tokens=usage.get("output_token_details", {}).get("reasoning", 0),
        )
        reason = "length" if _was_cut(answer.response_metadata) else "stop"
        yield ModelFinish(payload=ModelFinishPayload(reason=reason, usage=read))


def _was_cut(metadata: dict[str, Any]) -> bool:
    """Return True if the answer reached the model's limit, in the words of several providers."""
    said = str(metadata.get("finish_reason") or metadata.get("stop_reason") or metadata.get("done_reason") or "")
    return said.lower() in ("length", "max_tokens")
