"""Every row that counts is raw or noted, exactly once, whatever crashes: 20,000 schedules, each from a seed.

``DIARIST_SCHEDULES`` plays more of them, ``DIARIST_FIRST_SEED`` others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from multiprocessing import get_context

import pytest

from tests.exactly_once.crashing import STEPS, Crash
from tests.exactly_once.schedule import play

pytestmark = pytest.mark.skipif(
    "DIARIST_EXACTLY_ONCE" not in os.environ,
    reason="many minutes on two cores: set DIARIST_EXACTLY_ONCE to run it",
)

SCHEDULES = int(os.environ.get("DIARIST_SCHEDULES", "20000"))
FIRST_SEED = int(os.environ.get("DIARIST_FIRST_SEED", "0"))
PARTS = 10
WORKERS = 2
CRASHES_PER_STEP = 6
UNUSED = {"create_thread": "a thread comes into being with its first run"}


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        yield pool


def play_all(seeds: range) -> tuple[list[str], Counter[str]]:
    """What was wrong, with the command that tells how it came to it; and what was counted."""
    wrong: list[str] = []
    counted: Counter[str] = Counter()
    for seed in seeds:
        books = play(seed)
        counted["prompts"] += books.prompts
        counted["crashes"] += books.crashes.total()
        if books.problems:
            wrong.append(f"python -m tests.exactly_once.replay {seed}: {books.problems[0]}")
    return wrong, counted


@pytest.mark.parametrize("part", range(PARTS))
def test_every_row_is_raw_or_noted_once(workers: ProcessPoolExecutor, part: int) -> None:
    size = SCHEDULES // PARTS
    seeds = range(FIRST_SEED + part * size, FIRST_SEED + (part + 1) * size)
    played = list(workers.map(play_all, [seeds[n::WORKERS] for n in range(WORKERS)]))
    assert [line for wrong, _ in played for line in wrong] == []
    counted = sum((count for _, count in played), Counter[str]())
    assert counted["prompts"] > 5 * size, "they do little"
    assert counted["crashes"] > size / 3, "they hardly ever crash"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [step for step in STEPS if step not in UNUSED])
def test_a_crash_at_each_step_loses_nothing(step: str, when: str) -> None:
    """Also at the steps that come up so rarely that chance alone hardly finds them."""
    crashes = 0
    for seed in count():
        number = 1 + seed % 3
        books = play(seed, crash=Crash(step, number, when))  # type: ignore[arg-type]
        assert books.problems == [], f"python -m tests.exactly_once.replay {seed} {step} {number} {when}"
        crashes += books.crashes[step]
        if crashes >= CRASHES_PER_STEP:
            return
        assert seed < 500, f"only {crashes} crashes {when} {step}"


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_always_tells_the_same_story(seed: int) -> None:
    assert play(seed, telling=True).story == play(seed, telling=True).story
