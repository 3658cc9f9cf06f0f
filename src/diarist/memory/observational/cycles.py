"""One piece of work of the Observer or the Reflector, from its start event to the saved log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from diarist.chunks import DataChunk
from diarist.exceptions import ConflictError, ModelTimeoutError, StorageError
from diarist.memory.observational import data_parts, transitions
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.coverage import digest_rows
from diarist.memory.observational.data_parts import Cycle
from diarist.memory.observational.decide import ReflectionPlan
from diarist.memory.observational.log_store import LogStore
from diarist.memory.observational.roles import Observed, ObserverRole, Reflected, ReflectorRole, RoleError
from diarist.memory.observational.transitions import Operation
from diarist.memory.observational.window import tokens_of
from diarist.messages import FilePart, Json, Message, TextPart, ToolPart
from diarist.storage.base import Storage
from diarist.storage.records import Observation, ObservationLog, Source
from diarist.tokens import TokenCounter
from diarist.tracing import span

logger = logging.getLogger("diarist")

T = TypeVar("T")

Emit = Callable[[DataChunk], None]
"""Where data parts go, besides the event log of the key."""


class OutOfTimeError(ModelTimeoutError):
    """The role was given up, since the run may not wait any longer."""


class NotSmallerError(RoleError):
    """The Reflector worked, but its text is hardly smaller than what it should replace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows for one call of the Observer.

    Attributes:
        run_id: The live run they all belong to; None when none of them is of a live run.
    """

    rows: Sequence[Message]
    sources: tuple[Source, ...]
    run_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The log after a cycle that went well, or why there is none."""

    log: ObservationLog | None = None
    error: Exception | None = None


