"""Ending a run of a thread, also where the connection breaks meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from diarist.exceptions import ConflictError, RunLostError, StorageError
from diarist.messages import Message
from diarist.run_context import Outcome
from diarist.storage.base import Storage
from diarist.storage.records import Run

_left_open: WeakKeyDictionary[Storage, dict[str, tuple[Run, Outcome]]] = WeakKeyDictionary()
"""Of each storage the runs that could not be ended, by thread: nobody else may use it until their time is up."""


async def end_run(
    storage: Storage, run: Run, outcome: Outcome, last: Sequence[Message] = (), *, after: int = 0
) -> Sequence[int]:
    """End the run with its last messages; returns their numbers.

    A connection that breaks meanwhile loses the reply, not what was done: then the run says how it ended.

    Args:
        after: The number of a row before the last messages.

    Raises:
        RunLostError, ConflictError, StorageError: As ``Storage.finish_run``.
    """
    try:
        numbers = await _end(storage, run, outcome, last, after)
    except (ConflictError, RunLostError):
        raise
    except StorageError:
        _left_open.setdefault(storage, {})[run.thread_id] = run, outcome
        raise
    _left_open.get(storage, {}).pop(run.thread_id, None)
    return numbers


async def end_left_open(storage: Storage, thread_id: str) -> bool:
    """End the run of a thread whose end failed here before, as when the database was away. Whether there was one."""
    left = _left_open.get(storage, {}).pop(thread_id, None)
    if left is None:
        return False
    run, outcome = left
    with suppress(RunLostError):  # it has ended
        await end_run(storage, run, outcome)
    return True


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
