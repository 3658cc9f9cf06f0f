"""A conversation in a storage, and an Observer and a Reflector without a model, for tests of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from diarist.chunks import DataChunk, Usage
from diarist.counting import count_parts
from diarist.exceptions import StorageError
from diarist.memory.background import Background
from diarist.memory.observational.config import (
    ObservationalMemoryConfig,
    ObservationConfig,
    ReflectionConfig,
)
from diarist.memory.observational.engine import Engine, RunMemory
from diarist.memory.observational.log.coverage import Coverage, visible_log
from diarist.memory.observational.roles.base import Observed, Reflected
from diarist.messages import Message, TextPart, ToolPart
from diarist.storage import Observation, ObservationLog, Run, Storage, Thread

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


class WordCounter:
    """One token per word, so that tests can be read."""

    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class FakeObserver:
    """Notes the ids of what it saw, one line each. ``fail`` raises; ``gate`` holds it up until it is set."""

    calls: list[list[str]] = field(default_factory=list[list[str]])
    earlier: list[str] = field(default_factory=list[str])
    fail: Exception | None = None
    gate: asyncio.Event | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    task: str | None = None
    words: int = 2

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        self.calls.append([message.id for message in messages])
        self.earlier.append("\n".join(entry.text for entry in earlier))
        self.started.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fail is not None:
            raise self.fail
        lines = [f"- {message.id}" + " noted" * (self.words - 2) for message in messages]
        return Observed(
            text="\n".join(lines),
            current_task=self.task,
            suggested_response=None,
            usage=Usage(input_tokens=10, output_tokens=3),
            model="fake",
        )


@dataclass
class FakeReflector:
    """Keeps the first words of its input: one less than the target, or ``size``. ``fail`` and ``gate`` as for
    ``FakeObserver``."""

    calls: list[list[str]] = field(default_factory=list[list[str]])
    size: int | None = None
    fail: Exception | None = None
    gate: asyncio.Event | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        self.calls.append([entry.id for entry in entries])
        self.started.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fail is not None:
            raise self.fail
        size = target_tokens - 1 if self.size is None else self.size
        return Reflected(text=" ".join(["kept"] * size), usage=Usage(input_tokens=20), model="fake")


class WatchedBackground(Background):
    """Sets ``waiting`` when a call waits for a job."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = asyncio.Event()
        self.waits: list[str] = []

    async def wait(self, name: str, timeout: float | None = None) -> bool:
        if timeout is not None and self.running(name):
            self.waits.append(name)
            self.waiting.set()
        return await super().wait(name, timeout)


def small_config(
    message_tokens: int = 100, observation_tokens: int = 1000, *, observe_timeout: float = 30, **observation: float
) -> ObservationalMemoryConfig:
    """Observes at 100 tokens while the run waits, keeps 20, takes batches of 40."""
    observation = {"buffer_tokens": False, "observer_batch_tokens": 40, **observation}
    return ObservationalMemoryConfig(
        model="extractive",
        observation=ObservationConfig(message_tokens=message_tokens, **observation),  # type: ignore[arg-type]
        reflection=ReflectionConfig(observation_tokens=observation_tokens),
        observe_timeout=observe_timeout,
    )


def user(id: str, words: int) -> Message:
    return Message.user(" ".join([id] * words), id=id, created_at=NOON)


def assistant(id: str, words: int) -> Message:
    return Message.assistant(" ".join([id] * words), id=id, created_at=NOON)


def tool_step(id: str, words: int) -> Message:
    """A closed step: a call and its result in one part, ``words`` tokens in all."""
    part = ToolPart(call_id=f"call-{id}", name="look", args={}, state="result", result=" ".join([id] * (words - 2)))
    return Message(id=id, role="assistant", parts=[part], created_at=NOON)


def say(id: str, text: str) -> Message:
    return Message(id=id, role="user", parts=[TextPart(text=text)], created_at=NOON)


