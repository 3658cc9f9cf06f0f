"""Every row that counts is raw or noted, exactly once, whatever crashes: 20,000 schedules, each from a seed.

``DIARIST_SCHEDULES`` plays more of them, ``DIARIST_FIRST_SEED`` others.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.exactly_once.crashing import STEPS, UNUSED
from tests.exactly_once.schedule import play

pytestmark = pytest.mark.xdist_group("schedules")  # they share the pool of processes and the count of crashes

SCHEDULES = int(os.environ.get("DIARIST_SCHEDULES", "20000"))
FIRST_SEED = int(os.environ.get("DIARIST_FIRST_SEED", "0"))
PARTS = 20
WORKERS = 2
SHARES = 16
"""Shares of a part. A worker that finishes a share takes the next one, so that no core waits for the other."""


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"), initializer=warm_up) as pool:
        yield pool


@pytest.fixture(scope="module")
def crashes() -> Counter[str]:
    """At which steps processes have died, in all parts together."""
    return Counter()


def warm_up() -> None:
    """What is imported now, and the garbage collector need not look through it 20,000 times."""
    play(0)
    gc.collect()
    gc.freeze()


def play_all(seeds: range) -> tuple[list[str], int, Counter[str]]:
    """What was wrong, with the command that tells how it came to it; the prompts; the crashes at each step."""
    wrong: list[str] = []
    prompts, crashes = 0, Counter[str]()
    for seed in seeds:
        ledger = play(seed)
        prompts += ledger.prompts
        crashes += ledger.crashes
        if ledger.problems:
            wrong.append(f"python -m tests.exactly_once.replay {seed}: {ledger.problems[0]}")
    return wrong, prompts, crashes


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_every_row_is_raw_or_noted_once(workers: ProcessPoolExecutor, crashes: Counter[str], part: int) -> None:
    size = SCHEDULES // PARTS
    seeds = range(FIRST_SEED + part * size, FIRST_SEED + (part + 1) * size)
    played = list(workers.map(play_all, [seeds[n::SHARES] for n in range(SHARES)]))
    assert [line for wrong, _, _ in played for line in wrong] == []
    assert sum(prompts for _, prompts, _ in played) > 5 * size, "they do little"
    crashed = sum((counted for _, _, counted in played), Counter[str]())
    assert crashed.total() > size / 4 or size < 200, "they hardly ever crash"
    crashes.update(crashed)


def play_outside(seeds: range) -> tuple[list[str], int]:
    wrong: list[str] = []
    prompts = 0
    for seed in seeds:
        ledger = play(seed, outside=True)
        prompts += ledger.prompts
        if ledger.problems:
            wrong.append(f"python -m tests.exactly_once.replay {seed} outside: {ledger.problems[0]}")
    return wrong, prompts


@pytest.mark.parametrize("count", [300, pytest.param(4000, marks=pytest.mark.slow)])
def test_turns_of_a_loop_outside_keep_the_same_promises(workers: ProcessPoolExecutor, count: int) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    played = list(workers.map(play_outside, [seeds[n::SHARES] for n in range(SHARES)]))
    assert [line for wrong, _ in played for line in wrong] == []
    assert sum(prompts for _, prompts in played) > 5 * count, "they do little"


@pytest.mark.slow
@pytest.mark.skipif(SCHEDULES < 20_000, reason="with few schedules, chance leaves out a step")
def test_there_were_crashes_at_every_step(crashes: Counter[str]) -> None:
    assert [step for step in STEPS if step not in UNUSED and not crashes[step]] == []


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_always_tells_the_same_story(seed: int) -> None:
    assert play(seed, tracing=True).trace == play(seed, tracing=True).trace


@pytest.mark.parametrize("seed", [602, 15926])
def test_schedules_that_once_found_a_mistake(seed: int) -> None:
    """602: a forgotten message is sent again, alone. 15926: another process notes a batch before its turn comes."""
    assert play(seed).problems == []
