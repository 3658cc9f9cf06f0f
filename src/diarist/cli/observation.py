"""``diarist observe``: read a conversation, store its messages, and observe them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from diarist.chunks import Chunk, DataChunk, ModelFinish, TextDelta, Usage
from diarist.exceptions import ConfigError, InputError
from diarist.memory.conversations import Conversation, read_conversation, thread_id_of
from diarist.memory.observational.events import OBSERVATION_END
from diarist.memory.observational.roles.role_models import EXTRACTIVE
from diarist.messages import Message
from diarist.models.base import Model, ModelRequest
from diarist.storage.records import ObservationLog
from diarist.tokens import default_counter

if TYPE_CHECKING:
    from diarist.memory.observational.config import ObservationalMemoryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Options of the command. None keeps the library's default."""

    path: Path
    model: str = EXTRACTIVE
    base_url: str | None = None
    api_key: str | None = None
    select: int | None = None
    format: str | None = None
    date: date | None = None
    timezone: str = "UTC"
    message_tokens: int | None = None
    batch_tokens: int | None = None
    observation_tokens: int | None = None
    limit_tokens: int | None = None
    storage: Path | None = None
    thread: str | None = None


@dataclass(slots=True, kw_only=True)
class Result:
    """A diary and the effort it took.

    Attributes:
        new_messages: Number of messages that the database did not have yet.
        message_tokens: Tokens of all messages read from the file.
        cost: US dollars of this run; None if the model's price is unknown.
        seconds: Time for storing and observing.
    """

    new_messages: int
    message_tokens: int
    log: ObservationLog
    cost: float | None
    seconds: float

    @property
    def observed_tokens(self) -> int:
        """Tokens of all messages of the thread that the diary covers."""
        return sum(entry.message_tokens for entry in self.log.entries)

    @property
    def unobserved_tokens(self) -> int:
        """Tokens of messages read from the file that the diary does not cover."""
        return max(0, self.message_tokens - self.observed_tokens)


@dataclass(slots=True)
class Work:
    """Work done by one role so far.

    Attributes:
        calls: Number of model calls; without a model, number of batches.
        finished: Number of calls or batches with a result in the diary.
    """

    calls: int = 0
    finished: int = 0
    usage: Usage = field(default_factory=Usage)


class MeteredModel(Model):
    """A model that counts its calls and tokens in ``work``, failed calls included."""

    def __init__(self, model: Model, work: Work) -> None:
        self.provider = model.provider
        self.name = model.name
        self.cache_breakpoints = model.cache_breakpoints
        self._model = model
        self._work = work

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self._work.calls += 1
        # Closing this generator must close the model's, which cancels the call.
        chunks = cast("AsyncGenerator[Chunk]", self._model.stream(request))
        said, finished = "", False
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if isinstance(chunk, ModelFinish):
                        self._work.usage += chunk.payload.usage
                        finished = True
                    elif isinstance(chunk, TextDelta):
                        said += chunk.payload.text
                    yield chunk
        finally:
            if said and not finished:  # the stream was cut off, so the provider reported no usage
                count = default_counter().count
                self._work.usage += Usage(input_tokens=count(request.text), output_tokens=count(said))

    async def close(self) -> None:
        await self._model.close()


