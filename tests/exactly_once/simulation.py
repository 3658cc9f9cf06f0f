"""A simulated machine: its clocks, its event loop, and processes on it that die at once.

Everything that happens follows from one seed. Time passes only where everybody waits, so a schedule of hours
takes milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import selectors
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
_LONGEST = 30 * 86_400.0
_EPOCH = NOON.timestamp()
_MOST_ROUNDS = 200_000
"""Of the loop, without the clock going on: nothing here does so much at once."""


class SimulatedCrash(BaseException):
    """The process is dead. Not an Exception, so that nothing that handles errors goes on."""


class Stuck(AssertionError):
    """Everybody waits for something that never comes."""


class Clock:
    """Seconds since the machine was started; the time of day goes with them."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> datetime:
        return NOON + timedelta(seconds=self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        if self.now > _LONGEST:
            raise Stuck("a month has passed, and something still waits")


class _Waiting(selectors.BaseSelector):
    """Nothing comes from outside: to wait means to let the clock go on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen, self._rounds = clock.now, 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("everybody waits, and no timer is set")
        if timeout > 0:
            self._clock.advance(timeout)
        self._rounds = self._rounds + 1 if self._clock.now == self._seen else 0
        self._seen = self._clock.now
        if self._rounds > _MOST_ROUNDS:
            raise Stuck("something goes round and round, and no time passes")
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        raise NotImplementedError

    def unregister(self, fileobj: Any) -> Any:
        raise NotImplementedError

    def get_map(self) -> dict[Any, Any]:
        return {}


class Loop(asyncio.SelectorEventLoop):
    """An event loop on a simulated clock. Its tasks belong to the process whose task has made them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__(_Waiting(clock))
        self.set_task_factory(_make_task)  # type: ignore[arg-type]
        self.set_exception_handler(_ignore_crashes)

    def time(self) -> float:
        return self._clock.now

    @property
    def is_busy(self) -> bool:
        """Whether anything is to be done now, beside what is being done."""
        return bool(self._ready)  # type: ignore[attr-defined]

    def _make_self_pipe(self) -> None: ...

    def _close_self_pipe(self) -> None: ...

    def _write_to_self(self) -> None: ...


def nobody_else_is_ready() -> bool:
    """Return True if no other task is ready to run. Outside the simulation this is unknown, and the result is False."""
    loop = asyncio.get_running_loop()
    return isinstance(loop, Loop) and not loop.is_busy


class _Task(asyncio.Task[Any]):
    owner: Machine | None = None


def _make_task(loop: Loop, coro: Any, **options: Any) -> _Task:
    task = _Task(coro, loop=loop, **options)
    parent = asyncio.tasks._current_tasks.get(loop)  # type: ignore[attr-defined]
    task.owner = parent.owner if isinstance(parent, _Task) else None
    return task


def _ignore_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), SimulatedCrash):
        loop.default_exception_handler(context)


class Machine:
    """What dies as a whole: the tasks that were started in ``run``, and all that these started."""

    def __init__(self) -> None:
        self.dead = False

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work`` as this process. Raises SimulatedCrash where the process died of it, or before."""
        if self.dead:
            raise SimulatedCrash
        task = asyncio.get_running_loop().create_task(_start(work))
        assert isinstance(task, _Task)
        task.owner = self
        try:
            return await task
        except asyncio.CancelledError:
            if self.dead:
                raise SimulatedCrash from None
            raise

    def die(self) -> None:
        """End now: nothing of it goes on."""
        self.dead = True
        for task in self.tasks():
            if task is not asyncio.current_task():
                task.cancel()

    def tasks(self) -> list[_Task]:
        """Its tasks that have not ended."""
        return [task for task in asyncio.all_tasks() if isinstance(task, _Task) and task.owner is self]


async def _start(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


@contextlib.contextmanager
def simulated(seed: int) -> Iterator[tuple[Loop, Clock, random.Random]]:
    """Yield a loop, its clock, and a random generator. Inside the block, the library uses this clock and generator."""
    clock, chance = Clock(), random.Random(seed)
    real = (time.monotonic, time.monotonic_ns, time.time, time.time_ns, secrets.token_hex, random.getstate())
    dice = random.Random(seed + 1)
    loop = Loop(clock)
    time.monotonic = lambda: clock.now
    time.monotonic_ns = lambda: int(clock.now * 1e9)
    time.time = lambda: _EPOCH + clock.now
    time.time_ns = lambda: int((_EPOCH + clock.now) * 1e9)
    secrets.token_hex = lambda size=10: f"{dice.getrandbits(8 * size):0{2 * size}x}"
    random.seed(seed)
    try:
        yield loop, clock, chance
    finally:
        time.monotonic, time.monotonic_ns, time.time, time.time_ns, secrets.token_hex = real[:5]
        random.setstate(real[5])
        loop.close()
