"""``diarist observe``: read a conversation, store its messages, and observe them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from diarist.chunks import Chunk, DataChunk, ModelFinish, TextDelta, Usage
from diarist.cli.databases import storage_at
from diarist.cli.inputs import thread_of
from diarist.cli.objects import model_at
from diarist.counting import count_parts
from diarist.exceptions import ConfigError, InputError
from diarist.memory.conversations import Conversation
from diarist.memory.memory import Memory
from diarist.memory.observational.config import ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.memory.observational.events import OBSERVATION_END
from diarist.memory.observational.roles.role_models import EXTRACTIVE
from diarist.messages import Message
from diarist.models import cost
from diarist.models.base import Model, ModelRequest, open_stream
from diarist.storage import InMemoryStorage, ObservationLog
from diarist.tokens import default_counter


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
    """A model that counts its calls and tokens in ``work``, including failed calls."""

    def __init__(self, model: Model, work: Work) -> None:
        self.provider = model.provider
        self.name = model.name
        self.cache_breakpoints = model.cache_breakpoints
        self._model = model
        self._work = work

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self._work.calls += 1
        said, finished = "", False
        try:
            async with open_stream(self._model, request) as chunks:
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


class Observing:
    """One run of the command. None as an option keeps the library's default.

    Attributes:
        storage: Location of the database, without a password; None if nothing is stored.
        messages: Messages to observe, up to ``limit_tokens``; without system messages, and without calls at the end
            that still wait for results.
        message_tokens: Tokens of these messages.
        observer, reflector: Work done so far; also valid after a failure.
        stored: True once the messages are saved.
        new_messages: Number of messages that the database did not have yet. This and the following attributes are set
            by ``run``.
        log: The diary.
        cost: US dollars of this run; None if the model's price is unknown.
        seconds: Time for storing and observing.

    Raises:
        InputError: The conversation or an option is invalid.
        ConfigError: The model or the thresholds are invalid.
    """

    new_messages: int
    log: ObservationLog
    cost: float | None
    seconds: float

    def __init__(
        self,
        path: Path,
        conversation: Conversation,
        *,
        model: str,
        base_url: str | None,
        api_key_env: str | None,
        timezone: str,
        batch_tokens: int | None,
        observation_tokens: int | None,
        limit_tokens: int | None,
        storage: str | None,
        thread: str | None,
    ) -> None:
        self._storage = InMemoryStorage() if storage is None else storage_at(storage, new=True)
        self.storage = None if storage is None else self._storage.location
        self.path = path
        self.conversation = conversation
        self.messages, self.message_tokens = _take(conversation, limit_tokens)
        self.model = model
        self.thread = thread_of(path, conversation, "" if storage is None else thread)
        self.observer = Work()
        self.reflector = Work()
        self.stored = False
        self._has_price = base_url is None
        roles: tuple[Model | str, Model | str] = (EXTRACTIVE, EXTRACTIVE)
        if model != EXTRACTIVE:
            called = model_at(model, base_url=base_url, api_key_env=api_key_env)
            roles = MeteredModel(called, self.observer), MeteredModel(called, self.reflector)
        elif base_url or api_key_env:
            raise ConfigError(
                "--base-url and --api-key-env have no effect without a model; "
                "add --model, for example openai/gpt-5-mini"
            )
        if thread is not None and storage is None:
            raise ConfigError("--thread has no effect without --storage; add --storage DATABASE")
        reflection = ReflectionConfig(model=roles[1])
        if observation_tokens is not None:
            reflection = replace(reflection, observation_tokens=observation_tokens)
        self._config = ObservationalMemoryConfig(
            observation=ObservationConfig(model=roles[0], observer_batch_tokens=batch_tokens),
            reflection=reflection,
            timezone=timezone,
        )

    @property
    def observed_tokens(self) -> int:
        """Tokens of all messages of the thread that the diary covers."""
        return sum(entry.message_tokens for entry in self.log.entries)

    @property
    def unobserved_tokens(self) -> int:
        """Tokens of messages read from the file that the diary does not cover."""
        return max(0, self.message_tokens - self.observed_tokens)

    async def run(self, on_progress: Callable[[int, int], None]) -> None:
        """Store and observe the messages. Calls ``on_progress`` with the tokens done and the total.

        Raises:
            ModelError, RoleError: The model failed.
            StorageError: The database failed.
        """

        def count(event: DataChunk) -> None:
            if event.type == OBSERVATION_END:
                work = self.reflector if event.data["operationType"] == "reflection" else self.observer
                work.finished += 1
                work.calls += self.model == EXTRACTIVE

        started = time.monotonic()
        async with Memory(storage=self._storage, observational_memory=self._config) as memory:
            self.new_messages = await memory.messages.save(self.messages, thread=self.thread)
            self.stored = True
            await memory.diary.observe(thread=self.thread, on_progress=on_progress, on_event=count)
            self.log = await memory.diary.get(thread=self.thread)
        self.cost = None
        if self.model == EXTRACTIVE:
            self.cost = 0.0
        elif self._has_price:
            self.cost = cost(self.model, self.observer.usage + self.reflector.usage)
        self.seconds = time.monotonic() - started


def _take(conversation: Conversation, limit: int | None) -> tuple[list[Message], int]:
    """Return the messages to observe (at least one, at most ``limit`` tokens), and their number of tokens.

    Leaves out system messages, since they are instructions and not events. Leaves out messages at the end that wait for
    a tool's result, because stored messages never change; a later run reads them.
    """
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
