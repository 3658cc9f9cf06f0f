"""What the rows and the log of a run come to, each worked out once: both are replaced, never changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from diarist.counting import message_tokens
from diarist.memory.observational.decide import ReflectionPlan, plan_reflection
from diarist.memory.observational.log.coverage import Coverage, seq_of, visible_log
from diarist.memory.observational.rows import RawRows
from diarist.memory.observational.window import Window, free_chunks
from diarist.messages import Message
from diarist.storage.records import Observation, ObservationLog

Chunk = tuple[Observation, list[Message]]
"""An entry that the run does not render, with its raw rows."""


class Reading:
    """What follows from the log alone.

    Attributes:
        stored: The log as it was last read.
        log: What the run renders.
        visible: ``stored`` as the run sees it.
        tokens: Of what is rendered.
        waiting: The entries that are not rendered.
        noted: What any entry covers, whoever made it.
    """

    def __init__(self, stored: ObservationLog, log: ObservationLog, *, run_id: str | None, thread_id: str) -> None:
        self.stored = stored
        self.log = log
        self.visible = visible_log(stored, run_id)
        self.tokens = log.tokens
        rendered = {entry.id for entry in log.active}
        self.waiting = [entry for entry in self.visible.entries if entry.id not in rendered]
        self.noted = Coverage(stored.entries, thread_id)
        self._plans: dict[int, ReflectionPlan | None] = {}

    def plan(self, observation_tokens: int) -> ReflectionPlan | None:
        """What a reflection would replace. ``observation_tokens``: how large the log may become."""
        if observation_tokens not in self._plans:
            self._plans[observation_tokens] = plan_reflection(self.log, observation_tokens)
        return self._plans[observation_tokens]


class Sight:
    """What follows from the raw rows and the log.

    Attributes:
        raw: The raw rows.
        reading: The log.
        tokens: Of the raw rows.
        unnoted_tokens: Of those that no entry covers, whoever made it.
        waiting: The entries that may be activated for rows of this thread, oldest first: buffered ones, and those
            that somebody else activated since this run began.
        foreign: Buffered entries that cover no raw row of this thread: notes of the resource's other threads.
        windows: The sizes that were asked for, by what was pinned.
    """

    def __init__(self, rows: RawRows, reading: Reading) -> None:
        self.raw = rows.all
        self.reading = reading
        self._sizes = {row.id: message_tokens(row) for row in rows.all}
        self.tokens = sum(self._sizes.values())
        found = [(entry, rows.covered_by(entry)) for entry in reading.waiting]
        self.waiting = sorted([chunk for chunk in found if chunk[1]], key=lambda chunk: seq_of(chunk[1][0]))
        several = reading.log.scope == "resource"
        self.foreign = tuple(e for e, covered in found if several and not covered and e.state == "buffered")
        self._noted = {row.id for row in rows.within(reading.noted)}
        self.unnoted_tokens = self.tokens - sum([self._sizes[row_id] for row_id in self._noted])
        self.windows: dict[frozenset[str], Window] = {}

    def is_of(self, rows: Sequence[Message], stored: ObservationLog, log: ObservationLog) -> bool:
        """Whether it was made from these."""
        return self.raw is rows and self.reading.stored is stored and self.reading.log is log

    def size(self, rows: Iterable[Message]) -> int:
        """Tokens of some of the raw rows."""
        sizes = self._sizes
        return sum([sizes[row.id] for row in rows])

    def fresh(self, units: Iterable[Sequence[Message]]) -> list[Sequence[Message]]:
        """Those of the units that no entry covers, whoever made it."""
        noted = self._noted
        return [unit for unit in units if noted.isdisjoint([row.id for row in unit])]

    def chunks(self, pinned: Collection[str], message_tokens: int) -> list[Chunk]:
        """The entries that may be activated now. ``message_tokens``: how large the raw rows may become."""
        return self.waiting[: free_chunks([rows for _, rows in self.waiting], self.raw, pinned, message_tokens)]
