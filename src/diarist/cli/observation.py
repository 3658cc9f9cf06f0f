"""``diarist observe``: read a conversation, store its messages, and observe them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from diarist.chunks import DataChunk
from diarist.cli.branches import follow_branch
from diarist.cli.databases import storage_at
from diarist.cli.inputs import thread_of
from diarist.cli.objects import observer_at
from diarist.counting import count_parts
from diarist.evals.metering import Meter, MeteredModel, Tally
from diarist.exceptions import ConfigError, InputError
from diarist.integrations.conversations import Conversation
from diarist.memory.memory import Memory
from diarist.memory.observational.config import ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.memory.observational.events import OBSERVATION_END
from diarist.memory.observational.roles.role_models import EXTRACTIVE
from diarist.messages import Message
from diarist.models.base import Model
from diarist.storage import InMemoryStorage, ObservationLog
from diarist.tokens import default_counter


class Observing:
    """One run of the command. None as an option keeps the library's default.

    Attributes:
        storage: Location of the database, without a password; None if nothing is stored.
        messages: Messages to observe, up to ``limit_tokens``; without system messages.
        message_tokens: Tokens of these messages.
        observer, reflector: Model calls so far, or without a model batches; also valid after a failure.
        finished: Number of calls of the Observer, or batches, with notes in the diary.
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
        resource: str | None,
    ) -> None:
        self._storage = InMemoryStorage() if storage is None else storage_at(storage, new=True)
        self.storage = None if storage is None else self._storage.location
        self.path = path
        self.conversation = conversation
        self.messages, self.message_tokens = _take(conversation, limit_tokens)
        self.model = model
        self.thread = thread_of(path, conversation, "" if storage is None else thread)
        self.resource = resource
        self.observer, self.reflector = Tally(), Tally()
        self.finished = 0
        self.stored = False
        for option, value in (("--thread", thread), ("--resource", resource)):
            if value is not None and storage is None:
                raise ConfigError(f"{option} has no effect without --storage; add --storage DATABASE")
        called = observer_at(model, base_url, api_key_env=api_key_env, option="--model")
        roles: list[Model | str] = [called, called]
        if isinstance(called, Model):
            metered = [MeteredModel(called, Meter(), listed=base_url is None) for _ in roles]
            self.observer, self.reflector = (each.total for each in metered)
            roles = [*metered]
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
                reflects = event.data["operationType"] == "reflection"
                self.finished += not reflects
                if self.model == EXTRACTIVE:
                    (self.reflector if reflects else self.observer).calls += 1

        started = time.monotonic()
        async with Memory(storage=self._storage, observational_memory=self._config) as memory:
            note = await follow_branch(memory, self.conversation, self.thread, self.resource)
            if note:
                self.conversation.notes.append(note)
            self.new_messages = await memory.messages.save(
                self.messages, thread=self.thread, resource=self.resource, created_at=self.conversation.begun
            )
            self.stored = True
            await memory.diary.observe(
                thread=self.thread, resource=self.resource, on_progress=on_progress, on_event=count
            )
            self.log = await memory.diary.get(thread=self.thread, resource=self.resource)
        costs = self.observer.cost, self.reflector.cost
        self.cost = None if costs[0] is None or costs[1] is None else costs[0] + costs[1]
        self.seconds = time.monotonic() - started


def _take(conversation: Conversation, limit: int | None) -> tuple[list[Message], int]:
    """Return the messages to observe (at least one, at most ``limit`` tokens), and their number of tokens.

    Leaves out system messages, since they are instructions and not events.
    """
    spoken = [message for message in conversation.messages if message.role != "system"]
    if not spoken:
        raise InputError(f"{conversation.title}: no messages besides system messages")
    taken: list[Message] = []
    total = 0
    for message in spoken:
        tokens = sum(count_parts(message, default_counter()))
        if limit is not None and taken and total + tokens > limit:
            break
        taken.append(message)
        total += tokens
    for what, count in (
        ("system messages, not observed", len(conversation.messages) - len(spoken)),
        ("messages beyond --limit-tokens, not taken", len(spoken) - len(taken)),
    ):
        if count:
            conversation.notes.append(f"{what}: {count}")
    return taken, total
