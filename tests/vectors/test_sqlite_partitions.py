"""If all vectors of a partition are removed, the file keeps nothing of it, and no open store finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from diarist.vectors import SQLiteVectorStore

PATH = "vectors.db"


async def filled(path: Path, *users: str) -> SQLiteVectorStore:
    store = SQLiteVectorStore(path)
    await store.create_index("i", dimension=2, partition_by="user")
    for user in users:
        await store.upsert("i", [f"{user[0]}1", f"{user[0]}2"], [[1, 0], [0, 1]], [{"user": user}] * 2)
    return store


async def ids(store: SQLiteVectorStore, user: str | None = None) -> set[str]:
    return {hit.id for hit in await store.query("i", [1, 1], filter={"user": user} if user else None)}


@pytest.mark.parametrize("whole", [True, False])
async def test_its_name_goes_with_its_last_vector(tmp_path: Path, whole: bool) -> None:
    store = await filled(tmp_path / PATH, "grace-hopper", "ada")
    if whole:
        await store.delete("i", filter={"user": "grace-hopper"})
    else:
        await store.delete("i", ids=["g1"])
        assert await ids(store, "grace-hopper") == {"g2"}
        await store.upsert("i", ["g2"], [[1, 0]], [{"user": "ada"}])  # it moves
    assert await ids(store) == {"a1", "a2"} | (set() if whole else {"g2"})
    await store.close()
    assert b"grace-hopper" not in (tmp_path / PATH).read_bytes()


async def test_another_reader_does_not_find_removed_vectors(tmp_path: Path) -> None:
    """This holds whether or not the reader searches between the changes."""
    store = await filled(tmp_path / PATH, "ada")
    for looks in (True, False):
        reader = SQLiteVectorStore(tmp_path / PATH)
        before = await ids(reader, "ada")
        for round in range(4):
            await store.delete("i", filter={"user": "ada"})
            if looks:
                assert await ids(reader, "ada") == await ids(reader) == set()
            await store.upsert("i", [f"{looks} {round}"], [[1, 1]], [{"user": "ada"}])
        assert before
        assert await ids(reader, "ada") == await ids(reader) == {f"{looks} 3"}
        await reader.close()
    await store.close()
