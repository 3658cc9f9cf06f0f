"""Build the arguments of a library call from a request."""

from __future__ import annotations

import re
from copy import deepcopy
from importlib import import_module
from typing import Any, cast

from pydantic_ai.models import Model as LibModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings as LibSettings
from pydantic_ai.tools import ToolDefinition as LibTool

from diarist.exceptions import BadRequestError
from diarist.models.base import TOTAL_TIMEOUT, ModelRequest
from diarist.models.pydantic_ai.prompt import marks_instructions

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
    wanted = OutputObjectDefinition(json_schema=deepcopy(request.output.schema), name=request.output.sent_name)
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
