"""The demo's conversation as turns: the user's messages, and the scripted answers of model and tools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import as_file, files

from diarist.exceptions import ToolError
from diarist.integrations.conversations import read_conversation
from diarist.messages import Json, Message, ToolPart
from diarist.testing import Reply, ToolCall
from diarist.tools import Tool


@dataclass(slots=True)
class ScriptedTurn:
    """A user message and the scripted replies to it."""

    asked: Message
    replies: list[Message] = field(default_factory=list[Message])

    @property
    def day(self) -> datetime:
        assert self.asked.created_at is not None
        return self.asked.created_at


def load_turns() -> list[ScriptedTurn]:
    """Return the turns of the conversation that is part of diarist."""
    with as_file(files("diarist.cli.demo") / "conversation.json") as path:
        conversation = read_conversation(path)
    turns: list[ScriptedTurn] = []
    for message in conversation.messages:
        if message.role == "user":
            turns.append(ScriptedTurn(message))
        else:
            turns[-1].replies.append(message)
    return turns


def scripted_replies(turns: Iterable[ScriptedTurn]) -> list[Reply]:
    """Return the replies of a ``ScriptedModel`` for these turns, one per call."""
    replies: list[Reply] = []
    for turn in turns:
        for message in turn.replies:
            calls = [ToolCall(part.name, part.args, id=part.call_id) for part in message.tool_parts]
            replies.append(Reply(text=message.text, tool_calls=calls))
    return replies


def recorded_tools(turns: Sequence[ScriptedTurn]) -> list[Tool]:
    """Return the conversation's tools. A tool answers with the result that is recorded for the call's arguments.

    A real model may use other arguments. For these, a tool answers that nothing is recorded.
    """
    results: dict[str, dict[str, list[ToolPart]]] = defaultdict(lambda: defaultdict(list))
    for turn in turns:
        for message in turn.replies:
            for part in message.tool_parts:
                results[part.name][_key(part.args)].append(part)
    return [_tool(name, by_args) for name, by_args in sorted(results.items())]


def _tool(name: str, by_args: dict[str, list[ToolPart]]) -> Tool:
    names = sorted({key for parts in by_args.values() for part in parts for key in part.args})
    used: dict[str, int] = defaultdict(int)

    def answer(**args: Json) -> Json:
        recorded = by_args.get(_key(args))
        if not recorded:
            raise ToolError(f"{name}: nothing is recorded for these arguments; continue with what you know")
        part = recorded[min(used[_key(args)], len(recorded) - 1)]
        used[_key(args)] += 1
        if part.state == "error":
            raise ToolError(part.result_text)
        return part.result

    parameters: dict[str, Json] = {"type": "object", "properties": {key: {} for key in names}}
    return Tool(
        name=name, function=answer, description=name.replace("_", " ").capitalize() + ".", parameters=parameters
    )


def _key(args: Json) -> str:
    return repr(sorted(args.items()))
