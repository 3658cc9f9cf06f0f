"""What ``diarist observe`` does: read the file, store its messages, have them observed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diarist.chunks import DataChunk
from diarist.cli.metering import MeteredModel, Work
from diarist.exceptions import ConfigError, InputError
from diarist.memory.conversations import Conversation, read_conversation
from diarist.memory.conversations.naming import thread_id_of
from diarist.memory.observational.data_parts import OBSERVATION_END
from diarist.memory.observational.roles.role_models import EXTRACTIVE
from diarist.messages import Message
from diarist.storage.records import ObservationLog

if TYPE_CHECKING:
    from diarist.memory.memory import Memory
    from diarist.memory.observational.config import ObservationalMemoryConfig
    from diarist.models.base import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of the command; None leaves the library's default."""

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
    """A diary, and what it took to make it.

    Attributes:
        new_messages: How many of the messages the database did not have yet.
        message_tokens: Tokens of all messages taken.
        cost: US dollars of this run; None where no price is known.
        seconds: Of storing and observing.
    """

    new_messages: int
    message_tokens: int
    log: ObservationLog
    cost: float | None
    seconds: float

    @property
    def observed_tokens(self) -> int:
        """Tokens of the messages that the diary covers, all of the thread."""
        return sum(entry.message_tokens for entry in self.log.entries)

    @property
    def unobserved_tokens(self) -> int:
        """Tokens of messages taken that the diary does not cover."""
        return max(0, self.message_tokens - self.observed_tokens)


class Observing:
    """One run of the command. Nothing is stored before the file has been read completely.

    Attributes:
        messages: Those taken: without system messages and an incomplete end, up to ``limit_tokens``.
        observer, reflector: What was done so far; also right after a failure.
        stored: Whether messages have been saved.

    Raises:
        InputError: The file or an option is bad.
        ConfigError: The model or the thresholds are.
    """

    def __init__(self, request: Request) -> None:
        _check_storage(request.storage)
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
        """Store and observe. ``on_progress`` gets tokens done and tokens in all.

        Raises:
            ModelError, RoleError: The model failed.
            StorageError: The database did.
            KeyboardInterrupt: The user did not want to wait; the database is closed in order.
        """
        return asyncio.run(self._run(on_progress))

    async def _run(self, on_progress: Callable[[int, int], None]) -> Result:
        started = time.monotonic()
        memory = _open_memory(self.request.storage, self._config)
        try:
            new = await memory.save_messages(self.messages, thread=self.thread, resource=self.thread)
            self.stored = True
            await memory.observe(thread=self.thread, on_progress=on_progress, on_event=self._count)
            log = await memory.observations(thread=self.thread)
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
        from diarist.models.prices import cost

        if self.request.model == EXTRACTIVE:
            return 0.0
        if self.request.base_url is not None:  # whose server that is, nobody knows
            return None
        return cost(self.request.model, self.observer.usage + self.reflector.usage)


def _check_storage(path: Path | None) -> None:
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"--storage {path}: is a folder; name a database file")
    if not path.parent.is_dir():
        raise InputError(f"--storage {path}: the folder {path.parent} does not exist")


def _take(conversation: Conversation, limit: int | None) -> tuple[list[Message], int]:
    """The longest complete beginning within ``limit`` tokens (at least one message), and its tokens.

    System messages are instructions to the assistant and no part of what happened. An end that waits
    for a tool's result is left for the next time: once stored, a message does not change any more.
    """
    from diarist.counting import count_parts
    from diarist.tokens import default_counter

    spoken = [message for message in conversation.messages if message.role != "system"]
    complete = spoken[: _complete(spoken)]
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


def _complete(messages: list[Message]) -> int:
    """How many messages stand before the first open tool call that may still be answered.

    A user who has gone on to something else ends the wait.
    """
    end = len(messages)
    for index in reversed(range(len(messages))):
        if messages[index].role == "user":
            break
        if any(part.state == "call" for part in messages[index].tool_parts):
            end = index
    return end


def _configure(request: Request, observer: Work, reflector: Work) -> ObservationalMemoryConfig:
    from diarist.memory.observational.config import (
        ObservationalMemoryConfig,
        ObservationConfig,
        ReflectionConfig,
    )

    model = _model(request)
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


def _model(request: Request) -> Model | None:
    """The model to use; None where there is to be none."""
    if request.model != EXTRACTIVE:
        from diarist.models.resolve import resolve

        return resolve(request.model, base_url=request.base_url, api_key=request.api_key)
    if request.base_url or request.api_key:
        raise ConfigError(
            "--base-url and --api-key-env have no effect without a model; add --model, for example openai/gpt-5-mini"
        )
    return None


def _metered(model: Model | None, work: Work) -> Model | str:
    return EXTRACTIVE if model is None else MeteredModel(model, work)


def _open_memory(path: Path | None, config: ObservationalMemoryConfig) -> Memory:
    from diarist.memory.memory import Memory
    from diarist.storage import InMemoryStorage, SQLiteStorage

    storage = InMemoryStorage() if path is None else SQLiteStorage(path)
    return Memory(storage=storage, observational_memory=config)
