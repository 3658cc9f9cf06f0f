"""What a step starts from: model, tools and settings, as processors may change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, cast

from diarist.exceptions import ConfigError
from diarist.models.base import Model, ModelSettings, OutputSchema
from diarist.models.resolve import resolve
from diarist.tools import Tool, as_tool


@dataclass(slots=True, kw_only=True)
class StepSetup:
    """What a step starts from; ``process_input_step`` may change all of it for this step."""

    model: Model
    tools: dict[str, Tool]
    tool_choice: str = "auto"
    active_tools: list[str] | None = None
    model_settings: ModelSettings
    provider_options: dict[str, dict[str, Any]]
    structured_output: OutputSchema | None = None

    def merge(self, overrides: Mapping[str, Any]) -> None:
        """Take a processor's overrides. Raises ConfigError for one that cannot be used."""
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
                    if bad := [provider for provider, options in value.items() if not isinstance(options, Mapping)]:
                        raise ConfigError(f"provider_options of {bad[0]!r} must be a dictionary of options")
                    self.provider_options = {**self.provider_options, **value}
                case _:
                    setattr(self, name, value)

    @property
    def offered(self) -> dict[str, Tool]:
        """The tools that the model may call at this step."""
        if self.tool_choice == "none":
            return {}
        if self.active_tools is None:
            return self.tools
        return {name: tool for name, tool in self.tools.items() if name in self.active_tools}


OVERRIDES: dict[str, tuple[type, ...]] = {
    "tools": (list, tuple, Mapping),
    "tool_choice": (str,),
    "active_tools": (list, tuple, set, frozenset, NoneType),
    "model_settings": (ModelSettings,),
    "provider_options": (Mapping,),
    "structured_output": (OutputSchema, NoneType),
}


def tools_by_name(tools: Mapping[str, Any] | Sequence[Any]) -> dict[str, Tool]:
    """Tools by name, in the order given. Raises ConfigError for two with one name, or one without a schema."""
    values = tools.values() if isinstance(tools, Mapping) else tools
    out: dict[str, Tool] = {}
    for value in values:
        item = as_tool(value)
        if item.name in out and out[item.name] is not item:
            raise ConfigError(f"two tools have the name {item.name!r}")
        _ = item.definition  # a signature without a schema is refused here, not when the model is called
        out[item.name] = item
    return out
