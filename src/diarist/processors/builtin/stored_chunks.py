"""A model's chunks as JSON values, and back."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast, get_args

from diarist.chunks import Chunk, DataChunk, FileChunk
from diarist.messages import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_KINDS: dict[str, type[Any]] = {kind.type: kind for kind in get_args(Chunk) if kind is not DataChunk}


def chunks_to_json(chunks: list[Chunk]) -> list[Json]:
    """Each chunk as its type and payload; chunks of an application (``data-...``) are left out."""
    return [
        [chunk.type, _plain(getattr(chunk, "payload", None))] for chunk in chunks if not isinstance(chunk, DataChunk)
    ]


def chunks_from_json(values: list[Json]) -> list[Chunk]:
    """Equal chunks, without a run id."""
    return [_chunk(kind, payload) for kind, payload in values]


def _plain(value: Any) -> Json:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return b64encode(value).decode() if isinstance(value, bytes) else value


def _chunk(kind: str, payload: Json) -> Chunk:
    if payload is None:
        return cast(Chunk, _KINDS[kind]())
    if _KINDS[kind] is FileChunk and payload["data"] is not None:
        payload = payload | {"data": b64decode(payload["data"])}
    return cast(Chunk, _KINDS[kind](payload=_payload(kind).validate_python(payload)))


@cache
def _payload(kind: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    from diarist import payloads

    written = _KINDS[kind].__dataclass_fields__["payload"].type
    return TypeAdapter(getattr(payloads, written) if isinstance(written, str) else written)
