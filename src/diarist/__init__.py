"""diarist: a long memory for Python agents that stays small, cheap and cacheable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diarist.lazy import lazy_names

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

if not TYPE_CHECKING:  # type checkers would otherwise accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "agent": "Agent AgentResult AgentStream CallOptions",
            "chunks": "DataChunk Usage",
            "exceptions": "DiaristError ProcessorAbort",
            "memory": "Memory ObservationConfig ObservationalMemoryConfig ReflectionConfig",
            "messages": "Message",
            "models": "Model ModelEntry ModelSettings",
            "processors": "DROP Processor processor",
            "run_context": "CancelSignal ThreadRef",
            "tools": "Tool ToolContext tool",
        },
    )
