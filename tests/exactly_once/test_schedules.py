"""Every row that counts is raw or noted, exactly once, whatever crashes: 8,000 schedules, each from a seed.

``DIARIST_SCHEDULES`` plays more of them, ``DIARIST_FIRST_SEED`` others.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.exactly_once.crashing import STEPS, UNUSED, Crash
from tests.exactly_once.schedule import play

pytestmark = pytest.mark.xdist_group("schedules")  # they share the pool of processes

SCHEDULES = int(os.environ.get("DIARIST_SCHEDULES", "8000"))
FIRST_SEED = int(os.environ.get("DIARIST_FIRST_SEED", "0"))
SAMPLE = SCHEDULES // 40
"""Schedules of part 0, the only one of the quick run."""
PARTS = 8
"""Slow parts, of one size each."""
WORKERS = 2
MOST_AIMED = 5_000
"""Schedules that may be played to reach one step."""
SHARES = 16
"""Shares of a part. A worker that finishes a share takes the next one, so that no core waits for the other."""


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"), initializer=warm_up) as pool:
        yield pool


def warm_up() -> None:
    """What is imported now, and the garbage collector need not look through it in every schedule."""
    play(0)
    gc.collect()
    gc.freeze()


def play_all(seeds: range) -> tuple[list[str], int, int]:
    """Return the problems, each with the command that replays it; the number of prompts; the number of crashes."""
    wrong: list[str] = []
    prompts = crashes = 0
    for seed in seeds:
        ledger = play(seed)
        prompts += ledger.prompts
        crashes += ledger.crashes.total()
        if ledger.problems:
            wrong.append(f"python -m tests.exactly_once.replay {seed}: {ledger.problems[0]}")
    return wrong, prompts, crashes


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, PARTS + 1))])
def test_every_row_is_raw_or_noted_once(workers: ProcessPoolExecutor, part: int) -> None:
    size = SAMPLE if part == 0 else (SCHEDULES - SAMPLE) // PARTS
    first = FIRST_SEED if part == 0 else FIRST_SEED + SAMPLE + (part - 1) * size
    seeds = range(first, first + size)
    played = list(workers.map(play_all, [seeds[n::SHARES] for n in range(SHARES)]))
    assert [line for wrong, _, _ in played for line in wrong] == []
    assert sum(prompts for _, prompts, _ in played) > 5 * size, "they do little"
    assert sum(crashes for _, _, crashes in played) > size / 4 or size < 200, "they hardly ever crash"


def play_outside(seeds: range) -> tuple[list[str], int]:
    wrong: list[str] = []
    prompts = 0
    for seed in seeds:
        ledger = play(seed, outside=True)
        prompts += ledger.prompts
        if ledger.problems:
            wrong.append(f"python -m tests.exactly_once.replay {seed} outside: {ledger.problems[0]}")
    return wrong, prompts


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_turns_of_a_loop_outside_keep_the_same_promises(workers: ProcessPoolExecutor, count: int) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    played = list(workers.map(play_outside, [seeds[n::SHARES] for n in range(SHARES)]))
    assert [line for wrong, _ in played for line in wrong] == []
    assert sum(prompts for _, prompts in played) > 5 * count, "they do little"


def crash_at(step: str) -> tuple[list[str], int]:
    """Play schedules until eight processes have died at the step. Return the problems and the number of crashes."""
    crashes = 0
    for seed in range(MOST_AIMED):
        when = "before" if crashes % 2 else "after"
        ledger = play(seed, Crash(step, 1, when))
        if ledger.problems:
            return [f"python -m tests.exactly_once.replay {seed} {step} {when}: {ledger.problems[0]}"], crashes
        crashes += ledger.crashes[step]
        if crashes >= 8:
            break
    return [], crashes


@pytest.mark.slow
def test_a_crash_at_each_step_loses_nothing(workers: ProcessPoolExecutor) -> None:
    steps = [step for step in STEPS if step not in UNUSED]
    played = dict(zip(steps, workers.map(crash_at, steps), strict=True))
    assert [line for wrong, _ in played.values() for line in wrong] == []
    assert [step for step, (_, crashes) in played.items() if not crashes] == []


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_always_tells_the_same_story(seed: int) -> None:
    assert play(seed, tracing=True).trace == play(seed, tracing=True).trace


@pytest.mark.parametrize("seed", [602, 15926])
def test_schedules_that_once_found_a_mistake(seed: int) -> None:
    """602: a forgotten message is sent again, alone. 15926: another process notes a batch before its turn comes."""
    assert play(seed).problems == []