class ObserveCommand:
    """One run of the command. The file is read completely before anything is stored.

    Attributes:
        messages: Messages to observe: without system messages and an incomplete end, up to ``limit_tokens``.
        observer, reflector: Work done so far; valid after a failure, too.
        stored: True once the messages are saved.

    Raises:
        InputError: The file or an option is invalid.
        ConfigError: The model or the thresholds are invalid.
    """

    def __init__(self, request: Request) -> None:
        if (path := request.storage) is not None:
            if path.is_dir():
                raise InputError(f"--storage {path}: is a folder; name a database file")
            if not path.parent.is_dir():
                raise InputError(f"--storage {path}: the folder {path.parent} does not exist")
        self.request = request
        self.conversation = read_conversation(
            request.path,
            select=request.select,
            date=request.date,
            timezone=request.timezone,
            format=request.format,
        )
        self.messages, self.message_tokens = _take(self.conversation, request.limit_tokens)
        self.thread = request.thread or thread_id_of(request.path, self.conversation)
        self.observer = Work()
        self.reflector = Work()
        self.stored = False
        self._config = _configure(request, self.observer, self.reflector)

    def run(self, on_progress: Callable[[int, int], None]) -> Result:
        """Store and observe the messages. ``on_progress`` gets the tokens done and the total.

        Raises:
            ModelError, RoleError: The model failed.
            StorageError: The database failed.
            KeyboardInterrupt: The user stopped the command; the database was closed properly.
        """
        return asyncio.run(self._run(on_progress))

    async def _run(self, on_progress: Callable[[int, int], None]) -> Result:
        from diarist.memory.memory import Memory
        from diarist.storage import InMemoryStorage, SQLiteStorage

        started = time.monotonic()
        path = self.request.storage
        storage = InMemoryStorage() if path is None else SQLiteStorage(path)
        memory = Memory(storage=storage, observational_memory=self._config)
        try:
            new = await memory.messages.save(self.messages, thread=self.thread)
            self.stored = True
            await memory.diary.observe(thread=self.thread, on_progress=on_progress, on_event=self._count)
            log = await memory.diary.get(thread=self.thread)
        finally:
            await memory.close()
        return Result(
            new_messages=new,
            message_tokens=self.message_tokens,
            log=log,
            cost=self._cost(),
            seconds=time.monotonic() - started,
        )

    def _count(self, event: DataChunk) -> None:
        if event.type != OBSERVATION_END:
            return
        work = self.reflector if event.data["operationType"] == "reflection" else self.observer
        work.finished += 1
        if self.request.model == EXTRACTIVE:
            work.calls += 1

    def _cost(self) -> float | None:
        from diarist.models.providers import cost

        if self.request.model == EXTRACTIVE:
            return 0.0
        if self.request.base_url is not None:  # prices of an unknown server are unknown
            return None
        return cost(self.request.model, self.observer.usage + self.reflector.usage)


def _take(conversation: Conversation, limit: int | None) -> tuple[list[Message], int]:
    """Return the messages to observe, at least one and at most ``limit`` tokens, and their tokens.

    System messages are left out, since they are instructions and not events. So is an end that waits for a tool's
    result, because a stored message does not change any more; a later run reads it.
    """
    from diarist.counting import count_parts

    spoken = [message for message in conversation.messages if message.role != "system"]
    end = len(spoken)
    for index in reversed(range(len(spoken))):
        if spoken[index].role == "user":  # a new user message closes the open calls before it
            break
        if any(part.state == "call" for part in spoken[index].tool_parts):
            end = index
    complete = spoken[:end]
    if not complete:
        raise InputError(f"{conversation.title}: no messages besides system messages and open tool calls")
    taken: list[Message] = []
    total = 0
    for message in complete:
        tokens = sum(count_parts(message, default_counter()))
        if limit is not None and taken and total + tokens > limit:
            break
        taken.append(message)
        total += tokens
    for what, count in (
        ("system messages, not observed", len(conversation.messages) - len(spoken)),
        ("messages at the end that wait for a tool's result, not taken yet", len(spoken) - len(complete)),
        ("messages beyond --limit-tokens, not taken", len(complete) - len(taken)),
    ):
        if count:
            conversation.notes.append(f"{what}: {count}")
    return taken, total


def _configure(request: Request, observer: Work, reflector: Work) -> ObservationalMemoryConfig:
    from diarist.memory.observational.config import (
        ObservationalMemoryConfig,
        ObservationConfig,
        ReflectionConfig,
    )

    model: Model | None = None
    if request.model != EXTRACTIVE:
        from diarist.models.resolve import resolve

        model = resolve(request.model, base_url=request.base_url, api_key=request.api_key)
    elif request.base_url or request.api_key:
        raise ConfigError(
            "--base-url and --api-key-env have no effect without a model; add --model, for example openai/gpt-5-mini"
        )
    observation: dict[str, Any] = {
        "message_tokens": request.message_tokens,
        "observer_batch_tokens": request.batch_tokens,
    }
    reflection: dict[str, Any] = {"observation_tokens": request.observation_tokens}
    return ObservationalMemoryConfig(
        observation=ObservationConfig(model=_metered(model, observer), **_given(observation)),
        reflection=ReflectionConfig(model=_metered(model, reflector), **_given(reflection)),
        timezone=request.timezone,
    )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _metered(model: Model | None, work: Work) -> Model | str:
    return EXTRACTIVE if model is None else MeteredModel(model, work)
