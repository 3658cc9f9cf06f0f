"""Calls of tools that another provider ran."""

from __future__ import annotations

from diarist.messages import Prompt, PromptMessage, PromptPart, ToolCallPart, ToolResultPart
from diarist.models.base import Model
from diarist.processors.errors.rules.base import CompatRule
from diarist.processors.errors.rules.editing import without
from diarist.processors.errors.rules.origin import is_own, maker


def strip_foreign_provider_tools(prompt: Prompt, model: Model) -> Prompt | None:
    """A web search that Anthropic ran is a tool that OpenAI does not know: the call goes, and its result.

    What the model said about it stays. A call of which nobody knows who ran it counts as foreign.
    """
    foreign = {
        part.call_id
        for message in prompt.messages
        for part in message.parts
        if isinstance(part, ToolCallPart) and part.provider_executed and not is_own(maker(part), model)
    }

    def drop(_: PromptMessage, part: PromptPart) -> bool:
        return isinstance(part, ToolCallPart | ToolResultPart) and part.call_id in foreign

    return without(prompt, drop) if foreign else None


FOREIGN_TOOLS = CompatRule(name="strip-foreign-provider-tools", apply_to_prompt=strip_foreign_provider_tools)
