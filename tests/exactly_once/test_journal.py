"""The journal of a process holds all that the process knew."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.exactly_once.journal import Journal, read
from tests.exactly_once.kills import rehearse_in
from tests.exactly_once.ledger import Ledger


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4, 5, 7, 12, 19, 32))]
)
def test_the_journal_tells_all_that_its_process_knows(tmp_path: Path, seed: int) -> None:
    ledger = Journal(tmp_path / "journal", first=0)
    asyncio.run(rehearse_in(tmp_path, ledger, seed))
    told = read(tmp_path / "journal", first=0)
    assert _facts(told) == _facts(ledger)
    assert told.gone == ledger.gone
    assert told.removed >= ledger.removed


def _facts(ledger: Ledger) -> list[dict[str, object]]:
    """Of each run, but for what only its own process can use."""
    own = ("asked", "by_user", "kept")
    return [
        {"rows": run.rows, **{name: value for name, value in asdict(run).items() if name not in own}}
        for run in ledger.runs.values()
    ]
