"""Memory: history, and the diary that replaces it as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diarist.lazy import lazy_names
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

if not TYPE_CHECKING:  # type checkers would otherwise accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            "context": "MemoryContext",
            "history": "MessageHistory",
            "memory": "Memory",
            "observational.processor": "ObservationalMemory",
            "standalone": "SemanticRecall WorkingMemory",
            "titles": "TitleConfig",
            "transfer.format": "Moved",
            "turn": "Turn TurnView",
        },
    )
