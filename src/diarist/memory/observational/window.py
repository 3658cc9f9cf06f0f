"""The window of a run: the diary it shows, the raw rows that the diary does not cover, and their sizes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import chain
from operator import attrgetter
from zoneinfo import ZoneInfo

from diarist.counting import ensure_counted
from diarist.memory.memory_note import compose, date_item, joined
from diarist.memory.observational.decide import Limits, ReflectionPlan, Sizes, limits_of, plan_reflection
from diarist.memory.observational.log.coverage import Coverage, sources_of, uncovered_rows, visible_log
from diarist.memory.observational.message_units import free_chunks, may_join, observable_units, tokens_of
from diarist.memory.observational.prompt.diary_note import compose_diary_note
from diarist.memory.observational.prompt.rendering import render_log
from diarist.memory.observational.prompt.tails import Tail
from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.roles.transcript import in_zone
from diarist.memory.observational.thread_diary import Batch, ThreadDiary
from diarist.memory.rows import find_opener, seq_of, stand_in
from diarist.messages import Message, SentBlock, utc_now
from diarist.storage.records import Observation, ObservationLog

_SEQ = attrgetter("seq")

BufferedChunk = tuple[Observation, list[Message]]
"""An entry that is not active for this run yet, with its raw rows."""


class Window:
    """The prompt window of a run: the diary that it shows, its raw rows, and the stored diary as last read.

    Args:
        diary: The diary of the thread, with the storage of its rows.
        log: The diary as it is stored.
        run_id: The run, which sees its own rows; None outside of any run.

    Attributes:
        rows: The raw rows in order, without system rows. New rows of the run are here after ``add``. Replaced, never
            mutated.
        row_tokens: Size of each raw row.
        tokens: Size of all of them.
        joins: True if some raw rows may form units with others, or wait for a result.
        log: The diary that the run shows.
        stored: The diary as it was last read.
    """

    def __init__(self, diary: ThreadDiary, log: ObservationLog, run_id: str | None) -> None:
        self.diary = diary
        self.thread_id = diary.thread_id
        self.run_id = run_id
        self.stored = log
        self.log = visible_log(log, run_id, self.thread_id)
        self.rows: list[Message] = []
        self.tokens, self.joins = 0, False
        self.row_tokens: list[int] = []
        self._coverage = Coverage(self.log.active, self.thread_id)
        self._opener: Message | None = None  # the user message before the first raw row ...
        self._opened_for: str | None = None  # ... with this id, if it was looked for
        self._facts: _Facts | None = None  # see ``facts``

    # -- rows and diary

    async def load(self, found: list[Message] | None = None) -> None:
        """Read the raw rows: those that the diary does not cover. ``found``: these rows, if they were read already."""
        if found is None:
            found = await uncovered_rows(self.diary.storage, self._coverage, self.thread_id, run_id=self.run_id)
        known = {row.id: row for row in self.rows}
        self.take([known.get(row.id, row) for row in found] if known else found)
        await self.load_opener()

    def take(self, rows: list[Message]) -> None:
        """Take these rows, in order, as the raw rows."""
        self.row_tokens = ensure_counted(rows, self.diary.counter)
        self.rows = rows
        self.tokens = sum(self.row_tokens)
        self.joins = may_join(rows)

    def add(self, messages: Sequence[Message]) -> None:
        """Add rows that were just stored; a row with a known id replaces the old one."""
        fresh = [m for m in messages if m.role != "system" and seq_of(m) not in self._coverage]
        sizes = ensure_counted(fresh, self.diary.counter)
        self.joins = self.joins or may_join(fresh)
        self.rows = list(self.rows)
        for row, size in zip(fresh, sizes, strict=True):
            place = bisect_left(self.rows, seq_of(row), key=_SEQ)
            is_known = place < len(self.rows) and self.rows[place].seq == row.seq
            end = place + 1 if is_known else place
            self.rows[place:end] = [row]
            self.row_tokens[place:end] = [size]
        self.tokens = sum(self.row_tokens)

    def remove(self, messages: Sequence[Message]) -> None:
        """Remove rows that are gone."""
        if gone := {message.id for message in messages}:
            self.take([row for row in self.rows if row.id not in gone])

    async def show(self, log: ObservationLog) -> None:
        """Show this diary from now on; rows that it no longer covers become raw again."""
        if log is self.log:
            return
        self.log = log
        before, self._coverage = self._coverage, Coverage(log.active, self.thread_id)
        if self._coverage >= before:
            self.take([row for row in self.rows if seq_of(row) not in self._coverage])
        else:
            await self.load()

    # -- the prompt

    def messages(self) -> list[Message]:
        """Return the messages for the prompt: all raw rows, beginning with a user message.

        If the notes end in the middle of a turn, the result begins with that turn's user message, or with a placeholder
        if it was not found.
        """
        if not self.rows or self.rows[0].role == "user":
            return list(self.rows)
        known = self._opener if self._opened_for == self.rows[0].id else None
        return [known or stand_in(self.rows[0]), *self.rows]

    async def load_opener(self) -> None:
        """Read the user message before the first raw row, if the notes end in the middle of a turn."""
        if not self.rows or self.rows[0].role == "user" or self.rows[0].id == self._opened_for:
            return
        self._opener, self._opened_for = None, self.rows[0].id
        self._opener = await find_opener(self.diary.storage, self.thread_id, before=self.rows[0], run_id=self.run_id)

    def blocks(self) -> list[str]:
        """Return the system texts of the diary: instructions, then the notes. Empty if there are no notes."""
        label = None
        if self.log.scope == "resource":
            label = thread_label(self.thread_id, obscured=self.diary.config.obscures_threads)
        return render_log(self.log, labelled=self.diary.config.retrieves is not None, thread=label)

    def sent_block(self, now: datetime, tails: Sequence[Tail] = ()) -> SentBlock | None:
        """Return the memory note for this run's user message; None if earlier notes in the window say the same.

        Args:
            tails: New messages of other threads that the diary does not cover yet.
        """
        others = [row for row in self.messages() if row.run_id is None or row.run_id != self.run_id]
        said_before = next((row.created_at for row in reversed(others) if row.created_at), None)
        return compose_diary_note(
            self.log,
            now=now,
            timezone=self.diary.config.timezone,
            earlier=[row.sent for row in others if row.sent is not None],
            counter=self.diary.counter,
            since=said_before if self.diary.config.temporal_markers else None,
            tails=tails,
        )

    @property
    def has_date(self) -> bool:
        """Return True if a memory note in the window has the date."""
        return any(row.sent is not None and "date" in row.sent.made_from for row in self.rows)

    def dated(self, question: Message) -> SentBlock | None:
        """Return the question's memory note with the date added."""
        day = in_zone(question.created_at or utc_now(), ZoneInfo(self.diary.config.timezone)).date()
        return joined(compose([date_item(day)], self.diary.counter), question.sent, self.diary.counter)

    # -- sizes

    @property
    def facts(self) -> _Facts:
        """Values derived from the current rows and diary; cached until one of them is replaced."""
        facts = self._facts
        if facts is None or not (facts.raw is self.rows and facts.stored is self.stored and facts.log is self.log):
            facts = self._facts = _Facts(self, None if facts is None else facts)
        return facts

    def sizes(self, pinned: Collection[str] = ()) -> Sizes:
        """Return the current sizes. ``pinned``: ids of rows that must stay raw."""
        facts, pinned = self.facts, frozenset(pinned)
        if pinned not in facts.sizes:
            chunks, reflection = self.chunks(pinned), facts.visible.reflection
            opens = all(row.run_id == self.run_id and row.role == "user" for row in self.rows)
            facts.sizes[pinned] = Sizes(
                message_tokens=self.tokens,
                fresh_tokens=self._fresh_tokens(pinned),
                chunks=facts.waiting_tokens[: len(chunks)],
                held_chunks=facts.waiting_tokens[len(chunks) :],
                gap=self._gap(pinned, chunks),
                foreign_tokens=sum([entry.message_tokens for entry in facts.foreign]),
                opening=opens and not self._coverage.ranges,
                buffered_tokens=sum([entry.tokens for entry in (*[e for e, _ in facts.waiting], *facts.foreign)]),
                observation_tokens=facts.observation_tokens,
                reflectable=self.reflection_plan() is not None,
                reflection_waits=reflection is not None,
                reflection_tokens=reflection.entry.tokens if reflection else 0,
                reflection_input_tokens=reflection.tokens if reflection else 0,
            )
        return facts.sizes[pinned]

    def _fresh_tokens(self, pinned: frozenset[str]) -> int:
        """Return the size of ``fresh(pinned)``. Unless rows join, these are all rows that are neither noted
        nor pinned."""
        if self.joins:
            return tokens_of(chain.from_iterable(self.fresh(pinned)))
        left, held = set(pinned - self.facts.noted), list[Message]()
        for row in reversed(self.rows):  # pinned rows are nearly always the last ones
            if not left:
                break
            if row.id in left:
                left.remove(row.id)
                held.append(row)
        return self.facts.unnoted_tokens - tokens_of(held)

    def _gap(self, pinned: frozenset[str], chunks: Sequence[BufferedChunk]) -> bool:
        """Return True if a row of ``fresh(pinned)`` lies before one of these chunks."""
        if not chunks:
            return False
        newest, skipped = seq_of(chunks[-1][1][0]), self.facts.noted | pinned
        first = next((row for row in self.rows if row.id not in skipped), None)  # saves ``fresh`` nearly always
        if first is None or seq_of(first) > newest:
            return False
        units = self.fresh(pinned)
        return bool(units) and seq_of(units[0][0]) < newest

    def limits(self) -> Limits:
        """Return the current thresholds. With ``share_token_budget`` they depend on the sizes."""
        if not self.diary.config.share_token_budget:
            return self.diary.limits
        return limits_of(
            self.diary.config, message_tokens=self.tokens, observation_tokens=self.facts.observation_tokens
        )

    def chunks(self, pinned: Collection[str] = (), *, everything: bool = False) -> list[BufferedChunk]:
        """Return the entries that may be activated, oldest first: buffered ones, and those that another run activated
        since this one began. ``everything``: include those of the newest turns."""
        waiting = self.facts.waiting
        if not waiting:
            return []
        room = 0 if everything else self.limits().message_tokens
        return waiting[: free_chunks([rows for _, rows in waiting], self.rows, pinned, room)]

    def fresh(self, pinned: Collection[str]) -> list[list[Message]]:
        """Return the units that may be observed and that no stored entry covers."""
        noted = self.facts.noted
        units = observable_units(self.rows, pinned)
        return [unit for unit in units if noted.isdisjoint([row.id for row in unit])] if noted else units

    def reflection_plan(self) -> ReflectionPlan | None:
        """Return the plan for a reflection; None if none is due."""
        limits, facts = self.limits(), self.facts
        if facts.observation_tokens < limits.reflection_start_tokens:
            return None
        return plan_reflection(self.log, limits.observation_tokens)

    def batch(self, rows: Sequence[Message]) -> Batch:
        """Return raw rows for one call of the Observer, with their sources."""
        covered = self.facts.covered
        raw = [row for row in self.rows if seq_of(row) not in covered]
        sources = sources_of(rows, raw, covered, self.thread_id)
        return Batch(rows=rows, sources=sources, run_id=self.run_id if rows[0].run_id == self.run_id else None)


