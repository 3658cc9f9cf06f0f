"""One schedule: turns and other actions of several processes, with crashes, and the checks at its end.

All of it follows from a seed; ``python -m tests.exactly_once.replay SEED`` prints it step by step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

from diarist.storage import InMemoryStorage
from tests.exactly_once.actions import Action, Actions
from tests.exactly_once.checks import check_end
from tests.exactly_once.crashing import REMOVAL_STEPS, Crash, some_crash
from tests.exactly_once.fake_models import MOSTLY_FAILING, MOSTLY_SLOW, MOSTLY_WORKING
from tests.exactly_once.ledger import Ledger
from tests.exactly_once.processes import CONFIGS, Process
from tests.exactly_once.simulation import Clock, SimulatedCrash, simulated


class Schedule:
    """``play`` it; then look into ``ledger``.

    Args:
        crash: Where the first process dies; by chance if not given.
        outside: As for ``Process``.
    """

    def __init__(
        self,
        clock: Clock,
        chance: random.Random,
        *,
        crash: Crash | None = None,
        outside: bool = False,
        tracing: bool = False,
    ) -> None:
        self.ledger = Ledger(tracing=tracing)
        self._first_crash = crash
        self._outside = outside
        self._clock = clock
        self._chance = chance
        self._storage = InMemoryStorage()
        self._config = chance.choice(CONFIGS)
        threads = ["t", "t", "t", "u"] if chance.random() < 0.2 else ["t"]
        removals = 10.0 if crash is not None and crash.step in REMOVAL_STEPS else 1.0
        self._actions = Actions(self.ledger, self._storage, chance, threads, clock, removals)
        rough = chance.random() < 0.4  # several processes at once, and late answers: races
        self._behaviours = MOSTLY_SLOW if rough else chance.choice((MOSTLY_WORKING, MOSTLY_WORKING, MOSTLY_FAILING))
        self._leases = not rough or chance.random() < 0.3
        self._crowd = 0.5 if rough else 0.15
        self._at_once = chance.randint(2, 3) if rough else 1
        self._processes: list[Process] = []
        self._beside: list[asyncio.Task[None]] = []

    async def play(self) -> None:
        await self._actions.introduce()
        for _ in range(self._chance.randint(2, 5)):
            await self._action()
        for task in self._beside:
            await task
        await self._settle()
        await self._recover()

    async def _action(self) -> None:
        """Play one action in one process, sometimes beside the one before."""
        if self._chance.random() < 0.2:
            self._clock.advance(self._chance.choice((1.0, 35.0, 61.0, 700.0, 90_000.0)))
        process = self._some_process()
        action = self._actions.any(process)
        if self._chance.random() < self._crowd:
            self._beside.append(asyncio.get_running_loop().create_task(self._in(process, action)))
            await asyncio.sleep(self._chance.choice((0, 0, 0.05, 1.0, 4.0)))
        else:
            await self._in(process, action)

    async def _in(self, process: Process, action: Action) -> None:
        try:
            said = await process.run(action)
        except SimulatedCrash:
            self.ledger.log(process.name, "is dead")
            return
        self.ledger.log(process.name, "->", said)

    def _some_process(self) -> Process:
        alive = [process for process in self._processes if not process.dead]
        if len(alive) >= self._at_once and self._chance.random() < 0.8:
            return self._chance.choice(alive)
        if self._processes and not alive and self._chance.random() < 0.8:
            self._clock.advance(61.0)
        if not self._processes and self._first_crash is not None:
            return self._start(self._first_crash)
        dies = self._chance.random() < (0.8 if self._at_once == 1 else 0.4) and len(self._processes) < 3
        return self._start(some_crash(self._chance) if dies else None)

    def _start(self, crash: Crash | None) -> Process:
        name = f"p{len(self._processes) + 1}"
        wait = self._chance.choice((0.0, 2.0, 90.0))
        process = Process(
            name,
            self._storage,
            self._config,
            self.ledger,
            self._clock,
            self._chance,
            crash,
            wait,
            behaviours=self._behaviours,
            leases=self._leases,
            outside=self._outside,
        )
        self._processes.append(process)
        self.ledger.log(name, "starts, dies at", crash)
        return process

    # -- the end

    async def _settle(self) -> None:
        for process in self._processes:
            if not process.dead:
                with contextlib.suppress(SimulatedCrash):
                    await process.run(process.memory.settled)

    async def _recover(self) -> None:
        """Open each thread in a fresh process, and take one more turn."""
        self._clock.advance(700.0)
        process = self._start(None)
        process.behaviour.settled = True
        threads = list(dict.fromkeys(self._actions.threads))
        for thread in threads:
            await self._in(process, self._actions.plain_turn(process, thread))
            await process.run(process.memory.settled)
        await self.ledger.close(self._storage)
        await check_end(self.ledger, self._storage, threads, [f"thread:{thread}" for thread in threads])
        for other in self._processes:
            if left := other.tasks():
                self.ledger.violated(other.name, "leaves tasks:", [task.get_name() for task in left])


def play(seed: int, crash: Crash | None = None, *, outside: bool = False, tracing: bool = False) -> Ledger:
    """Play the schedule of a seed. Return its ledger. ``crash`` and ``outside``: as for ``Schedule``."""
    logger = logging.getLogger("diarist")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with simulated(seed) as (loop, clock, chance):
        schedule = Schedule(clock, chance, crash=crash, outside=outside, tracing=tracing)
        try:
            loop.run_until_complete(schedule.play())
        except Exception as error:
            schedule.ledger.violated("the schedule itself failed:", repr(error))
        finally:
            loop.run_until_complete(_drain())
            logger.setLevel(level)
    return schedule.ledger


async def _drain() -> None:
    me = asyncio.current_task()
    while rest := [task for task in asyncio.all_tasks() if task is not me]:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest)
