"""The contract of an embedder: texts in, vectors out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from typing import Literal

from diarist.exceptions import ConfigError, ModelResponseError

Purpose = Literal["document", "query"]
"""What a text is: something to be found, or what is looked for. Some models embed the two differently."""


class Embedder(ABC):
    """Makes vectors of texts, so that texts which mean the same are near each other.

    Attributes:
        name: Of the model, as in ``openai/text-embedding-3-small``. Vectors of different names are never compared.
        dimension: Numbers in each vector.
        max_batch: Texts of one call at most.
    """

    name: str
    dimension: int
    max_batch: int = 96

    @abstractmethod
    async def embed(self, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
        """A vector for each text, in order; at most ``max_batch`` texts. A vector of zeros: the text says nothing.

        Raises ModelError.
        """

    async def close(self) -> None:  # noqa: B027 - many have nothing to release
        """Release connections; the next call opens again."""


async def embed_texts(embedder: Embedder, texts: Sequence[str], *, purpose: Purpose = "document") -> list[list[float]]:
    """A vector of 32-bit numbers for each of any number of texts, batch by batch.

    Raises:
        ConfigError: The vectors have another dimension than the embedder says.
        ModelError: A call failed, gave too few or too many vectors, or one with numbers that are not finite.
    """
    vectors: list[list[float]] = []
    for start in range(0, len(texts), embedder.max_batch):
        batch = texts[start : start + embedder.max_batch]
        found = await embedder.embed(batch, purpose=purpose)
        if len(found) != len(batch):
            raise ModelResponseError(f"{embedder.name} gave {len(found)} vectors for {len(batch)} texts")
        vectors += found
    wrong = next((len(vector) for vector in vectors if len(vector) != embedder.dimension), None)
    if wrong is not None:
        raise ConfigError(
            f"{embedder.name} gives vectors of {wrong} numbers, and not of {embedder.dimension}: pass dimension={wrong}"
        )
    return [_finite(embedder, vector) for vector in vectors]


def _finite(embedder: Embedder, vector: Sequence[float]) -> list[float]:
    numbers = array("f", vector)
    if not math.isfinite(sum(numbers)):
        raise ModelResponseError(f"{embedder.name} gave a vector with numbers that are not finite")
    return numbers.tolist()
