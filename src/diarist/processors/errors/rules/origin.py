"""Who made a part of a conversation, and whom it is for."""

from __future__ import annotations

from diarist.messages import ReasoningPart, TextPart, ToolCallPart
from diarist.models.base import Model

_FAMILIES = {
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "azure": "openai",
    "google": "google",
    "google-gla": "google",
    "google-vertex": "google",
    "google-cloud": "google",
    "google-gcp": "google",
}
"""Names of one maker at its several doors; what is not here is its own family."""

_EXECUTED = {"srvtoolu_": "anthropic", "ws_": "openai", "fs_": "openai", "ci_": "openai", "mcp_": "openai"}
"""How the ids of tools that providers run begin, by provider."""


def family(provider: str) -> str:
    return _FAMILIES.get(provider, provider)


def is_own(provider: str | None, model: Model) -> bool:
    """Whether ``provider`` is the one that ``model`` is called at."""
    return provider is not None and family(provider) == family(model.provider)


def is_anthropic(model: Model) -> bool:
    """Whether the model speaks Anthropic's protocol of thinking blocks, at whatever door."""
    name = model.name.lower()
    return model.provider == "anthropic" or (
        model.provider in ("bedrock", "google-vertex", "google-cloud") and ("claude" in name or "anthropic" in name)
    )


def maker(part: TextPart | ReasoningPart | ToolCallPart) -> str | None:
    """The provider that made a part; None where nothing says so."""
    if isinstance(part, ReasoningPart) and part.provider:
        return part.provider
    said = (part.provider_data or {}).get("provider")
    if isinstance(said, str) and said:
        return said
    if isinstance(part, ToolCallPart) and part.provider_executed:
        return next((name for start, name in _EXECUTED.items() if part.call_id.startswith(start)), None)
    return None
