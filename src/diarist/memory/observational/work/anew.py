"""Doing anew what came to nothing because somebody edited or forgot meanwhile: three times at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable

from diarist.exceptions import ConflictError, StorageError
from diarist.memory.observational.cycles import Outcome
from diarist.memory.observational.thread_memory import ThreadMemory
from diarist.storage.records import ObservationLog

Settle = Callable[[str, str, None], Awaitable[ObservationLog]]
"""Reads the log of a thread and a resource, after all removals that it tells of are finished."""


class Tries:
    """How often each piece of work came to nothing."""

    def __init__(self) -> None:
        self._lost: Counter[Hashable] = Counter()

    def log_of(self, outcome: Outcome, piece: Hashable = None) -> ObservationLog | None:
        """The log after a cycle; None where the piece is to be done anew. Raises what else the cycle ended with."""
        self._lost[piece] += outcome.log is None
        if outcome.log is None and not (isinstance(outcome.error, ConflictError) and self._lost[piece] < 3):
            raise outcome.error or StorageError("the cycle ended without a log")
        return outcome.log


async def read_anew(memory: ThreadMemory, settle: Settle) -> None:
    """Take in the log and the raw rows as they are stored now; known rows may say something else."""
    log = await settle(memory.thread_id, memory.log.resource_id, None)
    memory.rows.remove(memory.rows.all)
    await memory.adopt(log)
    await memory.rows.load()
