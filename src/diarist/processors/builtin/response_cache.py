"""Answers of the model that are used again for the same request."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from diarist.chunks import Chunk, ModelFinish
from diarist.encoding import dumps
from diarist.payloads import Usage
from diarist.processors.base import LLMRequestResult, ProcessLLMRequestArgs, ProcessLLMResponseArgs, Processor
from diarist.processors.builtin.options import function, has_methods, positive
from diarist.processors.builtin.stored_chunks import chunks_from_json, chunks_to_json
from diarist.run_context import Outcome
from diarist.storage.base import Storage


class CacheStore(Protocol):
    """Where answers are kept. ``ttl`` is in seconds; a store forgets what is older."""

    async def get(self, key: str) -> list[Chunk] | None: ...

    async def put(self, key: str, chunks: list[Chunk], *, ttl: float) -> None: ...


class InMemoryCache:
    """Answers in this process, the least recently used leaving first.

    Args:
        max_entries: Default 1000.
        clock: Seconds; for tests. Default ``time.monotonic``.
    """

    def __init__(self, *, max_entries: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        positive("InMemoryCache", "max_entries", max_entries)
        self._max_entries, self._clock = max_entries, clock
        self._entries: OrderedDict[str, tuple[float, list[Chunk]]] = OrderedDict()

    async def get(self, key: str) -> list[Chunk] | None:
        expires, chunks = self._entries.get(key, (0.0, None))
        if chunks is None or expires <= self._clock():
            self._entries.pop(key, None)
            return None
        self._entries.move_to_end(key)
        return deepcopy(chunks)

    async def put(self, key: str, chunks: list[Chunk], *, ttl: float) -> None:
        self._entries[key] = (self._clock() + ttl, deepcopy(chunks))
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)


class StorageCache:
    """Answers in a ``Storage``, shared by all processes that use it. Each is an event log of one key.

    Args:
        storage: Any storage; keys begin with ``response-cache:``.
        clock: Seconds since 1970; for tests. Default ``time.time``.
    """

    def __init__(self, storage: Storage, *, clock: Callable[[], float] = time.time) -> None:
        self._storage, self._clock = storage, clock

    async def get(self, key: str) -> list[Chunk] | None:
        events = await self._storage.list_events(f"response-cache:{key}")
        if not events or events[-1].data["expires"] <= self._clock():
            return None
        return chunks_from_json(events[-1].data["chunks"])

    async def put(self, key: str, chunks: list[Chunk], *, ttl: float) -> None:
        entry = {"expires": self._clock() + ttl, "chunks": chunks_to_json(chunks)}
        await self._storage.append_event(f"response-cache:{key}", "answer", entry)


@dataclass(slots=True)
class _Staged:
    """One run: the key of the request at hand, and the answers to keep if the run ends well, by step."""

    key: str | None = None
    answers: dict[int, tuple[str, list[Chunk]]] = field(default_factory=dict[int, tuple[str, list[Chunk]]])
    waiting: bool = False


class ResponseCache(Processor[Any, _Staged]):
    """Answers a request from an earlier, equal one: the model is not called, and usage is zero.

    An answer is kept when its run has ended well; those of blocked, failed and cancelled runs are not, nor
    attempts that a processor sent back, nor answers that were cut short. Put it last in ``input_processors``, so
    that its key sees the prompt as the model would. It passes the output processors like any other answer.

    Args:
        store: ``InMemoryCache()`` (default), ``StorageCache(storage)``, or a ``CacheStore`` of your own.
        ttl: Seconds that an answer is good for. Default 3600.
        key: Function of ``ProcessLLMRequestArgs`` to a text, or None for "do not cache this". Default: a hash of the
            model's id and everything that it is sent, so that users share an answer only where every word of
            their prompts is the same.

    Raises:
        ConfigError: A ttl that is not positive, a store without ``get`` and ``put``.

    Example::

        Agent(model="openai/gpt-5-mini", input_processors=[ResponseCache(ttl=600)])
    """

    edits_in_place = False

    def __init__(
        self,
        store: CacheStore | None = None,
        *,
        ttl: float = 3600.0,
        key: Callable[[ProcessLLMRequestArgs[Any, _Staged]], str | None] | None = None,
    ) -> None:
        positive("ResponseCache", "ttl", ttl)
        self._store: CacheStore = InMemoryCache() if store is None else store
        has_methods("ResponseCache", "store", self._store, "get", "put")
        function("ResponseCache", "key", key)
        self._ttl = ttl
        self._key = key or request_key

    def create_state(self) -> _Staged:
        return _Staged()

    async def process_llm_request(self, args: ProcessLLMRequestArgs[Any, _Staged]) -> LLMRequestResult | None:
        """Answer, if the store knows how."""
        state = args.state
        state.key = self._key(args)
        known = None if state.key is None else await self._store.get(state.key)
        if known is None:
            return None
        return {"response": [_free(chunk) for chunk in known]}

    def process_llm_response(self, args: ProcessLLMResponseArgs[Any, _Staged]) -> None:
        """Keep the answer for the end of the run; an attempt that is repeated replaces the one before."""
        state = args.state
        state.answers.pop(args.step_number, None)
        if args.from_cache or state.key is None or not _is_whole(args.response):
            return
        state.answers[args.step_number] = (state.key, deepcopy(args.response))
        if not state.waiting:
            state.waiting = True
            args.context.on_end(lambda outcome: self._end(state, outcome))

    async def _end(self, state: _Staged, outcome: Outcome) -> None:
        if outcome == "committed":
            for key, chunks in state.answers.values():
                await self._store.put(key, chunks, ttl=self._ttl)


def request_key(args: ProcessLLMRequestArgs[Any, _Staged]) -> str:
    """A hash of the model's id and all that it is sent."""
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


def _is_whole(response: list[Chunk]) -> bool:
    last = response[-1] if response else None
    return isinstance(last, ModelFinish) and last.payload.reason in ("stop", "tool-calls")


def _free(chunk: Chunk) -> Chunk:
    """The same answer costs nothing the second time."""
    return replace(chunk, payload=replace(chunk.payload, usage=Usage())) if isinstance(chunk, ModelFinish) else chunk
