"""``kill -9`` at any moment and at every step loses nothing and doubles nothing, on both databases."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.exactly_once.crashing import STEPS

RARE = (
    "create_thread",
    "delete_generations",
    "heartbeat",
    "renew_lease",
    "rewrite_generation",
    "rewrite_sent",
    "update_thread",
)
"""A thread comes into being with its first run, and the others hardly come up in so little time: test_schedules
crashes there."""

USED = [step for step in STEPS if step not in RARE]
WORKERS = 4


def play_all(url: str, folder: Path, batches: Sequence[str]) -> list[dict[str, Any]]:
    """What came of each batch, played by one warm process."""
    command = [sys.executable, "-m", "tests.exactly_once.worker", url, str(folder)]
    done = subprocess.run(command, input="\n".join(batches), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def kill(url: str, folder: Path, batches: Sequence[str]) -> Counter[str]:
    """How many were killed (``kills``), and at which steps."""
    shares = [list(batches[n::WORKERS]) for n in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        played = list(pool.map(lambda share: play_all(url, folder, share), shares))
    counted: Counter[str] = Counter()
    for share, results in zip(shares, played, strict=True):
        for batch, result in zip(share, results, strict=True):
            told = f"python -m tests.exactly_once.worker {url} FOLDER {batch}"
            assert result["problems"] == [], told
            counted += Counter(result["crashes"])
            counted["kills"] += result["kills"]
    return counted


def at_each_step(first: int, when: str) -> list[str]:
    return [f"{first + n} {step} {when}" for n, step in enumerate(USED)]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return str(tmp_path / "memory.db")


@pytest.mark.parametrize("part", range(2))
def test_kills_at_any_moment_on_sqlite(sqlite_url: str, tmp_path: Path, part: int) -> None:
    batches = [str(seed) for seed in range(1 + 25 * part, 26 + 25 * part)]
    assert kill(sqlite_url, tmp_path, batches)["kills"] >= 80


@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_at_each_step_on_sqlite(sqlite_url: str, tmp_path: Path, when: str) -> None:
    counted = kill(sqlite_url, tmp_path, at_each_step(200, when))
    assert counted["kills"] >= 0.9 * len(USED), counted


def test_kills_at_any_moment_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    assert kill(postgres_url, tmp_path, [str(seed) for seed in range(101, 121)])["kills"] >= 65


@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_at_each_step_on_postgresql(postgres_url: str, tmp_path: Path, when: str) -> None:
    counted = kill(postgres_url, tmp_path, at_each_step(900, when))
    assert counted["kills"] >= 0.9 * len(USED), counted
