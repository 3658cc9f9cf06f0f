"""Exact search over vectors in one matrix in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from diarist.vectors.base import Metric, Value, VectorHit
from diarist.vectors.filters import AllOf, Node, Test, predicate

_FIRST_LOOK = 64
_OF_A_ROW = 800
"""Estimated size of a vector's id and metadata, in bytes."""
_BLOCK = 8192

Floats = NDArray[np.float32]


class Matrix:
    """Vectors of one index, or of one partition of an index.

    With ``cosine`` they are normalized to length 1. Metadata is stored without a copy, and copied when it is returned.
    Not thread-safe.
    """

    def __init__(self, dimension: int, metric: Metric) -> None:
        self._metric: Metric = metric
        self._ids: list[str] = []
        self._metadata: list[dict[str, Value]] = []
        self._slots: dict[str, int] = {}
        self._vectors: Floats = np.empty((0, dimension), dtype=np.float32)

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return self._vectors.nbytes + _OF_A_ROW * len(self._ids)

    def put(self, ids: Sequence[str], vectors: Iterable[bytes], metadata: Sequence[dict[str, Value]]) -> None:
        """Add or replace vectors, each as 32-bit numbers in native byte order."""
        if not ids:
            return
        fresh = np.frombuffer(b"".join(vectors), dtype=np.float32).reshape(len(ids), -1)
        if self._metric == "cosine":
            fresh = _unit(fresh)
        needed = len(self._ids) + len(ids)
        if needed > len(self._vectors):
            grown = np.empty((max(needed, len(self._vectors) * 3 // 2), self._vectors.shape[1]), dtype=np.float32)
            grown[: len(self._ids)] = self._vectors[: len(self._ids)]
            self._vectors = grown
        slots: list[int] = []
        for id, data in zip(ids, metadata, strict=True):
            slot = self._slots.setdefault(id, len(self._ids))
            if slot == len(self._ids):
                self._ids.append(id)
                self._metadata.append(data)
            self._metadata[slot] = data
            slots.append(slot)
        self._vectors[slots] = fresh

    def search(self, vector: Sequence[float], top_k: int, node: Node, threshold: float | None) -> list[VectorHit]:
        """Return the nearest vectors that match the filter, nearest first."""
        scores = self._scores(np.asarray(vector, dtype=np.float32))
        look = top_k if node == AllOf(()) else max(_FIRST_LOOK, 4 * top_k)
        test = predicate(node)
        hits = self._best(scores, look, top_k, test, threshold)
        if len(hits) == top_k or look >= len(self._ids):
            return hits
        return self._best(scores, len(self._ids), top_k, test, threshold)

    def _best(self, scores: Floats, look: int, top_k: int, test: Test, threshold: float | None) -> list[VectorHit]:
        """Return the best matches among the ``look`` highest scores, highest first."""
        if look < len(scores):
            slots = np.argpartition(scores, len(scores) - look)[len(scores) - look :]
        else:
            slots = np.arange(len(scores))
        hits: list[VectorHit] = []
        nearest: list[int] = slots[np.argsort(-scores[slots], kind="stable")].tolist()
        for slot in nearest:
            score = float(scores[slot])
            if len(hits) == top_k or (threshold is not None and score < threshold):
                break
            if test(self._metadata[slot]):
                hits.append(VectorHit(id=self._ids[slot], score=score, metadata=dict(self._metadata[slot])))
        return hits

    def _scores(self, vector: Floats) -> Floats:
        known = self._vectors[: len(self._ids)]
        if self._metric == "euclidean":
            distances = [np.linalg.norm(known[i : i + _BLOCK] - vector, axis=1) for i in range(0, len(known), _BLOCK)]
            return np.asarray(1 / (1 + np.concatenate(distances or [np.empty(0)])), dtype=np.float32)
        return known @ (_unit(vector[None])[0] if self._metric == "cosine" else vector)


def _unit(vectors: Floats) -> Floats:
    # Scale by the largest number first: squares of very large or small numbers exceed the range of 32 bits.
    scaled = vectors / np.abs(vectors).max(axis=1, keepdims=True)
    return scaled / np.linalg.norm(scaled, axis=1, keepdims=True)


def merged(found: Iterable[list[VectorHit]], top_k: int) -> list[VectorHit]:
    """Return the best results of several searches."""
    return sorted((hit for hits in found for hit in hits), key=lambda hit: (-hit.score, hit.id))[:top_k]
