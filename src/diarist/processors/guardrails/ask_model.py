"""Ask a model one question about a quoted text, and read the JSON object in its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, cast

import orjson

from diarist.chunks import Chunk, ModelFinish, TextDelta
from diarist.exceptions import ModelResponseError
from diarist.messages import Json, Prompt, PromptMessage, TextPart
from diarist.models.base import Model, ModelRequest, ModelSettings, OutputSchema
from diarist.models.resolve import resolve
from diarist.run_context import count_usage
from diarist.tracing import span


@cache
def load_prompt(name: str) -> str:
    """Return the text of ``prompts/<name>.txt``."""
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").strip()


def joined(*parts: str) -> str:
    """Join the parts of a task that are not empty."""
    return "\n\n".join(part.strip() for part in parts if part.strip())


class AsksModel:
    """Base of callables that ask a model. Closes a model that it created from an id."""

    def __init__(self, model: str | Model | Any) -> None:
        self.model = resolve(model)
        self._created = isinstance(model, str)

    async def close(self) -> None:
        if self._created:
            await self.model.close()

    async def ask(self, task: str, text: str, output: OutputSchema | None = None) -> dict[str, Json]:
        """Return the JSON object of the answer; its tokens count in the run's usage.

        The text is quoted as a JSON string without ``<``, so nothing in it can end the quotation.

        Raises:
            ModelError: The call failed, or the answer has no JSON object.
        """
        quoted = orjson.dumps(text.encode("utf-8", "replace").decode()).decode().replace("<", "\\u003c")
        prompt = Prompt(
            messages=[
                PromptMessage(role="system", parts=[TextPart(text=task)]),
                PromptMessage(role="user", parts=[TextPart(text=f"<text>\n{quoted}\n</text>")]),
            ]
        )
        request = ModelRequest(prompt=prompt, settings=ModelSettings(temperature=0.0), output=output)
        answer = ""
        with span(f"judge {self.model.id}", **{"gen_ai.request.model": self.model.name}) as current:
            # Every model's stream is an async generator; closing it cancels the call.
            async with aclosing(cast("AsyncGenerator[Chunk]", self.model.stream(request))) as stream:
                async for chunk in stream:
                    if isinstance(chunk, TextDelta):
                        answer += chunk.payload.text
                    elif isinstance(chunk, ModelFinish):
                        usage = chunk.payload.usage
                        count_usage(usage)
                        current.set(**{"gen_ai.usage.input_tokens": usage.input_tokens})
                        current.set(**{"gen_ai.usage.output_tokens": usage.output_tokens})
        start, end = answer.find("{"), answer.rfind("}")
        try:
            value = orjson.loads(answer[start : end + 1] if start >= 0 else "")
        except orjson.JSONDecodeError as error:
            raise ModelResponseError(f"the answer of {self.model.id} is no JSON object: {answer:.200}") from error
        return cast(dict[str, Json], value)
