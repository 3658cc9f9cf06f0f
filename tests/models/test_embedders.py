"""Embedders: any provider by its id, and one offline."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from diarist.exceptions import (
    AuthenticationError,
    ConfigError,
    ModelConnectionError,
    ModelResponseError,
    ModelTimeoutError,
)
from diarist.models.embedders import Embedder, Purpose, WordLlamaEmbedder, embed_texts, resolve_embedder
from tests.models.embedding_server import EmbeddingServer


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()
    yield server
    server.stop()


def nearness(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_a_provider_is_called_by_its_id(server: EmbeddingServer) -> None:
    embedder = resolve_embedder("openai/words", dimension=4, base_url=server.base_url, api_key="test")
    assert await embed_texts(embedder, ["a", "bbb"]) == [[1, 2, 3, 4], [3, 4, 5, 6]]
    (request,) = server.requests
    assert (request["model"], request["input"], "dimensions" in request) == ("words", ["a", "bbb"], False)
    assert (embedder.name, embedder.dimension) == ("openai/words", 4)
    await embedder.close()


async def test_a_known_model_needs_no_dimension_and_gives_another_when_asked(server: EmbeddingServer) -> None:
    name = "openai/text-embedding-3-small"
    assert resolve_embedder(name, base_url=server.base_url).dimension == 1536
    embedder = resolve_embedder(name, dimension=256, base_url=server.base_url, api_key="test")
    (vector,) = await embed_texts(embedder, ["a"])
    assert (len(vector), server.requests[-1]["dimensions"]) == (256, 256)
    await embedder.close()


async def test_many_texts_go_in_batches(server: EmbeddingServer) -> None:
    embedder = resolve_embedder("openai/words", dimension=4, base_url=server.base_url, api_key="test")
    vectors = await embed_texts(embedder, ["x" * n for n in range(1, 201)])
    assert [vector[0] for vector in vectors] == list(range(1, 201))
    assert [len(request["input"]) for request in server.requests] == [96, 96, 8]
    await embedder.close()


async def test_another_dimension_than_said_is_an_error_that_says_so(server: EmbeddingServer) -> None:
    embedder = resolve_embedder("openai/words", dimension=5, base_url=server.base_url, api_key="test")
    with pytest.raises(ConfigError, match="vectors of length 4, not 5: pass dimension=4"):
        await embed_texts(embedder, ["a"])
    await embedder.close()


async def test_failures_are_errors_of_ours(server: EmbeddingServer) -> None:
    server.fail = 401
    embedder = resolve_embedder("openai/words", dimension=4, base_url=server.base_url, api_key="wrong")
    with pytest.raises(AuthenticationError):
        await embed_texts(embedder, ["a"])
    await embedder.close()


async def test_a_server_that_drips_is_a_timeout(server: EmbeddingServer) -> None:
    server.drips = True
    embedder = resolve_embedder("openai/words", dimension=4, base_url=server.base_url, api_key="test", timeout=0.3)
    with pytest.raises(ModelTimeoutError, match=r"openai/words took longer than timeout \(0.3 s\)"):
        await embed_texts(embedder, ["a"])
    await embedder.close()


async def test_too_few_vectors_are_noticed() -> None:
    class Short(Embedder):
        name, dimension = "short", 2

        async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
            return [[1.0, 2.0]]

    with pytest.raises(ModelResponseError, match="1 vectors for 2 texts"):
        await embed_texts(Short(), ["a", "b"])


async def test_vectors_may_be_a_numpy_array() -> None:
    class Local(Embedder):
        name, dimension = "local", 2

        async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> Any:
            return numpy.array([[1.0, 2.0]] * len(texts))

    numpy = pytest.importorskip("numpy")
    assert await embed_texts(Local(), ["a", "b"]) == [[1, 2], [1, 2]]


def test_an_embedder_serves_several_event_loops(server: EmbeddingServer) -> None:
    embedder = resolve_embedder("openai/words", dimension=4, base_url=server.base_url, api_key="test")

    async def once() -> list[list[float]]:
        try:
            return await embed_texts(embedder, ["ab"])
        finally:
            await embedder.close()

    assert asyncio.run(once()) == asyncio.run(once()) == [[2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("text-embedding-3-small", "write provider/model"),
        ("nowhere/model", "unknown provider"),
        (
            "openai/text-embedding-3-small",
            "no key for 'openai': set OPENAI_API_KEY, or pass .* to diarist.models.embedders.resolve_embedder",
        ),
        ("ollama/some-model", "pass dimension="),
    ],
)
def test_what_cannot_be_called_is_refused_at_once(id: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=words):
        resolve_embedder(id)


async def test_the_offline_embedder_knows_what_means_the_same() -> None:
    embedder = resolve_embedder("wordllama")
    assert isinstance(embedder, WordLlamaEmbedder)
    texts = ["My flight to Rome leaves on Friday", "a plane trip to Italy", "the compiler reports an error", "", "  "]
    flight, trip, compiler, *empty = await embed_texts(embedder, texts)
    assert nearness(flight, trip) > nearness(flight, compiler) + 0.2
    assert nearness(flight, flight) == pytest.approx(1, abs=1e-3)
    assert empty == [[0.0] * 256] * 2
    assert await embed_texts(embedder, []) == []


async def test_an_unreachable_server_is_named() -> None:
    embedder = resolve_embedder("openai/words", dimension=4, base_url="http://127.0.0.1:1/v1", api_key="test")
    with pytest.raises(ModelConnectionError, match="the connection to openai failed"):
        await embed_texts(embedder, ["a"])
    await embedder.close()


class Silent(Embedder):
    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
        return []


class Nameless(Silent):
    dimension = 4


class Boundless(Silent):
    name = "boundless"


class Duck:
    name = "duck"
    dimension = 4


@pytest.mark.parametrize(
    ("embedder", "words"),
    [
        (True, "embedder must be an id .* not True"),
        (Duck(), "inherits from Embedder, not <.*Duck object"),
        (Nameless, "inherits from Embedder, not <class .*Nameless"),
        (Nameless(), "Nameless needs a name"),
        (Boundless(), "Boundless: dimension must be"),
        ("wordlama", "embedder 'wordlama': .*'openai/text-embedding-3-small', or 'wordllama', which works offline"),
    ],
)
def test_a_wrong_embedder_is_refused_by_name(embedder: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_embedder(embedder)


def test_a_dimension_that_an_embedder_does_not_have_is_refused() -> None:
    assert resolve_embedder("wordllama", dimension=256).dimension == 256
    with pytest.raises(ConfigError, match="only returns vectors of length 256: leave out dimension=7"):
        resolve_embedder("wordllama", dimension=7)