@dataclass
class Conversation:
    """One thread in a storage with an engine on it."""

    storage: Storage
    config: ObservationalMemoryConfig = field(default_factory=small_config)
    observer: FakeObserver = field(default_factory=FakeObserver)
    reflector: FakeReflector = field(default_factory=FakeReflector)
    clock: Clock = field(default_factory=Clock)
    parts: list[DataChunk] = field(default_factory=list[DataChunk])
    background: WatchedBackground = field(default_factory=WatchedBackground)
    thread: str = "trip"
    runs: int = 0

    def __post_init__(self) -> None:
        self.engine = Engine(
            storage=self.storage,
            observer=self.observer,
            reflector=self.reflector,
            config=self.config,
            counter=WordCounter(),
            clock=self.clock,
            background=self.background,
        )

    async def begin(self, *messages: Message, guarded: bool = False) -> Run:
        """Open a run and store its input."""
        self.runs += 1
        run = await self.storage.begin_run(
            f"run-{self.runs}-{id(self)}", Thread(id=self.thread, resource_id="ada"), guarded=guarded
        )
        await self.store(run, *messages, source="input")
        return run

    async def store(self, run: Run, *messages: Message, source: str = "response") -> list[Message]:
        for message in messages:
            message.part_tokens = count_parts(message, WordCounter())
        seqs = await self.storage.append_messages(run, messages, source=source)  # type: ignore[arg-type]
        for message, seq in zip(messages, seqs, strict=True):
            message.seq, message.run_id, message.thread_id = seq, run.id, run.thread_id
        return list(messages)

    async def commit(self, *messages: Message) -> None:
        """A whole run that ends well."""
        run = await self.begin(*messages)
        await self.storage.finish_run(run, "committed")

    async def open(self, run: Run | None = None) -> RunMemory:
        return await self.engine.open(self.thread, "ada", run.id if run else None, emit=self.parts.append)

    async def settled(self) -> None:
        """Nothing runs in the background any more."""
        await self.background.settled()

    async def stored(self) -> ObservationLog:
        """The log as it is stored, entries of live runs included; empty where there is none."""
        log = await self.storage.get_log(f"thread:{self.thread}")
        return log or ObservationLog(key=f"thread:{self.thread}", scope="thread", resource_id="ada")

    async def turn(self, *messages: Message, end: bool = True) -> RunMemory:
        """A run with this input, brought to its first model call; committed unless ``end`` is False."""
        run = await self.begin(*messages)
        memory = await self.open(run)
        await prepare_step(memory, 0, pinned={message.id for message in messages})
        if end:
            await self.storage.finish_run(run, "committed")
            await self.close_run(run.id)
        return memory

    async def close_run(self, run_id: str) -> None:
        await self.engine.diary(self.thread, "ada", None).close_run(run_id)

    async def drop_run(self, run_id: str, *, seqs: Collection[int] = ()) -> None:
        await self.engine.diary(self.thread, "ada", None).drop_run(run_id, seqs=seqs)

    async def log(self) -> ObservationLog:
        """The log as others see it."""
        return visible_log(await self.stored(), None)

    def types(self) -> list[str]:
        return [part.type.removeprefix("data-om-") for part in self.parts]

    def data(self, type: str) -> list[dict[str, object]]:
        return [part.data for part in self.parts if part.type == f"data-om-{type}"]


async def prepare_step(memory: RunMemory, step_number: int, *, pinned: Collection[str]) -> None:
    """All that comes before a model call."""
    await memory.prepare(pinned)
    await send_status(memory, step_number, pinned)


async def send_status(memory: RunMemory, step_number: int, pinned: Collection[str]) -> None:
    """Send the sizes of the prompt, and store them at once, which a run does with its next messages."""
    event = memory.send_status(step_number, pinned)
    with suppress(StorageError):
        await memory.diary.storage.append_event(*event)


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]


async def grown(chat: Conversation) -> Conversation:
    """Four turns, 80 tokens: u1 a1 … u4 a4 with 10 each."""
    for n in range(1, 5):
        await chat.commit(user(f"u{n}", 10), assistant(f"a{n}", 10))
    return chat


async def assert_exactly_once(chat: Conversation, memory: RunMemory, run_id: str | None = None) -> None:
    """Every visible row is raw, or covered by exactly one active entry; and no two entries cover the same row."""
    rows = await chat.storage.list_messages(chat.thread, run_id=run_id)
    raw = set(ids(memory.window.rows))
    for row in rows:
        covering = [e for e in memory.log.entries if row.seq in Coverage([e], chat.thread)]
        active = [entry for entry in covering if entry.state == "active"]
        assert (row.id in raw) + len(active) == 1, row.id
        assert len(covering) <= 1, row.id
