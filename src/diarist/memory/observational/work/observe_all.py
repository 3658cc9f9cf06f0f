"""Observing a thread to its end, because somebody asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diarist.exceptions import ConflictError, ThreadBusyError
from diarist.memory.observational.cycles import NotSmallerError, Outcome
from diarist.memory.observational.decide import plan_reflection
from diarist.memory.observational.selection import leave_newest, split_batches
from diarist.memory.observational.thread_memory import ThreadMemory, tokens_of_chunks
from diarist.memory.observational.window import observable_units, tokens_of
from diarist.memory.observational.work.anew import Settle, Tries, read_anew
from diarist.messages import Message

Progress = Callable[[int, int], None]
"""Called with the tokens done so far and the tokens to be done."""


async def observe_all(
    memory: ThreadMemory, settle: Settle, progress: Progress | None = None, leave_tokens: int = 0
) -> None:
    """See ``Engine.observe_all``."""
    await memory.jobs.settled()
    async with memory.cycles.logs.claim(memory.thread_id, memory.log.resource_id, "observation") as mine:
        if not mine:
            raise ThreadBusyError(f"thread {memory.thread_id!r} is being observed by somebody else; try again later")
        tries, done, batches = Tries(), 0, await _plan(memory, leave_tokens)
        total = _size(batches)
        while batches:
            if progress is not None:
                progress(done, total)
            batch = batches.pop(0)
            observed = await _observe(memory, batch, tries)
            done += tokens_of(batch) if observed else 0
            if not observed or not await reflect_when_due(memory, tries):
                await read_anew(memory, settle)
                batches = await _plan(memory, leave_tokens)
                total = done + _size(batches)
        await memory.update_title()
        if progress is not None:
            progress(done, total)


async def _plan(memory: ThreadMemory, leave_tokens: int) -> list[list[Message]]:
    """The calls of the Observer. What waits of this thread is activated first."""
    await memory.refresh()
    if waiting := memory.chunks((), everything=True):
        await memory.activate([entry for entry, _ in waiting], tokens_of_chunks(waiting), "manual")
    limits = memory.limits()
    units = leave_newest(observable_units(memory.rows.all, ()), memory.rows.all, leave_tokens)
    refused = memory.stored.observer_failures.refused
    return split_batches(units, limits.batch_tokens, None, least=limits.least_batch_tokens, refused=refused)


async def _observe(memory: ThreadMemory, batch: Sequence[Message], tries: Tries) -> bool:
    """Observe one batch; False where all is to be planned anew, since something was changed meanwhile."""
    raw = {row.id for row in memory.rows.all}
    rows = [row for row in batch if row.id in raw]  # somebody else may have observed the others meanwhile
    if not rows:
        return True
    log = tries.log_of(await memory.observe(rows, timeout=None), rows[0].id)
    if log is None:
        return False
    await memory.adopt(log)
    return True


async def reflect_when_due(memory: ThreadMemory, tries: Tries) -> bool:
    """Condense the log, and wait for it, where it has reached its threshold; False as in ``_observe``.

    After the last try it is left for later. Raises ModelError, RoleError.
    """
    limit = memory.limits().observation_tokens
    if memory.stored.reflection is not None and memory.log.tokens >= limit:
        await memory.activate_reflection()
    plan = plan_reflection(memory.log, limit)
    if plan is None or memory.log.tokens < limit:
        return True
    async with memory.cycles.logs.claim(memory.thread_id, memory.log.resource_id, "reflection") as mine:
        outcome = await memory.cycles.reflect(memory.log, plan, timeout=None) if mine else Outcome(log=memory.log)
    try:
        log = tries.log_of(outcome, "reflection")
    except (ConflictError, NotSmallerError):
        return True
    await memory.adopt(log or memory.log)
    return log is not None


def _size(batches: Sequence[Sequence[Message]]) -> int:
    return sum(map(tokens_of, batches))
