"""What a provider wants back unchanged, on its way through our messages.

``provider_data`` of a text, reasoning or tool-call part holds ``provider`` (who made it), ``id`` (the item's
id there) and ``details`` (a phase, a thought signature, citations), as far as they are there. They go back
to the same provider only.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai import messages as lib

from diarist.messages import Json


def from_part(part: lib.ModelResponsePart) -> dict[str, Json] | None:
    """What to keep of a library part; None if there is nothing."""
    if not isinstance(part, lib.TextPart | lib.ThinkingPart | lib.ToolCallPart):
        return None
    kept: dict[str, Json] = {}
    if part.id is not None:
        kept["id"] = part.id
    if part.provider_details:
        kept["details"] = part.provider_details
    return {"provider": part.provider_name, **kept} if kept and part.provider_name else None


def for_part(data: dict[str, Json] | None, provider: str, *, with_id: bool) -> dict[str, Any]:
    """The keyword arguments of a library part for ``provider``; empty for what another one made."""
    if not data or data.get("provider") != provider:
        return {}
    return {
        "provider_name": provider,
        "id": data.get("id") if with_id else None,
        "provider_details": data.get("details"),
    }
