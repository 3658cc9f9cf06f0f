"""Tool calls out of the fragments they are streamed in."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from diarist.chunks import (
    Chunk,
    ToolCallChunk,
    ToolCallPayload,
    ToolInputDelta,
    ToolInputDeltaPayload,
    ToolInputStart,
    ToolInputStartPayload,
)
from diarist.messages import Json


@dataclass(slots=True)
class _Call:
    """One call as far as it has come."""

    id: str
    index: int | None
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])


class ToolFragments:
    """The calls of one answer.

    Fragments belong together by index, as the protocol has it. Some servers leave the index out, give every call
    the same one, or leave out ids: then a fragment that names a tool anew begins a new call.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, fragments: list[dict[str, Any]]) -> list[Chunk]:
        """The chunks for the fragments of one event."""
        out: list[Chunk] = []
        for fragment in fragments:
            function: dict[str, Any] = fragment.get("function") or {}
            name: str = function.get("name") or ""
            call = self._find(fragment.get("index"), fragment.get("id") or "", name)
            if name and not call.name:
                call.name = name
                payload = ToolInputStartPayload(tool_call_id=call.id, tool_name=name)
                out.append(ToolInputStart(payload=payload))
            arguments = function.get("arguments")
            if arguments:
                text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
                call.pieces.append(text)
                delta = ToolInputDeltaPayload(tool_call_id=call.id, args_text_delta=text)
                out.append(ToolInputDelta(payload=delta))
        return out

    def finish(self) -> list[Chunk]:
        """The complete calls, in the order in which they began."""
        return [_complete(call) for call in self._calls]

    def _find(self, index: int | None, call_id: str, name: str) -> _Call:
        for call in reversed(self._calls):
            if call_id and call.id == call_id:
                return call
            if call.index == index and not self._begins_another(call, call_id, name):
                return call
        call = _Call(call_id or f"call_{secrets.token_hex(12)}", index)
        self._calls.append(call)
        return call

    @staticmethod
    def _begins_another(call: _Call, call_id: str, name: str) -> bool:
        """Whether a fragment of the same index is of another call nevertheless."""
        if not name or not call.name:
            return False
        return bool(call_id) or call.index is None


def _complete(call: _Call) -> ToolCallChunk:
    raw = "".join(call.pieces)
    args, problem = parse_arguments(raw)
    return ToolCallChunk(
        payload=ToolCallPayload(tool_call_id=call.id, tool_name=call.name, args=args, args_error=problem)
    )


def parse_arguments(raw: str) -> tuple[dict[str, Json], str | None]:
    """The arguments, or none and what is wrong with them."""
    if not raw.strip():
        return {}, None
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return {}, f"the arguments are not JSON ({error}): {raw[:500]}"
    if not isinstance(value, dict):
        return {}, f"the arguments are not a JSON object: {raw[:500]}"
    return cast(dict[str, Json], value), None
