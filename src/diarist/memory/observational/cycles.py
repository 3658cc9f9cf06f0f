"""One piece of work of the Observer or the Reflector, from its start event to the saved log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TypeVar

from diarist.concurrency import contained
from diarist.encoding import writable
from diarist.exceptions import ConflictError, ModelTimeoutError
from diarist.memory.observational import data_parts
from diarist.memory.observational.announcing import Announcer, Emit, Question
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.data_parts import Cycle
from diarist.memory.observational.decide import ReflectionPlan
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.coverage import seq_of
from diarist.memory.observational.log.intact import entry_intact, sources_intact
from diarist.memory.observational.log.log_store import was_forgotten
from diarist.memory.observational.log.refusals import is_given_up, without_covered
from diarist.memory.observational.prompt.threads import name_thread, thread_label
from diarist.memory.observational.roles.base import Observed, ObserverRole, Reflected, ReflectorRole, RoleError
from diarist.memory.observational.roles.written_off import is_refusal, or_written_off
from diarist.memory.observational.window import tokens_of
from diarist.memory.working.keeping import keep
from diarist.memory.working.shapes import without_updates
from diarist.messages import FilePart, Message, TextPart, ToolPart
from diarist.storage.base import Storage
from diarist.storage.records import Observation, ObservationLog, PendingReflection, RowRef, Source
from diarist.tokens import TokenCounter
from diarist.tracing import span

logger = logging.getLogger("diarist")

Made = TypeVar("Made", Observed, Reflected)

_CHANGED = "the messages were changed while they were observed; the notes are dropped"


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


class Cycles(Announcer):
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
        super().__init__(
            storage=storage,
            config=config,
            clock=clock,
            thread_id=thread_id,
            resource_id=resource_id,
            emit=emit,
            manual=manual,
        )
        self._observer = observer
        self._reflector = reflector
        self._counter = counter

    @property
    def background_timeout(self) -> float:
        """Seconds that a role has in the background."""
        return self._config.background_timeout

    # -- observation

    async def observe(
        self,
        log: ObservationLog,
        batch: Batch,
        *,
        timeout: float | None,
        forgive_timeout: bool = False,
        buffered: bool = False,
        turn: Callable[[], Awaitable[object]] | None = None,
    ) -> Outcome:
        """Observe one batch and add its entry to the log.

        What it refuses too often is written off, by a line that says so.

        Args:
            log: What the Observer is told of earlier notes.
            timeout: Seconds the Observer has; None: as long as it takes.
            forgive_timeout: Running out of time is not counted against the key, since there was progress.
            buffered: The entry waits to be activated.
            turn: Awaited before the entry is saved: what is observed side by side is saved in order.
        """
        cycle_id = transitions.cycle_id(log.key, "observation", batch.sources)
        cycle = self.cycle(cycle_id, "observation", log, tokens_of(batch.rows), run_id=batch.run_id, buffered=buffered)

        threads = sorted({source.thread_id for source in batch.sources})
        given_up = is_given_up(batch.rows, batch.sources, log.observer_failures.refused)

        async def work() -> tuple[ObservationLog, Observation]:
            asked = self._observer.observe(without_updates(batch.rows), earlier=log.entries)
            if given_up:
                asked = or_written_off(asked, self._observer, batch.rows, self._config.timezone)
            observed = await self._call(asked, cycle, timeout)
            if turn is not None:
                await turn()
            saved, entry = await self._save_observation(self._observation(cycle, batch, observed), batch, log)
            await keep(self._storage, observed.working_memory, entry.run_id)
            return saved, entry

        async def intact() -> bool:
            if was_forgotten(log, await self.logs.read(self._thread_id, self._resource_id)):
                return False
            return await sources_intact(self._storage, batch.sources, batch.run_id)

        return await self._run(
            cycle,
            log,
            work,
            intact,
            thread_ids=threads,
            rows=self._ends(batch),
            sources=batch.sources,
            forgive_timeout=forgive_timeout,
        )

    def _observation(self, cycle: Cycle, batch: Batch, observed: Observed) -> Observation:
        if not observed.text.strip() and any(
            isinstance(part, TextPart | ToolPart | FilePart)
            for row in without_updates(batch.rows)
            for part in row.parts
        ):
            raise RoleError(f"the Observer {observed.model} gave no notes")
        self._log_warnings(cycle, observed.warnings)
        text = self._name_thread(observed.text, batch)
        return Observation(
            id=f"obs_{cycle.id}",
            text=text,
            tokens=self._counter.count(text),
            sources=batch.sources,
            message_tokens=cycle.tokens,
            message_count=len(batch.rows),
            observed_at=self._clock(),
            state="buffered" if cycle.buffered else "active",
            cycle_id=cycle.id,
            run_id=batch.run_id,
            current_task=observed.current_task,
            suggested_response=observed.suggested_response,
            thread_title=observed.thread_title,
            citations=tuple(map(tuple, observed.citations)),
            model=observed.model,
            usage=observed.usage,
        )

    def _name_thread(self, text: str, batch: Batch) -> str:
        """Notes for a log of several threads say whose they are, even if the Observer did not."""
        threads = {source.thread_id for source in batch.sources}
        if self._config.scope == "thread" or len(threads) != 1:
            return text
        return name_thread(text, thread_label(threads.pop(), obscured=self._config.obscures_threads))

    async def _save_observation(
        self, entry: Observation, batch: Batch, told: ObservationLog
    ) -> tuple[ObservationLog, Observation]:
        async def unchanged() -> None:
            nonlocal entry
            entry = replace(entry, run_id=await self._owner(entry))
            if not await entry_intact(self._storage, entry):
                raise ConflictError(_CHANGED)

        def change(log: ObservationLog) -> ObservationLog:
            if was_forgotten(told, log):
                raise ConflictError("something was forgotten meanwhile; the notes are dropped")
            if reason := transitions.refusal(log, entry, {row.run_id for row in batch.rows if row.run_id}):
                raise ConflictError(f"{reason}; the notes are dropped")
            changed = without_covered(transitions.add_observation(log, entry))
            return transitions.record_success(changed, "observation")

        rows = self._ends(batch)
        log = await self.logs.update(self._thread_id, self._resource_id, change, check=unchanged, rows=rows)
        return await self._look_again(log, entry), entry

    def _ends(self, batch: Batch) -> list[RowRef]:
        """The first and the last row of each thread."""
        first: dict[str, RowRef] = {}
        last: dict[str, RowRef] = {}
        for row in batch.rows:
            ref = RowRef(row.thread_id or self._thread_id, seq_of(row), row.id)
            first.setdefault(ref.thread_id, ref)
            last[ref.thread_id] = ref
        return [*first.values(), *last.values()]

    async def _look_again(self, log: ObservationLog, entry: Observation) -> ObservationLog:
        """Make up for what happened between the check and the save: who did it found no entry to take care of."""

        async def update(change: Callable[[ObservationLog], ObservationLog]) -> ObservationLog:
            return await self.logs.update(self._thread_id, self._resource_id, change)

        if not await entry_intact(self._storage, entry):
            await update(lambda log: transitions.drop_entries(log, {entry.id}))
            raise ConflictError(_CHANGED)
        if entry.run_id is not None and await self._owner(entry) is None:
            return await update(lambda log: transitions.close_entries(log, {entry.id}))
        return log

    async def _owner(self, entry: Observation) -> str | None:
        """The live run whose rows the entry covers; None once it has ended well. Raises ConflictError if it was
        discarded."""
        if entry.run_id is None:
            return None
        run = await self._storage.get_run(entry.run_id)
        if run is None or run.state == "discarded":
            raise ConflictError(f"run {entry.run_id!r} was discarded; the notes are dropped")
        return entry.run_id if run.state in ("live", "suspended") else None

    # -- reflection

    async def reflect(
        self,
        log: ObservationLog,
        plan: ReflectionPlan,
        *,
        timeout: float | None,
        buffered: bool = False,
        guidance: str | None = None,
    ) -> Outcome:
        """Replace the planned entries by one, in a new generation; ``timeout`` as for ``observe``.

        A replacement that is hardly smaller changes nothing, and the plan is not tried again until an
        entry joins.

        Args:
            buffered: The reflection waits to be activated.
            guidance: The user's own wish of what to keep or drop.
        """
        cycle = self.cycle(plan.cycle_id, "reflection", log, plan.tokens, buffered=buffered)

        async def work() -> tuple[ObservationLog, Observation]:
            call = self._reflector.reflect(plan.entries, target_tokens=plan.target_tokens, guidance=guidance)
            reflected = await self._call(call, cycle, timeout)
            entry = self._reflection(cycle, plan, reflected)
            return await self._save_reflection(entry, plan, buffered=buffered), entry

        async def intact() -> bool:
            log = await self.logs.read(self._thread_id, self._resource_id)
            return transitions.still_there(log, plan.replaces)

        return await self._run(cycle, log, work, intact, thread_ids=[self._thread_id])

    def _reflection(self, cycle: Cycle, plan: ReflectionPlan, reflected: Reflected) -> Observation:
        if not reflected.text.strip():
            raise RoleError(f"the Reflector {reflected.model} gave no notes")
        self._log_warnings(cycle, reflected.warnings)
        threads = transitions.threads_of_entries(plan.entries)
        shared = len(threads) > 1  # whose task would the Reflector tell?
        known = transitions.derive_hints(plan.entries)
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
            current_task=None if shared else reflected.current_task or known.current_task,
            suggested_response=None if shared else reflected.suggested_response or known.suggested_response,
            thread_title=None if shared else known.thread_title,
            hints=transitions.hints_of_threads(plan.entries, threads) if shared else (),
            model=reflected.model,
            usage=reflected.usage,
        )

    async def _save_reflection(self, entry: Observation, plan: ReflectionPlan, *, buffered: bool) -> ObservationLog:
        if entry.tokens >= plan.limit_tokens:
            await self.logs.update(
                self._thread_id, self._resource_id, lambda log: transitions.suppress(log, plan.cycle_id)
            )
            raise NotSmallerError(
                f"the Reflector {entry.model} made {entry.tokens:,} of {plan.tokens:,} tokens, which is not worth it"
            )
        pending = PendingReflection(entry=entry, replaces=plan.replaces, tokens=plan.tokens)

        def change(log: ObservationLog) -> ObservationLog:
            if buffered:
                changed = transitions.hold_reflection(log, pending)
            else:
                changed = transitions.add_reflection(log, entry, plan.replaces)
            if changed is log and not transitions.has_cycle(log, entry.cycle_id):
                raise ConflictError("the entries changed while they were condensed; the reflection is dropped")
            return transitions.record_success(changed, "reflection")

        return await self.logs.update(self._thread_id, self._resource_id, change)

    # -- both

    async def _call(self, call: Awaitable[Made], cycle: Cycle, timeout: float | None) -> Made:
        """Await a role. No lock and no transaction is open meanwhile."""
        deadline = asyncio.timeout(timeout)
        try:
            with span(f"memory {cycle.operation}", **{"diarist.cycle_id": cycle.id, "diarist.tokens": cycle.tokens}):
                async with deadline:
                    return _writable(await contained(call))
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise OutOfTimeError(
                f"no {cycle.operation} within the {self._config.background_timeout:g} s of background_timeout"
                if cycle.buffered
                else f"no {cycle.operation} within the {self._config.observe_timeout:g} s that a run waits"
            ) from error

    async def _run(
        self,
        cycle: Cycle,
        log: ObservationLog,
        work: Callable[[], Awaitable[tuple[ObservationLog, Observation]]],
        intact: Question,
        *,
        thread_ids: Sequence[str],
        rows: Sequence[RowRef] = (),
        sources: Sequence[Source] = (),
        forgive_timeout: bool = False,
    ) -> Outcome:
        """Do a piece of work, and tell it.

        Args:
            intact: Whether what went in is there as it was: else no word of it may be kept.
            rows: Its ends.
            sources: What is not asked for again and again where the Observer refuses it.
        """
        start = data_parts.cycle_start(cycle, self._limits, self._config.scope, thread_ids=thread_ids)
        await self.send(start, log.key)
        try:
            saved, entry = await work()
        except Exception as error:  # whatever a role raised: memory never takes a turn down with it
            harmless = (ConflictError, NotSmallerError, *((OutOfTimeError,) if forgive_timeout else ()))
            counts = not isinstance(error, harmless)
            refused = sources if is_refusal(error) else ()
            await self.fail(cycle, log, error, counts=counts, intact=intact, rows=rows, refused=refused)
            return Outcome(error=error)
        part = data_parts.cycle_end(cycle, entry, at=self._clock())
        await self.send(part, log.key)
        return Outcome(log=saved)

    def _log_warnings(self, cycle: Cycle, warnings: Sequence[str]) -> None:
        for warning in warnings:
            logger.warning("%s of thread %s: %s", cycle.operation, self._thread_id, warning)


def _writable(made: Made) -> Made:
    """What a role made, without what no storage takes: half a character, as small models write it."""
    texts = {item.name: getattr(made, item.name) for item in fields(made)}
    return replace(made, **{name: writable(text) for name, text in texts.items() if isinstance(text, str)})
