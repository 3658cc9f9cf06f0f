"""OpenAI's item ids, which it refuses without the reasoning they belong to."""

from __future__ import annotations

from dataclasses import replace

from diarist.messages import Prompt, PromptMessage, PromptPart, ReasoningPart, TextPart, ToolCallPart
from diarist.models.base import Model
from diarist.processors.errors.rules.base import CompatRule
from diarist.processors.errors.rules.origin import family, is_own, maker


def drop_orphaned_item_ids(prompt: Prompt, model: Model) -> Prompt | None:
    """Take the id from texts and calls of an answer whose reasoning is no longer there; all else of them stays."""
    if family(model.provider) != "openai":
        return None
    messages = [_without_ids(message, model) for message in prompt.messages]
    changed = any(new is not old for new, old in zip(messages, prompt.messages, strict=True))
    return Prompt(messages=messages) if changed else None


def _without_ids(message: PromptMessage, model: Model) -> PromptMessage:
    reasoned = any(isinstance(part, ReasoningPart) and is_own(maker(part), model) for part in message.parts)
    if message.role != "assistant" or reasoned:
        return message
    parts = [_without_id(part, model) for part in message.parts]
    changed = any(new is not old for new, old in zip(parts, message.parts, strict=True))
    return replace(message, parts=parts) if changed else message


def _without_id(part: PromptPart, model: Model) -> PromptPart:
    if not isinstance(part, TextPart | ToolCallPart) or not is_own(maker(part), model):
        return part
    data = part.provider_data or {}
    if "id" not in data:
        return part
    kept = {name: value for name, value in data.items() if name != "id"}
    return replace(part, provider_data=kept if kept.keys() - {"provider"} else None)


ORPHANED_IDS = CompatRule(name="openai-drop-orphaned-item-ids", apply_to_prompt=drop_orphaned_item_ids)
