"""``kill -9`` at any moment and at every step loses nothing and doubles nothing, on both databases."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.exactly_once.crashing import STEPS, UNUSED
from tests.exactly_once.kills import OUTSIDE

RARE = (
    "delete_generations",
    "heartbeat",
    "list_superseded",
    "renew_lease",
    "rewrite_generation",
    "rewrite_sent",
    "update_thread",
)
"""Steps that hardly come up in so little time: test_schedules crashes there."""

pytestmark = [pytest.mark.timeout(0), pytest.mark.slow, pytest.mark.xdist_group("kills")]
"""A process that is stuck ends by itself; how long the others take is the machine's affair."""

USED = [step for step in STEPS if step not in {*RARE, *UNUSED}]
WORKERS = 4


class Player:
    """A warm process that plays batches, for as many tests as there are."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.exactly_once.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def play(self, url: str, folder: Path, batches: Sequence[str]) -> list[dict[str, Any]]:
        """What came of each batch."""
        return [self._played([url, str(folder), *batch.split()]) for batch in batches]

    def _played(self, words: list[str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the process has ended at {words}; it says why on standard error"
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def players() -> Iterator[list[Player]]:
    players = [Player() for _ in range(WORKERS)]
    yield players
    for player in players:
        player.close()


def kill(players: list[Player], url: str, folder: Path, batches: Sequence[str]) -> Counter[str]:
    """How many were killed (``kills``), and at which steps."""
    shares = [list(batches[n::WORKERS]) for n in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS) as pool:
        played = list(pool.map(lambda player, share: player.play(url, folder, share), players, shares))
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
def test_kills_at_any_moment_on_sqlite(players: list[Player], sqlite_url: str, tmp_path: Path, part: int) -> None:
    batches = [str(seed) for seed in range(1 + 25 * part, 26 + 25 * part)]
    assert kill(players, sqlite_url, tmp_path, batches)["kills"] >= 80


@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_at_each_step_on_sqlite(players: list[Player], sqlite_url: str, tmp_path: Path, when: str) -> None:
    counted = kill(players, sqlite_url, tmp_path, at_each_step(200, when))
    assert counted["kills"] >= 0.9 * len(USED), counted


def test_kills_of_a_loop_outside_on_sqlite(players: list[Player], sqlite_url: str, tmp_path: Path) -> None:
    """Turns on ``memory.turn``: kills before and after each step of storage, and at any moment."""
    steps = [*at_each_step(OUTSIDE, "before"), *at_each_step(OUTSIDE + 50, "after")]
    moments = [str(seed) for seed in range(OUTSIDE + 600, OUTSIDE + 615)]
    counted = kill(players, sqlite_url, tmp_path, [*steps, *moments])
    assert counted["kills"] >= 0.8 * len(steps) + 50, counted


def test_kills_of_a_loop_outside_on_postgresql(players: list[Player], postgres_url: str, tmp_path: Path) -> None:
    batches = [str(seed) for seed in range(OUTSIDE + 700, OUTSIDE + 710)]
    assert kill(players, postgres_url, tmp_path, batches)["kills"] >= 30


def test_kills_at_any_moment_on_postgresql(players: list[Player], postgres_url: str, tmp_path: Path) -> None:
    assert kill(players, postgres_url, tmp_path, [str(seed) for seed in range(101, 121)])["kills"] >= 65


@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_at_each_step_on_postgresql(players: list[Player], postgres_url: str, tmp_path: Path, when: str) -> None:
    counted = kill(players, postgres_url, tmp_path, at_each_step(900, when))
    assert counted["kills"] >= 0.9 * len(USED), counted
