"""Provider data: fields that a provider expects back unchanged.

``provider_data`` of a text, reasoning or tool-call part holds ``provider`` (the origin), ``id`` (the provider's id) and
``details`` (a phase, a thought signature, citations), each only if present. It is sent only to the same provider.
For a tool that the provider ran, ``kind`` and ``result_details`` (details of its result) may be added.
"""

from __future__ import annotations

from typing import Any

import orjson
from pydantic_ai import messages as lib

from diarist.encoding import clean, writable
from diarist.messages import Json, ToolCallPart, ToolResultPart


def from_part(part: lib.ModelResponsePart) -> dict[str, Json] | None:
    """Return the provider data of a library part; None if it has none."""
    if not isinstance(part, lib.TextPart | lib.ThinkingPart | lib.ToolCallPart):
        return None
    kept = _kept(id=part.id, details=part.provider_details or None)
    return {"provider": part.provider_name, **kept} if kept and part.provider_name else None


def for_part(data: dict[str, Json] | None, provider: str, *, with_id: bool) -> dict[str, Any]:
    """Return the keyword arguments of a library part for ``provider``; empty for data of another provider."""
    if not data or data.get("provider") != provider:
        return {}
    return {
        "provider_name": provider,
        "id": data.get("id") if with_id else None,
        "provider_details": data.get("details"),
    }


def of_call(part: lib.NativeToolCallPart) -> dict[str, Json]:
    """Return the provider data for the call of a tool that the provider ran."""
    return _kept(provider=part.provider_name, id=part.id, details=part.provider_details, kind=part.tool_kind)


def of_result(part: lib.NativeToolReturnPart) -> dict[str, Json]:
    """Return the provider data for the result of a tool that the provider ran."""
    return _kept(provider=part.provider_name, result_details=part.provider_details)


def native_call(part: ToolCallPart) -> lib.NativeToolCallPart:
    """Return the call in its provider's original form; it is not sent to other providers."""
    data = part.provider_data or {}
    call = lib.NativeToolCallPart(
        part.name,
        clean(part.args) or None,
        part.call_id,
        id=data.get("id"),
        provider_name=data.get("provider"),
        provider_details=data.get("details"),
    )
    return lib.NativeToolCallPart.narrow_type(call, tool_kind=data.get("kind"))


def native_result(part: ToolResultPart) -> lib.NativeToolReturnPart:
    """Return the result in its provider's original form."""
    data = part.provider_data or {}
    result = lib.NativeToolReturnPart(
        part.name,
        _content(writable(part.text)),
        part.call_id,
        outcome="failed" if part.is_error else "success",
        provider_name=data.get("provider"),
        provider_details=data.get("result_details"),
    )
    return lib.NativeToolReturnPart.narrow_type(result, tool_kind=data.get("kind"))


def _kept(**values: Json) -> dict[str, Json]:
    return {name: value for name, value in values.items() if value is not None}


def _content(text: str) -> Any:
    """Return the original result: objects and lists were stored as JSON."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # a processor has shortened it
        return text
