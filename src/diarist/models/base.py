"""What a model is for the rest of diarist: one request in, chunks out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from diarist.chunks import Chunk
from diarist.messages import Json, Prompt
from diarist.tools import ToolDefinition

ToolChoice = str
"""``"auto"``, ``"none"``, ``"required"``, or the name of the one tool that must be called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Settings of one model call; None leaves the provider's default.

    Attributes:
        temperature, top_p, seed, stop: As providers have them; dropped where a model refuses them.
        max_output_tokens: Tokens the answer may have.
        timeout: Seconds without any byte from the provider before ``ModelTimeoutError``.
        parallel_tool_calls: False asks for one tool call at a time.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    timeout: float | None = None
    parallel_tool_calls: bool | None = None

    def over(self, defaults: ModelSettings | None) -> ModelSettings:
        """These settings where they are set, else those of ``defaults``."""
        if defaults is None:
            return self
        mine = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        return replace(defaults, **mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSchema:
    """The JSON schema the answer's text must fit."""

    name: str
    schema: dict[str, Json]


@dataclass(slots=True, kw_only=True)
class ModelRequest:
    """Everything one model call gets.

    Attributes:
        prompt: System messages first, then the turns.
        tools: Tools the model may call, in a fixed order.
        output: When set, the answer must be JSON that fits it; a model asks its provider for it natively.
        provider_options: Options by provider name, handed through (``{"openai": {"reasoning_effort": "low"}}``).
    """

    prompt: Prompt
    tools: list[ToolDefinition] = field(default_factory=list[ToolDefinition])
    tool_choice: ToolChoice = "auto"
    settings: ModelSettings = field(default_factory=ModelSettings)
    output: OutputSchema | None = None
    provider_options: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def text(self) -> str:
        """The whole prompt as text."""
        return self.prompt.text


class Model(ABC):
    """A language model.

    Attributes:
        provider: Such as ``"openai"``.
        name: Such as ``"gpt-5-mini"``.
        cache_breakpoints: True where cache breakpoints have to be marked in the prompt (Anthropic, Bedrock).
        default_retries: Further calls that an agent makes after a failure that may pass, unless ``ModelEntry`` says
            otherwise.
    """

    provider: str
    name: str
    cache_breakpoints: bool = False
    default_retries: int = 2

    @property
    def id(self) -> str:
        """``provider/name``."""
        return f"{self.provider}/{self.name}"

    @abstractmethod
    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """Call the model once.

        Yields text, reasoning, tool-call, file and source chunks as they come (text and reasoning framed by
        their start and end chunks, each tool call as one ``ToolCallChunk`` after its optional input chunks)
        and ``ModelFinish`` as the last. ``run_id`` is left empty. Never retries by itself.

        Closing the iterator cancels the call.

        Raises:
            ModelError: Anything that went wrong, typed; the library's own error is the cause.
        """

    async def close(self) -> None:  # noqa: B027 - most models hold nothing open
        """Release connections; the model may be used again afterwards."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"
