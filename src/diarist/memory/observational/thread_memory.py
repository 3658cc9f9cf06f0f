"""Observational memory of one thread as one run sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from diarist.counting import count_parts
from diarist.exceptions import StorageError, ThreadBusyError
from diarist.memory.observational import data_parts
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.coverage import Coverage, seq_of, sources_of, visible_log
from diarist.memory.observational.cycles import Batch, Cycles, NotSmallerError, Outcome
from diarist.memory.observational.decide import (
    Action,
    decide_observation,
    decide_reflection,
    leave_newest,
    plan_reflection,
    select_rows,
    split_batches,
)
from diarist.memory.observational.rendering import render_log
from diarist.memory.observational.sent_block import compose_sent_block
from diarist.memory.observational.transitions import backing_off, drop_entries, failures_of
from diarist.memory.observational.window import Window, observable_units, stand_in, tokens_of
from diarist.messages import Message, SentBlock
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter

Progress = Callable[[int, int], None]
"""Called with the tokens done so far and the tokens to be done."""

_OPENER_PAGE = 20
_OPENER_ROWS = 200


class ThreadMemory:
    """What a run knows of its thread: the log, and the raw rows that no entry covers.

    The log changes only when this run observes or reflects, so that what it renders stays stable. Made by
    ``Engine.open``.

    Attributes:
        rows: Raw rows in order, without system rows; the run's own once they were added.
        log: What the run renders.
        acted: Whether the log has changed since it was opened.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        cycles: Cycles,
        config: ObservationalMemoryConfig,
        counter: TokenCounter,
        clock: Callable[[], datetime],
        thread_id: str,
        run_id: str | None,
        log: ObservationLog,
    ) -> None:
        self.rows: list[Message] = []
        self.log = visible_log(log, run_id)
        self.acted = False
        self._storage = storage
        self._cycles = cycles
        self._config = config
        self._counter = counter
        self._clock = clock
        self._thread_id = thread_id
        self._run_id = run_id
        self._coverage = Coverage(self.log.entries, thread_id)
        self._opener: Message | None = None
        self._opened_for: str | None = None
        self._seconds_left = config.observe_timeout
        self._gave_up = False

    # -- rows

    async def load(self) -> None:
        """Read the raw rows. What the covered beginning of the thread holds is not read."""
        known = {row.id: row for row in self.rows}
        rows = await self._storage.list_messages(self._thread_id, after=self._coverage.prefix_end, run_id=self._run_id)
        self.rows = []
        self.add([known.get(row.id, row) for row in rows])
        await self._find_opener()

    def add(self, messages: Sequence[Message]) -> None:
        """Take in rows that were just stored; a row with a known id replaces the old one.

        Rows that were not counted yet are counted now.
        """
        fresh = [m for m in messages if m.role != "system" and seq_of(m) not in self._coverage]
        for message in fresh:
            if message.part_tokens is None:
                message.part_tokens = count_parts(message, self._counter)
        ids = {message.id for message in fresh}
        self.rows = sorted([*(row for row in self.rows if row.id not in ids), *fresh], key=seq_of)

    async def forget(self, changed: Sequence[Message], removed: Sequence[Message] = ()) -> None:
        """Take out what this run noted of its rows that were rewritten or removed.

        The rest of what such notes covered is raw again, rewritten rows as they are now. Raises StorageError.
        """
        seqs = {seq_of(message) for message in (*changed, *removed)}
        covers = [(entry, Coverage([entry], self._thread_id)) for entry in self.log.entries if entry.run_id]
        stale = {entry.id for entry, covered in covers if any(seq in covered for seq in seqs)}
        if stale:
            log = await self._cycles.logs.update(
                self._thread_id, self.log.resource_id, lambda log: drop_entries(log, stale)
            )
            await self._adopt(log)
        gone = {message.id for message in removed}
        self.rows = [row for row in self.rows if row.id not in gone]
        self.add(changed)

    def window(self) -> list[Message]:
        """The messages for the prompt: all raw rows, beginning with a user's message.

        Where the notes end in the middle of a turn, the message that opened the turn stands in front once
        more. Where there is none, a short stand-in does.
        """
        if not self.rows or self.rows[0].role == "user":
            return list(self.rows)
        known = self._opener if self._opened_for == self.rows[0].id else None
        return [known or stand_in(self.rows[0]), *self.rows]

    async def _find_opener(self) -> None:
        """Find the user's message before the first raw row, where the notes end in the middle of a turn."""
        if not self.rows or self.rows[0].role == "user" or self.rows[0].id == self._opened_for:
            return
        self._opener, self._opened_for = None, self.rows[0].id
        before = seq_of(self.rows[0])
        for _ in range(_OPENER_ROWS // _OPENER_PAGE):
            page = await self._storage.list_messages(
                self._thread_id, before=before, limit=_OPENER_PAGE, newest_first=True, run_id=self._run_id
            )
            page.sort(key=seq_of)
            self._opener = next((row for row in reversed(page) if row.role == "user"), None)
            if self._opener is not None or len(page) < _OPENER_PAGE:
                return
            before = seq_of(page[0])

    # -- what the model sees

    def prompt_blocks(self) -> list[str]:
        """How to use the notes and the notes, as blocks of text; empty while there are none."""
        return render_log(self.log)

    def compose_sent_block(self, now: datetime) -> SentBlock | None:
        """The note for this run's user message; None when messages of earlier runs say all of it already."""
        others = [row for row in self.window() if self._run_id is None or row.run_id != self._run_id]
        earlier = [row.sent for row in others if row.sent is not None]
        return compose_sent_block(
            self.log, now=now, timezone=self._config.timezone, earlier=earlier, counter=self._counter
        )

    # -- work

    def measure(self, pinned: Collection[str] = ()) -> Window:
        """The present sizes. ``pinned`` are ids of rows that must stay raw."""
        now = self._clock()
        waits = not self._gave_up and self._seconds_left > 0
        limit = self._config.reflection.observation_tokens
        return Window(
            message_tokens=tokens_of(self.rows),
            observable_tokens=sum(tokens_of(unit) for unit in observable_units(self.rows, pinned)),
            observation_tokens=self.log.tokens,
            reflectable=self.log.tokens >= limit and plan_reflection(self.log, limit) is not None,
            observer_ready=waits and not backing_off(failures_of(self.log, "observation"), now),
            reflector_ready=waits and not backing_off(failures_of(self.log, "reflection"), now),
        )

    async def prepare_step(self, step_number: int, *, pinned: Collection[str]) -> None:
        """``act``, then ``send_status``: what a loop calls before each model call."""
        await self.act(pinned)
        await self.send_status(step_number, pinned)

    async def act(self, pinned: Collection[str]) -> None:
        """Observe and reflect where that is due.

        Never raises for a failing or slow Observer, Reflector or log: that becomes a failed part, the raw
        rows stay, and this run does not wait again. All waits of a run together last at most
        ``observe_timeout``.

        Args:
            pinned: Ids of rows that must stay raw: the run's input and its newest finished step.
        """
        try:
            await self._observe_when_due(pinned)
            await self._find_opener()
            await self._reflect_when_due()
        except StorageError as error:
            self._gave_up = True
            await self._cycles.report(self.log, error, tokens_of(self.rows))

    async def send_status(self, step_number: int, pinned: Collection[str]) -> None:
        """Emit the sizes of what the model is about to get. ``step_number``: of the run, from 0."""
        part = data_parts.status(
            self.measure(pinned), self.log, self._config, thread_id=self._thread_id, step_number=step_number
        )
        await self._cycles.send(part, self.log.key)

    async def observe_all(self, progress: Progress | None = None, leave_tokens: int = 0) -> None:
        """See ``Engine.observe_all``."""
        async with self._cycles.logs.claim(self._thread_id, "observation") as mine:
            if not mine:
                raise ThreadBusyError(f"thread {self._thread_id!r} is being observed by somebody else; try again later")
            await self._refresh()
            units = leave_newest(observable_units(self.rows, ()), self.rows, leave_tokens)
            batches = self._batches(units)
            done, total = 0, sum(tokens_of(batch) for batch in batches)
            for batch in batches:
                if progress is not None:
                    progress(done, total)
                await self._observe_or_raise(batch)
                done += tokens_of(batch)
            if progress is not None:
                progress(done, total)

    async def _observe_or_raise(self, batch: Sequence[Message]) -> None:
        raw = {row.id for row in self.rows}
        rows = [row for row in batch if row.id in raw]  # somebody else may have observed the others meanwhile
        if not rows:
            return
        outcome = await self._cycles.observe(self.log, self._batch(rows), timeout=None)
        if outcome.log is None:
            raise _error_of(outcome)
        await self._adopt(outcome.log)
        plan = plan_reflection(self.log, self._config.reflection.observation_tokens)
        if plan is None or self.log.tokens < self._config.reflection.observation_tokens:
            return
        async with self._cycles.logs.claim(self._thread_id, "reflection") as mine:
            outcome = await self._cycles.reflect(self.log, plan, timeout=None) if mine else Outcome(log=self.log)
        if outcome.log is not None:
            await self._adopt(outcome.log)
        elif not isinstance(outcome.error, NotSmallerError):
            raise _error_of(outcome)

    async def _observe_when_due(self, pinned: Collection[str]) -> None:
        if decide_observation(self.measure(pinned), self._config) is Action.WAIT:
            return
        async with self._cycles.logs.claim(self._thread_id, "observation") as mine:
            if not mine:
                return
            await self._refresh()
            if decide_observation(self.measure(pinned), self._config) is Action.WAIT:
                return
            observation = self._config.observation
            units = select_rows(self.rows, observable_units(self.rows, pinned), observation)
            for number, rows in enumerate(self._batches(units)):
                if not await self._observe_in_time(rows, progressed=number > 0):
                    return

    async def _observe_in_time(self, rows: Sequence[Message], *, progressed: bool) -> bool:
        """Observe one batch; False when this run should stop observing."""
        raw = {row.id for row in self.rows}
        if not all(row.id in raw for row in rows):
            return False  # somebody else observed these meanwhile: the next step plans anew
        started = asyncio.get_running_loop().time()
        outcome = await self._cycles.observe(
            self.log, self._batch(rows), timeout=self._seconds_left, forgive_timeout=progressed
        )
        return await self._take(outcome, started)

    async def _reflect_when_due(self) -> None:
        if decide_reflection(self.measure(), self._config) is Action.WAIT:
            return
        async with self._cycles.logs.claim(self._thread_id, "reflection") as mine:
            if not mine:
                return
            await self._refresh()
            plan = plan_reflection(self.log, self._config.reflection.observation_tokens)
            if plan is None or decide_reflection(self.measure(), self._config) is Action.WAIT:
                return
            started = asyncio.get_running_loop().time()
            outcome = await self._cycles.reflect(self.log, plan, timeout=self._seconds_left)
            await self._take(outcome, started)

    async def _take(self, outcome: Outcome, started: float) -> bool:
        self._seconds_left -= asyncio.get_running_loop().time() - started
        if outcome.log is None:
            self._gave_up = True
            return False
        await self._adopt(outcome.log)
        return self._seconds_left > 0

    def _batches(self, units: Sequence[Sequence[Message]]) -> list[list[Message]]:
        observation = self._config.observation
        return split_batches(units, observation.batch_tokens, self._run_id, least=observation.least_tokens)

    def _batch(self, rows: Sequence[Message]) -> Batch:
        own = self._run_id is not None and rows[0].run_id == self._run_id
        sources = sources_of(rows, self.rows, self._coverage, self._thread_id)
        return Batch(rows=rows, sources=sources, run_id=self._run_id if own else None)

    async def _refresh(self) -> None:
        """Take in what others saved since; only at a moment when this run changes its rendering anyway."""
        log = await self._cycles.logs.read(self._thread_id, self.log.resource_id)
        if log.version != self.log.version:
            await self._adopt(log)

    async def _adopt(self, log: ObservationLog) -> None:
        before, self.log = self._coverage, visible_log(log, self._run_id)
        self.acted = True
        self._coverage = Coverage(self.log.entries, self._thread_id)
        if self._coverage >= before:
            self.rows = [row for row in self.rows if seq_of(row) not in self._coverage]
        else:  # entries were taken out: their rows are raw again
            await self.load()


def _error_of(outcome: Outcome) -> Exception:
    return outcome.error or StorageError("the cycle ended without a log")
