"""Ask a model about a text, and classifiers: a model or a function that scores a text by categories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import orjson

from diarist.checks import flags, function, texts
from diarist.chunks import ModelFinish, TextDelta
from diarist.exceptions import BadRequestError, ConfigError, ModelError, ModelResponseError
from diarist.messages import Json, Prompt, PromptMessage, TextPart
from diarist.models.base import Model, ModelRequest, ModelSettings, OutputSchema, open_stream
from diarist.models.fallbacks import ModelEntry
from diarist.models.resolve import resolve
from diarist.processors.base import call_sync_or_async
from diarist.run_context import count_usage
from diarist.tracing import span

_own_temperature = set[str]()
"""Ids of models that refused a temperature."""


@cache
def load_prompt(name: str) -> str:
    """Return the text of ``prompts/<name>.txt``."""
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").strip()


def join_texts(*parts: str) -> str:
    """Join the parts of a task that are not empty."""
    return "\n\n".join(part.strip() for part in parts if part.strip())


def prompt_message(role: Literal["system", "user", "assistant"], text: str) -> PromptMessage:
    """Return a message with one text."""
    return PromptMessage(role=role, parts=[TextPart(text=text)])


async def answer_of(model: Model, messages: list[PromptMessage], output: OutputSchema | None, *, doing: str) -> str:
    """Return the text of a model's answer, at temperature 0; its tokens count in the run's usage.

    Transient failures are retried, as those of the agent's model. If a model refuses the temperature (a bad request),
    this and later calls leave it out.

    ``doing``: the verb in the span's name. Raises ModelError.
    """
    settings = ModelSettings(temperature=None if model.id in _own_temperature else 0.0)
    request = ModelRequest(prompt=Prompt(messages=messages), settings=settings, output=output)
    entry = ModelEntry(model=model)
    refusal: BadRequestError | None = None
    retries = 0
    while True:
        try:
            answer = await _answer_to(request, model, doing)
            if refusal is not None:
                _own_temperature.add(model.id)
            return answer
        except BadRequestError as error:
            if request.settings.temperature is None:
                raise refusal or error from None
            refusal, request = error, replace(request, settings=ModelSettings())
            continue
        except ModelError as error:
            delay = entry.delay(error, retries)
            if delay is None:
                raise
        retries += 1
        await asyncio.sleep(delay)


async def _answer_to(request: ModelRequest, model: Model, doing: str) -> str:
    answer = ""
    with span(f"{doing} {model.id}", **{"gen_ai.request.model": model.name}) as current:
        async with open_stream(model, request) as stream:
            async for chunk in stream:
                if isinstance(chunk, TextDelta):
                    answer += chunk.payload.text
                elif isinstance(chunk, ModelFinish):
                    usage = chunk.payload.usage
                    count_usage(model.id, usage)
                    current.set(**{"gen_ai.usage.input_tokens": usage.input_tokens})
                    current.set(**{"gen_ai.usage.output_tokens": usage.output_tokens})
    return answer


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
        messages = [prompt_message("system", task), prompt_message("user", f"<text>\n{quoted}\n</text>")]
        answer = await answer_of(self.model, messages, output, doing="judge")
        start, end = answer.find("{"), answer.rfind("}")
        try:
            value = orjson.loads(answer[start : end + 1] if start >= 0 else "")
        except orjson.JSONDecodeError as error:
            raise ModelResponseError(f"the answer of {self.model.id} is no JSON object: {answer:.200}") from error
        return cast(dict[str, Json], value)


FLAGGED = "flagged"
"""The category of a score, if the classifier returns a single number or bool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a classifier.

    Attributes:
        scores: Category to score, from 0 (no) to 1 (certain). A missing category counts as 0.
        reason: The reason for the scores, in a few words.
        text: A replacement for the text, if the classifier rewrites or translates; otherwise None.
    """

    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    reason: str = ""
    text: str | None = None

    def over(self, threshold: float) -> dict[str, float]:
        """Return the categories at or above the threshold, the highest score first."""
        found = [(name, score) for name, score in self.scores.items() if score >= threshold]
        return dict(sorted(found, key=lambda item: -item[1]))

    def metadata(self, threshold: float) -> dict[str, Json]:
        """Return the metadata of tripwires and data chunks."""
        return {"categories": list(self.over(threshold)), "scores": dict(self.scores), "reason": self.reason}

    def of(self, categories: Iterable[str]) -> Verdict:
        """Return the verdict for only these categories; case and word separators of names are ignored."""
        asked = {_spelling(name): name for name in categories}
        scores: dict[str, float] = {}
        for given, score in self.scores.items():
            if name := asked.get(_spelling(given)):
                scores[name] = max(score, scores.get(name, 0.0))
        return replace(self, scores=scores)


def _spelling(name: str) -> str:
    return "-".join(name.casefold().replace("_", " ").replace("-", " ").split())


VerdictLike: TypeAlias = Verdict | Mapping[str, float | bool] | float | bool | None
"""Return values of a classifier function: a ``Verdict``; a mapping from category to score or bool; a single score or
bool, for the category ``flagged``; None if it found nothing."""

Classify: TypeAlias = Callable[[str], VerdictLike | Awaitable[VerdictLike]]
"""A classifier function. A sync function runs in the event loop, so make slow functions async."""


def as_verdict(value: Any) -> Verdict:
    """Return the verdict for a classifier's return value. Raises TypeError or ValueError for an invalid one."""
    match value:
        case Verdict():
            verdict = value
        case None:
            verdict = Verdict()
        case bool() | int() | float():
            verdict = Verdict(scores={FLAGGED: value})
        case Mapping():
            verdict = Verdict(scores=cast(Mapping[str, Any], value))
        case _:
            raise TypeError(f"a classifier returns a Verdict, scores, a number, a bool or None, not {value!r:.100}")
    for name, score in verdict.scores.items():
        if not isinstance(cast(Any, score), bool | int | float) or not 0 <= score <= 1:
            raise ValueError(f"the score of {name!r} must be a bool or a number from 0 to 1, not {score!r:.100}")
    return replace(verdict, scores={str(name): float(score) for name, score in verdict.scores.items()})


