"""Remove tool calls of earlier runs from the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diarist.checks import not_negative
from diarist.exceptions import ConfigError
from diarist.messages import Prompt, PromptPart, ReasoningPart, ToolCallPart, ToolResultPart
from diarist.processors.base import ProcessLLMRequestArgs, Processor
from diarist.processors.builtin.prompt_units import split


class ToolCallFilter(Processor[Any]):
    """Removes tool calls and their results from the prompt, to save the tokens of long results.

    Only calls of earlier runs are removed, and only from the prompt, not from the storage. A call and its result are
    removed together. A message that contains nothing else is removed as well.

    Args:
        exclude: Names of tools; their calls are removed. Default: all tools.
        keep_recent: Number of newest calls that stay. Default 0. With a higher number, each new call removes an older
            one from the middle of the prompt, and the provider's cache does not match from there on.

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
        # Identify calls by unit and id, since some models use the same ids in each run.
        calls = [
            (unit, part.call_id)
            for unit in units
            if not unit.fixed
            for message in unit.messages
            for part in message.parts
            if isinstance(part, ToolCallPart) and (self._exclude is None or part.name in self._exclude)
        ]
        kept: dict[int, list[PromptPart]] = {}
        for unit, call_id in calls[: max(len(calls) - self._keep_recent, 0)]:
            for message in unit.messages:
                parts = kept.get(id(message), message.parts)
                kept[id(message)] = [
                    part
                    for part in parts
                    if not (isinstance(part, ToolCallPart | ToolResultPart) and part.call_id == call_id)
                ]
        if not kept:
            return None
        messages = [
            replace(message, parts=kept[id(message)]) if id(message) in kept else message for message in args.prompt
        ]
        # Providers refuse a message that has neither text nor calls.
        return Prompt(messages=[m for m in messages if not all(isinstance(part, ReasoningPart) for part in m.parts)])
