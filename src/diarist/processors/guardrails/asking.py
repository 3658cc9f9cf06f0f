"""One question to a model about a quoted text, and the JSON object in its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import orjson

from diarist.chunks import Chunk, ModelFinish, TextDelta
from diarist.exceptions import ModelResponseError
from diarist.messages import Json, Prompt, PromptMessage, TextPart
from diarist.models.base import Model, ModelRequest, ModelSettings, OutputSchema
from diarist.models.resolve import resolve
from diarist.run_context import count_usage
from diarist.tracing import span


class AsksModel:
    """Somebody who asks a model. One that was made here from an id is closed here."""

    def __init__(self, model: str | Model | Any) -> None:
        self.model = resolve(model)
        self._made_here = isinstance(model, str)

    async def close(self) -> None:
        if self._made_here:
            await self.model.close()


async def close_model(asks: object) -> None:
    """Close the model of an ``AsksModel``; anything else, such as a function, has none."""
    if isinstance(asks, AsksModel):
        await asks.close()


async def ask(model: Model, task: str, text: str, settings: ModelSettings, output: OutputSchema | None = None) -> str:
    """The answer's text. Its tokens count in the run's usage. Raises ModelError."""
    prompt = Prompt(
        messages=[
            PromptMessage(role="system", parts=[TextPart(text=task)]),
            PromptMessage(role="user", parts=[TextPart(text=text)]),
        ]
    )
    answer = ""
    with span(f"judge {model.id}", **{"gen_ai.request.model": model.name}) as current:
        # Every model's stream is an async generator; closing it is what cancels the call.
        stream = cast(
            "AsyncGenerator[Chunk]", model.stream(ModelRequest(prompt=prompt, settings=settings, output=output))
        )
        async with aclosing(stream):
            async for chunk in stream:
                if isinstance(chunk, TextDelta):
                    answer += chunk.payload.text
                elif isinstance(chunk, ModelFinish):
                    usage = chunk.payload.usage
                    count_usage(usage)
                    current.set(**{"gen_ai.usage.input_tokens": usage.input_tokens})
                    current.set(**{"gen_ai.usage.output_tokens": usage.output_tokens})
    return answer


def quoted(text: str) -> str:
    """The text as a JSON string without ``<``, which still means the same: nothing in it can end a quotation."""
    return orjson.dumps(text.encode("utf-8", "replace").decode()).decode().replace("<", "\\u003c")


def parse_object(answer: str, model: Model) -> dict[str, Json]:
    """The JSON object in an answer, also between other words. Raises ModelResponseError where there is none."""
    start, end = answer.find("{"), answer.rfind("}")
    try:
        value = orjson.loads(answer[start : end + 1] if start >= 0 else "")
    except orjson.JSONDecodeError as error:
        raise ModelResponseError(f"the answer of {model.id} is no JSON object: {answer:.200}") from error
    return cast(dict[str, Json], value)
