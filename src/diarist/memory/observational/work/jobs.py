"""Observing and reflecting in the background: what a job is, and how it is done.

A job is told where to look, not what to do: it reads the log and the rows, and does what is due. So it does
not matter who does it, or whether somebody else did it meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any, Protocol, Self

from diarist.counting import ensure_counted
from diarist.exceptions import InputError
from diarist.memory.observational.cycles import Batch, Cycles
from diarist.memory.observational.decide import plan_reflection
from diarist.memory.observational.limits import Limits
from diarist.memory.observational.log.coverage import Coverage, sources_of, visible_log
from diarist.memory.observational.log.log_store import OTHER_THREADS, LogStore
from diarist.memory.observational.log.refusals import is_suspect
from diarist.memory.observational.log.transitions import Operation
from diarist.memory.observational.log.uncovered import uncovered_rows
from diarist.memory.observational.selection import split_at_chunks, split_batches
from diarist.memory.observational.window import observable_units, tokens_of
from diarist.memory.observational.work.background import Background
from diarist.messages import Json, Message
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A piece of background work, as plain values: any process may do it.

    Attributes:
        name: Of what is worked on: of one name, one job at a time is enough.
        run_id: The run that asked for it. While it is live, its own rows are seen.
        pinned: Ids of rows that must stay raw.
        before: Only rows with a ``seq`` below this are observed.
        others: Observe the other threads of the resource.
    """

    name: str
    operation: Operation
    thread_id: str
    resource_id: str
    run_id: str | None = None
    pinned: tuple[str, ...] = ()
    before: int | None = None
    others: bool = False

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "pinned": list(self.pinned)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """What ``to_json`` gave. Raises InputError for anything else, such as a job of a newer version."""
        from pydantic import TypeAdapter, ValidationError

        unknown = sorted(value.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise InputError(f"it asks for what this version of diarist does not know: {', '.join(unknown)}")
        try:
            return TypeAdapter(cls).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise InputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


class JobQueue(Protocol):
    """Carries jobs from the processes that answer users to the workers."""

    async def submit(self, job: Job) -> None:
        """Put a job in the queue, unless one of its name is there already or being done. Raises StorageError."""
        ...

    async def run(self, work: Callable[[Job], Awaitable[bool]], *, concurrency: int, grace: float) -> None:
        """Do what is in the queue and what comes, until cancelled. Raises StorageError.

        Args:
            work: Does a job; False where somebody else is at it, and it should be tried again later.
            concurrency: Jobs at a time.
            grace: Seconds that running jobs get to finish once this is cancelled; the rest goes back.
        """
        ...


class ThreadJobs:
    """The background jobs of one thread, as its runs start and watch them.

    Args:
        work: Does a job, or hands it to somebody who does.
    """

    def __init__(
        self,
        background: Background,
        logs: LogStore,
        work: Callable[[Job], Awaitable[object]],
        *,
        thread_id: str,
        resource_id: str,
    ) -> None:
        self._background = background
        self._logs = logs
        self._work = work
        self._thread_id = thread_id
        self._resource_id = resource_id
        self.started = False

    def start(
        self,
        operation: Operation,
        *,
        run_id: str | None = None,
        pinned: tuple[str, ...] = (),
        before: int | None = None,
    ) -> None:
        """Start a job, unless one of its kind runs for this thread in this process."""
        job = Job(
            name=self._name(operation),
            operation=operation,
            thread_id=self._thread_id,
            resource_id=self._resource_id,
            run_id=run_id,
            pinned=pinned,
            before=before,
        )
        if self._background.start(job.name, lambda: self._work(job)):
            self.started = True

    def start_others(self) -> None:
        """Start a job for the other threads of the resource, unless one runs in this process."""
        name = self._logs.job_name(OTHER_THREADS, self._resource_id, "observation")
        job = Job(
            name=name, operation="observation", thread_id=self._thread_id, resource_id=self._resource_id, others=True
        )
        self._background.start(name, lambda: self._work(job))

    def running(self, operation: Operation) -> bool:
        """Whether such a job runs in this process."""
        return self._background.running(self._name(operation))

    async def wait(self, operation: Operation, timeout: float) -> None:
        """Wait for such a job of this process, at most ``timeout`` seconds."""
        await self._background.wait(self._name(operation), timeout)

    async def settled(self) -> None:
        """Wait until none of them runs in this process."""
        names = [self._name("observation"), self._name("reflection")]
        for name in (*names, self._logs.job_name(OTHER_THREADS, self._resource_id, "observation")):
            await self._background.wait(name)

    def _name(self, operation: Operation) -> str:
        return self._logs.job_name(self._thread_id, self._resource_id, operation)


async def buffer_observations(
    job: Job,
    log: ObservationLog,
    cycles: Cycles,
    storage: Storage,
    limits: Limits,
    counter: TokenCounter,
    *,
    timeout: float,
) -> None:
    """Observe what nobody has observed yet, batch by batch; each is saved by itself and waits in the log.

    Does nothing where that is too little to be worth a call. A failure ends the job; it has been told and counted.
    """
    run_id = await _live(storage, job.run_id)
    coverage = Coverage(log.entries, job.thread_id)
    rows = await uncovered_rows(storage, coverage, job.thread_id, before=job.before, run_id=run_id)
    ensure_counted(rows, counter)
    for batch in _worth_a_call(rows, job, limits, run_id, log):
        own = run_id is not None and batch[0].run_id == run_id
        sources = sources_of(batch, rows, coverage, job.thread_id)
        work = Batch(rows=batch, sources=sources, run_id=run_id if own else None)
        outcome = await cycles.observe(visible_log(log, run_id), work, timeout=timeout, buffered=True)
        if outcome.log is None:
            return
        log = outcome.log


async def buffer_reflection(log: ObservationLog, cycles: Cycles, limits: Limits, *, timeout: float) -> None:
    """Condense the oldest entries of the log; the result waits in the log. Does nothing where that is not due."""
    log = visible_log(log, None)
    plan = plan_reflection(log, limits.observation_tokens)
    if plan is not None and log.reflection is None and log.tokens >= limits.reflection_start_tokens:
        await cycles.reflect(log, plan, timeout=timeout, buffered=True)


async def _live(storage: Storage, run_id: str | None) -> str | None:
    run = await storage.get_run(run_id) if run_id is not None else None
    return run.id if run is not None and run.state == "live" else None


def _worth_a_call(
    rows: list[Message], job: Job, limits: Limits, run_id: str | None, log: ObservationLog
) -> list[list[Message]]:
    """Rows for one call each. Too few wait until there are more of them, but before a chunk none are added; nor where
    fewer are asked for since more were refused."""
    pieces = split_at_chunks(observable_units(rows, job.pinned), Coverage(log.buffered, job.thread_id))
    least, refused = limits.least_batch_tokens, log.observer_failures.refused
    calls = [split_batches(piece, limits.batch_tokens, run_id, least=least, refused=refused) for piece in pieces]
    newest = calls.pop() if calls else []
    worth = [batch for batch in newest if tokens_of(batch) >= least or is_suspect(batch, refused)]
    return [*chain.from_iterable(calls), *worth]