class Cycles:
    """Runs cycles on one thread for one run (or for a manual call).

    A cycle never raises for what an Observer, a Reflector or the storage of logs did wrong: it emits a
    failed part, counts the failure in the log and returns the error. Only cancellation passes through.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        observer: ObserverRole,
        reflector: ReflectorRole,
        config: ObservationalMemoryConfig,
        counter: TokenCounter,
        clock: Callable[[], datetime],
        thread_id: str,
        resource_id: str,
        emit: Emit,
        manual: bool = False,
    ) -> None:
        self.logs = LogStore(storage)
        self._storage = storage
        self._observer = observer
        self._reflector = reflector
        self._config = config
        self._counter = counter
        self._clock = clock
        self._thread_id = thread_id
        self._resource_id = resource_id
        self._emit = emit
        self._manual = manual

    # -- observation

    async def observe(
        self, log: ObservationLog, batch: Batch, *, timeout: float | None, forgive_timeout: bool = False
    ) -> Outcome:
        """Observe one batch and add its entry to the log.

        Args:
            log: What the Observer is told of earlier notes.
            timeout: Seconds the Observer has; None: as long as it takes.
            forgive_timeout: Running out of time is not counted against the key, since there was progress.
        """
        cycle_id = transitions.cycle_id(log.key, "observation", batch.sources)
        cycle = self._cycle(cycle_id, "observation", log, tokens_of(batch.rows), run_id=batch.run_id)

        async def work() -> tuple[ObservationLog, Observation]:
            observed = await self._call(self._observer.observe(batch.rows, earlier=log.entries), cycle, timeout)
            entry = self._observation(cycle, batch, observed)
            return await self._save_observation(entry), entry

        return await self._run(cycle, log, work, forgive_timeout=forgive_timeout)

    def _observation(self, cycle: Cycle, batch: Batch, observed: Observed) -> Observation:
        if not observed.text.strip() and any(
            isinstance(part, TextPart | ToolPart | FilePart) for row in batch.rows for part in row.parts
        ):
            raise RoleError(f"the Observer {observed.model} gave no notes")
        self._log_warnings(cycle, observed.warnings)
        return Observation(
            id=f"obs_{cycle.id}",
            text=observed.text,
            tokens=self._counter.count(observed.text),
            sources=batch.sources,
            message_tokens=cycle.tokens,
            message_count=len(batch.rows),
            observed_at=self._clock(),
            cycle_id=cycle.id,
            run_id=batch.run_id,
            current_task=observed.current_task,
            suggested_response=observed.suggested_response,
            model=observed.model,
            usage=observed.usage,
        )

    async def _save_observation(self, entry: Observation) -> ObservationLog:
        async def unchanged() -> None:
            if not await rows_unchanged(self._storage, entry):
                raise ConflictError("the messages were changed while they were observed; the notes are dropped")

        def change(log: ObservationLog) -> ObservationLog:
            if reason := transitions.refusal(log, entry):
                raise ConflictError(f"{reason}; the notes are dropped")
            return transitions.record_success(transitions.add_observation(log, entry), "observation")

        return await self.logs.update(self._thread_id, self._resource_id, change, check=unchanged)

    # -- reflection

    async def reflect(self, log: ObservationLog, plan: ReflectionPlan, *, timeout: float | None) -> Outcome:
        """Replace the planned entries by one, in a new generation; ``timeout`` as for ``observe``.

        A replacement that is hardly smaller changes nothing, and the plan is not tried again until an
        entry joins.
        """
        cycle = self._cycle(plan.cycle_id, "reflection", log, plan.tokens)

        async def work() -> tuple[ObservationLog, Observation]:
            reflected = await self._call(
                self._reflector.reflect(plan.entries, target_tokens=plan.target_tokens), cycle, timeout
            )
            entry = self._reflection(cycle, plan, reflected)
            return await self._save_reflection(entry, plan), entry

        return await self._run(cycle, log, work)

    def _reflection(self, cycle: Cycle, plan: ReflectionPlan, reflected: Reflected) -> Observation:
        if not reflected.text.strip():
            raise RoleError(f"the Reflector {reflected.model} gave no notes")
        self._log_warnings(cycle, reflected.warnings)
        hints = transitions.derive_hints(plan.entries)
        return Observation(
            id=f"ref_{cycle.id}",
            text=reflected.text,
            tokens=self._counter.count(reflected.text),
            sources=plan.sources,
            message_tokens=sum(entry.message_tokens for entry in plan.entries),
            message_count=sum(entry.message_count for entry in plan.entries),
            observed_at=self._clock(),
            kind="reflection",
            cycle_id=cycle.id,
            current_task=reflected.current_task or hints.current_task,
            suggested_response=reflected.suggested_response or hints.suggested_response,
            model=reflected.model,
            usage=reflected.usage,
        )

    async def _save_reflection(self, entry: Observation, plan: ReflectionPlan) -> ObservationLog:
        if entry.tokens >= plan.limit_tokens:
            await self.logs.update(
                self._thread_id, self._resource_id, lambda log: transitions.suppress(log, plan.cycle_id)
            )
            raise NotSmallerError(
                f"the Reflector {entry.model} made {entry.tokens:,} of {plan.tokens:,} tokens, which is not worth it"
            )

        def change(log: ObservationLog) -> ObservationLog:
            changed = transitions.add_reflection(log, entry, plan.entries)
            if not transitions.has_cycle(changed, entry.cycle_id):
                raise ConflictError("the entries changed while they were condensed; the reflection is dropped")
            return transitions.record_success(changed, "reflection")

        return await self.logs.update(self._thread_id, self._resource_id, change)

    # -- both

    def _cycle(
        self, id: str, operation: Operation, log: ObservationLog, tokens: int, *, run_id: str | None = None
    ) -> Cycle:
        return Cycle(
            id=id,
            operation=operation,
            thread_id=self._thread_id,
            record_id=data_parts.record_id(log),
            tokens=tokens,
            started_at=self._clock(),
            run_id=run_id,
        )

    async def _call(self, call: Awaitable[T], cycle: Cycle, timeout: float | None) -> T:
        """Await a role. No lock and no transaction is open meanwhile."""
        deadline = asyncio.timeout(timeout)
        try:
            with span(f"memory {cycle.operation}", **{"diarist.cycle_id": cycle.id, "diarist.tokens": cycle.tokens}):
                async with deadline:
                    return await call
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise OutOfTimeError(
                f"no {cycle.operation} within the {self._config.observe_timeout:g} s that a run waits"
            ) from error

    async def _run(
        self,
        cycle: Cycle,
        log: ObservationLog,
        work: Callable[[], Awaitable[tuple[ObservationLog, Observation]]],
        *,
        forgive_timeout: bool = False,
    ) -> Outcome:
        await self.send(data_parts.observation_start(cycle, self._config, thread_ids=[self._thread_id]), log.key)
        try:
            saved, entry = await work()
        except Exception as error:  # whatever a role raised: memory never takes a turn down with it
            harmless = (ConflictError, NotSmallerError, *((OutOfTimeError,) if forgive_timeout else ()))
            counts = not isinstance(error, harmless)
            await self._fail(cycle, log, error, counts=counts)
            return Outcome(error=error)
        part = data_parts.observation_end(cycle, entry, at=self._clock())
        await self.send(part, log.key, kept=data_parts.without_words(part) if cycle.run_id else None)
        return Outcome(log=saved)

    async def _fail(self, cycle: Cycle, log: ObservationLog, error: Exception, *, counts: bool) -> None:
        at, message = self._clock(), _describe(error)
        logger.warning("%s of thread %s failed: %s", cycle.operation, self._thread_id, message)
        attempt = transitions.failures_of(log, cycle.operation).count + 1
        part = data_parts.observation_failed(cycle, message, at=at, attempt=attempt, will_retry=not self._manual)
        if cycle.run_id is None:
            await self.send(part, log.key)
        else:  # an error may quote what the Observer was told
            message = type(error).__name__
            await self.send(part, log.key, kept=data_parts.without_words(part, error=message))
        if not counts:
            return
        try:
            await self.logs.update(
                self._thread_id,
                self._resource_id,
                lambda log: transitions.record_failure(log, cycle.operation, at=at, error=message),
            )
        except StorageError as failure:
            logger.warning("cannot count the failure of thread %s: %s", self._thread_id, failure)

    async def report(self, log: ObservationLog, error: Exception, tokens: int) -> None:
        """Say that memory could not even begin: a failed part without a start."""
        cycle = self._cycle("", "observation", log, tokens)
        await self._fail(cycle, log, error, counts=False)

    async def send(self, part: DataChunk, key: str, *, kept: Mapping[str, Json] | None = None) -> None:
        """Emit a part and append it to the key's event log; that log may fail without harm to the turn.

        ``kept`` is the data for the event log, where that is not the part's own.
        """
        self._emit(part)
        try:
            await self._storage.append_event(key, part.type, part.data if kept is None else kept)
        except StorageError as error:
            logger.warning("cannot append %s to the event log of %s: %s", part.type, key, error)

    def _log_warnings(self, cycle: Cycle, warnings: Sequence[str]) -> None:
        for warning in warnings:
            logger.warning("%s of thread %s: %s", cycle.operation, self._thread_id, warning)


async def rows_unchanged(storage: Storage, entry: Observation, *, run_id: str | None = None) -> bool:
    """Whether the rows that an entry was made from are there and say what they said."""
    for source in entry.sources:
        rows = await storage.list_messages(
            source.thread_id, after=source.first_seq - 1, before=source.last_seq + 1, run_id=run_id or entry.run_id
        )
        if digest_rows(rows) != source.digest:
            return False
    return True


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__
