"""Convert a prompt to the library's messages, and build the arguments of a library call from a request."""

from __future__ import annotations

import re
from base64 import b64decode
from copy import deepcopy
from importlib import import_module
from itertools import takewhile
from typing import Any, cast

from pydantic_ai import messages as lib
from pydantic_ai.models import Model as LibModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings as LibSettings
from pydantic_ai.tools import ToolDefinition as LibTool

from diarist.encoding import clean, writable
from diarist.exceptions import BadRequestError
from diarist.messages import (
    FilePart,
    Prompt,
    PromptMessage,
    PromptPart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from diarist.models import provider_data
from diarist.models.base import TOTAL_TIMEOUT, ModelRequest

_MAX_BREAKPOINTS = 4  # Anthropic's and Bedrock's limit for one request


def to_messages(prompt: Prompt, *, system: str, breakpoints: bool) -> list[lib.ModelMessage]:
    """Return the library's messages for a prompt, with U+FFFD for lone surrogates, which providers refuse.

    Args:
        prompt: System messages first, then the turns.
        system: The library's name of the provider; provider data of other providers is left out.
        breakpoints: Put cache breakpoints into the request. If False, ``PromptMessage.cache`` is ignored. The
            breakpoint after the instructions is a setting, see ``marks_instructions``.
    """
    marked = [index for index, message in enumerate(prompt.messages) if message.cache] if breakpoints else []
    if len(marked) > _MAX_BREAKPOINTS:
        marked = [*marked[:2], *marked[-2:]]  # the stable start, and the end
    out = _Turns(system)
    leading = sum(1 for _ in takewhile(lambda message: message.role == "system", prompt.messages))
    joined = _joined_system(prompt) if breakpoints else leading
    if joined:
        text = "\n\n".join(message.text for message in prompt.messages[:joined])
        out.ask(lib.SystemPromptPart(writable(text)))
    if leading > joined:
        blocks: list[lib.UserContent] = []
        for index, message in enumerate(prompt.messages[joined:leading], start=joined):
            blocks.append(writable(message.text))
            if index in marked:
                blocks.append(lib.CachePoint())
        out.ask(lib.UserPromptPart(blocks))
    for index, message in enumerate(prompt.messages[leading:], start=leading):
        out.add(message)
        if index in marked:
            out.mark()
    return out.messages


def marks_instructions(prompt: Prompt) -> bool:
    """Return True if a breakpoint follows the joined system message."""
    joined = _joined_system(prompt)
    return joined > 0 and prompt.messages[joined - 1].cache


def _joined_system(prompt: Prompt) -> int:
    """Return the number of leading system messages to join: those up to the first breakpoint."""
    joined = 0
    for message in takewhile(lambda message: message.role == "system", prompt.messages):
        joined += 1
        if message.cache:
            break
    return joined


class _Turns:
    """Builds the library's alternating requests and responses."""

    def __init__(self, system: str) -> None:
        self._system = system
        self._turns: list[list[lib.ModelRequestPart] | lib.ModelResponse] = []

    @property
    def messages(self) -> list[lib.ModelMessage]:
        return [lib.ModelRequest(parts=turn) if isinstance(turn, list) else turn for turn in self._turns]

    def ask(self, *parts: lib.ModelRequestPart) -> None:
        """Add parts to the current request; everything between two answers is one request."""
        last = self._turns[-1] if self._turns else None
        if isinstance(last, list):
            last.extend(parts)
        elif parts:
            self._turns.append(list(parts))

    def add(self, message: PromptMessage) -> None:
        match message.role:
            case "system":
                self.ask(lib.SystemPromptPart(writable(message.text)))
            case "user":
                content: list[lib.UserContent] = []
                for part in message.parts:
                    if isinstance(part, FilePart):
                        content.append(_file(part))
                    elif isinstance(part, TextPart) and part.text:
                        content.append(writable(part.text))
                if len(content) == 1 and isinstance(content[0], str):
                    self.ask(lib.UserPromptPart(content[0]))
                elif content:
                    self.ask(lib.UserPromptPart(content))
            case "tool":
                for part in message.parts:
                    if isinstance(part, ToolResultPart):
                        outcome = "failed" if part.is_error else "success"
                        text = writable(part.text)
                        self.ask(lib.ToolReturnPart(part.name, text, tool_call_id=part.call_id, outcome=outcome))
            case "assistant":
                # OpenAI refuses an item's id if the reasoning before it is missing.
                system = self._system
                with_ids = any(isinstance(part, ReasoningPart) and part.provider == system for part in message.parts)
                found = (_answer_part(part, system, with_ids) for part in message.parts)
                if parts := [part for part in found if part is not None]:
                    own = any(part.provider_name == system for part in parts)
                    self._turns.append(lib.ModelResponse(parts=parts, provider_name=system if own else None))

    def mark(self) -> None:
        """Add a breakpoint after the last part."""
        match self._turns[-1] if self._turns else None:
            case [*_, lib.UserPromptPart(content=content)] as asked:
                before = [content] if isinstance(content, str) else list(content)
                asked[-1] = lib.UserPromptPart([*before, lib.CachePoint()])
            case list() as asked:
                asked.append(lib.UserPromptPart([lib.CachePoint()]))
            case lib.ModelResponse(parts=[*_, lib.TextPart() | lib.ToolCallPart()]):
                # A breakpoint as the first part after an answer marks the end of the answer.
                self.ask(lib.UserPromptPart([lib.CachePoint()]))
            case _:  # empty, or an answer that ends with reasoning, which takes no breakpoint
                pass


def _file(part: FilePart) -> lib.UserContent:
    if part.data is not None:
        return lib.BinaryContent(part.data, media_type=part.media_type)
    url = part.url or ""
    if url.startswith("data:") and ";base64," in url:
        return lib.BinaryContent(b64decode(url.partition(";base64,")[2]), media_type=part.media_type)
    kinds = {"image": lib.ImageUrl, "audio": lib.AudioUrl, "video": lib.VideoUrl}
    kind = kinds.get(part.media_type.partition("/")[0], lib.DocumentUrl)
    return kind(url, media_type=part.media_type)


def _answer_part(
    part: PromptPart, system: str, with_ids: bool
) -> lib.TextPart | lib.ThinkingPart | lib.ToolCallPart | lib.NativeToolCallPart | lib.NativeToolReturnPart | None:
    match part:
        case ToolCallPart(provider_executed=True):
            return provider_data.native_call(part)
        case ToolResultPart(provider_executed=True):
            return provider_data.native_result(part)
        case TextPart(text=text) if text:
            extra = provider_data.for_part(part.provider_data, system, with_id=with_ids)
            return lib.TextPart(writable(text), **extra)
        case ReasoningPart() if part.provider == system and (part.text or part.signature):
            extra = provider_data.for_part(part.provider_data, system, with_id=True)
            return lib.ThinkingPart(
                writable(part.text),
                signature=part.signature,
                provider_name=system,
                id=extra.get("id"),
                provider_details=extra.get("provider_details"),
            )
        case ToolCallPart():
            extra = provider_data.for_part(part.provider_data, system, with_id=with_ids)
            return lib.ToolCallPart(part.name, clean(part.args), part.call_id, **extra)
        case _:
            return None


_NATIVE_TOOLS = "native_tools"
_SAMPLING = ("temperature", "top_p")

_SETTINGS = {
    "OpenAIChatModel": ("pydantic_ai.models.openai", "OpenAIChatModelSettings"),
    "OpenAIResponsesModel": ("pydantic_ai.models.openai", "OpenAIResponsesModelSettings"),
    "AnthropicModel": ("pydantic_ai.models.anthropic", "AnthropicModelSettings"),
    "GoogleModel": ("pydantic_ai.models.google", "GoogleModelSettings"),
    "BedrockConverseModel": ("pydantic_ai.models.bedrock", "BedrockModelSettings"),
    "GroqModel": ("pydantic_ai.models.groq", "GroqModelSettings"),
    "MistralModel": ("pydantic_ai.models.mistral", "MistralModelSettings"),
    "OpenRouterModel": ("pydantic_ai.models.openrouter", "OpenRouterModelSettings"),
}
"""Module and class of the settings of each model class."""


def parameters_for(request: ModelRequest, model: LibModel) -> ModelRequestParameters:
    """Return the tools and the answer's schema in the library's form."""
    tools = [
        # The library may rewrite a schema for its provider.
        LibTool(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=deepcopy(tool.parameters),
        )
        for tool in request.tools
    ]
    native = _native_tools(request, model)
    supports = "supports_json_schema_output"
    if model.system.startswith("google") and request.tools:
        supports = "google_supports_tool_combination"
    if request.output is None or not cast(dict[str, Any], model.profile).get(supports):
        return ModelRequestParameters(function_tools=tools, native_tools=native)
    wanted = OutputObjectDefinition(json_schema=deepcopy(request.output.schema), name=request.output.name)
    return ModelRequestParameters(
        function_tools=tools,
        native_tools=native,
        output_mode="native",
        output_object=wanted,
        allow_text_output=False,
    )


def _native_tools(request: ModelRequest, model: LibModel) -> list[AbstractNativeTool]:
    """Return the tools that the provider runs, from ``provider_options[provider]["native_tools"]``. Empty for OpenAI's
    Responses API, where they are passed on as a setting.

    Raises BadRequestError for an unknown tool or option.
    """
    if f"{_prefix(model)}_{_NATIVE_TOOLS}" in _known_settings(model):
        return []
    found: list[AbstractNativeTool] = []
    for entry in _given_options(request, model).get(_NATIVE_TOOLS, ()):
        kind, values = entry.get("type"), {name: value for name, value in entry.items() if name != "type"}
        known = ", ".join(sorted(NATIVE_TOOL_TYPES))
        try:
            found.append(NATIVE_TOOL_TYPES[kind](**values))
        except KeyError as error:
            raise BadRequestError(
                f"native_tools: there is no {kind!r}; known: {known}", provider=model.system
            ) from error
        except TypeError as error:
            raise BadRequestError(f"native_tools: {kind}: {error}", provider=model.system) from error
    return found


def settings_for(request: ModelRequest, model: LibModel, *, breakpoints: bool) -> LibSettings:
    """Return the settings that the model accepts; ``breakpoints`` as in ``to_messages``."""
    given, choice = request.settings, request.tool_choice
    values: dict[str, Any] = {
        "max_retries": 0,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "max_tokens": given.max_output_tokens,
        "seed": given.seed,
        "stop_sequences": None if given.stop is None else list(given.stop),
        "timeout": given.timeout,
        "request_timeout": given.total_timeout or TOTAL_TIMEOUT,
        "parallel_tool_calls": given.parallel_tool_calls if request.tools else None,
    }
    if request.tools and choice != "auto":
        values["tool_choice"] = choice if choice in ("none", "required") else [choice]
    if breakpoints and marks_instructions(request.prompt):
        values[f"{model.system}_cache_instructions"] = True
    values |= _options(request, model)
    refused = set[str](model.unsupported_settings)
    if not _samples(model, values):
        refused.update(_SAMPLING)
    kept = {name: value for name, value in values.items() if value is not None and name not in refused}
    return cast(LibSettings, kept)


def _samples(model: LibModel, settings: dict[str, Any]) -> bool:
    """Return True if the model accepts temperature and top_p in this call; reasoning models refuse them."""
    profile = cast(dict[str, Any], model.profile)
    if profile.get("anthropic_disallows_sampling_settings"):
        return False
    if not profile.get("openai_supports_reasoning"):
        return True
    effort = settings.get("openai_reasoning_effort")
    reasons = effort != "none" if effort else profile.get("thinking_enabled_by_default", False)
    return bool(profile.get("openai_supports_reasoning_effort_none")) and not reasons


def _options(request: ModelRequest, model: LibModel) -> dict[str, Any]:
    """Return the provider's options under the library's names. Options unknown to the library go into the body."""
    prefix, known = _prefix(model), _known_settings(model)
    named: dict[str, Any] = {}
    body: dict[str, Any] = {}
    for name, value in _given_options(request, model).items():
        prefixed = f"{prefix}_{name}"
        key = prefixed if prefixed in known else name
        if key == _NATIVE_TOOLS:
            continue
        (named if key in known else body)[key] = value
    if body:
        named["extra_body"] = {**body, **named.get("extra_body", {})}
    return named


def _given_options(request: ModelRequest, model: LibModel) -> dict[str, Any]:
    return request.provider_options.get(model.system) or request.provider_options.get(_prefix(model)) or {}


def _prefix(model: LibModel) -> str:
    return re.split(r"[-:]", model.system)[0]


def _known_settings(model: LibModel) -> frozenset[str]:
    for kind in type(model).__mro__:
        if kind.__name__ in _SETTINGS:
            module, name = _SETTINGS[kind.__name__]
            return frozenset(getattr(import_module(module), name).__annotations__)
    return frozenset(LibSettings.__annotations__)
