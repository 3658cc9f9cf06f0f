"""The vector store on a real PostgreSQL with pgvector keeps the contract, whatever it is searched by."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diarist.exceptions import ConfigError, StorageError
from diarist.storage.postgres import PostgresStorage
from diarist.testing import VectorStoreConformance
from diarist.vectors import Metric, VectorStore
from diarist.vectors.postgres import HNSW, IVFFlat, PgVectorStore
from tests.postgres import fetch


class TestPgVector(VectorStoreConformance):
    """With HNSW, as by default."""

    kind: HNSW | IVFFlat | None = HNSW()

    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[VectorStore]:
        async with PgVectorStore(postgres_url, index=self.kind, pool_size=4) as store:
            yield store

    @pytest.fixture
    async def second_store(self, store: VectorStore, postgres_url: str) -> AsyncIterator[VectorStore]:
        async with PgVectorStore(postgres_url, index=self.kind, pool_size=4) as second:
            yield second


@pytest.mark.slow
class TestPgVectorByLists(TestPgVector):
    kind = IVFFlat(lists=2, probes=2)


@pytest.mark.slow
class TestPgVectorExact(TestPgVector):
    kind = None


def spread(count: int, dimension: int, seed: int = 1) -> list[list[float]]:
    rng = random.Random(seed)
    return [[rng.gauss(0, 1) for _ in range(dimension)] for _ in range(count)]


async def ids_of(store: VectorStore, vector: list[float], **more: object) -> set[str]:
    return {hit.id for hit in await store.query("i", vector, top_k=10, **more)}  # pyright: ignore


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("kind", [HNSW(ef_search=200), IVFFlat(lists=20, probes=15)])
async def test_an_approximate_search_finds_nearly_all(postgres_url: str, kind: HNSW | IVFFlat, metric: Metric) -> None:
    vectors = spread(800, 16)
    ids = [f"{n}" for n in range(len(vectors))]
    async with PgVectorStore(postgres_url, index=kind) as store, PgVectorStore(postgres_url, index=None) as exact:
        await store.create_index("i", dimension=16, metric=metric)
        await store.upsert("i", ids, vectors)
        await store.rebuild_index("i")
        wanted = spread(10, 16, seed=2)
        found = [len(await ids_of(store, vector) & await ids_of(exact, vector)) for vector in wanted]
    assert sum(found) >= 0.9 * 10 * len(wanted)


async def test_a_filter_that_few_pass_finds_them_all(postgres_url: str) -> None:
    """Not only those among the nearest of everybody's."""
    vectors = spread(1000, 8)
    who = ["ada" if n % 100 == 0 else "bob" for n in range(1000)]
    async with PgVectorStore(postgres_url, index=HNSW(ef_search=10)) as store:
        await store.create_index("i", dimension=8, partition_by="who")
        await store.upsert("i", [f"{n}" for n in range(1000)], vectors, [{"who": name} for name in who])
        assert len(await ids_of(store, vectors[1], filter={"who": "ada"})) == 10


async def test_the_options_reach_the_server(postgres_url: str) -> None:
    async with PgVectorStore(postgres_url, index=HNSW(m=8, ef_construction=32)) as store:
        await store.create_index("i", dimension=3, metric="euclidean")
    async with PgVectorStore(postgres_url, index=IVFFlat(lists=7)) as store:
        await store.create_index("j", dimension=3000)
    rows = await fetch(postgres_url, "SELECT indexdef FROM pg_indexes WHERE indexdef ~ 'hnsw|ivfflat' ORDER BY 1")
    one, two = (row["indexdef"] for row in rows)
    assert "hnsw (embedding vector_l2_ops) WITH (m='8', ef_construction='32')" in one
    assert "ivfflat (embedding halfvec_cosine_ops) WITH (lists='7')" in two


async def searches(url: str) -> list[str]:
    rows = await fetch(url, "SELECT indexdef FROM pg_indexes WHERE indexdef ~ 'hnsw|ivfflat' ORDER BY 1")
    return [row["indexdef"].partition(" USING ")[2] for row in rows]


