"""What tests of applications and of other back ends need: a scripted model, conformance suites."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diarist.testing.scripted import Reasoning, Reply, ScriptedModel, ScriptError, ToolCall
    from diarist.testing.search_conformance import SearchConformance
    from diarist.testing.storage_conformance import StorageConformance
    from diarist.testing.vector_conformance import VectorStoreConformance

# Each is imported when it is asked for, since a conformance suite needs pytest and a scripted model does not.
_WHERE = {
    "Reasoning": "diarist.testing.scripted",
    "Reply": "diarist.testing.scripted",
    "ScriptError": "diarist.testing.scripted",
    "ScriptedModel": "diarist.testing.scripted",
    "SearchConformance": "diarist.testing.search_conformance",
    "StorageConformance": "diarist.testing.storage_conformance",
    "ToolCall": "diarist.testing.scripted",
    "VectorStoreConformance": "diarist.testing.vector_conformance",
}

__all__ = [
    "Reasoning",
    "Reply",
    "ScriptError",
    "ScriptedModel",
    "SearchConformance",
    "StorageConformance",
    "ToolCall",
    "VectorStoreConformance",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
