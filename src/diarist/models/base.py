"""The interface of a model: one request in, chunks out."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from diarist.checks import LARGEST, flags, not_negative, positive, text_or_texts, whole
from diarist.chunks import Chunk
from diarist.messages import Json, Prompt
from diarist.tools import ToolDefinition

ToolChoice = str
"""``"auto"``, ``"none"``, ``"required"``, or the name of a tool that must be called."""

TOTAL_TIMEOUT = 1800.0
"""Seconds that one call may take if ``ModelSettings.total_timeout`` is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Settings of a model call; None keeps the provider's default.

    Attributes:
        temperature, top_p, seed: As providers define them; not sent to models that refuse them.
        stop: A text that ends the answer, or several; kept as a tuple.
        max_output_tokens: Maximum number of tokens in the answer.
        timeout: Seconds without any byte from the provider before ``ModelTimeoutError``. Default: 600, or the
            provider library's own.
        total_timeout: Seconds that one call may take in all, including reading its answer, before
            ``ModelTimeoutError``. Default: 1,800.
        parallel_tool_calls: False asks for one tool call at a time.

    Raises:
        ConfigError: A setting is of another type, or a number is too small.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    timeout: float | None = None
    total_timeout: float | None = None
    parallel_tool_calls: bool | None = None

    def __post_init__(self) -> None:
        checks = {
            "temperature": not_negative,
            "top_p": not_negative,
            "max_output_tokens": partial(whole, least=1),
            "seed": partial(whole, least=-LARGEST),
            "timeout": positive,
            "total_timeout": positive,
        }
        for name, check in checks.items():
            if (value := getattr(self, name)) is not None:
                check("ModelSettings", name, value)
        if self.parallel_tool_calls is not None:
            flags("ModelSettings", parallel_tool_calls=self.parallel_tool_calls)
        if self.stop is not None:
            object.__setattr__(self, "stop", text_or_texts("ModelSettings", "stop", self.stop))

    def over(self, defaults: ModelSettings | None) -> ModelSettings:
        """Return these settings, with ``defaults`` for those that are None."""
        if defaults is None:
            return self
        mine = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        return replace(defaults, **mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSchema:
    """The JSON schema that the answer's text must match."""

    name: str
    schema: dict[str, Json]

    @property
    def sent_name(self) -> str:
        """Return the name as providers accept it: at most 64 letters, digits, ``_`` and ``-``."""
        return re.sub(r"[^a-zA-Z0-9_-]", "_", self.name)[:64] or "answer"


@dataclass(slots=True, kw_only=True)
class ModelRequest:
    """The input of a model call.

    Attributes:
        prompt: System messages first, then the turns.
        tools: Tools the model may call, in a fixed order.
        output: Schema of a JSON answer, if a JSON answer is wanted; sent in the provider's own form.
        provider_options: Options by provider name, passed on unchanged (``{"openai": {"reasoning_effort": "low"}}``).
    """

    prompt: Prompt
    tools: list[ToolDefinition] = field(default_factory=list[ToolDefinition])
    tool_choice: ToolChoice = "auto"
    settings: ModelSettings = field(default_factory=ModelSettings)
    output: OutputSchema | None = None
    provider_options: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def text(self) -> str:
        """Return the whole prompt as text."""
        return self.prompt.text

    def __repr__(self) -> str:
        return f"ModelRequest({len(self.prompt.messages)} messages, tools={[tool.name for tool in self.tools]!r})"


class Model(ABC):
    """A language model.

    Attributes:
        provider: Such as ``"openai"``.
        name: Such as ``"gpt-5-mini"``.
        cache_breakpoints: True if the prompt must mark cache breakpoints (Anthropic, Bedrock).
        default_retries: Retries after a transient failure, unless ``ModelEntry`` sets its own number.
    """

    provider: str
    name: str
    cache_breakpoints: bool = False
    default_retries: int = 2

    @property
    def id(self) -> str:
        """Return ``provider/name``."""
        return f"{self.provider}/{self.name}"

    @abstractmethod
    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """Call the model once.

        Yields text, reasoning, tool-call, file and source chunks as they arrive, and ``ModelFinish`` as the last. Each
        tool call is one ``ToolCallChunk`` after its optional input chunks. The agent begins and ends blocks of text and
        reasoning that have no start and end chunks. ``run_id`` is empty. A call is never retried. Closing the iterator
        cancels the call.

        Raises:
            ModelError: The call failed; the library's own error is the cause.
        """

    async def close(self) -> None:  # noqa: B027 - most models hold nothing open
        """Release connections; the next call opens new ones."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


@asynccontextmanager
async def open_stream(model: Model, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk]]:
    """Call the model once and yield its stream. The end of the block closes the stream, which cancels the call."""
    stream = model.stream(request)
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
