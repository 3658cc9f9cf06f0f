"""Memory: history, and the diary that replaces it as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diarist.memory.observational.config import (
    ObservationalMemoryConfig,
    ObservationConfig,
    ReflectionConfig,
    RetrievalConfig,
)
from diarist.memory.observational.hooks import MemoryHooks, RoleCall
from diarist.memory.observational.model_choice import ByInputTokens
from diarist.memory.observational.spending import DiaryUsage
from diarist.memory.receipt import Receipt

if TYPE_CHECKING:
    from diarist.memory.conversations import read_conversation
    from diarist.memory.memory import Memory
    from diarist.memory.observational.standalone import ObservationalMemory

__all__ = [
    "ByInputTokens",
    "DiaryUsage",
    "Memory",
    "MemoryHooks",
    "ObservationConfig",
    "ObservationalMemory",
    "ObservationalMemoryConfig",
    "Receipt",
    "ReflectionConfig",
    "RetrievalConfig",
    "RoleCall",
    "read_conversation",
]


def __getattr__(name: str) -> Any:
    """Memory's parts are loaded when they are asked for."""
    if name == "Memory":
        from diarist.memory.memory import Memory

        return Memory
    if name == "ObservationalMemory":
        from diarist.memory.observational.standalone import ObservationalMemory

        return ObservationalMemory
    if name == "read_conversation":
        from diarist.memory.conversations import read_conversation

        return read_conversation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
