"""A thread as one run sees it: what it renders, what waits, and how large all of it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain

from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.cycles import Batch
from diarist.memory.observational.decide import ReflectionPlan
from diarist.memory.observational.limits import Limits, limits_of
from diarist.memory.observational.log.coverage import Coverage, seq_of, sources_of, visible_log
from diarist.memory.observational.log.transitions import backing_off, failures_of
from diarist.memory.observational.prompt.rendering import render_log
from diarist.memory.observational.prompt.sent_block import compose_sent_block
from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.rows import RawRows
from diarist.memory.observational.sight import Chunk, Reading, Sight
from diarist.memory.observational.window import Window, observable_units
from diarist.memory.observational.work.jobs import ThreadJobs
from diarist.memory.observational.work.other_threads import Tail
from diarist.messages import Message, SentBlock
from diarist.storage.records import Observation, ObservationLog
from diarist.tokens import TokenCounter

_SHORTEST_WAIT = 0.001
"""Seconds. What is less than a clock can tell would be waited for again and again."""


class Patience:
    """How long a run may still wait for memory, all waits together, in seconds."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    @property
    def exhausted(self) -> bool:
        return self.left < _SHORTEST_WAIT

    def spend(self, started: float) -> float:
        """Count the seconds since ``started``, by the event loop's clock; returns what that clock says now."""
        now = asyncio.get_running_loop().time()
        self.left -= now - started
        return now

    def lose(self) -> None:
        """Not to wait again."""
        self.left = 0


