"""The LangChain adapter keeps the contract of all adapters."""

from __future__ import annotations

from typing import Any

from langchain_core.exceptions import ContextOverflowError

from diarist import Memory
from diarist.testing import AdapterConformance
from diarist.testing.adapter_conformance import Script
from tests.integrations.langchain.kit import ENTRY_POINTS, Program, RefusedError


class TestLangChain(AdapterConformance):
    module, package, extra = "diarist.integrations.langchain", "langchain", "langchain"
    entry_points = ENTRY_POINTS
    server_state = ("previous_response_id", "use_previous_response_id")
    refusal = RefusedError

    def program(self, script: Script, *, memory: Memory | None, **options: Any) -> Program:
        return Program(script, memory, **options)

    def overflow(self) -> Exception:
        return ContextOverflowError("too long")
