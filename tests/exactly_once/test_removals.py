"""The ledger knows every run that a removal may take messages from."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from diarist.messages import Message, utc_now
from diarist.storage import InMemoryStorage
from tests.exactly_once.actions import Actions
from tests.exactly_once.checks import check_end
from tests.exactly_once.journal import Journal, read
from tests.exactly_once.ledger import Ledger
from tests.exactly_once.processes import CONFIGS, Process
from tests.exactly_once.removals import Removal, remove


class LateAnswer(InMemoryStorage):
    """Reads messages at once the first time, but answers only when told to, as a busy database does."""

    def __init__(self) -> None:
        super().__init__()
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()

    async def list_messages(self, *args: Any, **options: Any) -> list[Message]:
        found = await super().list_messages(*args, **options)
        if not self.has_read.is_set():
            self.has_read.set()
            await self.may_answer.wait()
        return found


@pytest.mark.parametrize("what", ["delete", "thread", "resource"])
async def test_a_run_may_end_while_a_removal_looks_for_its_messages(tmp_path: Path, what: Removal) -> None:
    """The removal does not know the run's messages, and removes them with the thread: they are not lost."""
    chance = random.Random(1)
    ledger, storage = Journal(tmp_path / "journal"), LateAnswer()
    process = Process("p", storage, CONFIGS[4], ledger, utc_now, chance)
    turn = Actions(ledger, storage, chance, ["t"], utc_now).plain_turn(process, "t")
    removal = asyncio.create_task(remove(process, storage, ["t"], "ada", what, chance))
    await storage.has_read.wait()
    assert (await turn()).endswith("well")
    storage.may_answer.set()
    assert await removal == "done"
    await process.memory.settled()
    assert await storage.list_messages("t") == []
    for known in (ledger, read(tmp_path / "journal", first=0)):
        assert await _problems(known, storage) == []


async def _problems(ledger: Ledger, storage: InMemoryStorage) -> list[str]:
    await ledger.close(storage)
    await check_end(ledger, storage, ["t"], ["thread:t"])
    return ledger.problems
