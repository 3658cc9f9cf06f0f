"""Helpers for tests: a scripted model, and conformance suites for storages, vector stores and adapters."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diarist.testing.adapter_conformance import AdapterConformance
    from diarist.testing.scripted import Reasoning, Reply, ScriptedModel, ScriptError, ToolCall
    from diarist.testing.search_conformance import SearchConformance
    from diarist.testing.storage_conformance import StorageConformance
    from diarist.testing.vector_conformance import VectorStoreConformance

# Imported when first used: a conformance suite needs pytest, a scripted model does not.
_SUITES = {
    "AdapterConformance": "diarist.testing.adapter_conformance",
    "SearchConformance": "diarist.testing.search_conformance",
    "StorageConformance": "diarist.testing.storage_conformance",
    "VectorStoreConformance": "diarist.testing.vector_conformance",
}

__all__ = [
    "AdapterConformance",
    "Reasoning",
    "Reply",
    "ScriptError",
    "ScriptedModel",
    "SearchConformance",
    "StorageConformance",
    "ToolCall",
    "VectorStoreConformance",
]

if not TYPE_CHECKING:  # type checkers would otherwise accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _SUITES:
            import pytest

            pytest.register_assert_rewrite(
                *(set(_SUITES.values()) - sys.modules.keys())
            )  # so that a failing assert shows values
        return getattr(import_module(_SUITES.get(name, "diarist.testing.scripted")), name)

    def __dir__() -> list[str]:
        """Return the public names, without loading them."""
        return sorted(__all__)
