"""Leaving parts out of a prompt without leaving it broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from diarist.messages import Prompt, PromptMessage, PromptPart, ReasoningPart

Drop = Callable[[PromptMessage, PromptPart], bool]


def without(prompt: Prompt, drop: Drop) -> Prompt | None:
    """The prompt without the parts that ``drop`` names; None if it names none.

    A message that is left with nothing to say goes as well, an assistant message that only thinks included;
    its cache breakpoint moves to the message before it.
    """
    out: list[PromptMessage] = []
    changed = False
    for message in prompt.messages:
        kept = [part for part in message.parts if not drop(message, part)]
        if len(kept) == len(message.parts):
            out.append(message)
            continue
        changed = True
        if all(isinstance(part, ReasoningPart) for part in kept):
            if message.cache and out:
                out[-1] = replace(out[-1], cache=True)
        else:
            out.append(replace(message, parts=kept))
    return Prompt(messages=out) if changed else None


def current_turn(prompt: Prompt) -> int:
    """Where the turn that is being answered begins: the index after the last user message."""
    users = [index for index, message in enumerate(prompt.messages) if message.role == "user"]
    return users[-1] + 1 if users else 0
