"""Reflecting because somebody asked for it: whatever the thresholds say, with all that may be condensed."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from diarist.exceptions import ThreadBusyError
from diarist.memory.observational.cycles import Cycles, NotSmallerError
from diarist.memory.observational.decide import ReflectionPlan
from diarist.memory.observational.log.coverage import visible_log
from diarist.memory.observational.work.anew import Tries
from diarist.storage.records import ObservationLog

_SHRINK_TO = 0.6

logger = logging.getLogger("diarist")


class _Wish(ReflectionPlan):
    """The user said what the diary should be like, so what comes is kept, however large it is."""

    @property
    def limit_tokens(self) -> float:
        return float("inf")


class _Target(ReflectionPlan):
    """What reaches the target is kept, even if it was not far."""

    @property
    def limit_tokens(self) -> float:
        return max(super().limit_tokens, self.target_tokens)


async def reflect(
    cycles: Cycles, thread_id: str, resource_id: str, *, wait: float, guidance: str | None = None
) -> ObservationLog:
    """Replace all active entries, but for those of a live run, by one; an empty log stays as it is.

    Args:
        wait: Seconds to wait for somebody else who is reflecting; then what that made is what is replaced.
        guidance: What to keep or drop, in the user's words. Without it, the result should have 60% of the tokens.

    Raises:
        ThreadBusyError: Somebody else was reflecting all that time.
        ModelError, RoleError: The Reflector failed, or without guidance its text was hardly smaller.
        ConflictError: Its entries were changed meanwhile, each of three times.
    """
    kind, share = (ReflectionPlan, _SHRINK_TO) if guidance is None else (_Wish, 1.0)
    tries = Tries()
    async with _turn(cycles, thread_id, resource_id, wait):
        while True:
            log = await _read(cycles, thread_id, resource_id)
            plan = _plan(log, int(share * log.tokens), kind)
            if plan is None:
                return log
            done = tries.log_of(await cycles.reflect(log, plan, timeout=None, guidance=guidance))
            if done is not None:
                return visible_log(done, None)


async def compact(
    cycles: Cycles, thread_id: str, resource_id: str, target_tokens: int, *, wait: float
) -> ObservationLog:
    """Reflect until the active entries have at most so many tokens, or nothing more is gained.

    Args:
        wait: As for ``reflect``.

    Raises:
        ThreadBusyError: Somebody else was reflecting all that time.
        ModelError, RoleError: The Reflector failed; what was done before is kept.
        ConflictError: As for ``reflect``; what was done before is kept.
    """
    tries = Tries()
    async with _turn(cycles, thread_id, resource_id, wait):
        log = await _read(cycles, thread_id, resource_id)
        while log.tokens > target_tokens:
            plan = _plan(log, target_tokens + 1, _Target)
            if plan is None:
                break
            try:
                done = tries.log_of(await cycles.reflect(log, plan, timeout=None))
            except NotSmallerError:
                break
            log = visible_log(done, None) if done is not None else await _read(cycles, thread_id, resource_id)
    if log.tokens > target_tokens:
        logger.warning("the log %s has %d tokens, and cannot be condensed to %d", log.key, log.tokens, target_tokens)
    return log


@asynccontextmanager
async def _turn(cycles: Cycles, thread_id: str, resource_id: str, wait: float) -> AsyncGenerator[None]:
    async with cycles.logs.claim(thread_id, resource_id, "reflection", wait=wait) as mine:
        if not mine:
            whose = f"thread {thread_id!r}" if thread_id else f"resource {resource_id!r}"
            raise ThreadBusyError(
                f"the diary of {whose} is being condensed by somebody else, for longer than the {wait:g} s of "
                "thread_wait; try again later"
            )
        yield


async def _read(cycles: Cycles, thread_id: str, resource_id: str) -> ObservationLog:
    return visible_log(await cycles.logs.read(thread_id, resource_id), None)


def _plan(log: ObservationLog, target_tokens: int, kind: type[ReflectionPlan]) -> ReflectionPlan | None:
    """All active entries as one, so that the whole log has fewer than ``target_tokens``."""
    entries = log.active
    tokens = sum(entry.tokens for entry in entries)
    if tokens == 0:
        return None
    return kind(key=log.key, entries=entries, tokens=tokens, target_tokens=max(target_tokens, 1))
