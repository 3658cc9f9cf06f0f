"""The diary of a thread, and the cycle that runs one call of a role: start event, call, save, end event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TypeVar

from diarist.concurrency import inner_cancel_as_error
from diarist.encoding import writable
from diarist.exceptions import ConflictError, ModelTimeoutError, NotFoundError
from diarist.memory.observational import events
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.decide import Limits
from diarist.memory.observational.events import Cycle, Events, Question
from diarist.memory.observational.log.log_store import LogStore, was_forgotten
from diarist.memory.observational.roles.base import Observed, ObserverRole, Reflected, ReflectorRole, RoleError
from diarist.memory.observational.roles.refused_messages import is_refusal
from diarist.memory.title_marks import is_generated, mark_of, without_mark
from diarist.storage.base import Storage
from diarist.storage.records import Observation, ObservationLog, RowRef, Source
from diarist.tokens import TokenCounter
from diarist.tracing import span

logger = logging.getLogger("diarist")

Made = TypeVar("Made", Observed, Reflected)


class OutOfTimeError(ModelTimeoutError):
    """A call of a role was cancelled because it took too long."""


class NotSmallerError(RoleError):
    """The Reflector's text is hardly smaller than the entries it should replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The diary after a cycle, or the error that ended it.

    Attributes:
        tokens: Size of the messages that were noted.
        short: Some of the rows were not noted and stay raw: plan again before observing newer ones.
    """

    log: ObservationLog | None = None
    error: Exception | None = None
    tokens: int = 0
    short: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a cycle: the saved diary, its new entry, the notes' shortfall, and ``short`` as in ``Outcome``."""

    log: ObservationLog
    entry: Observation
    shortfall: str = ""
    short: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadDiary:
    """The diary of a thread (or of its resource), with the roles that write it and the sender of its events."""

    thread_id: str
    resource_id: str
    storage: Storage
    logs: LogStore
    observer: ObserverRole
    reflector: ReflectorRole
    config: ObservationalMemoryConfig
    limits: Limits
    counter: TokenCounter
    clock: Callable[[], datetime]
    events: Events

    async def read(self) -> ObservationLog:
        """Return the diary as it is stored."""
        return await self.logs.read(self.thread_id, self.resource_id)

    async def update(
        self,
        change: Callable[[ObservationLog], ObservationLog],
        *,
        check: Callable[[], Awaitable[None]] | None = None,
        rows: Sequence[RowRef] = (),
    ) -> ObservationLog:
        """Save a change of the diary; arguments as for ``LogStore.update``."""
        return await self.logs.update(self.thread_id, self.resource_id, change, check=check, rows=rows)

    async def run(
        self,
        cycle: Cycle,
        log: ObservationLog,
        work: Callable[[], Awaitable[Done]],
        intact: Question,
        *,
        thread_ids: Sequence[str],
        rows: Sequence[RowRef] = (),
        sources: Sequence[Source] = (),
        forgive_timeout: bool = False,
    ) -> Outcome:
        """Run a cycle and send its events. Errors are not raised: the outcome has them.

        Args:
            intact: As for ``Events.fail``.
            rows: First and last rows of the input.
            sources: Recorded if the Observer refuses them, so that they are not sent forever.
            forgive_timeout: Do not count a timeout as a failure.
        """
        await self.events.send(
            events.cycle_start(cycle, self.limits, self.config.scope, thread_ids=thread_ids), log.key
        )
        try:
            done = await work()
        except Exception as error:  # a turn does not fail because of a role
            harmless = (ConflictError, NotSmallerError, *((OutOfTimeError,) if forgive_timeout else ()))
            refused = sources if is_refusal(error) else ()
            counts = not isinstance(error, harmless)
            await self.events.fail(cycle, log, error, counts=counts, intact=intact, rows=rows, refused=refused)
            return Outcome(error=error)
        part = events.cycle_end(cycle, done.entry, at=self.clock(), shortfall=done.shortfall)
        await self.events.send(part, log.key)
        return Outcome(log=done.log, tokens=done.entry.message_tokens, short=done.short)

    async def call(self, role: Awaitable[Made], cycle: Cycle, timeout: float | None) -> Made:
        """Await a role's call; no lock and no transaction is open during it.

        Raises OutOfTimeError, and any error of the role.
        """
        deadline = asyncio.timeout(timeout)
        try:
            with span(f"memory {cycle.operation}", **{"diarist.cycle_id": cycle.id, "diarist.tokens": cycle.tokens}):
                async with deadline:
                    made = await inner_cancel_as_error(role)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise OutOfTimeError(
                f"no {cycle.operation} within the {self.config.background_timeout:g} s of background_timeout"
                if cycle.buffered
                else f"no {cycle.operation} within the {self.config.observe_timeout:g} s that a run waits"
            ) from error
        for warning in made.warnings:
            logger.warning("%s of thread %s: %s", cycle.operation, self.thread_id, warning)
        texts = {item.name: getattr(made, item.name) for item in fields(made)}
        return replace(made, **{name: writable(text) for name, text in texts.items() if isinstance(text, str)})

    async def rename_thread(self, log: ObservationLog) -> None:
        """Set the thread's title to that of the diary's hints, unless a person named it. Raises StorageError."""
        title = log.hints.thread_title
        thread = await self.storage.get_thread(self.thread_id) if title else None
        if not title or thread is None or thread.title == title or not (thread.title == "" or is_generated(thread)):
            return
        try:
            await self.storage.update_thread(
                self.thread_id, title=title, metadata=mark_of(title), expected_title=thread.title
            )
            if was_forgotten(log, await self.read()):  # the title may come from forgotten text
                await self.storage.update_thread(
                    self.thread_id, title="", metadata=without_mark(), expected_title=title
                )
                return
        except (ConflictError, NotFoundError):  # the thread was renamed or deleted in the meantime
            return
        cycle = self.events.cycle(log.entries[-1].cycle_id, "observation", log, 0)
        part = events.thread_update(cycle, old_title=thread.title, new_title=title, at=self.clock())
        await self.events.send(part, log.key)
