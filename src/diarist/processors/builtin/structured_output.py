"""Convert a text answer into an object with a second model call."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, Literal, Protocol, TypeVar

from diarist.checks import check_by_type, whole
from diarist.chunks import DataChunk
from diarist.encoding import dumps
from diarist.exceptions import ConfigError, InputError, ModelError
from diarist.messages import Json, Message
from diarist.models.base import Model
from diarist.models.output_type import OutputType
from diarist.models.resolve import resolve
from diarist.processors.base import ProcessInputStepArgs, Processor, ProcessOutputResultArgs
from diarist.processors.guardrails.classifier import answer_of, join_texts, prompt_message

logger = logging.getLogger("diarist")

OutputT = TypeVar("OutputT")

METADATA_KEY = "structured_output"
"""Key of the object in the metadata of the run's last message."""

_TASK = (
    "Express the text below as JSON that fits the schema. Take every value from the text and invent none; where "
    "the text does not say, use null or the emptiest value that the schema allows. Reply with the JSON alone."
)


class _HasMessages(Protocol):
    @property
    def messages(self) -> list[Message]: ...


@dataclass(kw_only=True, eq=False, repr=False)
class StructuredOutput(Processor[Any], Generic[OutputT]):
    """Converts the finished answer into an object, for models that support no structured output (or not with tools).

    The answer itself does not change. The object, as JSON, is stored in ``metadata["structured_output"]`` of the run's
    last message and streamed as a ``data-structured-output`` chunk; ``value(result)`` returns it as ``output_type``. If
    the model supports JSON schemas, ``output_type=`` of a call is simpler and needs no second model call. Put it last
    in ``output_processors``. Without ``model``, put it into ``input_processors`` too, so that it can use the model of
    the last step.

    Args:
        output_type: A Pydantic model, dataclass, TypedDict, or JSON schema.
        model: The model that converts the answer: an id or a ``Model``. Default: the model that answered.
        max_retries: Retries if the object does not match; the model gets the reason. Default 2.
        on_failure: What happens if no attempt matches, or the model fails (after the retries of transient failures, as
            for the agent's model): ``"block"`` (default) ends the run with a tripwire, ``"warn"``
            logs it and returns the answer without an object, ``"fallback"`` uses ``fallback``.
        fallback: JSON that matches the type.
        instructions: Added to the model's task, for example the meaning of a field.

    Example::

        trip = StructuredOutput(Trip, model="openai/gpt-5-mini")
        agent = Agent(model="local/small", output_processors=[trip])
        trip.value(await agent.generate("Plan a day in Rome."))
    """

    output_type: type[OutputT] | dict[str, Json] = field(kw_only=False)
    model: str | Model | None = None
    max_retries: int = 2
    on_failure: Literal["block", "warn", "fallback"] = "block"
    fallback: Json = None
    instructions: str = ""

    def __post_init__(self) -> None:
        whole("StructuredOutput", "max_retries", self.max_retries, least=0)
        check_by_type(self)
        self._type = OutputType(self.output_type)
        self._model = None if self.model is None else resolve(self.model)
        self.input_option = "model" if self._model is None else ""
        if self.on_failure == "fallback":
            try:
                self._type.parse(_json(self.fallback))
            except InputError as error:
                raise ConfigError(f"StructuredOutput: fallback does not match: {error}") from error

    async def close(self) -> None:
        if self._model is not None and isinstance(self.model, str):
            await self._model.close()

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        """Keep the model for the conversion."""
        args.state["model"] = args.model

    async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        """Convert the answer. A run that stops at tool calls has none."""
        if any(not call.provider_executed for call in args.result.steps[-1].tool_calls):
            return
        model: Model = self._model or args.state["model"]
        try:
            value = await self._convert(args.result.text, model)
        except (InputError, ModelError) as error:
            if self.on_failure == "block":
                why = error if isinstance(error, InputError) else type(error).__name__
                args.abort(f"the answer could not be converted to {self._type.schema.name}: {why}")
            logger.warning("structured-output: run %s has no %s: %s", args.run_id, self._type.schema.name, error)
            if self.on_failure == "warn":
                return
            value = self.fallback
        if args.messages:
            args.messages[-1].metadata[METADATA_KEY] = value
        args.writer.custom(DataChunk("data-structured-output", value, transient=True))

    def value(self, result: _HasMessages) -> OutputT | None:
        """Return the object of a finished run (``AgentResult``) as ``output_type``; None if it has none."""
        for message in reversed(result.messages):
            if METADATA_KEY in message.metadata:
                return self._type.parse(_json(message.metadata[METADATA_KEY]))
        return None

    async def _convert(self, text: str, model: Model) -> Json:
        """Return JSON that matches the type. Raises InputError if no attempt does."""
        schema = self._type.schema
        instructions = join_texts(_TASK, self.instructions, f"Schema:\n{_json(schema.schema)}")
        task = [prompt_message("system", instructions), prompt_message("user", f"<text>\n{text}\n</text>")]
        for attempt in count():
            answer = await answer_of(model, [*task], schema, doing="convert")
            try:
                return self._type.plain(answer)
            except InputError as error:
                if attempt >= self.max_retries:
                    raise
                task[2:] = [
                    prompt_message("assistant", answer or "{}"),
                    prompt_message("user", f"That does not fit: {error}"),
                ]


def _json(value: Json) -> str:
    return dumps(value).decode()
