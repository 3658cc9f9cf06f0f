"""Remove tool calls of earlier runs from the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diarist.checks import not_negative
from diarist.exceptions import ConfigError
from diarist.messages import Prompt, PromptMessage, PromptPart, ReasoningPart, ToolCallPart, ToolResultPart
from diarist.processors.base import ProcessLLMRequestArgs, Processor
from diarist.processors.builtin.prompt_units import Unit, split


class ToolCallFilter(Processor[Any]):
    """Removes tool calls and their results from the prompt, to save the tokens of long results.

    Only calls of earlier runs are removed, and only from the prompt, not from the storage. A call and its result are
    removed together, and with them a message that has nothing else.

    Args:
        exclude: Names of tools whose calls are removed. Default: all tools.
        keep_recent: Number of newest calls that stay. Default 0. With each new call an older one leaves the
            middle of the prompt, and the provider's cache does not match from there on.

    Raises:
        ConfigError: A negative keep_recent, or a single text as exclude.

    Example::

        Agent(model="openai/gpt-5-mini", memory=Memory(), input_processors=[ToolCallFilter(exclude=["read_page"])])
    """

    edits_in_place = False

    def __init__(self, exclude: Sequence[str] | None = None, *, keep_recent: int = 0) -> None:
        if isinstance(exclude, str):
            raise ConfigError(f"ToolCallFilter: exclude must be a list of names, not {exclude!r}")
        not_negative("ToolCallFilter", "keep_recent", keep_recent)
        self._exclude = None if exclude is None else frozenset(exclude)
        self._keep_recent = keep_recent

    def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> Prompt | None:
        """Remove the calls."""
        _, units = split(args.prompt, args.message_list, lambda message: 0)
        old = [unit for unit in units if not unit.fixed]
        # By unit and id: some models use the same ids in each run.
        calls = [(id(unit), call) for unit in old for call in self._calls(unit)]
        gone = set(calls[: len(calls) - self._keep_recent] if self._keep_recent else calls)
        if not gone:
            return None
        left = {id(m): _without(m, {call for key, call in gone if key == id(u)}) for u in old for m in u.messages}
        messages = [left.get(id(message), message) for message in args.prompt]
        return Prompt(messages=[message for message in messages if not _is_only_reasoning(message)])

    def _calls(self, unit: Unit) -> list[str]:
        calls = [part for message in unit.messages for part in message.parts if isinstance(part, ToolCallPart)]
        return [call.call_id for call in calls if self._exclude is None or call.name in self._exclude]


def _without(message: PromptMessage, gone: set[str]) -> PromptMessage:
    def stays(part: PromptPart) -> bool:
        return not (isinstance(part, ToolCallPart | ToolResultPart) and part.call_id in gone)

    if all(stays(part) for part in message.parts):
        return message
    return replace(message, parts=[part for part in message.parts if stays(part)])


def _is_only_reasoning(message: PromptMessage) -> bool:
    """Return True for a message without text and calls, which providers refuse."""
    return all(isinstance(part, ReasoningPart) for part in message.parts)
