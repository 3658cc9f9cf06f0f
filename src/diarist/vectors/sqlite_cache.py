"""Vectors of an SQLite file that stay in memory between queries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from diarist.vectors.base import VectorHit
from diarist.vectors.checks import check_vector
from diarist.vectors.filters import Node, partition_in
from diarist.vectors.matrix import Matrix, merged
from diarist.vectors.sqlite_tables import (
    Index,
    State,
    changed_since,
    partitions_of,
    read_metadata,
    state_of,
    the_index,
)


@dataclass(slots=True)
class _Part:
    matrix: Matrix
    state: State


class Cache:
    """The partitions that were asked for last, brought up to date inside the transaction that asks.

    One query at a time: each is some milliseconds of numpy, which uses all processors by itself.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._parts: OrderedDict[tuple[int, str], _Part] = OrderedDict()
        self._lock = threading.Lock()

    def query(
        self,
        connection: Connection,
        name: str,
        vector: Sequence[float],
        top_k: int,
        node: Node,
        threshold: float | None,
    ) -> list[VectorHit]:
        index = the_index(connection, name)
        wanted = check_vector(name, index.settings, vector)
        asked = partition_in(node, index.settings.partition_by)
        parts = [asked] if asked is not None else partitions_of(connection, index)
        with self._lock:
            found = (self._part(connection, index, part).search(wanted, top_k, node, threshold) for part in parts)
            return merged(found, top_k)

    def clear(self) -> None:
        with self._lock:
            self._parts.clear()

    def _part(self, connection: Connection, index: Index, partition: str) -> Matrix:
        key, state = (index.number, partition), state_of(connection, index, partition)
        part = self._parts.get(key)
        if part is None or part.state.erased < state.erased or not state.changed:
            part = _Part(Matrix(index.settings.dimension, index.settings.metric), State(0, state.erased))
            self._parts[key] = part
        # Another query may have been later than this one's transaction: what it has read is newer, and stays.
        if part.state.changed < state.changed and part.state.erased == state.erased:
            rows = changed_since(connection, index, partition, part.state.changed)
            part.matrix.put([row[0] for row in rows], [row[1] for row in rows], [read_metadata(row[2]) for row in rows])
            part.state = state
        self._parts.move_to_end(key)
        self._shrink()
        return part.matrix

    def _shrink(self) -> None:
        while len(self._parts) > 1 and sum(part.matrix.size for part in self._parts.values()) > self._most_bytes:
            self._parts.popitem(last=False)