class ModelClassifier(AsksModel):
    """Asks a model for scores: ``await classifier(text)``.

    Args:
        model: An id such as ``"openai/gpt-5-nano"``, or a ``Model``.
        categories: Name to description of each category.
        task: Instructions for the model.
        instructions: Added to the task.
        answer_text: True asks for a corrected text, too.

    Raises:
        ConfigError: The model cannot be used, or another argument is of the wrong type.
    """

    def __init__(
        self,
        model: str | Model | Any,
        *,
        categories: Mapping[str, str],
        task: str,
        instructions: str = "",
        answer_text: bool = False,
    ) -> None:
        super().__init__(model)
        if not isinstance(cast(object, categories), Mapping):
            raise ConfigError(
                f"ModelClassifier: categories must be a mapping of names to descriptions, not {categories!r}"
            )
        texts("ModelClassifier", task=task, instructions=instructions)
        flags("ModelClassifier", answer_text=answer_text)
        self._categories = dict(categories)
        self._answer_text = answer_text
        listed = "\n".join(f"- {name}: {meaning}" if meaning else f"- {name}" for name, meaning in categories.items())
        form = load_prompt("verdict_with_text" if answer_text else "verdict")
        self._task = join_texts(task, f"Categories:\n{listed}", load_prompt("quoted_text"), form, instructions)
        properties: dict[str, Json] = {
            "scores": _object({name: {"type": "number"} for name in categories}),
            "reason": {"type": "string"},
        }
        if answer_text:
            properties["text"] = {"type": "string"}
        self._schema = OutputSchema(name="verdict", schema=_object(properties))

    async def __call__(self, text: str) -> Verdict:
        """Return the scores. Raises ModelError if the call failed, or the answer does not score every category."""
        value = await self.ask(self._task, text, self._schema)
        scores = value.get("scores")
        if not isinstance(scores, dict):
            raise ModelResponseError(f"the verdict of {self.model.id} has no scores: {value!s:.200}")
        rewritten, reason = value.get("text"), value.get("reason")
        try:
            given = as_verdict(
                Verdict(
                    scores=cast(dict[str, Any], scores),
                    reason=reason if isinstance(reason, str) else "",
                    text=rewritten if self._answer_text and isinstance(rewritten, str) else None,
                )
            )
        except ValueError as error:
            raise ModelResponseError(f"the verdict of {self.model.id} cannot be read: {error}") from error
        verdict = given.of(self._categories)
        if missing := [name for name in self._categories if name not in verdict.scores]:
            raise ModelResponseError(f"the verdict of {self.model.id} has no score for {', '.join(missing)}")
        return verdict


def _object(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


async def verdict_of(classify: Classify, text: str) -> Verdict:
    """Return a classifier's verdict. Raises the classifier's errors; TypeError or ValueError for an invalid result."""
    return as_verdict(await call_sync_or_async(classify, text))


def make_classifier(
    owner: str, model: str | Model | None, classifier: Classify | None, **of_model: Any
) -> Classify | None:
    """Return the classifier from a processor's ``model`` or ``classifier`` option; None if neither is given.

    Raises:
        ConfigError: Both are given, the model cannot be used, or the classifier is not a function.
    """
    if model is not None and classifier is not None:
        raise ConfigError(f"{owner}: give model or classifier, not both")
    function(owner, "classifier", classifier)
    return classifier if model is None else ModelClassifier(model, **of_model)
