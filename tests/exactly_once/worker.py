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

from tests.exactly_once.kills import Batch, batch_at, batch_of, open_storage, play_batch
from tests.exactly_once.schedule import play


def main(url: str, folder: str, *given: Any) -> None:
    asyncio.run(_create(url))
    play(1)  # so that children find everything imported
    for line in [" ".join(given)] if given else sys.stdin:
        print(json.dumps(play_batch(url, Path(folder), _batch(*line.split()))), flush=True)
    if given:
        print((Path(folder) / f"{given[0]}.jsonl").read_text())


def _batch(seed: str, *step: Any) -> Batch:
    return batch_at(int(seed), *step) if step else batch_of(int(seed))


async def _create(url: str) -> None:
    async with open_storage(url):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
