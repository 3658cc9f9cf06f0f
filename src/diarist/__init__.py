"""diarist: a long memory for Python agents that stays small, cheap and cacheable."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diarist.agent import Agent, AgentResult, AgentStream, CallOptions
    from diarist.chunks import DataChunk, Usage
    from diarist.exceptions import DiaristError, ProcessorAbort
    from diarist.memory import Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
    from diarist.messages import Message
    from diarist.models import Model, ModelEntry, ModelSettings
    from diarist.processors import DROP, Processor, processor
    from diarist.run_context import CancelSignal, ThreadRef
    from diarist.tools import Tool, ToolContext, tool

_HOMES = {
    name: f"diarist.{module}"
    for module, names in {
        "agent": "Agent AgentResult AgentStream CallOptions",
        "chunks": "DataChunk Usage",
        "exceptions": "DiaristError ProcessorAbort",
        "memory": "Memory ObservationConfig ObservationalMemoryConfig ReflectionConfig",
        "messages": "Message",
        "models": "Model ModelEntry ModelSettings",
        "processors": "DROP Processor processor",
        "run_context": "CancelSignal ThreadRef",
        "tools": "Tool ToolContext tool",
    }.items()
    for name in names.split()
}

__all__ = [
    "DROP",
    "Agent",
    "AgentResult",
    "AgentStream",
    "CallOptions",
    "CancelSignal",
    "DataChunk",
    "DiaristError",
    "Memory",
    "Message",
    "Model",
    "ModelEntry",
    "ModelSettings",
    "ObservationConfig",
    "ObservationalMemoryConfig",
    "Processor",
    "ProcessorAbort",
    "ReflectionConfig",
    "ThreadRef",
    "Tool",
    "ToolContext",
    "Usage",
    "processor",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Load a name at its first use, so that ``import diarist`` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, without loading them."""
    return sorted(__all__)
