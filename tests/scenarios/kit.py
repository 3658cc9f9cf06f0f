"""What the scenarios share: small memories, models that play Observer and Reflector, and recounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from diarist import (
    Agent,
    Memory,
    Message,
    ObservationalMemoryConfig,
    ObservationConfig,
    Processor,
    ReflectionConfig,
)
from diarist.agent import AgentResult
from diarist.chunks import Chunk, DataChunk
from diarist.memory.observational.log.coverage import digest_rows
from diarist.models.base import Model, ModelRequest
from diarist.processors import ProcessLLMRequestArgs
from diarist.storage import InMemoryStorage, Observation, ObservationLog, Run, Storage
from diarist.testing import ScriptedModel


class WordCounter:
    """One token per word, so that sizes in tests can be read."""

    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


def observer(words: int = 6) -> ScriptedModel:
    """Writes one numbered line of ``words`` words (beside the date) at each call."""
    numbers = count(1)

    def write(_: ModelRequest) -> str:
        line = " ".join([f"note-{next(numbers)}", *["noted"] * (words - 3)])
        return f"<diary>\nDate: 2026-03-02\n- 🟡 {line}\n</diary>"

    return ScriptedModel(write, name="observer")


def reflector() -> ScriptedModel:
    """Writes one numbered line of five words."""
    numbers = count(1)
    return ScriptedModel(lambda _: f"<diary>\n- 🔴 summary-{next(numbers)} of it\n</diary>", name="reflector")


def failing(error: BaseException | None = None) -> ScriptedModel:
    return ScriptedModel(lambda _: error or RuntimeError("the observer is down"), name="observer")


def observational(
    storage: Storage,
    *,
    message_tokens: int = 100,
    observation_tokens: int = 10_000,
    observer_model: Model | str | None = None,
    reflector_model: Model | str | None = None,
    observe_timeout: float = 30.0,
    thread_wait: float = 30.0,
    await_background: bool = False,
    **observation: Any,
) -> Memory:
    """Memory that counts words, observes at 100 of them and keeps 20."""
    return Memory(
        storage=storage,
        observational_memory=ObservationalMemoryConfig(
            observation=ObservationConfig(
                model=observer_model or observer(), message_tokens=message_tokens, **observation
            ),
            reflection=ReflectionConfig(model=reflector_model or reflector(), observation_tokens=observation_tokens),
            observe_timeout=observe_timeout,
        ),
        thread_wait=thread_wait,
        token_counter=WordCounter(),
        await_background=await_background,
    )


def configured(
    storage: Storage,
    *,
    observation: dict[str, Any] | None = None,
    reflection: dict[str, Any] | None = None,
    await_background: bool = False,
    **options: Any,
) -> Memory:
    """Memory as in ``observational``, with any option; the roles' models play unless ``model`` says otherwise."""
    roles = ({}, {}) if "model" in options else ({"model": observer()}, {"model": reflector()})
    config = ObservationalMemoryConfig(
        observation=ObservationConfig(**{"message_tokens": 100, **roles[0], **(observation or {})}),
        reflection=ReflectionConfig(**{"observation_tokens": 10_000, **roles[1], **(reflection or {})}),
        **options,
    )
    return Memory(
        storage=storage,
        observational_memory=config,
        token_counter=WordCounter(),
        await_background=await_background,
    )


ways = pytest.mark.parametrize("buffer_tokens", [False, 0.2], ids=["awaited", "background"])
"""The Observer and the Reflector work while the run waits, or beside it."""


async def told(storage: Storage, kind: str, thread: str = "t") -> list[dict[str, Any]]:
    """Data of the events of all work that ``start``s, ``end``s or ``failed``, awaited or in the background."""
    types = {f"data-om-observation-{kind}", f"data-om-buffering-{kind}"}
    return [event.data for event in await storage.list_events(f"thread:{thread}") if event.type in types]


def words(name: str, number: int) -> str:
    """A text of so many words that can be recognised."""
    return " ".join([name] * number)


def answering(text: str = "Understood, noted.") -> ScriptedModel:
    return ScriptedModel(lambda _: text, name="actor")


async def talk(agent: Agent, turns: int, *, size: int = 30, thread: str = "t", first: int = 1) -> None:
    """So many turns of ``size`` words each, that say ``turn-1``, ``turn-2``, …"""
    for number in range(first, first + turns):
        await agent.generate(words(f"turn-{number}", size), thread=thread)


@dataclass
class Played:
    """A streamed run: its chunks and its result."""

    chunks: list[Chunk] = field(default_factory=list[Chunk])
    result: AgentResult[Any] | None = None

    def data(self, type: str) -> list[dict[str, Any]]:
        """The data of all ``data-om-…`` parts of this type."""
        return [c.data for c in self.chunks if isinstance(c, DataChunk) and c.type == f"data-om-{type}"]


