"""Does pieces of work: several at a time, each recorded with its time and costs, until the budget is spent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar
from uuid import uuid4

from diarist.concurrency import gather_or_cancel
from diarist.evals.metering import BudgetReached, Meter, tally
from diarist.evals.records import Record, Records
from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ConfigError,
    ModelConnectionError,
    ModelError,
    RateLimitError,
    described,
)

T = TypeVar("T")

STOPS = (ConfigError, AuthenticationError, ModelConnectionError, RateLimitError)
"""Errors that are likely not an item's fault: further calls would fail as well."""

IN_A_ROW = 5
"""Items in a row with such errors that stop a run; with many at the same time, twice as many as these."""


def stops_run(error: Exception) -> bool:
    """Return True for one of ``STOPS``, or if the server does not know the model (HTTP 404)."""
    return isinstance(error, STOPS) or (isinstance(error, BadRequestError) and error.status == 404)


class Unavailable(ModelError):
    """A model could not be used for an item; the message names it."""


class Worker:
    """Does the work of one run.

    Args:
        meter: The run's money.
        interrupted: Gets the costs of work that did not end.
        concurrency: Pieces of work at the same time.
        run_id: The run's id.
        retry_failed: Do failed pieces of work again.

    Attributes:
        last_try: True while an item is tried again; what then fails counts as failed.
    """

    def __init__(
        self, meter: Meter, interrupted: Records, *, concurrency: int, run_id: str, retry_failed: bool
    ) -> None:
        self.meter, self.run_id = meter, run_id
        self._interrupted, self._concurrency, self._retry = interrupted, concurrency, retry_failed
        self.last_try = False

    def is_done(self, record: Record | None) -> bool:
        """Return True if the work behind a record need not be done (again)."""
        return record is not None and not ("error" in record and self._retry)

    async def do(
        self, records: Records, record: Record, work: Callable[[], Awaitable[Record]], failed: Record | None = None
    ) -> None:
        """Do a piece of work and add its record, with its time and costs. Adds nothing if the budget is spent.

        Args:
            record: The first fields of the record.
            work: Returns further fields. An error of it becomes the field ``error``.
            failed: Further fields in case of an error.

        Raises:
            Unavailable: An error that ``stops_run``, unless this is the item's last try.
            ConfigError: Something is missing.
        """
        began = time.monotonic()
        found: Record | None = None
        with tally() as spent:
            try:
                found = await work()
            except Exception as error:  # systems and tools of others run here, too
                if isinstance(error, ConfigError):
                    raise
                if stops_run(error) and not self.last_try:
                    raise Unavailable(f"{_named(record)}: {error}") from error
                if not self.meter.reached:
                    found = {**(failed or {}), "error": described(error)}
            finally:
                if found is None and spent.calls:
                    self._interrupted.add({"id": uuid4().hex, "file": records.path.name, **spent.fields()})
        if found is not None:
            records.add(record | found | spent.fields() | {"seconds": round(time.monotonic() - began, 3)})

    async def each(self, items: Iterable[T], work: Callable[[T], Awaitable[bool]]) -> None:
        """Do the work for each item, until the budget is spent.

        An item whose model cannot be used is tried again after the others. If it fails again, it counts as failed; if
        no other item ever succeeded, the run stops instead. After such an item, the next one is taken from the other
        end, since its neighbours may share its fault, such as a history that is too long.

        Args:
            work: Returns False if there was nothing to do.

        Raises:
            Unavailable: ``IN_A_ROW`` items without a success in between, or all items, could not use a model.
            ConfigError: Something is missing.
        """
        postponed: list[T] = []
        row: list[Unavailable] = []
        succeeded = False

        async def worker(waiting: deque[T]) -> None:
            nonlocal succeeded
            while waiting and not self.meter.reached:
                item = waiting.pop() if row else waiting.popleft()
                try:
                    if await work(item):
                        row.clear()
                    succeeded = True  # now, or in an earlier process
                except BudgetReached:
                    return
                except Unavailable as error:
                    postponed.append(item)
                    row.append(error)
                    if len(row) == max(IN_A_ROW, 2 * self._concurrency):
                        raise row[0] from error

        async def all_of(some: Iterable[T]) -> None:
            waiting = deque(some)
            await gather_or_cancel([worker(waiting) for _ in range(self._concurrency)])

        await all_of(items)
        if row and not succeeded:
            raise row[0]
        row.clear()
        self.last_try = True
        await all_of(postponed)
        self.last_try = False


def _named(record: Record) -> str:
    """Return the name of a piece of work, for errors."""
    if "system" in record:
        return f"question {record['question']} ({record['system']}, run {record['run']})"
    return " of ".join(f"{name} {record[name]}" for name in ("session", "history", "question") if name in record)
