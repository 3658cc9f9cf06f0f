"""Observing a thread to its end, because somebody asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diarist.exceptions import StorageError, ThreadBusyError
from diarist.memory.observational.cycles import NotSmallerError, Outcome
from diarist.memory.observational.decide import plan_reflection
from diarist.memory.observational.selection import leave_newest, split_batches
from diarist.memory.observational.thread_memory import ThreadMemory, tokens_of_chunks
from diarist.memory.observational.window import observable_units, tokens_of
from diarist.messages import Message

Progress = Callable[[int, int], None]
"""Called with the tokens done so far and the tokens to be done."""


async def observe_all(
    memory: ThreadMemory, thread_id: str, resource_id: str, progress: Progress | None = None, leave_tokens: int = 0
) -> None:
    """See ``Engine.observe_all``."""
    logs = memory.cycles.logs
    await memory.jobs.settled()
    async with logs.claim(thread_id, resource_id, "observation") as mine:
        if not mine:
            raise ThreadBusyError(f"thread {thread_id!r} is being observed by somebody else; try again later")
        await _activate_all(memory)
        limits = memory.limits()
        units = leave_newest(observable_units(memory.rows.all, ()), memory.rows.all, leave_tokens)
        refused = memory.stored.observer_failures.refused
        batches = split_batches(units, limits.batch_tokens, None, least=limits.least_batch_tokens, refused=refused)
        done, total = 0, sum(tokens_of(batch) for batch in batches)
        for batch in batches:
            if progress is not None:
                progress(done, total)
            await _observe(memory, batch)
            await reflect_when_due(memory, thread_id, resource_id)
            done += tokens_of(batch)
        await memory.update_title()
        if progress is not None:
            progress(done, total)


async def _activate_all(memory: ThreadMemory) -> None:
    """What waits of this thread comes first."""
    await memory.refresh()
    if waiting := memory.chunks((), everything=True):
        await memory.activate([entry for entry, _ in waiting], tokens_of_chunks(waiting), "manual")


async def _observe(memory: ThreadMemory, batch: Sequence[Message]) -> None:
    raw = {row.id for row in memory.rows.all}
    rows = [row for row in batch if row.id in raw]  # somebody else may have observed the others meanwhile
    if not rows:
        return
    outcome = await memory.observe(rows, timeout=None)
    if outcome.log is None:
        raise error_of(outcome)
    await memory.adopt(outcome.log)


async def reflect_when_due(memory: ThreadMemory, thread_id: str, resource_id: str) -> None:
    """Condense the log, and wait for it, where it has reached its threshold. Raises ModelError, RoleError."""
    limit = memory.limits().observation_tokens
    if memory.stored.reflection is not None and memory.log.tokens >= limit:
        await memory.activate_reflection()
    plan = plan_reflection(memory.log, limit)
    if plan is None or memory.log.tokens < limit:
        return
    async with memory.cycles.logs.claim(thread_id, resource_id, "reflection") as mine:
        outcome = await memory.cycles.reflect(memory.log, plan, timeout=None) if mine else Outcome(log=memory.log)
    if outcome.log is not None:
        await memory.adopt(outcome.log)
    elif not isinstance(outcome.error, NotSmallerError):
        raise error_of(outcome)


def error_of(outcome: Outcome) -> Exception:
    """Why a cycle ended without a log."""
    return outcome.error or StorageError("the cycle ended without a log")
