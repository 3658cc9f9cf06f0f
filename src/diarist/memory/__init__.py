"""Memory: history, and the diary that replaces it as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diarist.memory.observational.config import (
    ObservationalMemoryConfig,
    ObservationConfig,
    ReflectionConfig,
    RetrievalConfig,
)
from diarist.memory.observational.log.history import DiaryUsage
from diarist.memory.observational.roles.hooks import MemoryHooks
from diarist.memory.receipt import Receipt
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.working.config import WorkingMemoryConfig

if TYPE_CHECKING:
    from diarist.memory.conversations import read_conversation, read_conversations
    from diarist.memory.memory import Memory
    from diarist.memory.observational.standalone import ObservationalMemory
    from diarist.memory.titles import TitleConfig
    from diarist.memory.transfer.format import Moved
    from diarist.memory.transfer.mastra import mastra_lines

__all__ = [
    "DiaryUsage",
    "Memory",
    "MemoryHooks",
    "Moved",
    "ObservationConfig",
    "ObservationalMemory",
    "ObservationalMemoryConfig",
    "Receipt",
    "ReflectionConfig",
    "RetrievalConfig",
    "SemanticRecallConfig",
    "TitleConfig",
    "WorkingMemoryConfig",
    "mastra_lines",
    "read_conversation",
    "read_conversations",
]


def __getattr__(name: str) -> Any:
    """Load parts of memory on first access."""
    if name == "Memory":
        from diarist.memory.memory import Memory

        return Memory
    if name == "ObservationalMemory":
        from diarist.memory.observational.standalone import ObservationalMemory

        return ObservationalMemory
    if name in ("read_conversation", "read_conversations"):
        from diarist.memory import conversations

        return getattr(conversations, name)
    if name == "Moved":
        from diarist.memory.transfer.format import Moved

        return Moved
    if name == "mastra_lines":
        from diarist.memory.transfer.mastra import mastra_lines

        return mastra_lines
    if name == "TitleConfig":
        from diarist.memory.titles import TitleConfig

        return TitleConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
