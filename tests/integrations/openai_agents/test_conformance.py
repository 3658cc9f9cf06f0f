"""The adapter keeps the contract of adapters, with a session of its own and with one of the user's."""

from __future__ import annotations

from typing import Any

from agents import OutputGuardrailTripwireTriggered
from agents.memory import SQLiteSession

from diarist import Memory
from diarist.testing import AdapterConformance
from diarist.testing.adapter_conformance import Script
from tests.integrations.openai_agents.program import Program


class TestOwnSession(AdapterConformance):
    module, package, extra = "diarist.integrations.openai_agents", "agents", "openai-agents"
    entry_points = ("run", "run_streamed", "run_sync")
    server_state = ("conversation_id", "previous_response_id", "auto_previous_response_id")
    refusal = OutputGuardrailTripwireTriggered

    def program(
        self, script: Script, *, memory: Memory | None, thread: str = "trip", resource: str = "ada", **options: Any
    ) -> Program:
        return Program(script, memory, thread=thread, resource=resource, **options)


class TestSessionOfTheUser(TestOwnSession):
    def program(self, script: Script, *, memory: Memory | None, thread: str = "trip", **options: Any) -> Program:
        return Program(script, memory, thread=thread, session=SQLiteSession(thread), resource="ada", **options)
