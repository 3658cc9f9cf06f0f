"""Observational memory in an agent of Pydantic AI."""

from __future__ import annotations

from typing import Any

from pydantic_ai.exceptions import ModelContextWindowExceededError, UnexpectedModelBehavior

from diarist import Memory
from diarist.testing import AdapterConformance
from diarist.testing.adapter_conformance import AdapterProgram, Script
from tests.integrations.pydantic_ai.program import ENTRY_POINTS, Program


class TestObservationalMemory(AdapterConformance):
    module = "diarist.integrations.pydantic_ai"
    package = "pydantic_ai"
    entry_points = ENTRY_POINTS
    server_state = ("openai_previous_response_id", "openai_conversation_id")
    refusal = UnexpectedModelBehavior

    def program(
        self,
        script: Script,
        *,
        memory: Memory | None,
        thread: str = "trip",
        resource: str = "ada",
        reject: str = "",
        retries: bool = False,
        server_state: str = "",
        **options: Any,
    ) -> AdapterProgram:
        return Program(
            script,
            memory=memory,
            thread=thread,
            resource=resource,
            reject=reject,
            retries=retries,
            server_state=server_state,
            **options,
        )

    def overflow(self) -> Exception:
        return ModelContextWindowExceededError("test", "too long")
