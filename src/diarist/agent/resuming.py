"""Going on with tool calls that waited for approval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diarist.agent.step_input import PROCESSORS_KEY
from diarist.agent.tool_calls import ToolCalls, WaitsFor
from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError, InputError
from diarist.messages import DataPart, Message, ToolPart
from diarist.processors.pipeline import PipelineRun
from diarist.prompting import open_calls
from diarist.run_context import RunContext
from diarist.tools import Tool


class Resumed:
    """The calls of a run that ended with ``stopped_by == "approval"``.

    Attributes:
        tools: Where the tools are looked up.
        left: Calls of the same step that still wait.
    """

    def __init__(
        self,
        context: RunContext[Any],
        pipeline: PipelineRun,
        tools: Mapping[str, Tool],
        approvals: Mapping[str, bool | str],
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self.tools = tools
        self._approvals = approvals
        self._message = Message(role="tool", parts=[], run_id=context.run_id)
        self.left: list[ToolPart] = []

    @property
    def left_for(self) -> WaitsFor:
        """What the calls that are left wait for."""
        return "client_tool" if all(self._is_clients(call) for call in self.left) else "approval"

    def keep(self, chunk: DataChunk) -> None:
        """Make data that a tool or processor wrote part of the message with the results."""
        self._message.parts.append(DataPart(type=chunk.type, data=chunk.data, id=chunk.id))

    def missing(self) -> list[str]:
        """Names of approved tools that are not among ``tools``."""
        waiting = self._waiting()
        approved = [waiting[i].name for i, answer in self._approvals.items() if answer is True and i in waiting]
        return [name for name in approved if name not in self.tools]

    async def run(self) -> None:
        """Run what was approved, refuse what was declined, and add a message with the results before what the
        caller says now.

        Raises:
            InputError: A call is not among those that wait for approval.
            ConfigError: The processors are not those of the run that ended, or an approved tool is not there.
        """
        waiting = self._waiting()
        if missing := self.missing():
            raise ConfigError(f"resume needs the tools {missing}, which this agent and its processors do not have")
        if unknown := self._approvals.keys() - waiting.keys():
            known = ", ".join(waiting) or "none"
            raise InputError(f"no tool call {sorted(unknown)} waits for approval; waiting: {known}")
        for call_id, answer in self._approvals.items():
            if answer is True and self._is_clients(waiting[call_id]):
                raise InputError(
                    f"the call {call_id!r} of {waiting[call_id].name} waits for the client's result, not for approval; "
                    "send the result as a message of role 'tool'"
                )
        answered = [_answered(waiting[call_id], answer) for call_id, answer in self._approvals.items()]
        self.left = [part for call_id, part in waiting.items() if call_id not in self._approvals]
        await ToolCalls(answered, self.tools, self._context, self._pipeline).run()
        self._message.parts[:0] = answered
        self._place(self._message)

    def _waiting(self) -> dict[str, ToolPart]:
        """The calls that wait, by id; what the user says along with the approval does not talk past them."""
        messages = self._context.messages
        before = [m for m in messages.all if m.role == "tool" or messages.source_of(m.id) != "input"]
        waiting: dict[str, ToolPart] = {}
        for message in before:
            if found := open_calls(before, message):
                self._check_processors(message)
                waiting |= {part.call_id: part for part in found}
        return waiting

    def _place(self, message: Message) -> None:
        messages = self._context.messages
        said = messages.input
        messages.remove([other.id for other in said])
        messages.add(message, "response")
        for other in said:
            messages.add(other, "input")

    def _is_clients(self, call: ToolPart) -> bool:
        tool = self.tools.get(call.name)
        return tool is not None and tool.function is None

    def _check_processors(self, message: Message) -> None:
        before = message.metadata.get(PROCESSORS_KEY)
        if before is not None and before != self._pipeline.ids:
            raise ConfigError(
                f"resume needs the processors that the run had, {before}, but this agent has {self._pipeline.ids}"
            )


def _answered(call: ToolPart, answer: bool | str) -> ToolPart:
    """A part of its own for the result; a text declines with that reason."""
    part = ToolPart(call_id=call.call_id, name=call.name, args=dict(call.args))
    if answer is not True:
        part.state, part.result = "denied", answer or "The user declined this call."
    return part
