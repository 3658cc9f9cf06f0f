"""A storage that dies at a chosen call, like a process that is killed there."""

from __future__ import annotations

import abc
import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from diarist.storage import Storage
from tests.exactly_once.simulation import Machine, SimulatedCrash, nobody_else_is_ready

_PAUSES = (0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 6)

STEPS = tuple(sorted({*Storage.__abstractmethods__, "log_and_messages"}))
"""The named steps: every method of a storage."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Die at the ``number``-th call of ``step`` (None: of any), ``before`` or ``after`` it took effect."""

    step: str | None
    number: int
    when: Literal["before", "after"]


REMOVAL_STEPS = (
    "delete_events",
    "delete_generations",
    "delete_log",
    "delete_messages",
    "delete_thread",
    "get_resource",
    "get_working_memory",
    "list_generations",
    "list_superseded",
    "list_threads",
    "rewrite_generation",
    "rewrite_sent",
    "save_working_memory",
    "update_thread",
)
"""Steps that mostly happen in removals."""

UNUSED = {
    "create_thread": "a thread comes into being with its first run",
    "list_events": "memory writes events, and never reads them but for callers",
    "list_forgotten": "clones, exports and clients that send no ids ask for it",
    "list_resources": "it is for exports, which change nothing",
    "save_resource": "no resource has metadata to empty; tests/memory/test_diary_forget.py has some",
    "set_branch": "no client goes back here; tests/memory/test_branches_and_kills.py has such turns",
}
"""Steps that no schedule has, with the reason."""

_TURN_STEPS = (
    "acquire_lease",
    "append_event",
    "append_messages",
    "begin_run",
    "finish_run",
    "get_log",
    "get_run",
    "list_messages",
    "log_and_messages",
    "release_lease",
    "rewrite_messages",
    *["save_log"] * 3,
)


def some_crash(chance: random.Random) -> Crash:
    """At any call, or at one of the first calls of a step."""
    when: Literal["before", "after"] = chance.choice(("before", "after"))
    kind = chance.random()
    if kind < 0.4:
        return Crash(None, chance.randint(1, 90), when)
    if kind < 0.8:
        return Crash(chance.choice(_TURN_STEPS), chance.randint(1, 8), when)
    return Crash(chance.choice(STEPS), chance.randint(1, 2), when)


class CrashingStorage(Storage):
    """A process's way to the storage that all share.

    Args:
        chance: Others get their turn a random number of times around each call.
        saw: Told of each call that took effect: step, arguments, options, result.
        crashed: Told where the process died.
        leases: False to grant every lease, as if its owner had just lost it. Leases only avoid double costs.
    """

    def __init__(
        self,
        inner: Storage,
        machine: Machine,
        crash: Crash | None,
        *,
        chance: random.Random,
        saw: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None],
        crashed: Callable[[str, str], None],
        leases: bool = True,
    ) -> None:
        self._leases = leases
        self._inner = inner
        self._machine = machine
        self._crash = crash
        self._chance = chance
        self._saw = saw
        self._crashed = crashed
        self._calls: Counter[str | None] = Counter()

    async def purge(self) -> tuple[str, ...]:
        return await self._inner.purge()

    async def _call(self, step: str, *args: Any, **options: Any) -> Any:
        await self._pause()
        self._calls[step] += 1
        self._calls[None] += 1
        due = self._crash is not None and self._calls[self._crash.step] == self._crash.number
        due = due and self._crash is not None and self._crash.step in (None, step)
        if due and self._crash is not None and self._crash.when == "before":
            self._die(step)
        if step == "acquire_lease" and not self._leases:
            args = (f"{args[0]} {self._chance.random()}", *args[1:])
        result = await getattr(self._inner, step)(*args, **options)
        self._saw(step, args, options, result)
        if due:
            self._die(step)
        await self._pause()
        return result

    async def _pause(self) -> None:
        if self._machine.dead:
            raise SimulatedCrash
        for _ in range(self._chance.choice(_PAUSES)):
            if nobody_else_is_ready():
                return
            await asyncio.sleep(0)
            if self._machine.dead:
                raise SimulatedCrash

    def _die(self, step: str) -> None:
        assert self._crash is not None
        self._crashed(step, self._crash.when)
        self._machine.die()
        raise SimulatedCrash


def _forwarded(step: str) -> Callable[..., Awaitable[Any]]:
    async def method(self: CrashingStorage, *args: Any, **options: Any) -> Any:
        return await self._call(step, *args, **options)

    return method


for _step in STEPS:
    setattr(CrashingStorage, _step, _forwarded(_step))
abc.update_abstractmethods(CrashingStorage)
