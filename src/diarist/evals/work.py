"""Does pieces of work: several at a time, each recorded with its time and costs, until the budget is spent."""

from __future__ import annotations

import time
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
    RateLimitError,
    described,
)

T = TypeVar("T")

STOPS = (ConfigError, AuthenticationError, ModelConnectionError, RateLimitError)
"""Errors that stop a run, instead of counting as failures of items: they are not the item's fault, and further calls
would fail as well."""


def stops_run(error: Exception) -> bool:
    """Return True for one of ``STOPS``, or if the server does not know the model (HTTP 404)."""
    return isinstance(error, STOPS) or (isinstance(error, BadRequestError) and error.status == 404)


class Worker:
    """Does the work of one run.

    Args:
        meter: The run's money.
        interrupted: Gets the costs of work that did not end.
        concurrency: Pieces of work at the same time.
        run_id: The run's id.
        retry_failed: Do failed pieces of work again.
    """

    def __init__(
        self, meter: Meter, interrupted: Records, *, concurrency: int, run_id: str, retry_failed: bool
    ) -> None:
        self.meter, self.run_id = meter, run_id
        self._interrupted, self._concurrency, self._retry = interrupted, concurrency, retry_failed

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
            DiaristError: One of ``STOPS``, or the server does not know the model (HTTP 404).
        """
        began = time.monotonic()
        found: Record | None = None
        with tally() as spent:
            try:
                found = await work()
            except Exception as error:  # systems and tools of others run here, too
                if stops_run(error):
                    raise
                if not self.meter.reached:
                    found = {**(failed or {}), "error": described(error)}
            finally:
                if found is None and spent.calls:
                    self._interrupted.add({"id": uuid4().hex, "file": records.path.name, **spent.fields()})
        if found is not None:
            records.add(record | found | spent.fields() | {"seconds": round(time.monotonic() - began, 3)})

    async def each(self, items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
        """Do the work for each item, until the budget is spent."""
        waiting = iter(items)

        async def worker() -> None:
            for item in waiting:
                if self.meter.reached:
                    return
                try:
                    await work(item)
                except BudgetReached:
                    return

        await gather_or_cancel([worker() for _ in range(self._concurrency)])
