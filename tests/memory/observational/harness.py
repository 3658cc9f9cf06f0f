"""A conversation in a storage, and an Observer and a Reflector without a model, for tests of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from diarist.chunks import DataChunk, Usage
from diarist.counting import count_parts
from diarist.memory.observational.config import (
    ObservationalMemoryConfig,
    ObservationConfig,
    ReflectionConfig,
)
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.roles import Observed, Reflected
from diarist.memory.observational.thread_memory import ThreadMemory
from diarist.messages import Message, TextPart, ToolPart
from diarist.storage import Observation, Run, Storage, Thread

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
    """Keeps the first words of its input: one less than the target, or ``size``."""

    calls: list[list[str]] = field(default_factory=list[list[str]])
    size: int | None = None
    fail: Exception | None = None

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        self.calls.append([entry.id for entry in entries])
        if self.fail is not None:
            raise self.fail
        size = target_tokens - 1 if self.size is None else self.size
        return Reflected(text=" ".join(["kept"] * size), usage=Usage(input_tokens=20), model="fake")


def small_config(
    message_tokens: int = 100, observation_tokens: int = 1000, *, observe_timeout: float = 30, **observation: float
) -> ObservationalMemoryConfig:
    """Observes at 100 tokens, keeps 20, takes batches of 40."""
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

    async def open(self, run: Run | None = None) -> ThreadMemory:
        return await self.engine.open(self.thread, "ada", run.id if run else None, emit=self.parts.append)

    async def turn(self, *messages: Message, end: bool = True) -> ThreadMemory:
        """A run with this input, brought to its first model call; committed unless ``end`` is False."""
        run = await self.begin(*messages)
        memory = await self.open(run)
        await memory.prepare_step(0, pinned={message.id for message in messages})
        if end:
            await self.storage.finish_run(run, "committed")
            await self.engine.close_run(self.thread, "ada", run.id)
        return memory

    def types(self) -> list[str]:
        return [part.type.removeprefix("data-om-") for part in self.parts]

    def data(self, type: str) -> list[dict[str, object]]:
        return [part.data for part in self.parts if part.type == f"data-om-{type}"]


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]
