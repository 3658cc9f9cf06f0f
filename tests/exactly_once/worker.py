"""``python -m tests.exactly_once.worker URL FOLDER SEED [STEP before|after]``: play a batch of kills, show its journal.

``URL`` is a path for SQLite, or a PostgreSQL address. Without arguments it is a warm process that reads these words
from lines, as lists of JSON, and writes what came of each as a line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

from tests.exactly_once.kills import batch_at, batch_of, open_storage, play_batch, rehearse
from tests.exactly_once.schedule import play

_ATTEMPTS, _APART = 5, 100


def main(*given: str) -> None:
    play(1)  # so that children find everything imported
    rehearse()  # and statements prepared
    gc.collect()
    gc.freeze()  # and share it
    if given:
        print(json.dumps(_play(*given)))
        for journal in sorted(Path(given[1]).glob("*.jsonl")):
            print(journal.read_text())
    for line in () if given else sys.stdin:
        print(json.dumps(_play(*json.loads(line))), flush=True)


def _play(url: str, place: str, seed: str, *step: Any) -> dict[str, Any]:
    """A batch; one that should be killed at a step is played with further seeds until it is."""
    folder = Path(place)
    asyncio.run(_create(url))
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
