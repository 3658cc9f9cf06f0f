"""Remove messages, diaries, threads or resources, and note the marks that must be gone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from diarist.messages import Message
from diarist.storage import Storage
from tests.exactly_once.fake_models import marks_of, said_by
from tests.exactly_once.ledger import Ledger
from tests.exactly_once.processes import Process

Removal = Literal["messages", "clear", "delete", "thread", "resource"]


async def remove(
    process: Process,
    storage: Storage,
    threads: Sequence[str],
    resource: str,
    what: Removal,
    chance: random.Random,
) -> str:
    """Do it, and note what is gone: what a crash has cut short counts from its tombstone on.

    Args:
        storage: Without crashes, to look into.
        threads: All of the resource.
    """
    ledger, memory, thread = process.ledger, process.memory, chance.choice(threads)
    threads = sorted(set(threads)) if what == "resource" else [thread]
    done = False
    with ledger.removing(threads):  # a run may end while its thread is being listed
        there = [row for name in threads for row in await storage.list_messages(name)]
        chosen = chance.sample(there, min(len(there), chance.randint(1, 3))) if what == "messages" else there
        over = ledger.chose(chosen)
        try:
            match what:
                case "messages":
                    await memory.forget(message_ids=[row.id for row in chosen], thread=thread)
                case "clear":
                    await memory.diary.clear(thread=thread)
                case "delete":
                    await memory.threads.delete(thread)
                case "thread":
                    await memory.forget(thread=thread)
                case "resource":
                    await memory.forget(resource=resource)
            done = True
        except Exception as error:  # what cannot be removed now may fail, if it says so
            return f"{type(error).__name__}: {error}"
        finally:
            if done and what == "resource" and (await storage.get_working_memory(f"resource:{resource}")).text:
                ledger.violated("the working memory of a forgotten resource is there")
            if what == "clear":
                pass
            elif done or what == "messages":
                _note(ledger, chosen if done else await _marked(storage, chosen, thread), over)
            else:
                left = {row.id for name in threads for row in await storage.list_messages(name)}
                _note(ledger, [row for row in chosen if row.id not in left], over)
    return "done"


async def _marked(storage: Storage, rows: Sequence[Message], thread: str) -> list[Message]:
    """Return the rows that have a tombstone. The next process that opens the log must remove them."""
    log = await storage.get_log(f"thread:{thread}")
    stones = [stone for stone in log.tombstones if stone.run_id is None] if log is not None else []
    return [row for row in rows if any(stone.first_seq <= (row.seq or 0) <= stone.last_seq for stone in stones)]


def _note(ledger: Ledger, rows: Sequence[Message], over: set[str]) -> None:
    ledger.remove({row.id for row in rows}, {mark for row in rows for mark in marks_of(said_by(row))}, over)
