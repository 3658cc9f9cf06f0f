"""Memory: history, and the diary that replaces it as it grows."""

from __future__ import annotations

from importlib import import_module
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
    from diarist.memory.context import MemoryContext
    from diarist.memory.history import MessageHistory
    from diarist.memory.memory import Memory
    from diarist.memory.observational.processor import ObservationalMemory
    from diarist.memory.standalone import SemanticRecall, WorkingMemory
    from diarist.memory.titles import TitleConfig
    from diarist.memory.transfer.format import Moved
    from diarist.memory.turn import Turn, TurnView

__all__ = [
    "DiaryUsage",
    "Memory",
    "MemoryContext",
    "MemoryHooks",
    "MessageHistory",
    "Moved",
    "ObservationConfig",
    "ObservationalMemory",
    "ObservationalMemoryConfig",
    "Receipt",
    "ReflectionConfig",
    "RetrievalConfig",
    "SemanticRecall",
    "SemanticRecallConfig",
    "TitleConfig",
    "Turn",
    "TurnView",
    "WorkingMemory",
    "WorkingMemoryConfig",
]


_LAZY = {
    "Memory": "memory",
    "MemoryContext": "context",
    "MessageHistory": "history",
    "Moved": "transfer.format",
    "ObservationalMemory": "observational.processor",
    "SemanticRecall": "standalone",
    "TitleConfig": "titles",
    "Turn": "turn",
    "TurnView": "turn",
    "WorkingMemory": "standalone",
}
"""Names that are loaded on first access, with their modules."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, without loading them."""
    return sorted(__all__)