async def play(agent: Agent, input: Any, *, expect: type[Exception] | None = None, **options: Any) -> Played:
    """Stream a run to its end; ``expect`` is the error that it must end with."""
    played = Played()
    async with agent.stream(input, **options) as stream:
        async for chunk in stream:
            played.chunks.append(chunk)
        if expect is None:
            played.result = await stream.result()
        else:
            with pytest.raises(expect):
                await stream.result()
    return played


class Recount(Processor[Any]):
    """Counts before every model call: each row of the thread is raw in the prompt, or in one entry of the log.

    A row that is in both may only be the message that opened the turn, shown once more at the front.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.prompts = 0
        self.covered = 0

    async def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
        assert args.thread_id is not None
        rows = await self._storage.list_messages(args.thread_id, run_id=args.run_id)
        log = await log_of(self._storage, args.thread_id)
        shown = ids_sent(args.request)
        for row in rows:
            assert sum(covers(entry, row) for entry in log.entries) <= 1, f"{row.text[:20]!r} is covered twice"
            entries = sum(covers(entry, row) for entry in log.active)
            if entries == 0:
                assert row.id in shown, f"{row.text[:20]!r} is neither raw nor covered"
            elif row.id in shown:
                assert row.id == shown[0], f"{row.text[:20]!r} is both raw and covered"
                assert row.role == "user"
            self.covered += entries
        asked = [message.id for message in args.message_list.input]
        assert set(asked) <= set(shown), "the question is gone"
        assert_well_formed(args.request)
        self.prompts += 1


# --- recounts ----------------------------------------------------------------------------------------


async def log_of(storage: Storage, thread: str = "t") -> ObservationLog:
    log = await storage.get_log(f"thread:{thread}")
    return log or ObservationLog(key=f"thread:{thread}", scope="thread", resource_id=thread)


def covers(entry: Observation, row: Message) -> bool:
    assert row.seq is not None
    return any(source.first_seq <= row.seq <= source.last_seq for source in entry.sources)


async def raw_rows(storage: Storage, thread: str = "t") -> list[Message]:
    """The rows that no active entry covers, after checking that no row is covered twice, that every entry, also one
    that waits, was made of what the rows say today, and that none belongs to a run."""
    rows = await storage.list_messages(thread)
    log = await log_of(storage, thread)
    for row in rows:
        assert sum(covers(entry, row) for entry in log.entries) <= 1, f"{row.text[:20]!r} is covered twice"
    for entry in log.entries:
        assert entry.run_id is None
        if entry.kind == "observation":
            assert entry.message_count == sum(covers(entry, row) for row in rows)
        for source in entry.sources:
            inside = [row for row in rows if source.first_seq <= (row.seq or 0) <= source.last_seq]
            assert digest_rows(inside) == source.digest
    return [row for row in rows if not any(covers(entry, row) for entry in log.active)]


def ids_sent(request: ModelRequest) -> list[str]:
    """Ids of the messages that a prompt holds, in order, each once."""
    return list(dict.fromkeys(m.message_id for m in request.prompt if m.message_id is not None))


def assert_well_formed(request: ModelRequest) -> None:
    """The conversation of a prompt begins with the user, and each tool call is followed by its result."""
    messages = [message for message in request.prompt if message.role != "system"]
    assert messages[0].role == "user"
    open_calls: list[str] = []
    for message in messages:
        results = [part.call_id for part in message.parts if part.type == "tool-result"]
        if message.role == "tool":
            assert sorted(results) == sorted(open_calls)
        else:
            assert open_calls == [], "a call without its result"
            assert results == []
        open_calls = [part.call_id for part in message.parts if part.type == "tool-call"]
    assert open_calls == [], "a call without its result"


def assert_all_well_formed(models: Sequence[ScriptedModel]) -> None:
    for model in models:
        for request in model.requests:
            assert_well_formed(request)


# --- a storage that can be watched and stopped --------------------------------------------------------


class WatchedStorage(InMemoryStorage):
    """Counts the calls and the rows that they return, and keeps the runs that began; subclasses get in between with
    ``around``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.rows_read = 0
        self.runs: list[Run] = []

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()


def _watched(name: str) -> Callable[..., Awaitable[Any]]:
    original = getattr(InMemoryStorage, name)

    async def method(self: WatchedStorage, *args: Any, **kwargs: Any) -> Any:
        self.calls[name] += 1
        result = await self.around(name, lambda: original(self, *args, **kwargs))
        if name == "begin_run":
            self.runs.append(result)
        if isinstance(result, list):
            self.rows_read += len(result)
        return result

    return method


for _name in sorted(Storage.__abstractmethods__):
    setattr(WatchedStorage, _name, _watched(_name))
