"""The ledger knows what becomes of a run beside a removal."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from diarist.messages import Message, utc_now
from diarist.storage import InMemoryStorage, Run
from tests.exactly_once.checks import check_end
from tests.exactly_once.fake_models import say
from tests.exactly_once.journal import Journal, read
from tests.exactly_once.processes import CONFIGS, Process
from tests.exactly_once.removals import Removal, remove
from tests.exactly_once.turns import RunningTurn, Turn

CHANCE = random.Random(1)
whole = pytest.mark.parametrize("what", ["delete", "thread", "resource"])


class Stage:
    """A process with its journal."""

    def __init__(self, folder: Path, storage: InMemoryStorage) -> None:
        self._path, self._storage = folder / "journal", storage
        self._ledger = Journal(self._path)
        self._process = Process("p", storage, CONFIGS[4], self._ledger, utc_now, CHANCE)

    def question(self) -> Message:
        return Message.user(say(self._ledger.mark(), 3), id=self._ledger.id("m"), created_at=utc_now())

    async def take(self, message: Message) -> None:
        assert await RunningTurn(self._process, Turn("t", [message]), CHANCE).take() == "well"

    async def remove(self, what: Removal) -> None:
        assert await remove(self._process, self._storage, ["t"], "ada", what, CHANCE) == "done"

    async def problems(self) -> list[str]:
        """Return those that the process finds, and those that another one finds with its journal."""
        ledgers = [self._ledger, read(self._path, first=0)]
        for ledger in ledgers:
            await ledger.close(self._storage)
            await check_end(ledger, self._storage, ["t"], ["thread:t"])
        return [problem for ledger in ledgers for problem in ledger.problems]


class AnswersLate(InMemoryStorage):
    """The first list of messages is read at once, but arrives later, as from a busy database."""

    def __init__(self) -> None:
        super().__init__()
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()

    async def list_messages(self, *args: Any, **options: Any) -> list[Message]:
        found = await super().list_messages(*args, **options)
        if not self.has_read.is_set():
            self.has_read.set()
            await self.may_answer.wait()
        return found


@whole
async def test_a_run_that_ends_while_its_thread_is_listed_is_not_lost(tmp_path: Path, what: Removal) -> None:
    """The list lacks its messages, which are removed with the thread."""
    storage = AnswersLate()
    stage = Stage(tmp_path, storage)
    removal = asyncio.create_task(stage.remove(what))
    await storage.has_read.wait()
    await stage.take(stage.question())
    storage.may_answer.set()
    await removal
    assert await storage.list_messages("t") == []
    assert await stage.problems() == []


class DeletesFirst(InMemoryStorage):
    """The second run begins once the thread is deleted, and the deletion is told of once that run has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted, self.may_answer = asyncio.Event(), asyncio.Event()
        self._begun = 0

    async def begin_run(self, *args: Any, **options: Any) -> Run:
        self._begun += 1
        if self._begun == 2:
            await self.deleted.wait()
        return await super().begin_run(*args, **options)

    async def delete_thread(self, thread_id: str) -> bool:
        deleted = await super().delete_thread(thread_id)
        self.deleted.set()
        await self.may_answer.wait()
        return deleted


@whole
async def test_a_run_may_say_again_what_is_being_removed(tmp_path: Path, what: Removal) -> None:
    """It began before the removal, and ends before the removal does."""
    storage = DeletesFirst()
    stage = Stage(tmp_path, storage)
    asked = stage.question()
    await stage.take(asked)
    again = asyncio.create_task(stage.take(asked))
    await asyncio.sleep(0)  # the ledger knows the run now
    removal = asyncio.create_task(stage.remove(what))
    await again
    storage.may_answer.set()
    await removal
    assert asked.id in [row.id for row in await storage.list_messages("t")]
    assert await stage.problems() == []
