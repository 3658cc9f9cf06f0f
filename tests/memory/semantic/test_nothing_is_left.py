"""After a resource is forgotten, its ids are nowhere: not in leases, not among vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from diarist import Memory, Message
from diarist.memory.observational.log.log_store import OTHER_THREADS
from diarist.storage import SQLiteStorage, Storage
from diarist.storage.records import Scope
from diarist.vectors import InMemoryVectorStore
from tests.memory.diary_kit import keeping_diary, told
from tests.memory.semantic.kit import TopicEmbedder, memory_with
from tests.memory.stores import made_storage, storage

__all__ = ["made_storage", "storage"]


async def used(storage: Storage, scope: Scope, **more: object) -> Memory:
    """Threads with vectors and a diary, embedded, copied, observed and reflected upon."""
    memory, diary = memory_with(TopicEmbedder(), storage=storage, **more), keeping_diary(storage, scope=scope)
    for thread in ("rome-2026", "pizza-2026"):
        await memory.messages.save([Message.user(f"{thread} is fun.")], thread=thread, resource="ada-lovelace")
        await memory.settled()
        await memory.threads.clone(thread, new_thread=f"copy-of-{thread}")
        await memory.settled()
        await told(diary, [1, 2], thread=thread, resource="ada-lovelace")
    await diary.diary.reflect(thread="rome-2026", guidance="keep all")
    if scope == "resource":
        await diary.diary.observe(resource="ada-lovelace")
    return memory


CLAIMS: dict[Scope, list[str]] = {
    "thread": ["embed:rome-2026", "thread:rome-2026:rome-2026:observation", "thread:rome-2026:reflection"],
    "resource": [
        "embed:rome-2026",
        "resource:ada-lovelace:rome-2026:observation",
        f"resource:ada-lovelace:{OTHER_THREADS}:observation",
        "resource:ada-lovelace:reflection",
    ],
}


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_claims_on_work_go_with_what_they_name(storage: Storage, scope: Scope) -> None:
    memory = await used(storage, scope, vector=InMemoryVectorStore())
    await memory.forget(resource="ada-lovelace")
    for name in CLAIMS[scope]:
        lease = await storage.acquire_lease(name, "somebody", ttl=60)
        assert lease is not None
        assert lease.token == 1, name


async def test_a_thread_goes_with_its_claims_alone(storage: Storage) -> None:
    memory = await used(storage, "thread", vector=InMemoryVectorStore())
    await memory.threads.delete("rome-2026")
    tokens: list[int] = []
    for name in ("embed:rome-2026", "thread:rome-2026:rome-2026:observation", "embed:pizza-2026"):
        lease = await storage.acquire_lease(name, "somebody", ttl=60)
        assert lease is not None
        tokens.append(lease.token)
    assert tokens[:2] == [1, 1]
    assert tokens[2] > 1


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_the_file_has_no_id_of_theirs(tmp_path: Path, scope: Scope) -> None:
    path = tmp_path / "memory.db"
    memory = await used(SQLiteStorage(path), scope)
    await memory.forget(resource="ada-lovelace")
    await memory.close()
    left = path.read_bytes()
    assert [id for id in (b"rome-2026", b"pizza-2026") if id in left] == []


async def test_work_that_comes_late_leaves_no_claim(storage: Storage) -> None:
    embedder = TopicEmbedder()
    memory = memory_with(embedder, storage=storage, vector=InMemoryVectorStore())
    embedder.gate.clear()
    await memory.messages.save([Message.user("Rome")], thread="rome-2026", resource="ada-lovelace")
    await embedder.waited_for.wait()
    await memory.forget(resource="ada-lovelace")
    embedder.gate.set()
    await memory.settled()
    lease = await storage.acquire_lease("embed:rome-2026", "somebody", ttl=60)
    assert lease is not None
    assert lease.token == 1
