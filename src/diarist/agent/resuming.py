"""Going on with tool calls that waited for approval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diarist.agent.answers import APPROVAL_KEY
from diarist.agent.step import StepAttempt
from diarist.agent.step_input import PROCESSORS_KEY
from diarist.agent.tool_calls import ToolCalls, WaitsFor
from diarist.exceptions import ConfigError, InputError
from diarist.message_list import MessageList
from diarist.messages import Json, Message, Part, ToolPart
from diarist.payloads import ModelFinishPayload, Usage
from diarist.prompting import open_calls


class ResumedAttempt(StepAttempt):
    """The rest of a step whose calls waited: no model is called, what was approved runs, what was declined is
    refused. The results are a message of role ``tool``, before what the caller says now.

    ``run()`` raises InputError for a call that does not wait for approval, ConfigError where the tool of an
    approved call is not there.
    """

    _open: dict[str, ToolPart]
    """The calls that wait and are not answered, by id."""

    @property
    def repeatable(self) -> bool:
        return False  # there is no model to answer otherwise

    @property
    def pending(self) -> list[ToolPart]:
        return [self._open[call_id] for call_id in self.waiting]

    async def _answer(self) -> None:
        if self._given.guards is not None:
            await self._given.guards  # no tool runs before the guards have passed
            self._unguarded = False
        self._open = _waiting(self._context.messages)
        answers = self._given.approvals or {}
        if self._missing(answers):
            await self._tools_of_processors()
        self._check(answers)
        await self._note(answers)
        parts: list[Part] = [_answered(self._open.pop(call_id), answer) for call_id, answer in answers.items()]
        self._message = Message(role="tool", parts=parts, run_id=self._context.run_id)
        _place(self._context.messages, self._message)
        self._finish, self._complete = ModelFinishPayload(reason="tool-calls", usage=Usage()), True

    async def _tools(self) -> None:
        self._calls = ToolCalls(self._tool_parts(), self._setup.tools, self._context, self._pipeline)
        await self._during(self._calls.run())
        if not any(message.role == "user" for message in self._context.messages.input):  # who talks past the others
            self.waiting = {call_id: self._waits_for(call) for call_id, call in self._open.items()}
        self.ended = bool(self.waiting)

    def _missing(self, answers: Mapping[str, bool | str]) -> list[str]:
        """Names of approved tools that are not there."""
        approved = [
            self._open[call_id].name for call_id, yes in answers.items() if yes is True and call_id in self._open
        ]
        return [name for name in approved if name not in self._setup.tools]

    async def _tools_of_processors(self) -> None:
        """Look at the tools as processors and ``prepare_step`` make them; what else they change is taken back."""
        before = self._context.messages.snapshot(contents=True)
        await self._during(self._input_step())
        self._context.messages.restore(before)

    async def _note(self, answers: Mapping[str, bool | str]) -> None:
        """Have it noted what was approved, before any of it runs: whatever becomes of this run, none runs twice."""
        before = _before(self._context.messages)
        for message in before:
            if ids := [call.call_id for call in open_calls(before, message) if answers.get(call.call_id) is True]:
                await self._context.approve(message, ids)

    def _check(self, answers: Mapping[str, bool | str]) -> None:
        if missing := self._missing(answers):
            raise ConfigError(f"resume needs the tools {missing}, which this agent and its processors do not have")
        if unknown := answers.keys() - self._open.keys():
            known = ", ".join(self._open) or "none"
            raise InputError(f"no tool call {sorted(unknown)} waits for approval; waiting: {known}")
        for call_id, answer in answers.items():
            call = self._open[call_id]
            if answer is True and self._waits_for(call) == "client_tool":
                raise InputError(
                    f"the call {call_id!r} of {call.name} waits for the client's result, not for approval; "
                    "send the result as a message of role 'tool'"
                )

    def _waits_for(self, call: ToolPart) -> WaitsFor:
        tool = self._setup.tools.get(call.name)
        return "client_tool" if tool is not None and tool.function is None else "approval"


def suspend(messages: MessageList, dumped: list[dict[str, Json]], waiting: Mapping[str, WaitsFor]) -> None:
    """Note with the calls that wait which processors the run had, and their states, and which wait for approval."""
    holder = next(message for message in reversed(messages.response) if message.tool_parts)
    holder.metadata[PROCESSORS_KEY] = dumped
    if ids := [call_id for call_id, awaited in waiting.items() if awaited == "approval"]:
        holder.metadata[APPROVAL_KEY] = ids


def suspended(messages: MessageList, ids: Sequence[str]) -> list[dict[str, Json]]:
    """What ``suspend`` noted with the calls that still wait. Raises ConfigError where the processors are others."""
    if not _waiting(messages):
        return []
    holder = next((message for message in reversed(_before(messages)) if PROCESSORS_KEY in message.metadata), None)
    if holder is None:
        return []
    dumped: list[dict[str, Json]] = holder.metadata[PROCESSORS_KEY]
    had = [entry["id"] for entry in dumped]
    if had != list(ids):
        raise ConfigError(f"resume needs the processors that the run had, {had}, but this agent has {list(ids)}")
    return dumped


def _waiting(messages: MessageList) -> dict[str, ToolPart]:
    """The calls that wait, by id."""
    before = _before(messages)
    return {part.call_id: part for message in before for part in open_calls(before, message)}


def _before(messages: MessageList) -> list[Message]:
    """The messages but for what the user says along with the approval, which does not talk past the calls."""
    return [m for m in messages.all if m.role == "tool" or messages.source_of(m.id) != "input"]


def _place(messages: MessageList, results: Message) -> None:
    """Put the results before what the caller says now."""
    said = messages.input
    messages.remove([message.id for message in said])
    messages.add(results, "response")
    for message in said:
        messages.add(message, "input")


def _answered(call: ToolPart, answer: bool | str) -> ToolPart:
    """A part of its own for the result; a text declines with that reason."""
    part = ToolPart(call_id=call.call_id, name=call.name, args=dict(call.args))
    if answer is not True:
        part.state, part.result = "denied", answer or "The user declined this call."
    return part
