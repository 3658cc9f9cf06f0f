"""Processes over one storage: each has a memory of its own, and may die at any of its steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.memory.observational.engine import Engine
from diarist.models.base import Model
from diarist.storage import Storage
from tests.exactly_once.checks import check_saved
from tests.exactly_once.crashing import Crash, CrashingStorage
from tests.exactly_once.fake_models import (
    MOSTLY_WORKING,
    Behaviours,
    FakeBehaviour,
    FakeObserver,
    FakeReflector,
    WordCounter,
)
from tests.exactly_once.ledger import Ledger
from tests.exactly_once.simulation import Machine

COUNTER = WordCounter()


def config(log: int = 16, *, timeout: float = 10.0, **options: Any) -> ObservationalMemoryConfig:
    """So small that everything happens within a few turns."""
    shared = {name: options.pop(name) for name in ("share_token_budget", "activate_after_idle") if name in options}
    return ObservationalMemoryConfig(
        model="extractive",
        observation=ObservationConfig(**{"message_tokens": 24, "buffer_tokens": 6, **options}),
        reflection=ReflectionConfig(observation_tokens=log),
        observe_timeout=timeout,
        background_timeout=60.0,
        **shared,
    )


CONFIGS = (
    config(),
    config(log=9),
    config(log=40, buffer_activation=0.5),
    config(buffer_tokens=10, block_after=1.05),
    config(buffer_tokens=False),
    config(buffer_tokens=False, log=8, observer_batch_tokens=8),
    config(buffer_tokens=False, share_token_budget=True),
    config(activate_after_idle=60),
    config(thread_title=True),
    config(log=8, message_tokens=12, buffer_tokens=3, block_after=1.2),
)


class SimulatedMemory(Memory):
    """A memory whose Observer and Reflector are played, on the simulated clock."""

    def __init__(
        self,
        storage: Any,
        config: ObservationalMemoryConfig,
        behaviour: FakeBehaviour,
        clock: Callable[[], datetime],
        wait: float,
    ):
        assert hasattr(Memory, "_make_engine"), "the real engine would be used"
        super().__init__(storage=storage, observational_memory=config, thread_wait=wait, token_counter=COUNTER)
        self._behaviour = behaviour
        self._clock = clock

    def _make_engine(self, model: Model | None) -> Engine:
        return Engine(
            storage=self.storage,
            observer=FakeObserver(self._behaviour),
            reflector=FakeReflector(self._behaviour),
            config=self.config,
            counter=COUNTER,
            clock=self._clock,
            background=self._background,
        )


class Process(Machine):
    """One process; ``crash`` is where it dies, ``pace`` how long a second of its models takes. ``outside``: its turns
    are taken by a loop outside the library, on ``memory.turn``."""

    def __init__(
        self,
        name: str,
        storage: Storage,
        options: ObservationalMemoryConfig,
        ledger: Ledger,
        clock: Callable[[], datetime],
        chance: random.Random,
        crash: Crash | None = None,
        wait: float = 30.0,
        pace: float = 1.0,
        behaviours: Behaviours = MOSTLY_WORKING,
        leases: bool = True,
        outside: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.outside = outside
        self.ledger = ledger
        self.pace = pace
        self.behaviour = FakeBehaviour(chance, pace, behaviours)
        self.storage = CrashingStorage(
            storage, self, crash, chance=chance, saw=self._saw, crashed=self._crashed, leases=leases
        )
        self.memory = SimulatedMemory(self.storage, options, self.behaviour, clock, wait)

    def _saw(self, step: str, args: tuple[Any, ...], options: dict[str, Any], result: Any) -> None:
        self.ledger.steps[step] += 1
        if self.ledger.tracing:
            self.ledger.log(f"    {self.name} {step}", *map(_short, args[1:] if step == "save_log" else args))
        if step == "save_log":
            check_saved(self.ledger, result)
            if self.ledger.tracing:
                self.ledger.log(f"        {self.name} saved", _outline(result))

    def _crashed(self, step: str, when: str) -> None:
        self.ledger.crashed(step)
        self.ledger.log(f"  {self.name} DIES {when} {step}")


def _short(value: Any) -> str:
    return repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."


def _outline(log: Any) -> str:
    entries = [
        f"{entry.state[0]}{entry.kind[0]}[{','.join(f'{s.first_seq}-{s.last_seq}' for s in entry.sources)}]"
        + (f"@{entry.run_id}" if entry.run_id else "")
        for entry in log.entries
    ]
    stones = [stone.run_id or f"{stone.first_seq}-{stone.last_seq}" for stone in log.tombstones]
    return f"v{log.version} g{log.generation} {' '.join(entries)} stones={stones} waits={log.reflection is not None}"
