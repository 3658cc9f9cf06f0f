"""Results that the caller sends for calls of tools: whether there are such calls, and whether they are the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diarist.exceptions import InputError
from diarist.message_list import MessageList
from diarist.messages import Message
from diarist.prompting import APPROVED_KEY

APPROVAL_KEY = "diarist_waits_for_approval"
"""Metadata of a message: the ids of the calls that waited for approval when its run ended."""


def check_results(messages: MessageList) -> None:
    """Look at the results that came with this call. One whose call is not there is taken for a late one, as long as no
    other call waits: memory need not have brought the whole thread.

    Raises InputError for a result of a call that waits for approval, and for one of an unknown call while others wait.
    """
    if not any(message.role == "tool" for message in messages.input):
        return
    calls = _Calls()
    for message in messages.all:
        claimed = message.run_id is None and messages.source_of(message.id) == "input"  # the caller says so, no run
        if claimed and message.role == "tool":
            calls.check(message)
        calls.read(message, claimed=claimed)


def check_approvals(approvals: Any) -> dict[str, bool | str]:
    """What ``resume`` was given, as a dictionary. Raises InputError for what says neither yes nor no."""
    if not isinstance(approvals, Mapping):
        raise InputError(f"approvals must be a dictionary from call id to True, False or a reason, not {approvals!r}")
    answers: dict[str, bool | str] = dict(approvals)  # pyright: ignore[reportUnknownArgumentType]
    if not answers:
        raise InputError("resume needs an answer for at least one call of result.pending")
    for call_id, answer in answers.items():
        if not isinstance(answer, bool | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                f"the answer to the call {call_id!r} must be True, False or a reason to decline it, not {answer!r}"
            )
    return answers


class _Calls:
    """The calls of a conversation that is read from its beginning."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._open: dict[str, str] = {}
        self._approval: set[str] = set()

    def read(self, message: Message, *, claimed: bool) -> None:
        ids = {part.call_id for part in message.tool_parts}
        if not claimed:
            self._approval -= ids
        if message.role == "tool":
            self._close(ids)
        else:
            self._known |= ids
            waiting = [p for p in message.tool_parts if p.state == "call" and not p.provider_executed]
            self._open |= {part.call_id: part.name for part in waiting}
        if message.role == "user":
            self._open.clear()
        self._approval.update(message.metadata.get(APPROVAL_KEY, ()))
        self._approval.difference_update(message.metadata.get(APPROVED_KEY, ()))
        self._close(message.metadata.get(APPROVED_KEY, ()))

    def _close(self, ids: Any) -> None:
        for call_id in ids:
            self._open.pop(call_id, None)

    def check(self, results: Message) -> None:
        for part in results.tool_parts:
            if part.call_id in self._approval and part.state != "denied":
                raise InputError(
                    f"the call {part.call_id!r} waits for approval, which a message of role 'tool' cannot give; "
                    f"answer it with agent.resume({{{part.call_id!r}: True or False}})"
                )
            if self._open and part.call_id not in self._known:
                waiting = ", ".join(f"{call_id!r} of {name}" for call_id, name in self._open.items())
                raise InputError(f"there is no tool call {part.call_id!r} to answer; waiting: {waiting}")
