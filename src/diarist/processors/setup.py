"""The setup of a step: model, tools and settings, which processors may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, cast

from diarist.exceptions import ConfigError
from diarist.models.base import Model, ModelSettings, OutputSchema
from diarist.models.output_type import OutputType
from diarist.models.resolve import resolve
from diarist.tools import Tool, as_tool, tool


@dataclass(slots=True, kw_only=True)
class StepSetup:
    """Model, tools and settings of a step; ``process_input_step`` may change all of them for this step.

    Attributes:
        set_by: For each option that a processor has changed, the processor's id.
    """

    model: Model
    tools: dict[str, Tool]
    tool_choice: str = "auto"
    active_tools: list[str] | None = None
    model_settings: ModelSettings
    provider_options: dict[str, dict[str, Any]]
    structured_output: OutputSchema | None = None
    set_by: Mapping[str, str] = field(default_factory=dict[str, str])

    def merge(self, overrides: Mapping[str, Any], by: str) -> None:
        """Apply a processor's overrides. Raises ConfigError for an invalid override."""
        self.set_by = {**self.set_by, **dict.fromkeys(overrides, by)}
        for name, value in overrides.items():
            allowed = OVERRIDES.get(name, (object,))
            if not isinstance(value, allowed):
                words = " or ".join("None" if kind is NoneType else kind.__name__ for kind in allowed)
                raise ConfigError(f"{name} must be {words}, not {type(value).__name__}")
            match name:
                case "model":
                    self.model = resolve(value)
                case "tools":
                    self.tools = tools_by_name(value)
                case "active_tools":
                    self.active_tools = None if value is None else list(value)
                case "model_settings":
                    self.model_settings = cast(ModelSettings, value).over(self.model_settings)
                case "provider_options":
                    self.provider_options = {**self.provider_options, **checked_provider_options(value)}
                case "structured_output":
                    self.structured_output = None if value is None else OutputType(value).schema
                case _:
                    setattr(self, name, value)

    def check_names(self, own: Mapping[str, Tool]) -> None:
        """Raise ConfigError for unknown names in ``active_tools`` and ``tool_choice``.

        Args:
            own: The agent's tools, which a processor may have removed for this step.
        """
        known = own.keys() | self.tools.keys()
        if unknown := [name for name in self.active_tools or () if name not in known]:
            by = self._set_by("active_tools")
            raise ConfigError(f"{by}active_tools: there is no tool {unknown[0]!r}; tools: {_told(known)}")
        if self.tool_choice not in _CHOICES and self.tool_choice not in self.offered:
            by = self._set_by("tool_choice", "active_tools", "tools")
            raise ConfigError(
                f"{by}tool_choice must be 'auto', 'none', 'required' or a tool that is offered, not "
                f"{self.tool_choice!r}; offered: {_told(self.offered)}"
            )

    def _set_by(self, *options: str) -> str:
        """Return the start of an error message, which names the processor that set one of the options, if any."""
        found = next((self.set_by[option] for option in options if option in self.set_by), None)
        return "" if found is None else f"processor {found!r}: "

    @property
    def offered(self) -> dict[str, Tool]:
        """The tools that the model may call at this step."""
        if self.tool_choice == "none":
            return {}
        if self.active_tools is None:
            return self.tools
        return {name: tool for name, tool in self.tools.items() if name in self.active_tools}


_CHOICES = ("auto", "none", "required")

OVERRIDES: dict[str, tuple[type, ...]] = {
    "tools": (list, tuple, Mapping),
    "tool_choice": (str,),
    "active_tools": (list, tuple, set, frozenset, NoneType),
    "model_settings": (ModelSettings,),
    "provider_options": (Mapping,),
    "structured_output": (OutputSchema, NoneType),
}


def checked_provider_options(value: Any) -> dict[str, dict[str, Any]]:
    """Return a copy of options by provider. Raises ConfigError for another type, and for headers that are no texts."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"provider_options must be a dictionary of options by provider, not {value!r}")
    out: dict[str, dict[str, Any]] = {}
    for provider, options in cast(Mapping[str, Any], value).items():
        if not isinstance(options, Mapping):
            raise ConfigError(
                f"provider_options must have a dictionary per provider, not {{{provider!r}: {options!r}}}; write "
                "{'openai': {'reasoning_effort': 'low'}} or the like"
            )
        out[provider] = dict(cast(Mapping[str, Any], options))
        headers: Any = out[provider].get("extra_headers") or {}
        if not isinstance(headers, Mapping):
            raise ConfigError(f"extra_headers of {provider!r} must be a dictionary, not {type(headers).__name__}")
        for name, text in cast(Mapping[Any, Any], headers).items():
            if not all(isinstance(each, str) and each.isprintable() for each in (name, text)):
                raise ConfigError(f"extra_headers of {provider!r}: header {name!r} must be a text of one line")
    return out


def tools_by_name(tools: Mapping[str, Any] | Sequence[Any]) -> dict[str, Tool]:
    """Return tools by name, in the order given; in a dictionary the key is the tool's name.

    Raises ConfigError if two tools have the same name, a tool has no schema, or ``tools`` is not a list or dictionary.
    """
    given: Any = tools
    if isinstance(given, Mapping):
        values: list[tuple[Any, Any]] = [(str(name), value) for name, value in cast(Mapping[Any, Any], given).items()]
    elif isinstance(given, list | tuple):
        values = [(None, value) for value in cast(Sequence[Any], given)]
    else:
        raise ConfigError(f"tools must be a list of functions and Tools, or a dictionary by name, not {given!r}")
    out: dict[str, Tool] = {}
    for name, value in values:
        if name is not None and callable(value) and not isinstance(cast(object, value), Tool):
            item: Tool = tool(name=name)(value)
        else:
            item = as_tool(value)
        if name is not None and item.name != name:
            item = replace(item, name=name)
        if item.name in out and out[item.name] is not item:
            raise ConfigError(f"two tools have the name {item.name!r}")
        _ = item.definition  # a signature without a schema is refused here, not when the model is called
        out[item.name] = item
    return out


def _told(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
