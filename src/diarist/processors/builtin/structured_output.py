"""An object from an answer in words, made by a second model call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from diarist.chunks import DataChunk, ModelFinish, TextDelta
from diarist.exceptions import ConfigError, InputError
from diarist.messages import Json, Message, Prompt, PromptMessage, TextPart
from diarist.models.base import Model, ModelRequest, ModelSettings
from diarist.models.output_type import OutputType
from diarist.models.resolve import resolve
from diarist.payloads import Usage
from diarist.processors.base import ProcessInputStepArgs, Processor, ProcessOutputResultArgs
from diarist.processors.builtin.options import not_negative, one_of

logger = logging.getLogger("diarist")

OutputT = TypeVar("OutputT")

METADATA_KEY = "structured_output"
"""Where the object stands in the metadata of the run's last message."""

_TASK = (
    "Express the text below as JSON that fits the schema. Take every value from the text and invent none; where "
    "the text does not say, use null or the emptiest value that the schema allows. Reply with the JSON alone."
)


class _HasMessages(Protocol):
    @property
    def messages(self) -> list[Message]: ...


class StructuredOutput(Processor[Any], Generic[OutputT]):
    """Turns the finished answer into an object, for models that cannot do so themselves while they use tools.

    The answer stays as it is. The object, as JSON, is in ``metadata["structured_output"]`` of the run's last
    message, stored with it, and is streamed as a ``data-structured-output`` chunk; ``value(result)`` gives it as
    the type. Where the model has JSON schemas of its own, ``output_type=`` of a call is simpler and costs no
    second model call. Put it last in ``output_processors``, and into ``input_processors`` as well where ``model``
    is not given, for it takes the model of the last step then.

    Args:
        output_type: A Pydantic model, dataclass, TypedDict, or JSON schema.
        model: Who makes the object: an id or a ``Model``. Default: the model that answered.
        max_retries: Further attempts for an object that does not fit; the model is told why. Default 2.
        on_failure: When none fits: ``"block"`` (default) ends the run with a tripwire, ``"warn"`` logs it and lets
            the answer pass without an object, ``"fallback"`` uses ``fallback``.
        fallback: JSON that fits the type.
        instructions: Said to the model after the task, such as what a field means.

    Raises:
        ConfigError: A type without a schema, a fallback that does not fit, a negative max_retries.

    Example::

        trip = StructuredOutput(Trip, model="openai/gpt-5-mini")
        agent = Agent(model="local/small", output_processors=[trip])
        trip.value(await agent.generate("Plan a day in Rome."))
    """

    def __init__(
        self,
        output_type: type[OutputT] | dict[str, Json],
        *,
        model: str | Model | None = None,
        max_retries: int = 2,
        on_failure: Literal["block", "warn", "fallback"] = "block",
        fallback: Json = None,
        instructions: str = "",
    ) -> None:
        not_negative("StructuredOutput", "max_retries", max_retries)
        one_of("StructuredOutput", "on_failure", on_failure, ("block", "warn", "fallback"))
        self._type = OutputType(output_type)
        self._model = None if model is None else resolve(model)
        self._made_here = isinstance(model, str)
        self._max_retries = max_retries
        self._on_failure = on_failure
        self._instructions = instructions
        self._fallback = fallback
        if on_failure == "fallback":
            try:
                self._type.parse(_json(fallback))
            except InputError as error:
                raise ConfigError(f"StructuredOutput: fallback does not fit: {error}") from error

    async def close(self) -> None:
        if self._model is not None and self._made_here:
            await self._model.close()

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        """Note the model, in case it has to make the object too."""
        args.state["model"] = args.model

    async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        """Make the object of the answer."""
        model: Model | None = self._model or args.state.get("model")
        if model is None:
            raise ConfigError("StructuredOutput: give it a model, or put it into input_processors as well")
        try:
            value = await self._convert(args.result.text, model, args)
        except InputError as error:
            if self._on_failure == "block":
                args.abort(f"no {self._type.schema.name} could be made of the answer: {error}")
            logger.warning("structured-output: run %s has no %s: %s", args.run_id, self._type.schema.name, error)
            if self._on_failure == "warn":
                return
            value = self._fallback
        if args.messages:
            args.messages[-1].metadata[METADATA_KEY] = value
        args.writer.custom(DataChunk("data-structured-output", value, transient=True))

    def value(self, result: _HasMessages) -> OutputT | None:
        """The object of a finished run (``AgentResult``) as ``output_type``; None where there is none."""
        for message in reversed(result.messages):
            if METADATA_KEY in message.metadata:
                return self._type.parse(_json(message.metadata[METADATA_KEY]))
        return None

    async def _convert(self, text: str, model: Model, args: ProcessOutputResultArgs[Any]) -> Json:
        """JSON that fits. Raises InputError where no attempt did."""
        turns = [_said("user", f"<text>\n{text}\n</text>")]
        attempt = 0
        while True:
            said, usage = await _ask(model, self._request(turns))
            args.add_usage(usage)
            try:
                return self._type.plain(said)
            except InputError as error:
                if attempt >= self._max_retries:
                    raise
                attempt += 1
                turns = [turns[0], _said("assistant", said or "{}"), _said("user", f"That does not fit: {error}")]

    def _request(self, turns: Sequence[PromptMessage]) -> ModelRequest:
        schema = self._type.schema
        parts = [_TASK, *([self._instructions] if self._instructions else []), f"Schema:\n{_json(schema.schema)}"]
        prompt = Prompt(messages=[_said("system", "\n\n".join(parts)), *turns])
        return ModelRequest(prompt=prompt, output=schema, settings=ModelSettings(temperature=0))


def _said(role: Literal["system", "user", "assistant"], text: str) -> PromptMessage:
    return PromptMessage(role=role, parts=[TextPart(text=text)])


def _json(value: Json) -> str:
    import orjson

    return orjson.dumps(value).decode()


async def _ask(model: Model, request: ModelRequest) -> tuple[str, Usage]:
    text, usage = "", Usage()
    async for chunk in model.stream(request):
        if isinstance(chunk, TextDelta):
            text += chunk.payload.text
        elif isinstance(chunk, ModelFinish):
            usage = chunk.payload.usage
    return text, usage
