"""Detection of an expired prompt cache, so that the window can change at no extra cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.events import Trigger
from diarist.messages import Message

_LIFETIMES = {
    "anthropic": 300,
    "bedrock": 300,
    "openai": 600,
    "openai-responses": 600,
    "google": 3600,
    "deepseek": 3600,
}
_SHORTEST_LIFETIME = 300


def cache_lifetime(model_id: str) -> int:
    """Return the lifetime of a provider's unused prompt cache, in seconds.

    Anthropic and Bedrock document five minutes, and OpenAI five to ten minutes of inactivity. Gemini and DeepSeek keep
    the cache for an hour or more. Others: five minutes.
    """
    return _LIFETIMES.get(model_id.partition("/")[0], _SHORTEST_LIFETIME)


def why_cold(
    config: ObservationalMemoryConfig,
    earlier: Sequence[Message],
    *,
    now: datetime,
    model_id: str,
    last_model_id: str,
) -> Trigger | None:
    """Return why the cache has expired, if the configuration checks for it: ``idle`` or ``provider_change``; else None.

    Args:
        earlier: The raw rows of earlier runs, oldest first.
        now: When the turn began.
        last_model_id: The model that saw the conversation last; empty if unknown.
    """
    if config.activate_on_provider_change and last_model_id and last_model_id != model_id:
        return "provider_change"
    seconds = config.idle_seconds
    last = next((row.created_at for row in reversed(earlier) if row.created_at is not None), None)
    if seconds is None or last is None:
        return None
    limit = cache_lifetime(model_id) if seconds == "auto" else seconds
    return "idle" if (now - last).total_seconds() >= limit else None
