"""Processes that are killed, and one that finds what they left.

A batch is a few children on one database, forked from one warm process; each is killed at a storage call, or at some
moment. Then a fresh child opens every thread and checks all promises.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import random
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from diarist.memory import leases, run_lifecycle
from diarist.messages import utc_now
from diarist.storage import SQLiteStorage, Storage
from diarist.storage.postgres import PostgresStorage
from tests.exactly_once.actions import Actions
from tests.exactly_once.checks import check_end
from tests.exactly_once.crashing import REMOVAL_STEPS, Crash, some_crash
from tests.exactly_once.journal import Journal, read
from tests.exactly_once.ledger import Ledger
from tests.exactly_once.processes import CONFIGS, Process
from tests.postgres import run_sql

_CHILDREN = 4
_WORDS_EACH = 5_000
_TTL = 0.8
_PACE = 0.002
_STUCK = 300.0
"""Seconds without a call of storage after which a process ends and says where it was. However busy the machine is, a
process that works makes calls."""
_BEATS = ("heartbeat", "renew_lease")
"""Calls that go on by themselves where the rest is stuck."""
_ROUNDS, _ROUNDS_ALONE, _ROUNDS_TO_DEATH = 4, 30, 12
_SPARED = 0.1
_LAST_MOMENT = 0.6
OUTSIDE = 1_000
"""The first seed of batches whose children take their turns by a loop outside the library."""
_PATIENT = 120.0
"""Seconds: the server may be late with the last statement of a process that was killed."""


@dataclass(frozen=True, slots=True)
class Child:
    """One child: where it works, what it does by chance, and how it ends.

    Attributes:
        first: Its words and ids are numbered from here.
        crash, moment: The step at which it is killed; the seconds after which it is, at the latest. With a moment it
            goes on until then, so that a quick machine kills as many as a slow one.
        removals: As for ``Actions``.
    """

    first: int
    seed: int
    threads: list[str]
    crash: Crash | None
    moment: float | None
    removals: float


@dataclass(frozen=True, slots=True)
class Batch:
    """What follows from a seed."""

    seed: int
    children: list[Child]

    @property
    def resource(self) -> str:
        return f"r{self.seed}"

    @property
    def threads(self) -> list[str]:
        return sorted({thread for child in self.children for thread in child.threads})


def batch_of(seed: int) -> Batch:
    """Children side by side on the same threads, or each on its own, and then they also remove."""
    chance = random.Random(seed)
    apart = chance.random() < 0.4
    children: list[Child] = []
    for number in range(_CHILDREN):
        own, shared = f"b{seed}-{number}", f"b{seed}"
        threads = [own] if apart or chance.random() < 0.3 else [shared]
        at_step = chance.random() < 0.7
        crash = some_crash(chance) if at_step else None
        moment = chance.uniform(0.0, _LAST_MOMENT) + (0.5 if at_step else 0.0)
        child_seed = chance.getrandbits(32)
        if chance.random() < _SPARED:
            crash = moment = None
        children.append(Child(_first(seed, number), child_seed, threads, crash, moment, 2.0 if apart else 0.0))
    return Batch(seed, children)


def _first(seed: int, number: int) -> int:
    """Words and ids of a child are its own, in the whole database."""
    return (seed * (_CHILDREN + 1) + number) * _WORDS_EACH


def batch_at(seed: int, step: str, when: Literal["before", "after"]) -> Batch:
    """One child that is killed at this step."""
    removals = 10.0 if step in REMOVAL_STEPS else 1.0
    crash = Crash(step, 1, when)
    return Batch(seed, [Child(_first(seed, 0), seed, [f"b{seed}"], crash, None, removals)])


# -- the parent of all


def play_batch(url: str, folder: Path, batch: Batch) -> dict[str, object]:
    """Fork the children of a batch, wait until none lives, and fork one that recovers.

    Returns:
        ``problems``, ``kills``: how many were killed, ``crashes``: how often at which step.
    """
    journal, found = folder / f"{batch.seed}.jsonl", folder / f"{batch.seed}.found"
    journal.touch()
    pids = [_fork(lambda child=child: live(url, journal, batch, child)) for child in batch.children]
    kills = sum(os.waitpid(pid, 0)[1] == signal.SIGKILL for pid in pids)
    status = os.waitpid(_fork(lambda: recover(url, journal, batch, found)), 0)[1]
    if status != 0:
        return {"problems": [f"the recovery failed: {status}"], "kills": kills, "crashes": {}}
    return {**json.loads(found.read_text()), "kills": kills}


def rehearse() -> None:
    """Do in this process what children do, with seeds of which none has to wait for long."""
    for seed in (0, 5, 7):
        with TemporaryDirectory() as folder:
            asyncio.run(rehearse_in(Path(folder), Journal(Path(folder, "journal"), first=0), seed))


async def rehearse_in(folder: Path, ledger: Journal, seed: int) -> None:
    """What a child does that is not alone, and has nothing to fear."""
    batch = Batch(seed, 2 * [Child(0, seed, ["t"], None, None, 2.0)])
    try:
        await _live(str(folder / "memory.db"), ledger, batch, batch.children[0])
    finally:
        faulthandler.cancel_dump_traceback_later()  # this process goes on with other work


def _fork(work: Callable[[], None]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


# -- a child


class Watched(Process):
    """A process that ends itself once it is stuck."""

    def _saw(self, step: str, args: tuple[Any, ...], options: dict[str, Any], result: Any) -> None:
        if step not in _BEATS:
            moved()
        super()._saw(step, args, options, result)


def moved() -> None:
    """This process is not stuck."""
    faulthandler.dump_traceback_later(_STUCK, exit=True)


class Mortal(Watched):
    """This very process."""

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def live(url: str, journal: Path, batch: Batch, child: Child) -> None:
    """Do some actions and end, if nothing comes in between."""
    _prepare(child.seed)
    moved()
    if child.moment is not None:
        threading.Timer(child.moment, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    ledger = Journal(journal, first=child.first)
    asyncio.run(_live(url, ledger, batch, child))


async def _live(url: str, ledger: Ledger, batch: Batch, child: Child) -> None:
    chance = random.Random(child.seed)
    storage = open_storage(url)
    options = CONFIGS[child.seed % len(CONFIGS)]
    outside = batch.seed >= OUTSIDE
    process = Mortal("child", storage, options, ledger, utc_now, chance, child.crash, 3.0, _PACE, outside=outside)
    alone = len(batch.children) == 1
    actions = Actions(
        ledger, storage, chance, child.threads, utc_now, child.removals, resource=batch.resource, whole=alone
    )
    if alone:
        await actions.introduce()
    rounds = _ROUNDS_ALONE if alone else _ROUNDS if child.moment is None else _ROUNDS_TO_DEATH
    for _ in range(rounds):
        beside = [actions.any(process)() for _ in range(chance.choice((1, 1, 2)))]
        await asyncio.gather(*beside)
    await process.memory.settled()
    if child.moment is not None:
        await asyncio.Event().wait()  # for death
    await storage.close()


def _prepare(seed: int) -> None:
    logging.getLogger("diarist").setLevel(logging.CRITICAL + 1)
    random.seed(seed)
    run_lifecycle.RUN_TTL = leases.LEASE_TTL = _TTL  # so that others take over while the batch lasts


# -- afterwards


def recover(url: str, journal: Path, batch: Batch, found: Path) -> None:
    """Open every thread as a fresh process, take a turn, and check what is there."""
    _prepare(batch.seed)
    moved()
    expire(url)
    ledger = read(journal, first=_first(batch.seed, _CHILDREN))
    asyncio.run(_recover(url, ledger, batch))
    found.write_text(json.dumps({"problems": ledger.problems, "crashes": dict(ledger.crashes)}))


async def _recover(url: str, ledger: Ledger, batch: Batch) -> None:
    storage = open_storage(url)
    chance = random.Random(batch.seed)
    for thread in batch.threads:
        process = Watched("recovery", storage, chance.choice(CONFIGS), ledger, utc_now, chance, None, _PATIENT, _PACE)
        process.behaviour.settled = True
        actions = Actions(ledger, storage, chance, [thread], utc_now, resource=batch.resource)
        said = await actions.plain_turn(process, thread)()
        if not said.endswith("well"):
            ledger.violated("the recovery could not take a turn:", said)
        await process.memory.settled()
    moved()
    await ledger.close(storage)
    await check_end(ledger, storage, batch.threads, [f"thread:{thread}" for thread in batch.threads])
    await storage.close()


def open_storage(url: str) -> Storage:
    return PostgresStorage(url) if url.startswith("postgresql") else SQLiteStorage(url)


def expire(url: str) -> None:
    """Let the time of dead processes pass at once."""
    for statement in ("UPDATE diarist_runs SET expires_at = 0", "UPDATE diarist_leases SET expires_at = 0"):
        if url.startswith("postgresql"):
            run_sql(url, statement)
            continue
        with sqlite3.connect(url, timeout=30) as connection:
            connection.execute(statement)
        connection.close()
