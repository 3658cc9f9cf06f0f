"""The engine of observational memory. ``Engine.open`` returns a ``RunMemory``, the memory of a thread for one run.

It has the diary and the raw rows (``Window``). ``RunMemory.prepare`` runs before each model call: it decides, then
activates, observes or reflects. ``commit`` or ``discard`` ends it. The engine depends on messages with stable ids and
numbers, a storage, an Observer, a Reflector and a clock, but not on the agent loop: a processor connects it to that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import copy_context
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import monotonic

from diarist.exceptions import StorageError
from diarist.memory.background import Background
from diarist.memory.leases import LEASE_TTL
from diarist.memory.memory_note import keep_date
from diarist.memory.observational import events
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.decide import (
    Action,
    Sizes,
    choose_chunks,
    decide_observation,
    decide_reflection,
    limits_of,
    worth_buffering,
)
from diarist.memory.observational.events import Emit, Trigger
from diarist.memory.observational.jobs import Job, buffer_other_threads, observe_due, reflect_due
from diarist.memory.observational.log import transitions
from diarist.memory.observational.log.coverage import Coverage, visible_log
from diarist.memory.observational.log.edits import row_stones
from diarist.memory.observational.log.log_store import OTHER_THREADS, LogStore, was_forgotten
from diarist.memory.observational.log.transitions import Operation, backing_off
from diarist.memory.observational.message_units import select_rows, tokens_of
from diarist.memory.observational.prompt.diary_note import may_quote_forgotten
from diarist.memory.observational.roles.base import ObserverRole, ReflectorRole
from diarist.memory.observational.thread_diary import Patience, ThreadDiary
from diarist.memory.observational.window import Window
from diarist.memory.rows import seq_of
from diarist.messages import Message, copy_message, utc_now
from diarist.storage.base import Storage
from diarist.storage.records import NewEvent, Observation, ObservationLog
from diarist.tokens import TokenCounter, default_counter

logger = logging.getLogger("diarist")

_LOOK_AGAIN = 0.1
"""Seconds between two looks at what a background job has saved so far."""
WAIT_FOR_OTHERS = 5.0
"""Seconds to wait for the leases of other processes, some of which may have been killed."""


class Engine:
    """Observational memory over a storage, for many threads and runs. Its only state is background work.

    Args:
        clock: Returns an aware datetime; used for entries, events and back-off.
        background: Runs background work; by default a new ``Background``.
        submit: Puts a background job into a queue for workers that call ``work``; by default jobs run in this process.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        observer: ObserverRole,
        reflector: ReflectorRole,
        config: ObservationalMemoryConfig | None = None,
        counter: TokenCounter | None = None,
        clock: Callable[[], datetime] = utc_now,
        background: Background | None = None,
        submit: Callable[[Job], Awaitable[None]] | None = None,
    ) -> None:
        self.config = config or ObservationalMemoryConfig()
        self.background = background or Background()
        self._storage = storage
        self._observer = observer
        self._reflector = reflector
        self._counter = counter or default_counter()
        self._clock = clock
        self._submit = submit
        self.logs = LogStore(storage, self.config.scope)
        self._limits = limits_of(self.config)
        self._left: dict[str, float] = {}  # when runs may wait again, by key of a diary

    async def open(
        self,
        thread_id: str,
        resource_id: str,
        run_id: str | None,
        *,
        emit: Emit | None = None,
        on_wait: Callable[[float], object] | None = None,
        manual: bool = False,
        own_rows: bool = False,
    ) -> RunMemory:
        """Open the memory of a thread for one run, with its diary and its raw rows.

        First finishes work that a crash interrupted: closes or removes the entries of runs that have ended, and removes
        remaining rows of a discarded run.

        Args:
            run_id: The run, which sees its own rows. None for a call outside any run.
            emit: Receives each event; the event log of the diary gets it too.
            on_wait: As for ``Patience``.
            manual: As for ``ThreadDiary``.
            own_rows: True: the run may change rows in place, so it gets copies; other readers may share the rows.

        Raises:
            StorageError: The diary or the messages cannot be read.
        """
        found, rows = await self.logs.read_with_rows(thread_id, resource_id, run_id)
        if own_rows:
            rows = list(map(copy_message, rows))
        diary = self.diary(thread_id, resource_id, emit, manual=manual)
        log = await diary.settle(found, run_id)
        window = Window(diary, log, run_id)
        await window.load(rows if log is found else None)
        if log.tombstones:  # a crash may have left rows of discarded runs
            gone = {stone.run_id for stone in log.tombstones if stone.run_id is not None}
            if left := [row for row in window.rows if row.run_id in gone]:
                await self._storage.delete_messages(thread_id, [row.id for row in left])
                await window.load()
        # Memory notes of a run that was live when something was forgotten may quote the forgotten text.
        dated = [
            replace(row, sent=keep_date(row.sent))
            for row in window.rows
            if row.sent is not None and row.run_id != run_id and may_quote_forgotten(row.sent, log)
        ]
        if dated:
            await self._storage.rewrite_sent(thread_id, {row.id: row.sent for row in dated})
            window.add(dated)
        return RunMemory(self, window, on_wait)

    async def open_read_only(self, thread_id: str, resource_id: str) -> RunMemory:
        """Open the memory of a thread to read it. Writes nothing, and does not finish interrupted work.

        Raises StorageError.
        """
        log = await self.logs.read(thread_id, resource_id)
        window = Window(self.diary(thread_id, resource_id, None), log, None)
        await window.load()
        runs = {stone.run_id for stone in log.tombstones if stone.run_id is not None}
        erased = Coverage((), thread_id, row_stones(log))
        window.remove([row for row in window.rows if row.run_id in runs or seq_of(row) in erased])
        return RunMemory(self, window)

    def diary(
        self,
        thread_id: str,
        resource_id: str,
        emit: Emit | None,
        *,
        manual: bool = False,
        patience: Patience | None = None,
    ) -> ThreadDiary:
        """Return the ``ThreadDiary`` of a thread. Options as for ``ThreadDiary``."""
        return ThreadDiary(
            thread_id=thread_id,
            resource_id=resource_id,
            storage=self._storage,
            logs=self.logs,
            observer=self._observer,
            reflector=self._reflector,
            config=self.config,
            limits=self._limits,
            counter=self._counter,
            clock=self._clock,
            emit=emit,
            manual=manual,
            patience=patience,
        )

    def leave(self, key: str) -> None:
        """Remember that a run waited for a diary as long as it may: its role is slow, or a killed process holds its
        lease."""
        now = monotonic()
        self._left = {other: until for other, until in self._left.items() if until > now} | {key: now + LEASE_TTL}

    def was_left(self, key: str) -> bool:
        """Return True for a minute after ``leave``: other runs should not wait for this diary as well."""
        return self._left.get(key, 0.0) > monotonic()

    def start(self, job: Job, emit: Emit | None) -> bool:
        """Start a background job, or put it into the queue; returns False if one of this name is running here."""
        work = self._submit or partial(self.work, emit=emit)
        return self.background.start(job.name, lambda: work(job))

    async def work(self, job: Job, *, emit: Emit | None = None, run: RunMemory | None = None) -> bool:
        """Run a job: observe or reflect if due, and save the result.

        Failures of the Observer or the Reflector are sent as events and counted. Raises StorageError.

        Args:
            run: The run that waits for the job: the result is active at once. None: no run waits, and the result is
                buffered.

        Returns:
            False if another process holds the lease, or died less than a minute ago while holding it: nothing was done.
            If a run waits, this waits for the other process first.
        """
        scope = OTHER_THREADS if job.others else job.thread_id
        patience = run.patience if run is not None else None
        wait = min(run.patience.left, WAIT_FOR_OTHERS) if run is not None and run.config.buffers else 0
        on_pause = patience.pause if patience is not None else None
        async with self.logs.claim(scope, job.resource_id, job.operation, wait=wait, on_pause=on_pause) as mine:
            if not mine:
                return False
            rows: list[Message] = []
            if job.operation == "observation" and not job.others:
                log, rows = await self.logs.read_with_rows(job.thread_id, job.resource_id, job.run_id)
            else:
                log = await self.logs.read(job.thread_id, job.resource_id)
            if run is not None and (
                not run.patience.left or (job.before is not None and log.version != run.window.stored.version)
            ):
                return True  # no time is left, or another process has taken notes: the run decides again
            diary = self.diary(job.thread_id, job.resource_id, emit, patience=patience)
            if job.operation == "reflection":
                limits = diary.limits if run is None else run.window.limits()
                await reflect_due(job, diary, log, limits.observation_tokens)
            elif job.others:
                await buffer_other_threads(diary, log)
            else:
                window = Window(diary, log, job.run_id)
                window.take(rows)
                await observe_due(job, window)
            return True

    async def any_thread(self, resource_id: str) -> str:
        """Return the id of a thread of the resource; empty if it has none."""
        page = await self._storage.list_threads(resource_id=resource_id, limit=1)
        return page.items[0].id if page.items else ""

    async def report(self, thread_id: str, resource_id: str, error: Exception, *, emit: Emit | None = None) -> None:
        """Send an event: the memory of a thread cannot be opened because of ``error``."""
        key = self.logs.key(thread_id, resource_id)
        log = ObservationLog(key=key, scope=self.config.scope, resource_id=resource_id)
        await self.diary(thread_id, resource_id, emit).report(log, error, 0)


