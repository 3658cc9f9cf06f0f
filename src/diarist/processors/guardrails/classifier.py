"""A classifier is a model or any callable: text in, verdict out."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

from diarist.exceptions import ConfigError, ModelResponseError
from diarist.messages import Json
from diarist.models.base import Model, ModelSettings, OutputSchema
from diarist.processors.builtin.options import function, texts
from diarist.processors.guardrails.asking import AsksModel, ask, close_model, parse_object, quoted
from diarist.processors.guardrails.prompts import load_prompt
from diarist.processors.guardrails.verdict import Verdict, VerdictLike, as_verdict

Classify: TypeAlias = Callable[[str], VerdictLike | Awaitable[VerdictLike]]
"""A classifier of one's own. A sync one runs in the event loop: make a slow one async."""

_SETTINGS = ModelSettings(temperature=0.0)


class ModelClassifier(AsksModel):
    """Asks a model for scores; ``await classifier(text)``.

    The text goes to the model as quoted data: JSON in which no ``<`` is left, so that nothing in it can end the
    quotation.

    Args:
        model: An id such as ``"openai/gpt-5-nano"``, or a ``Model``.
        categories: Name to description of what is asked for.
        task: What the model has to do.
        instructions: Added to the task.
        answer_text: Ask for the text as it should be as well.

    Raises:
        ConfigError: The model cannot be used.
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
        self._categories = dict(categories)
        self._answer_text = answer_text
        self._task = _task(task, self._categories, instructions, answer_text)
        self._schema = _schema(self._categories, answer_text)

    async def __call__(self, text: str) -> Verdict:
        """Raises ModelError: the call failed, or the answer is no verdict on every category."""
        data = f"<text>\n{quoted(text)}\n</text>"
        return self._read(await ask(self.model, self._task, data, _SETTINGS, self._schema))

    def _read(self, answer: str) -> Verdict:
        value = parse_object(answer, self.model)
        scores = value.get("scores")
        if not isinstance(scores, dict):
            raise ModelResponseError(f"the verdict of {self.model.id} has no scores: {answer:.200}")
        text, reason = value.get("text"), value.get("reason")
        try:
            given = as_verdict(
                Verdict(
                    scores=cast(dict[str, Any], scores),
                    reason=reason if isinstance(reason, str) else "",
                    text=text if self._answer_text and isinstance(text, str) else None,
                )
            )
        except ValueError as error:
            raise ModelResponseError(f"the verdict of {self.model.id} cannot be read: {error}") from error
        verdict = given.of(self._categories)
        if missing := [name for name in self._categories if name not in verdict.scores]:
            raise ModelResponseError(f"the verdict of {self.model.id} has no score for {', '.join(missing)}")
        return verdict


class Classifier:
    """A model or a callable behind one door: ``await classifier.judge(text)``."""

    def __init__(self, classify: Classify) -> None:
        self._classify = classify

    async def close(self) -> None:
        await close_model(self._classify)

    async def judge(self, text: str) -> Verdict:
        """Raises whatever the callable raises, TypeError or ValueError for a value that is no verdict."""
        value = self._classify(text)
        return as_verdict(await value if inspect.isawaitable(value) else value)


def make_classifier(
    owner: str,
    model: str | Model | None,
    classifier: Classify | None,
    **of_model: Any,
) -> Classifier | None:
    """The classifier that a processor was given, as ``model=`` or as ``classifier=``; None for neither.

    Raises:
        ConfigError: Both are given, the model cannot be used, or the classifier cannot be called.
    """
    if model is not None and classifier is not None:
        raise ConfigError(f"{owner}: give model or classifier, not both")
    texts(owner, instructions=of_model.get("instructions", ""))
    if model is not None:
        return Classifier(ModelClassifier(model, **of_model))
    if classifier is None:
        return None
    function(owner, "classifier", classifier)
    return Classifier(classifier)


def _task(role: str, categories: Mapping[str, str], instructions: str, answer_text: bool) -> str:
    listed = "\n".join(f"- {name}: {meaning}" if meaning else f"- {name}" for name, meaning in categories.items())
    form = load_prompt("verdict_with_text" if answer_text else "verdict")
    parts = (role, f"Categories:\n{listed}", load_prompt("quoted_text"), form, instructions.strip())
    return "\n\n".join(part for part in parts if part)


def _schema(categories: Mapping[str, str], answer_text: bool) -> OutputSchema:
    scores = {"type": "object", "properties": {name: {"type": "number"} for name in categories}}
    properties: dict[str, Json] = {"scores": _closed(scores), "reason": {"type": "string"}}
    if answer_text:
        properties["text"] = {"type": "string"}
    return OutputSchema(name="verdict", schema=_closed({"type": "object", "properties": properties}))


def _closed(schema: dict[str, Json]) -> dict[str, Json]:
    return {**schema, "required": list(schema["properties"]), "additionalProperties": False}