class ThreadView:
    """What a run knows of its thread: the log, and the raw rows that no entry covers.

    Attributes:
        rows: The raw rows.
        log: What the run renders.
        stored: The log as it was last read; more may wait in it than the run renders.
        jobs: The background jobs of the thread.
        config: The configuration, with the options of this thread alone.
        patience: How long the run may still wait.
    """

    def __init__(
        self,
        *,
        rows: RawRows,
        jobs: ThreadJobs,
        config: ObservationalMemoryConfig,
        counter: TokenCounter,
        clock: Callable[[], datetime],
        thread_id: str,
        run_id: str | None,
        log: ObservationLog,
    ) -> None:
        self.rows = rows
        self.jobs = jobs
        self.config = config
        self._limits = limits_of(config)
        self.clock = clock
        self.thread_id = thread_id
        self.run_id = run_id
        self.log = visible_log(log, run_id, thread_id)
        self.stored = log
        self.patience = Patience(config.observe_timeout)
        self._counter = counter
        self._sight: Sight | None = None

    async def load(self, found: list[Message] | None = None) -> None:
        """Read the raw rows, unless they were ``found`` with the log."""
        self.rows.coverage = Coverage(self.log.active, self.thread_id)
        await self.rows.load(found)

    @property
    def has_own_notes(self) -> bool:
        """Whether rows of this run were observed."""
        return self.run_id is not None and any(entry.run_id == self.run_id for entry in self.stored.entries)

    # -- what the model sees

    def window(self) -> list[Message]:
        """The messages for the prompt: all raw rows, beginning with a user's message."""
        return self.rows.window()

    def prompt_blocks(self) -> list[str]:
        """How to use the notes and the notes, as blocks of text; empty while there are none."""
        label = None
        if self.log.scope == "resource":
            label = thread_label(self.thread_id, obscured=self.config.obscures_threads)
        return render_log(self.log, labelled=self.config.retrieves is not None, thread=label)

    def compose_sent_block(self, now: datetime, tails: Sequence[Tail] = ()) -> SentBlock | None:
        """The note for this run's user message; None when messages of earlier runs say all of it already.

        Args:
            tails: What the diary does not have yet of other threads.
        """
        others = [row for row in self.window() if self.run_id is None or row.run_id != self.run_id]
        earlier = [row.sent for row in others if row.sent is not None]
        said_before = next((row.created_at for row in reversed(others) if row.created_at), None)
        return compose_sent_block(
            self.log,
            now=now,
            timezone=self.config.timezone,
            earlier=earlier,
            counter=self._counter,
            since=said_before if self.config.temporal_markers else None,
            tails=tails,
        )

    # -- sizes

    @property
    def _now(self) -> Sight:
        """What the present rows and log come to."""
        if self._sight is None or not self._sight.is_of(self.rows.all, self.stored, self.log):
            self._sight = Sight(self.rows, self._reading())
        return self._sight

    def _reading(self) -> Reading:
        known = None if self._sight is None else self._sight.reading
        if known is not None and known.stored is self.stored and known.log is self.log:
            return known
        return Reading(self.stored, self.log, run_id=self.run_id, thread_id=self.thread_id)

    def measure(self, pinned: Collection[str] = (), *, cold: bool = False) -> Window:
        """The present sizes.

        Args:
            pinned: Ids of rows that must stay raw.
            cold: The provider's cache of this conversation is lost anyway.
        """
        now = self.clock()
        pinned, known = frozenset(pinned), self._now.windows
        window = known[pinned] if pinned in known else self._count(pinned)
        present = {
            "observing": self.jobs.running("observation"),
            "reflecting": self.jobs.running("reflection"),
            "observer_ready": not backing_off(failures_of(self.stored, "observation"), now),
            "reflector_ready": not backing_off(failures_of(self.stored, "reflection"), now),
            "may_wait": not self.patience.exhausted,
            "cold": cold,
        }
        if any([getattr(window, name) is not is_so for name, is_so in present.items()]):
            window = replace(window, **present)
        known[pinned] = window
        return window

    def _count(self, pinned: Collection[str]) -> Window:
        """What follows from rows and log."""
        sight = self._now
        units = observable_units(sight.raw, pinned)
        chunks = self.chunks(pinned)
        reflection = sight.reading.visible.reflection
        return Window(
            message_tokens=sight.tokens,
            fresh_tokens=sight.size(chain.from_iterable(sight.fresh(units))),
            chunks=tuple(sight.size(rows) for _, rows in chunks),
            held_chunks=tuple(sight.size(rows) for _, rows in sight.waiting[len(chunks) :]),
            foreign_tokens=sum(entry.message_tokens for entry in sight.foreign),
            opening=all(row.run_id == self.run_id and row.role == "user" for row in sight.raw)
            and not self.rows.coverage.ranges,
            buffered_tokens=sum(entry.tokens for entry in (*(entry for entry, _ in sight.waiting), *sight.foreign)),
            observation_tokens=sight.reading.tokens,
            reflectable=self.reflection_plan() is not None,
            reflection_waits=reflection is not None,
            reflection_tokens=reflection.entry.tokens if reflection else 0,
            reflection_input_tokens=reflection.tokens if reflection else 0,
        )

    @property
    def unnoted_tokens(self) -> int:
        """Of the raw rows that no entry covers, whoever made it."""
        return self._now.unnoted_tokens

    def limits(self) -> Limits:
        """The thresholds in force."""
        if not self.config.share_token_budget:
            return self._limits
        sight = self._now
        return limits_of(self.config, message_tokens=sight.tokens, observation_tokens=sight.reading.tokens)

    def chunks(self, pinned: Collection[str], *, everything: bool = False) -> list[Chunk]:
        """The entries that may be activated, oldest first, with their raw rows: buffered ones, and those that
        somebody else activated since this run began. ``everything``: those of the newest turns as well."""
        return self._now.chunks(pinned, 0 if everything else self.limits().message_tokens)

    def foreign(self) -> tuple[Observation, ...]:
        """Buffered entries that cover no raw row of this thread: notes of the resource's other threads."""
        return self._now.foreign

    def fresh(self, units: Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
        """Those of the units that no entry covers, whoever made it."""
        return self._now.fresh(units)

    def reflection_plan(self) -> ReflectionPlan | None:
        limits, reading = self.limits(), self._now.reading
        return reading.plan(limits.observation_tokens) if reading.tokens >= limits.reflection_start_tokens else None

    def batch(self, rows: Sequence[Message]) -> Batch:
        """Rows for one call of the Observer, with their sources."""
        own = self.run_id is not None and rows[0].run_id == self.run_id
        covered = self._now.reading.noted
        raw = [row for row in self.rows.all if seq_of(row) not in covered]
        return Batch(
            rows=rows, sources=sources_of(rows, raw, covered, self.thread_id), run_id=self.run_id if own else None
        )