class _Facts:
    """Values derived from the rows and the diary of a window, valid while these three objects are in the window.

    Attributes:
        raw, stored, log: ``Window.rows``, ``stored`` and ``log``.
        visible: The stored diary as the run may see it.
        covered: The rows that any stored entry covers.
        observation_tokens: Size of the shown diary.
        noted: Ids of raw rows that a stored entry covers.
        unnoted_tokens: Size of the other raw rows.
        waiting: The entries that could be activated for rows of this thread, oldest first.
        waiting_tokens: Size of the rows of each.
        foreign: Buffered entries that cover no raw row of this thread: notes of the resource's other threads.
        sizes: Cached sizes, by the pinned ids.
    """

    def __init__(self, window: Window, before: _Facts | None) -> None:
        self.raw, self.stored, self.log = window.rows, window.stored, window.log
        if before is not None and before.stored is self.stored and before.log is self.log:
            self.visible, self.covered, self._hidden = before.visible, before.covered, before._hidden
            self.observation_tokens = before.observation_tokens
        else:
            self.visible = visible_log(self.stored, window.run_id)
            self.covered = Coverage(self.stored.entries, window.thread_id)
            self.observation_tokens = self.log.tokens
            shown = {entry.id for entry in self.log.active}
            self._hidden = [
                (entry, Coverage([entry], window.thread_id)) for entry in self.visible.entries if entry.id not in shown
            ]
        noted, noted_tokens = self._within(self.covered, window.row_tokens)
        self.noted = {row.id for row in noted}
        found = [(entry, *self._within(coverage, window.row_tokens)) for entry, coverage in self._hidden]
        chunks = sorted([chunk for chunk in found if chunk[1]], key=lambda chunk: seq_of(chunk[1][0]))
        self.waiting: list[BufferedChunk] = [(entry, rows) for entry, rows, _ in chunks]
        self.waiting_tokens = tuple([tokens for _, _, tokens in chunks])
        several = self.log.scope == "resource"
        self.foreign = tuple([e for e, rows, _ in found if several and not rows and e.state == "buffered"])
        self.unnoted_tokens = window.tokens - noted_tokens
        self.sizes: dict[frozenset[str], Sizes] = {}

    def _within(self, coverage: Coverage, row_tokens: Sequence[int]) -> tuple[list[Message], int]:
        """Return the raw rows that are covered, and their size."""
        found, tokens = list[Message](), 0
        for first, last in coverage.ranges:
            part = slice(bisect_left(self.raw, first, key=_SEQ), bisect_right(self.raw, last, key=_SEQ))
            found += self.raw[part]
            tokens += sum(row_tokens[part])
        return found, tokens
