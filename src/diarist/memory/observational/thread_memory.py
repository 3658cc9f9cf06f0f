"""Observational memory of one thread as one run sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from diarist.exceptions import StorageError
from diarist.memory.observational import data_parts
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.cycles import Cycles, Outcome
from diarist.memory.observational.data_parts import Trigger
from diarist.memory.observational.decide import (
    Action,
    choose_chunks,
    decide_observation,
    decide_reflection,
    may_be_worth_buffering,
    worth_buffering,
)
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.coverage import Coverage, seq_of, visible_log
from diarist.memory.observational.log.log_store import was_forgotten
from diarist.memory.observational.log.transitions import Operation
from diarist.memory.observational.rows import RawRows
from diarist.memory.observational.selection import select_rows, split_batches
from diarist.memory.observational.view import ThreadView
from diarist.memory.observational.window import observable_units, tokens_of
from diarist.memory.observational.work.jobs import ThreadJobs
from diarist.messages import Message
from diarist.storage.records import Observation, ObservationLog
from diarist.tokens import TokenCounter

_LOOK_AGAIN = 0.1
_PATIENCE_WITH_OTHERS = 5.0
"""Seconds to wait for a lease that another process holds: it may be one that was killed."""


class ThreadMemory(ThreadView):
    """A thread's memory for one run: does what is due before each step.

    What it renders changes only when this run activates, observes or reflects, so that the prompt stays
    stable. Made by ``Engine.open``.

    Attributes:
        cycles: How it observes and reflects.
        acted: Whether what it renders has changed since it was opened.
    """

    def __init__(
        self,
        *,
        rows: RawRows,
        cycles: Cycles,
        jobs: ThreadJobs,
        config: ObservationalMemoryConfig,
        counter: TokenCounter,
        clock: Callable[[], datetime],
        thread_id: str,
        run_id: str | None,
        log: ObservationLog,
    ) -> None:
        super().__init__(
            rows=rows,
            jobs=jobs,
            config=config,
            counter=counter,
            clock=clock,
            thread_id=thread_id,
            run_id=run_id,
            log=log,
        )
        self.cycles = cycles
        self.acted = False
        self._just_read = False
        self._reason = ""

    async def load(self, found: list[Message] | None = None) -> None:
        await super().load(found)
        self._just_read = True  # the log was read for this: the first step need not look again

    def add(self, messages: Sequence[Message]) -> None:
        """Take in rows that were just stored; a row with a known id replaces the old one."""
        self.rows.add(messages)

    async def forget(self, changed: Sequence[Message], removed: Sequence[Message] = ()) -> None:
        """Take out what was noted of raw rows, or of rows of this run, that were rewritten or removed.

        The rest of what such notes covered is raw again, rewritten rows as they are now. Where the log cannot be
        saved an event says so; notes of rows of this run are then taken out when it has ended.
        """
        try:
            await self._take_out({seq_of(message) for message in (*changed, *removed)})
        except StorageError as error:
            self.patience.lose()
            await self.report(error)
        self.rows.remove(removed)
        self.rows.add(changed)

    async def _take_out(self, seqs: Collection[int]) -> None:
        """Take out of the log what was noted of these rows, and is not there for good."""
        await self.refresh()
        loose = [entry for entry in self.stored.entries if entry.run_id or entry.state == "buffered"]
        covers = [(entry, Coverage([entry], self.thread_id)) for entry in loose]
        stale = {entry.id for entry, covered in covers if any(seq in covered for seq in seqs)}
        if stale:
            logs = self.cycles.logs
            log = await logs.update(
                self.thread_id,
                self.log.resource_id,
                lambda log: transitions.drop_entries(log, stale),
                check=lambda: logs.clean_history(self.log.key, lambda entry: entry.id in stale),
            )
            await self.adopt(log)

    def take_reason(self) -> str:
        """What this run did to its rendering since it was asked last; empty for nothing."""
        reason, self._reason = self._reason, ""
        return reason

    # -- work

    async def prepare_step(self, step_number: int, *, pinned: Collection[str]) -> None:
        """``act``, then ``send_status``: what a loop calls before each model call."""
        await self.act(pinned)
        await self.send_status(step_number, pinned)

    async def act(self, pinned: Collection[str], *, cold: Trigger | None = None) -> None:
        """Do what is due: start background work, activate what it has made, observe and reflect.

        Never raises for a failing or slow Observer, Reflector or log: that becomes a failed part, the raw
        rows stay, and this run does not wait again. All waits of a run together last at most
        ``observe_timeout``.

        Args:
            pinned: Ids of rows that must stay raw: the run's input and its newest finished step.
            cold: Why the provider's cache of this conversation is lost anyway, if it is.
        """
        just_read, self._just_read = self._just_read, False
        try:
            if not just_read:
                await self.refresh()
            await self._observe_when_due(pinned, cold)
            await self.rows.find_opener()
            await self._reflect_when_due(pinned)
        except StorageError as error:
            self.patience.lose()
            await self.report(error)

    async def make_room(self, pinned: Collection[str]) -> bool:
        """The provider refused a prompt that is too long: activate all, then observe all that may be observed.

        Returns whether anything left the window. Never raises for what ``act`` does not raise for.
        """
        before = self.log
        try:
            while self.jobs.running("observation") and not self.patience.exhausted:
                await self._wait_for_job("observation")
            await self.refresh()
            chunks = self.chunks(pinned, everything=True)
            if chunks:
                await self.activate([entry for entry, _ in chunks], tokens_of_chunks(chunks), "overflow")
            if not self.patience.exhausted:
                await self._observe_now(pinned, everything=True)
            await self.rows.find_opener()
        except StorageError as error:
            self.patience.lose()
            await self.report(error)
        return self.log is not before

    async def report(self, error: Exception) -> None:
        """Say in an event what went wrong."""
        await self.cycles.report(self.log, error, tokens_of(self.rows.all))

    async def remember_actor(self, model_id: str) -> None:
        """Note which model saw this log last; a failure is told in an event."""
        try:
            self.stored = await self._update(lambda log: transitions.seen_by(log, model_id))
        except StorageError as error:
            await self.report(error)

    async def update_title(self) -> None:
        """Give the thread the title that the Observer found, where it was asked for one. Raises StorageError.

        By the log as it is stored: the end of a run takes out notes of what was rewritten, with their title.
        """
        if not (self.acted and self.config.observation.thread_title):
            return
        await self.refresh()
        log = visible_log(self.stored, None, self.thread_id)
        if log.hints.thread_title:
            await self.cycles.rename_thread(log, log.hints.thread_title)

    def buffer_when_due(self) -> None:
        """Start background work that the end of a run has made worth while."""
        if self.log.scope == "resource" and self.config.buffers:
            self.jobs.start_others()
        limits = self.limits()
        if may_be_worth_buffering(self.unnoted_tokens, limits) and worth_buffering(window := self.measure(), limits):
            self.cycles.decided("observation", Action.BUFFER, window)
            self._start("observation")

    async def send_status(self, step_number: int, pinned: Collection[str]) -> None:
        """Emit the sizes of what the model is about to get. ``step_number``: of the run, from 0."""
        part = data_parts.status(
            self.measure(pinned), self.log, self.limits(), thread_id=self.thread_id, step_number=step_number
        )
        await self.cycles.send(part, self.log.key)

    async def refresh(self) -> bool:
        """Take in what others saved since; what this run renders stays, but for what was forgotten. Whether there was
        anything."""
        newer = await self.cycles.logs.newer(self.stored)
        self.stored = newer or self.stored
        if was_forgotten(self.log, self.stored):
            await self.adopt(self.stored)
        return newer is not None

    async def _observe_when_due(self, pinned: Collection[str], cold: Trigger | None) -> None:
        while True:
            limits = self.limits()
            window = self.measure(pinned, cold=cold is not None)
            action = decide_observation(window, limits)
            self.cycles.decided("observation", action, window)
            if action is Action.ACTIVATE:
                count = choose_chunks(window.chunks, window.message_tokens, limits, cold=window.cold)
                chunks = self.chunks(pinned)[:count]
                full = window.message_tokens >= limits.message_tokens
                trigger: Trigger = "threshold" if full or cold is None else cold
                entries = [*self.foreign(), *(entry for entry, _ in chunks)]
                if not await self.activate(entries, tokens_of_chunks(chunks), trigger):
                    return
                cold = None  # that is what it was good for
            elif action is Action.OBSERVE and self.jobs.running("observation"):
                await self._wait_for_job("observation")
            elif action is Action.OBSERVE:
                if not await self._observe_now(pinned):
                    return
            else:
                if action is Action.BUFFER:
                    self._start("observation", pinned)
                return

    def _start(self, operation: Operation, pinned: Collection[str] = ()) -> None:
        before = seq_of(self.rows.all[-1]) + 1 if self.rows.all else None
        self.jobs.start(operation, run_id=self.run_id, pinned=tuple(sorted(pinned)), before=before)

    async def activate(self, entries: Sequence[Observation], tokens: int, trigger: Trigger) -> bool:
        """Let buffered entries stand for their rows; False where nothing of them was there any more."""
        ids = {entry.id for entry in entries}
        log = await self._update(lambda log: transitions.activate(log, ids))
        await self.adopt(log)
        there = [entry for entry in self.log.active if entry.id in ids]
        if there:
            self._reason = "overflow" if trigger == "overflow" else "activation"
            await self.cycles.activated(self.log, there, "observation", tokens, trigger)
        return bool(there)

    async def _wait_for_job(self, operation: Operation) -> None:
        """Wait for a job of this process until it has ended or saved something, or the run may not wait longer."""
        since, started = self.clock(), asyncio.get_running_loop().time()
        while self.jobs.running(operation) and not self.patience.exhausted and not await self.refresh():
            await self.jobs.wait(operation, min(self.patience.left, _LOOK_AGAIN))
            started = self.patience.spend(started)
        await self.refresh()
        if self.jobs.running(operation):
            await self._stop_waiting(operation, since)

    async def _stop_waiting(self, operation: Operation, since: datetime) -> None:
        """Say so if the run may not wait longer, though somebody is still at it. That is once: it never waits again."""
        if self.patience.exhausted:
            tokens = tokens_of(self.rows.all) if operation == "observation" else self.log.tokens
            await self.cycles.stop_waiting(operation, self.log, tokens, since=since)

    async def _observe_now(self, pinned: Collection[str], *, everything: bool = False) -> bool:
        """Observe what is due, batch by batch, while the run waits; ``everything`` that may be observed, if asked.

        Returns whether to decide anew: somebody else has changed the log meanwhile, or enough is done for now.
        """
        limits, since, started = self.limits(), self.clock(), asyncio.get_running_loop().time()
        async with self._claim("observation") as mine:
            self.patience.spend(started)
            if not mine:
                await self._stop_waiting("observation", since)
                return await self.refresh()
            if self.patience.exhausted:
                return False  # the Observer would have no time; the next turn has
            if await self._take_in() and not everything:
                return True
            units = self.fresh(observable_units(self.rows.all, pinned))
            if not everything:
                units = select_rows(self.rows.all, units, limits)
            refused = self.stored.observer_failures.refused
            batches = split_batches(
                units, limits.batch_tokens, self.run_id, least=limits.least_batch_tokens, refused=refused
            )
            for number, rows in enumerate(batches):
                if not await self._observe_in_time(rows, progressed=number > 0):
                    return False
                if limits.buffer_tokens and not everything and tokens_of(self.rows.all) < limits.message_tokens:
                    return True  # the background does the rest
        return False

    async def _take_in(self) -> bool:
        """Render what others have saved meanwhile: the rendering is about to change anyway. Whether there was any."""
        rendered = self.log
        await self.refresh()
        if self.stored.version == self.log.version:
            return self.log is not rendered
        await self.adopt(self.stored)
        return True

    async def _observe_in_time(self, rows: Sequence[Message], *, progressed: bool) -> bool:
        """Observe one batch; False when this run should stop observing."""
        raw = {row.id for row in self.rows.all}
        if not all(row.id in raw for row in rows):
            return False  # somebody else observed these meanwhile: the next step plans anew
        started = asyncio.get_running_loop().time()
        outcome = await self.observe(rows, timeout=self.patience.left, forgive_timeout=progressed)
        return await self._take(outcome, started, "observation")

    async def _reflect_when_due(self, pinned: Collection[str]) -> None:
        while True:
            window = self.measure(pinned)
            action = decide_reflection(window, self.limits())
            self.cycles.decided("reflection", action, window)
            if action is Action.REFLECT and self.jobs.running("reflection"):
                await self._wait_for_job("reflection")
            elif action is Action.REFLECT:
                if not await self._reflect_now():
                    return
            else:
                if action is Action.ACTIVATE:
                    await self.activate_reflection()
                elif action is Action.BUFFER:
                    self._start("reflection")
                return

    async def activate_reflection(self) -> None:
        """Let the reflection that waits take its place."""
        waiting = self.stored.reflection
        log = await self._update(transitions.activate_reflection)
        await self.adopt(log)
        if waiting is not None and transitions.has_cycle(log, waiting.entry.cycle_id):
            self._reason = "reflection"
            await self.cycles.activated(self.log, [waiting.entry], "reflection", waiting.tokens, "threshold")

    async def _reflect_now(self) -> bool:
        """Reflect while the run waits; returns as ``_observe_now`` does."""
        since, started = self.clock(), asyncio.get_running_loop().time()
        async with self._claim("reflection") as mine:
            self.patience.spend(started)
            if not mine:
                await self._stop_waiting("reflection", since)
                return False
            if self.patience.exhausted:
                return False
            if await self._take_in():
                return True
            if plan := self.reflection_plan():
                started = asyncio.get_running_loop().time()
                outcome = await self.cycles.reflect(self.log, plan, timeout=self.patience.left)
                await self._take(outcome, started, "reflection")
        return False

    def _claim(self, operation: Operation) -> AbstractAsyncContextManager[bool]:
        patience = min(self.patience.left, _PATIENCE_WITH_OTHERS) if self.config.buffers else 0
        return self.cycles.logs.claim(self.thread_id, self.log.resource_id, operation, wait=patience)

    async def _take(self, outcome: Outcome, started: float, reason: str) -> bool:
        self.patience.spend(started)
        if outcome.log is None:
            self.patience.lose()
            return False
        self._reason = reason
        await self.adopt(outcome.log)
        return not self.patience.exhausted

    async def observe(
        self, rows: Sequence[Message], *, timeout: float | None, forgive_timeout: bool = False
    ) -> Outcome:
        """One call of the Observer for these raw rows. The caller holds the lease, and adopts the outcome."""
        log = visible_log(self.stored, self.run_id)
        return await self.cycles.observe(log, self.batch(rows), timeout=timeout, forgive_timeout=forgive_timeout)

    async def _update(self, change: Callable[[ObservationLog], ObservationLog]) -> ObservationLog:
        return await self.cycles.logs.update(self.thread_id, self.log.resource_id, change)

    async def adopt(self, log: ObservationLog) -> None:
        """Render this log from now on."""
        self.stored, self.log = log, visible_log(log, self.run_id, self.thread_id)
        self.acted = True
        await self.rows.cover(self.log.active)


def tokens_of_chunks(chunks: Sequence[tuple[Observation, Sequence[Message]]]) -> int:
    return sum(tokens_of(rows) for _, rows in chunks)
