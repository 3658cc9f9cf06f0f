"""Ending a run of a thread, also where the connection breaks or the caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from diarist.concurrency import undisturbed
from diarist.exceptions import ConflictError, RunLostError, StorageError
from diarist.messages import Message
from diarist.run_context import Outcome
from diarist.storage.base import Storage
from diarist.storage.records import Run

RUN_TTL = 60.0
"""Seconds without a heartbeat after which another process may take a run for dead."""


@dataclass(frozen=True, slots=True)
class _LeftOpen:
    """A run that could not be ended; without ``run``, one of which nobody knows whether it has begun."""

    storage: Callable[[], Storage | None]
    thread_id: str
    run: Run | None
    outcome: Outcome
    noted_at: float


_left_open: dict[tuple[int, str], _LeftOpen] = {}
"""By storage and id of the run: nobody else may use their threads until their time is up."""


async def end_run(
    storage: Storage, run: Run, outcome: Outcome, last: Sequence[Message] = (), *, after: int = 0
) -> Sequence[int]:
    """End the run with its last messages; returns their numbers. A call that is cancelled ends it all the same.

    A connection that breaks meanwhile loses the reply, not what was done: then the run says how it ended.

    Args:
        after: The number of a row before the last messages.

    Raises:
        RunLostError, ConflictError, StorageError: As ``Storage.finish_run``.
    """
    try:
        return await _end_or_note(storage, run, outcome, last, after)
    except asyncio.CancelledError:  # nobody can say how far that got, and nobody else may end it
        with suppress(StorageError):
            await undisturbed(_end_or_note(storage, run, outcome, last, after), hurried=True)
        raise


async def _end_or_note(
    storage: Storage, run: Run, outcome: Outcome, last: Sequence[Message], after: int
) -> Sequence[int]:
    try:
        numbers = await _end(storage, run, outcome, last, after)
    except (ConflictError, RunLostError):
        raise
    except StorageError:
        _note(storage, run.thread_id, run.id, run, outcome)
        raise
    _left_open.pop((id(storage), run.id), None)
    return numbers


def leave_open(storage: Storage, thread_id: str, run_id: str) -> None:
    """Note a run of which nobody can say whether it has begun; ``end_left_open`` does."""
    _note(storage, thread_id, run_id, None, "discarded")


def _note(storage: Storage, thread_id: str, run_id: str, run: Run | None, outcome: Outcome) -> None:
    now = time.monotonic()
    for key, left in list(_left_open.items()):
        if left.noted_at < now - RUN_TTL or left.storage() is None:  # by now anybody may end it, or nobody asks
            _left_open.pop(key, None)
    _left_open[id(storage), run_id] = _LeftOpen(_reference(storage), thread_id, run, outcome, now)


def _reference(storage: Storage) -> Callable[[], Storage | None]:
    try:
        return weakref.ref(storage)
    except TypeError:  # somebody's wrapper with slots
        return lambda: storage


async def end_left_open(storage: Storage, thread_id: str) -> bool:
    """End the runs of a thread whose end failed here before, as when the database was away. Whether there was one."""
    ended = False
    for key, left in list(_left_open.items()):
        if left.storage() is storage and left.thread_id == thread_id:
            run = left.run or await storage.get_run(key[1])
            if run is not None:  # what has not begun may yet begin
                with suppress(RunLostError):  # it has ended
                    await end_run(storage, run, left.outcome)
                _left_open.pop(key, None)
                ended = True
    return ended


async def _end(storage: Storage, run: Run, outcome: Outcome, last: Sequence[Message], after: int) -> Sequence[int]:
    try:
        return await storage.finish_run(run, outcome, messages=last)
    except (ConflictError, RunLostError):
        raise  # the database has answered
    except StorageError:
        with suppress(StorageError):
            numbers = await _ended(storage, run, outcome, last, after)
            if numbers is not None:
                return numbers
        raise


async def _ended(
    storage: Storage, run: Run, outcome: Outcome, last: Sequence[Message], after: int
) -> Sequence[int] | None:
    """The numbers of the last messages, if the run has ended so with them."""
    found = await storage.get_run(run.id)
    if found is None:  # it goes with a thread that it made
        return [] if outcome == "discarded" else None
    if found.state == "live" and not last:
        return await storage.finish_run(run, outcome)
    if (found.token, found.state) != (run.token, outcome):
        return None
    rows = await storage.list_messages(run.thread_id, after=after) if last else []
    numbers = {row.id: row.seq for row in rows if row.run_id == run.id and row.seq is not None}
    return [numbers[message.id] for message in last] if all(message.id in numbers for message in last) else None