async def test_an_index_becomes_what_the_store_says_when_it_is_rebuilt(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ops = "(embedding vector_cosine_ops)"
    kinds: list[tuple[HNSW | IVFFlat | None, list[str]]] = [
        (HNSW(), [f"hnsw {ops} WITH (m='16', ef_construction='64')"]),
        (HNSW(m=32, ef_construction=128), [f"hnsw {ops} WITH (m='32', ef_construction='128')"]),
        (IVFFlat(lists=5), [f"ivfflat {ops} WITH (lists='5')"]),
        (None, []),
        (HNSW(), [f"hnsw {ops} WITH (m='16', ef_construction='64')"]),
    ]
    built: list[str] = []
    first = True
    for kind, wanted in kinds:
        async with PgVectorStore(postgres_url, index=kind) as store:
            caplog.clear()
            await store.create_index("i", dimension=3)
            found = await searches(postgres_url)
            assert found == (wanted if first else built)
            assert ("rebuild_index('i')" in caplog.text) == (kind is not None and found != wanted)
            first = False
            await store.upsert("i", ["a"], [[1, 2, 3]])
            await store.rebuild_index("i")
            built = wanted
            assert await searches(postgres_url) == built
            caplog.clear()
            await store.create_index("i", dimension=3)
            assert caplog.text == ""
            assert await ids_of(store, [1, 2, 3]) == {"a"}


@pytest.mark.parametrize("index", ["hnsw", HNSW, 5])
def test_an_unknown_kind_of_search_is_refused(postgres_url: str, index: Any) -> None:
    with pytest.raises(ConfigError, match=r"index must be HNSW\(...\), IVFFlat\(...\) or None, not"):
        PgVectorStore(postgres_url, index=index)
    with pytest.raises(ConfigError, match="lists must be a whole number"):
        IVFFlat(lists=f"{index}")  # pyright: ignore[reportArgumentType]


async def test_lists_of_a_single_dimension_are_refused(postgres_url: str) -> None:
    async with PgVectorStore(postgres_url, index=IVFFlat(lists=2)) as store:
        with pytest.raises(ConfigError, match="IVFFlat with the metric cosine needs 2 dimensions or more"):
            await store.create_index("i", dimension=1)
        await store.create_index("j", dimension=1, metric="euclidean")


async def test_a_schema_that_is_dropped_leaves_the_others_whole(postgres_url: str) -> None:
    for schema in ("one", "two"):
        async with PgVectorStore(postgres_url, schema=schema) as store:
            await store.create_index("i", dimension=2)
            await store.upsert("i", ["a"], [[1, 0]])
    await fetch(postgres_url, "DROP SCHEMA one CASCADE")
    async with PgVectorStore(postgres_url, schema="two") as store:
        assert await ids_of(store, [1, 0]) == {"a"}


async def test_an_installed_extension_is_used(postgres_url: str) -> None:
    await fetch(postgres_url, "CREATE SCHEMA extensions")
    await fetch(postgres_url, "CREATE EXTENSION vector SCHEMA extensions")
    async with PgVectorStore(postgres_url, schema="one") as store:
        await store.create_index("i", dimension=2)
        await store.upsert("i", ["a"], [[1, 0]])
        await store.rebuild_index("i")
        assert await ids_of(store, [1, 0]) == {"a"}


async def test_long_vectors_are_kept_in_half_precision(postgres_url: str) -> None:
    vectors = spread(5, 3072)
    async with PgVectorStore(postgres_url) as store:
        await store.create_index("i", dimension=3072)
        await store.upsert("i", list("abcde"), vectors)
        assert (await store.query("i", vectors[2]))[0].id == "c"
        with pytest.raises(ConfigError, match=r"up to 4,000 dimensions"):
            await store.create_index("j", dimension=5000)


async def test_schemas_are_apart_beside_messages(postgres_url: str) -> None:
    async with (
        PostgresStorage(postgres_url, schema="one") as storage,
        PgVectorStore(postgres_url, schema="one") as one,
        PgVectorStore(postgres_url, schema="two") as two,
    ):
        assert await storage.get_thread("t") is None
        for number, store in enumerate((one, two), start=1):
            await store.create_index("i", dimension=2)
            await store.upsert("i", [f"{number}"], [[1, 0]])
        assert await ids_of(one, [1, 0]) == {"1"}
        assert await ids_of(two, [1, 0]) == {"2"}


async def test_an_unreachable_server_is_named() -> None:
    async with PgVectorStore("postgresql://ada:secret@127.0.0.1:1/app") as store:
        with pytest.raises(StorageError, match=r"ada@127.0.0.1:1/app.*start PostgreSQL") as caught:
            await store.list_indexes()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HNSW(m=1),
        lambda: HNSW(m=16, ef_construction=20),
        lambda: HNSW(ef_search=0),
        lambda: IVFFlat(lists=0),
        lambda: IVFFlat(probes=0),
    ],
)
def test_impossible_options_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # pyright: ignore
