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
    the same one or the same id, or leave out ids: then a fragment that names a tool anew begins a new call; as some
    repeat the name in each fragment, one with the id or index of the last call does once its arguments are complete.
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
            arguments = function.get("arguments") or ""
            text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            call = self._find(fragment.get("index"), fragment.get("id") or "", name, text)
            if name and not call.name:
                call.name = name
                payload = ToolInputStartPayload(tool_call_id=call.id, tool_name=name)
                out.append(ToolInputStart(payload=payload))
            if text:
                call.pieces.append(text)
                delta = ToolInputDeltaPayload(tool_call_id=call.id, args_text_delta=text)
                out.append(ToolInputDelta(payload=delta))
        return out

    def finish(self) -> list[Chunk]:
        """The complete calls, in the order in which they began."""
        return [_complete(call) for call in self._calls]

    def _find(self, index: int | None, call_id: str, name: str, text: str) -> _Call:
        for call in reversed(self._calls):
            same_id = bool(call_id) and call.id == call_id
            same_index = call.index == index or (same_id and None in (call.index, index))
            anew = bool(name and call.name) and _begins_another(call, call_id, name, text)
            if same_index and not anew:
                return call
        call = _Call(call_id or f"call_{secrets.token_hex(12)}", index)
        self._calls.append(call)
        return call


def _begins_another(call: _Call, call_id: str, name: str, text: str) -> bool:
    """Whether a fragment that names a tool is of another call; some servers repeat name and id in each fragment."""
    same_id = bool(call_id) and call.id == call_id
    certain = name != call.name or (not same_id and (bool(call_id) or call.index is None))
    return certain or (_is_whole(call) and bool(text.strip() or not same_id))


def _is_whole(call: _Call) -> bool:
    ended = call.pieces and call.pieces[-1].rstrip().endswith("}")
    return bool(ended) and parse_arguments("".join(call.pieces))[1] is None


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
