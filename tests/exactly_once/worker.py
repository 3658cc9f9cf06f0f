"""``python -m tests.exactly_once.worker URL FOLDER``: a warm process that plays batches of kills.

It reads one a line, ``SEED`` or ``SEED STEP before|after``, and writes what came of it as a line of JSON. ``URL`` is a
path for SQLite, or a PostgreSQL address. With the batch as further arguments it plays that one and shows its journal.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.exactly_once.kills import batch_at, batch_of, open_storage, play_batch
from tests.exactly_once.schedule import play

_ATTEMPTS, _APART = 5, 100


def main(url: str, folder: str, *given: Any) -> None:
    asyncio.run(_create(url))
    play(1)  # so that children find everything imported
    for line in [" ".join(given)] if given else sys.stdin:
        print(json.dumps(_play(url, Path(folder), *line.split())), flush=True)
    if given:
        for journal in sorted(Path(folder).glob("*.jsonl")):
            print(journal.read_text())


def _play(url: str, folder: Path, seed: str, *step: Any) -> dict[str, Any]:
    """A batch; one that should be killed at a step is played with further seeds until it is."""
    if not step:
        return play_batch(url, folder, batch_of(int(seed)))
    played: dict[str, Any] = {}
    for number in range(_ATTEMPTS):
        played = play_batch(url, folder, batch_at(int(seed) + number * _APART, *step))
        if played["kills"] or played["problems"]:
            break
    return played


async def _create(url: str) -> None:
    async with open_storage(url):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
