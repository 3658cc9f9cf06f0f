"""Reasoning that the next provider cannot read."""

from __future__ import annotations

from diarist.messages import Prompt, PromptMessage, PromptPart, ReasoningPart
from diarist.models.base import Model
from diarist.processors.errors.rules.base import CompatRule
from diarist.processors.errors.rules.editing import current_turn, without
from diarist.processors.errors.rules.origin import is_anthropic, is_own, maker


def strip_for_cerebras(prompt: Prompt, model: Model) -> Prompt | None:
    """Cerebras knows no field for reasoning in a request."""
    if model.provider != "cerebras":
        return None
    return without(prompt, lambda _, part: isinstance(part, ReasoningPart))


def strip_foreign_for_anthropic(prompt: Prompt, model: Model) -> Prompt | None:
    """Anthropic takes thinking of its own only; whatever others thought goes."""
    if not is_anthropic(model):
        return None
    return without(prompt, lambda _, part: isinstance(part, ReasoningPart) and not _anthropic(part, model))


def strip_empty_for_anthropic(prompt: Prompt, model: Model) -> Prompt | None:
    """Thinking of earlier turns that has a signature and no text is refused at some doors, and needed at none.

    In the turn that is being answered such a block must go back as it came: newer models send their thinking
    that way, and check it while tools run. So it stays there, and so does redacted thinking.
    """
    if not is_anthropic(model):
        return None
    start = current_turn(prompt)
    earlier = {id(message) for message in prompt.messages[:start]}

    def drop(message: PromptMessage, part: PromptPart) -> bool:
        return id(message) in earlier and isinstance(part, ReasoningPart) and _is_empty(part)

    return without(prompt, drop)


def strip_foreign_signatures(prompt: Prompt, model: Model) -> Prompt | None:
    """A signature proves reasoning to its own provider; any other refuses or misreads it."""
    own = _anthropic if is_anthropic(model) else _own
    return without(
        prompt, lambda _, part: isinstance(part, ReasoningPart) and bool(part.signature) and not own(part, model)
    )


def _own(part: ReasoningPart, model: Model) -> bool:
    return is_own(maker(part), model)


def _anthropic(part: ReasoningPart, model: Model) -> bool:
    # Signatures of Anthropic's models hold at every door that sells them.
    return maker(part) == "anthropic" or _own(part, model)


def _is_empty(part: ReasoningPart) -> bool:
    redacted = (part.provider_data or {}).get("id") == "redacted_thinking"
    return bool(part.signature) and not part.text.strip() and not redacted


CEREBRAS = CompatRule(name="cerebras-strip-reasoning-content", apply_to_prompt=strip_for_cerebras)
ANTHROPIC_FOREIGN = CompatRule(
    name="anthropic-strip-foreign-reasoning-content", apply_to_prompt=strip_foreign_for_anthropic
)
ANTHROPIC_EMPTY = CompatRule(
    name="anthropic-strip-empty-signed-reasoning-content", apply_to_prompt=strip_empty_for_anthropic
)
FOREIGN_SIGNATURES = CompatRule(name="strip-foreign-signed-reasoning", apply_to_prompt=strip_foreign_signatures)
