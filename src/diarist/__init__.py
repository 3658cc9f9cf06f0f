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
    "Agent": "diarist.agent",
    "AgentResult": "diarist.agent",
    "AgentStream": "diarist.agent",
    "CallOptions": "diarist.agent",
    "CancelSignal": "diarist.run_context",
    "DROP": "diarist.processors",
    "DataChunk": "diarist.chunks",
    "DiaristError": "diarist.exceptions",
    "Memory": "diarist.memory",
    "Message": "diarist.messages",
    "Model": "diarist.models",
    "ModelEntry": "diarist.models",
    "ModelSettings": "diarist.models",
    "ObservationConfig": "diarist.memory",
    "ObservationalMemoryConfig": "diarist.memory",
    "Processor": "diarist.processors",
    "ReflectionConfig": "diarist.memory",
    "ThreadRef": "diarist.run_context",
    "Tool": "diarist.tools",
    "ToolContext": "diarist.tools",
    "ProcessorAbort": "diarist.exceptions",
    "Usage": "diarist.chunks",
    "processor": "diarist.processors",
    "tool": "diarist.tools",
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
    """Names are loaded when they are used, so that ``import diarist`` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