class RunMemory:
    """A thread's memory for one run, opened by ``Engine.open``.

    The shown diary changes only when this run activates, observes or reflects, so that the prompt stays stable.

    Attributes:
        window: The shown diary, the raw rows, and their sizes.
        diary: Reads and writes the stored diary.
        patience: The time that the run may still wait.
    """

    def __init__(self, engine: Engine, window: Window, on_wait: Callable[[float], object] | None = None) -> None:
        self.window = window
        self.diary = diary = window.diary
        self.patience = Patience(diary.config.observe_timeout, on_wait)
        self._engine = engine
        self._started_a_job = False
        self._waits = not engine.was_left(window.log.key)
        self._jobs: dict[Operation, str] = {
            "observation": diary.logs.job_name(diary.thread_id, diary.resource_id, "observation"),
            "reflection": diary.logs.job_name(diary.thread_id, diary.resource_id, "reflection"),
        }
        self._opened_with = window.log
        self._just_read = True  # open() has read the diary, so the first step does not read it again

    @property
    def log(self) -> ObservationLog:
        """The diary that the run shows."""
        return self.window.log

    @property
    def config(self) -> ObservationalMemoryConfig:
        """The configuration of observational memory."""
        return self.diary.config

    # -- a model call

    async def prepare(self, pinned: Collection[str], *, cold: Trigger | None = None) -> None:
        """Prepare a model call: activate buffered notes, observe, reflect and start background work, each if due.

        Errors and timeouts of the Observer, the Reflector or the diary are not raised. They become a failed event, the
        raw rows stay, and this run does not wait again. All waits of a run together last at most ``observe_timeout``.

        Args:
            pinned: Ids of rows that must stay raw: the run's input and its newest finished step.
            cold: Why the provider's prompt cache has expired; None if it has not.
        """
        just_read, self._just_read = self._just_read, False
        before = self.window.log
        try:
            if not just_read:
                await self.refresh()
            await self._observe_when_due(pinned, cold)
            await self.window.load_opener()
            await self._reflect_when_due(pinned)
            if self.window.log is not before:
                await self.update_title()
        except StorageError as error:
            await self._give_up(error)

    async def preview(self, pinned: Collection[str]) -> None:
        """Show what ``prepare`` would activate, without writing or calling a model."""
        window = self.window
        while decide_observation(sizes := self._sizes(pinned), window.limits()) is Action.ACTIVATE:
            entries, _ = self._entries_due(sizes, pinned)
            await self.adopt(transitions.activate(window.stored, {entry.id for entry in entries}))
        await window.load_opener()
        if decide_reflection(self._sizes(pinned), window.limits()) is Action.ACTIVATE:
            await self.adopt(transitions.activate_reflection(window.stored))

    async def _observe_when_due(self, pinned: Collection[str], cold: Trigger | None) -> None:
        while True:
            limits = self.window.limits()
            sizes = self._sizes(pinned, cold=cold is not None)
            action = decide_observation(sizes, limits)
            self.diary.decided("observation", action, sizes)
            match action:
                case Action.ACTIVATE:
                    entries, tokens = self._entries_due(sizes, pinned)
                    full = sizes.message_tokens >= limits.message_tokens
                    if not await self.activate(entries, tokens, "threshold" if full or cold is None else cold):
                        return
                    cold = None  # an expired cache justifies only one activation
                case Action.OBSERVE if sizes.observing:
                    await self._wait_for_job("observation")
                case Action.OBSERVE:
                    units = select_rows(self.window.rows, self.window.fresh(pinned), limits)
                    if not await self._work_now("observation", pinned, before=seq_of(units[-1][-1]) + 1):
                        return
                case Action.BUFFER:
                    self._start(self._job("observation", pinned))
                    return
                case _:
                    return

    def _entries_due(self, sizes: Sizes, pinned: Collection[str]) -> tuple[list[Observation], int]:
        """Return the buffered entries to activate, and the size of the rows of this thread that they replace."""
        count = choose_chunks(sizes.chunks, sizes.message_tokens, self.window.limits(), cold=sizes.cold)
        chunks = [entry for entry, _ in self.window.chunks(pinned)[:count]]
        return [*self.window.facts.foreign, *chunks], sum(sizes.chunks[:count])

    async def activate(self, entries: Sequence[Observation], tokens: int, trigger: Trigger) -> bool:
        """Show buffered entries in place of their rows; returns False if none of them still existed."""
        ids = {entry.id for entry in entries}
        log = await self.diary.update(lambda log: transitions.activate(log, ids))
        there = [entry for entry in log.active if entry.id in ids]
        if not there:
            await self._learn(log)
            return False
        await self.adopt(log)
        await self.diary.activated(self.log, there, "observation", tokens, trigger)
        return True

    async def _reflect_when_due(self, pinned: Collection[str]) -> None:
        while True:
            sizes = self._sizes(pinned)
            action = decide_reflection(sizes, self.window.limits())
            self.diary.decided("reflection", action, sizes)
            match action:
                case Action.REFLECT if sizes.reflecting:
                    await self._wait_for_job("reflection")
                case Action.REFLECT:
                    if not await self._work_now("reflection"):
                        return
                case Action.ACTIVATE:
                    await self.activate_reflection()
                    return
                case Action.BUFFER:
                    self._start(self._job("reflection"))
                    return
                case _:
                    return

    async def activate_reflection(self) -> None:
        """Show the buffered reflection in place of its entries."""
        waiting = self.window.stored.reflection
        log = await self.diary.update(transitions.activate_reflection)
        if waiting is None or not transitions.has_cycle(log, waiting.entry.cycle_id):
            await self._learn(log)
            return
        await self.adopt(log)
        await self.diary.activated(self.log, [waiting.entry], "reflection", waiting.tokens, "threshold")

    def send_status(self, step_number: int, pinned: Collection[str]) -> NewEvent:
        """Emit the sizes of the prompt before a model call, and return the event for the event log.

        ``step_number`` counts the steps of the run from 0.
        """
        event = events.status(
            self._sizes(pinned),
            self.log,
            self.window.limits(),
            thread_id=self.diary.thread_id,
            step_number=step_number,
        )
        self.diary.tell(event)
        return NewEvent(self.log.key, event.type, events.without_words(event))

    def _sizes(self, pinned: Collection[str] = (), *, cold: bool = False) -> Sizes:
        """Return the sizes of the window, with the current flags."""
        stored, now = self.window.stored, self.diary.clock()
        return replace(
            self.window.sizes(pinned),
            observing=self._running("observation"),
            reflecting=self._running("reflection"),
            observer_ready=not backing_off(stored.observer_failures, now),
            reflector_ready=not backing_off(stored.reflector_failures, now),
            may_wait=self._waits and self.patience.left > 0,
            cold=cold,
        )

    # -- the end of a run

    async def commit(self, rows: Sequence[Message]) -> None:
        """Make the notes of a run permanent after it has ended, and start background work for the next turn.

        Raises StorageError; the next ``open`` then makes the notes permanent.

        Args:
            rows: The run's messages as they are stored. Empty if the run was interrupted.
        """
        own = any(entry.run_id == self.window.run_id for entry in self.window.stored.entries)
        if self.window.run_id is not None and (self._started_a_job or own):
            await self.diary.close_run(self.window.run_id)
        if rows:
            self.window.add(rows)
            self.buffer_when_due()
            await self.update_title()

    def buffer_when_due(self) -> None:
        """Start background work that the end of the run has made worthwhile."""
        ready = not backing_off(self.window.stored.observer_failures, self.diary.clock())
        if self.log.scope == "resource" and self.config.buffers and ready:
            name = self.diary.logs.job_name(OTHER_THREADS, self.diary.resource_id, "observation")
            self._start(replace(self._job("observation"), name=name, run_id=None, others=True))
        limits = self.window.limits()
        if limits.buffer_tokens is None or self.window.facts.unnoted_tokens < limits.buffer_tokens / 2:
            return  # saves the other sizes nearly always
        sizes = self._sizes()
        if worth_buffering(sizes, limits):
            self.diary.decided("observation", Action.BUFFER, sizes)
            self._start(replace(self._job("observation"), run_id=None))  # its rows are like all others now

    async def discard(self, rows: Sequence[Message]) -> None:
        """Drop the notes of a run that is discarded. Call it BEFORE its rows are removed. Raises StorageError."""
        if self.window.run_id is not None:
            seqs = [message.seq for message in rows if message.seq is not None]
            await self.diary.drop_run(self.window.run_id, in_flight=self._started_a_job, seqs=seqs)

    async def update_title(self) -> None:
        """Set the thread's title to the Observer's, if titles are enabled. Raises StorageError.

        Ignores notes of live runs, since the messages of those runs may still be rewritten.
        """
        if self.log is not self._opened_with and self.config.observation.thread_title:
            await self.refresh()
            await self.diary.rename_thread(visible_log(self.window.stored, None, self.diary.thread_id))

    async def settled(self) -> bool:
        """Wait until no job of the thread, or of its resource's other threads, is running in this process. Returns
        False if one of them cannot end, since the current synchronous call blocks its event loop."""
        others = self.diary.logs.job_name(OTHER_THREADS, self.diary.resource_id, "observation")
        return all([await self._engine.background.wait(name) for name in (*self._jobs.values(), others)])

    # -- changes during the run

    async def drop_notes_of(self, changed: Sequence[Message], removed: Sequence[Message] = ()) -> None:
        """Remove the buffered notes, and the notes of this run, that cover rewritten or removed rows.

        The other rows of such notes become raw again; rewritten rows are shown in their new form. If the diary cannot
        be saved, an event reports it, and notes of this run's rows are removed when the run has ended.
        """
        seqs = {seq_of(message) for message in (*changed, *removed)}
        try:
            await self.refresh()
            loose = [entry for entry in self.window.stored.entries if entry.run_id or entry.state == "buffered"]
            covers = [(entry.id, Coverage([entry], self.diary.thread_id)) for entry in loose]
            stale = {id for id, covered in covers if any(seq in covered for seq in seqs)}
            if stale:
                logs, key = self.diary.logs, self.log.key
                log = await self.diary.update(
                    lambda log: transitions.drop_entries(log, stale),
                    prepare=lambda: logs.clean_history(key, lambda entry: entry.id in stale),
                )
                await self._learn(log)
                await self.window.show(transitions.drop_entries(self.log, stale))
        except StorageError as error:
            await self._give_up(error)
        self.window.remove(removed)
        self.window.add(changed)

    async def make_room(self, pinned: Collection[str]) -> bool:
        """Activate all notes and observe all observable rows, after the provider rejected the prompt as too long.

        Returns True if the shown notes changed. Handles errors as ``prepare`` does.
        """
        before = self.log.active
        try:
            while self._running("observation") and self.patience.left:
                await self._wait_for_job("observation")
            await self.refresh()
            if self.window.stored.version != self.log.version:
                await self.adopt(self.window.stored)
            if chunks := self.window.chunks(pinned, everything=True):
                tokens = sum(tokens_of(rows) for _, rows in chunks)
                await self.activate([entry for entry, _ in chunks], tokens, "overflow")
            if await self._work_now("observation", pinned):
                await self.adopt(self.window.stored)  # also what was noted before a failure
            await self.window.load_opener()
        except StorageError as error:
            await self._give_up(error)
        return self.log.active != before

    async def remember_model(self, model_id: str) -> None:
        """Record the model that saw this diary last; a failure is sent as an event."""
        try:
            self.window.stored = await self.diary.update(
                lambda log: log if log.actor == model_id else replace(log, actor=model_id)
            )
        except StorageError as error:
            await self.report(error)

    async def report(self, error: Exception) -> None:
        """Send an event about an error."""
        await self.diary.report(self.log, error, tokens_of(self.window.rows))

    # -- the diary, as stored and as shown

    async def refresh(self) -> bool:
        """Read the stored diary if it has changed. The shown diary stays the same, unless something was forgotten.

        Returns True if the stored diary has changed.
        """
        newer = await self.diary.logs.newer(self.window.stored)
        if newer is not None:
            await self._learn(newer)
        return newer is not None

    async def _learn(self, log: ObservationLog) -> None:
        """Keep a newer stored diary without showing it, unless something was forgotten."""
        self.window.stored = log
        if was_forgotten(self.log, log):
            await self.adopt(log)

    async def adopt(self, log: ObservationLog) -> None:
        """Show this diary from now on."""
        self.window.stored = log
        await self.window.show(visible_log(log, self.window.run_id, self.diary.thread_id))

    # -- background jobs, and waiting

    def _start(self, job: Job) -> None:
        """Start a job for the rows so far, unless it is running in this process."""
        if self.window.rows and not job.others:
            job = replace(job, before=seq_of(self.window.rows[-1]) + 1)
        self._started_a_job |= self._engine.start(job, self.diary.emit)

    async def _work_now(self, operation: Operation, pinned: Collection[str] = (), before: int | None = None) -> bool:
        """Observe or reflect while the run waits, and show the result. ``before``: as for ``Job``.

        With buffering, a call that takes longer than the run may wait goes on in the background.

        Returns True if the stored diary has changed, so that the caller must decide again.
        """
        if not self.patience.left:
            return False
        since, job, background = self.diary.clock(), self._job(operation, pinned, before), self._engine.background
        outcome: list[bool | StorageError] = []

        async def work() -> None:
            try:
                outcome.append(await self._engine.work(job, emit=self.diary.emit, run=self))
            except StorageError as error:
                outcome.append(error)
                if not self.patience.left:
                    raise  # no run reports it

        with self.patience.spend():
            if self.config.buffers:
                self._started_a_job |= background.start(job.name, work, context=copy_context())
                await background.wait(job.name, self.patience.left)
            else:
                await work()
        if outcome and isinstance(outcome[0], StorageError):
            raise outcome[0]
        is_mine = outcome != [False]
        if self._running(operation):
            await self._stop_waiting(operation, since)
        changed = await self.refresh()
        if is_mine and changed and not self.patience.lost:
            await self.adopt(self.window.stored)
        elif not is_mine and self.config.buffers:
            await self._stop_waiting(operation, since)
            self.patience.lose()  # a killed process holds its lease for up to a minute
        return changed

    def _job(self, operation: Operation, pinned: Collection[str] = (), before: int | None = None) -> Job:
        return Job(
            name=self._jobs[operation],
            operation=operation,
            thread_id=self.diary.thread_id,
            resource_id=self.diary.resource_id,
            run_id=self.window.run_id,
            pinned=tuple(sorted(pinned)),
            before=before,
        )

    def _running(self, operation: Operation) -> bool:
        return self._engine.background.running(self._jobs[operation])

    async def _wait_for_job(self, operation: Operation) -> None:
        """Wait until a job of this process has ended or saved something, or until the run may not wait longer. Do not
        wait for a job that cannot end, since this synchronous run blocks its event loop."""
        since = self.diary.clock()
        while self._running(operation) and self.patience.left:
            with self.patience.spend():
                if await self.refresh():
                    break
                wait = min(self.patience.left, _LOOK_AGAIN)
                self.patience.pause(wait)
                if not await self._engine.background.wait(self._jobs[operation], wait):
                    self.patience.lose()
                    return
        await self.refresh()
        if self._running(operation) and not self.patience.left:
            await self._stop_waiting(operation, since)

    async def _stop_waiting(self, operation: Operation, since: datetime) -> None:
        """Send an event: the run has waited as long as it may, and the work continues."""
        tokens = tokens_of(self.window.rows) if operation == "observation" else self.log.tokens
        limit = f"{WAIT_FOR_OTHERS:g} s for another process"
        if not self.patience.left:
            limit = f"the {self.config.observe_timeout:g} s of observe_timeout"
        self._engine.leave(self.log.key)
        await self.diary.stop_waiting(operation, self.log, tokens, since=since, limit=limit)

    async def _give_up(self, error: Exception) -> None:
        self.patience.lose()
        await self.report(error)
