"""Reuse the model's answer for an equal request."""

from __future__ import annotations

import hashlib
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, get_args

from diarist.byte_cache import ByteCache, size_of
from diarist.checks import function, has_methods, positive
from diarist.chunks import Chunk, DataChunk, FileChunk, ModelFinish, Usage
from diarist.encoding import dumps
from diarist.messages import Json
from diarist.processors.base import LLMRequestResult, ProcessLLMRequestArgs, ProcessLLMResponseArgs, Processor
from diarist.run_context import Outcome
from diarist.storage.base import Storage, checked_storage

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class CacheStore(Protocol):
    """Stores answers for ``ttl`` seconds."""

    async def get(self, key: str) -> list[Chunk] | None: ...

    async def put(self, key: str, chunks: list[Chunk], *, ttl: float) -> None: ...


class InMemoryCache:
    """Stores answers in this process, and evicts the least recently used first.

    Args:
        max_bytes: Approximate limit for all answers together. Default 64 MB. An answer larger than an eighth of it is
            not stored.
        clock: Returns seconds; for tests. Default ``time.monotonic``.
    """

    def __init__(self, *, max_bytes: int = 64_000_000, clock: Callable[[], float] = time.monotonic) -> None:
        positive("InMemoryCache", "max_bytes", max_bytes)
        self._clock = clock
        self._entries: ByteCache[str, tuple[float, list[Chunk]]] = ByteCache(max_bytes)

    async def get(self, key: str) -> list[Chunk] | None:
        found = self._entries.get(key)
        if found is None:
            return None
        expires, chunks = found
        if expires <= self._clock():
            self._entries.drop(key)
            return None
        return deepcopy(chunks)

    async def put(self, key: str, chunks: list[Chunk], *, ttl: float) -> None:
        entry = (self._clock() + ttl, deepcopy(chunks))
        self._entries.put(key, entry, size_of(key, entry))


class StorageCache:
    """Stores the newest answer to each request in a ``Storage``, as an event. All processes that use it share them.

    Args:
        storage: Any storage; keys begin with ``response-cache:``.
        clock: Returns seconds since 1970; for tests. Default ``time.time``.
    """

    def __init__(self, storage: Storage, *, clock: Callable[[], float] = time.time) -> None:
        self._storage, self._clock = checked_storage(storage), clock

    async def get(self, key: str) -> list[Chunk] | None:
        events = await self._storage.list_events(f"response-cache:{key}")
        if not events or events[-1].data["expires"] <= self._clock():
            return None
        return chunks_from_json(events[-1].data["chunks"])

    async def put(self, key: str, chunks: list[Chunk], *, ttl: float) -> None:
        entry = {"expires": self._clock() + ttl, "chunks": chunks_to_json(chunks)}
        await self._storage.delete_events(f"response-cache:{key}")  # expired, or of a call at the same time
        await self._storage.append_event(f"response-cache:{key}", "answer", entry)


@dataclass(slots=True)
class _Staged:
    """State of one run: the key of the current request, and the answer to store when the run succeeds, by step."""

    key: str | None = None
    answers: dict[int, list[Chunk]] = field(default_factory=dict[int, list[Chunk]])


@dataclass(kw_only=True, eq=False, repr=False)
class ResponseCache(Processor[Any, _Staged]):
    """Answers a request with the stored answer to an equal request, without a model call and with zero usage.

    Answers are stored when their run succeeds. Answers of blocked, failed and cancelled runs, rejected attempts and
    truncated answers are not stored. Put it last in ``input_processors``, so that its key covers the final prompt.
    Stored answers pass through the output processors like new ones.

    Args:
        store: ``InMemoryCache()`` (default), ``StorageCache(storage)``, or a ``CacheStore`` of your own.
        ttl: Seconds for which an answer is valid. Default 3600.
        key: Function of ``ProcessLLMRequestArgs`` that returns a text, or None to skip the cache. Default: a hash of
            the model's id and the whole request, so that users share an answer only if their prompts are equal.

    Example::

        Agent(model="openai/gpt-5-mini", input_processors=[ResponseCache(ttl=600)])
    """

    edits_in_place = False

    store: CacheStore | None = field(default=None, kw_only=False)
    ttl: float = 3600.0
    key: Callable[[ProcessLLMRequestArgs[Any, _Staged]], str | None] | None = None

    def __post_init__(self) -> None:
        positive("ResponseCache", "ttl", self.ttl)
        self._store: CacheStore = InMemoryCache() if self.store is None else self.store
        has_methods("ResponseCache", "store", self._store, "get", "put")
        function("ResponseCache", "key", self.key)

    def create_state(self) -> _Staged:
        return _Staged()

    async def process_llm_request(self, args: ProcessLLMRequestArgs[Any, _Staged]) -> LLMRequestResult | None:
        """Return the stored answer, if there is one."""
        state = args.state
        state.key = (self.key or request_key)(args)
        known = None if state.key is None else await self._store.get(state.key)
        if known is None:
            return None
        free = [
            replace(c, payload=replace(c.payload, usage=Usage())) if isinstance(c, ModelFinish) else c for c in known
        ]
        return {"response": free}

    def process_llm_response(self, args: ProcessLLMResponseArgs[Any, _Staged]) -> None:
        """Keep the answer until the run ends. A retry replaces the answer."""
        state, step, key = args.state, args.step_number, args.state.key
        state.answers.pop(step, None)
        last = args.response[-1] if args.response else None
        is_complete = isinstance(last, ModelFinish) and last.payload.reason in ("stop", "tool-calls")
        if args.from_cache or key is None or not is_complete:
            return
        answer = state.answers[step] = deepcopy(args.response)

        async def store(outcome: Outcome) -> None:
            if outcome == "committed" and state.answers.get(step) is answer:
                await self._store.put(key, answer, ttl=self.ttl)

        args.context.on_end(store)


def request_key(args: ProcessLLMRequestArgs[Any, _Staged]) -> str:
    """Return a hash of the model's id and the whole request."""
    request = args.request
    value: dict[str, Any] = {
        "model": args.model.id,
        "prompt": [[message.role, [[part.type, part] for part in message.parts]] for message in args.prompt],
        "tools": request.tools,
        "tool_choice": request.tool_choice,
        "settings": request.settings,
        "output": request.output,
        "provider_options": request.provider_options,
    }
    return hashlib.sha256(dumps(value, sort_keys=True)).hexdigest()


_KINDS: dict[str, type[Any]] = {kind.type: kind for kind in get_args(Chunk) if kind is not DataChunk}


def chunks_to_json(chunks: list[Chunk]) -> list[Json]:
    """Return the type and payload of each chunk, without data chunks."""
    return [
        [chunk.type, _plain(getattr(chunk, "payload", None))] for chunk in chunks if not isinstance(chunk, DataChunk)
    ]


def chunks_from_json(values: list[Json]) -> list[Chunk]:
    """Return the chunks that ``chunks_to_json`` converted, without run ids."""
    chunks: list[Chunk] = []
    for kind, payload in values:
        if _KINDS[kind] is FileChunk and payload["data"] is not None:
            payload = payload | {"data": b64decode(payload["data"])}
        chunks.append(_adapter(kind).validate_python({} if payload is None else {"payload": payload}))
    return chunks


def _plain(value: Any) -> Json:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return b64encode(value).decode() if isinstance(value, bytes) else value


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter[Any](_KINDS[kind])
