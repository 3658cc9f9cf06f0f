"""Argument checks that all vector stores share."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, cast, get_args

from diarist.checks import check_whole
from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.vectors.base import Filter, Metadata, Metric, Value
from diarist.vectors.filters import Node, is_plain, is_value, parse_filter

LONGEST_NAME = 120
"""Maximum length of a name, in bytes."""
MAX_DIMENSION = 65_536


class Settings(NamedTuple):
    """The settings of an index."""

    dimension: int
    metric: Metric
    partition_by: str | None


class Row(NamedTuple):
    """A vector to store, as 32-bit numbers."""

    id: str
    partition: str
    vector: array[float]
    metadata: dict[str, Value]


def check_settings(name: str, dimension: int, metric: str, partition_by: str | None) -> Settings:
    """Return the settings of a new index. Raises InputError."""
    if not name or not is_plain(name) or len(name.encode()) > LONGEST_NAME:
        raise InputError(f"an index has a name of 1 to {LONGEST_NAME} bytes of valid Unicode without NUL, not {name!r}")
    if not isinstance(cast(Any, dimension), int) or not 1 <= dimension <= MAX_DIMENSION:
        raise InputError(f"the dimension of an index is a number from 1 to {MAX_DIMENSION}, not {dimension!r}")
    if metric not in get_args(Metric):
        raise InputError(f"metric is one of {', '.join(get_args(Metric))}, not {metric!r}")
    if partition_by is not None and not (partition_by and is_plain(partition_by)):
        raise InputError(f"partition_by is a key of metadata, not {partition_by!r}")
    return Settings(dimension, cast(Metric, metric), partition_by)


def check_same(name: str, found: Settings, wanted: Settings) -> None:
    """Raise ConfigError if the existing index has other settings."""
    if (found.dimension, found.metric) != (wanted.dimension, wanted.metric):
        raise ConfigError(
            f"index {name!r} exists with {found.dimension} dimensions and the metric {found.metric}, not"
            f" {wanted.dimension} and {wanted.metric}: use another name, or delete_index({name!r}) first"
        )


def not_found(name: str) -> NotFoundError:
    return NotFoundError(f"there is no index {name!r}; create_index(...) makes one")


def check_rows(
    index: str,
    settings: Settings,
    ids: Sequence[str],
    vectors: Sequence[Sequence[float]],
    metadata: Sequence[Metadata] | None,
) -> list[Row]:
    """Return the rows to store, one for each id. Raises InputError."""
    given: Sequence[Metadata] = metadata if metadata is not None else [{} for _ in ids]
    if not len(ids) == len(vectors) == len(given):
        raise InputError(f"{len(ids)} ids, {len(vectors)} vectors, {len(given)} metadata: give the same number of each")
    rows: dict[str, Row] = {}
    for id, vector, data in zip(ids, vectors, given, strict=True):
        if not isinstance(cast(Any, id), str) or not id or not is_plain(id):
            raise InputError(f"the id of a vector is a string of valid Unicode without NUL, not {id!r}")
        for key, value in data.items():
            if not isinstance(cast(Any, key), str) or not key or not is_plain(key):
                raise InputError(f"metadata of vector {id!r}: a key is valid Unicode without NUL, not {key!r}")
            if not is_value(value):
                raise InputError(
                    f"metadata of vector {id!r}: {key!r} must be a string, a finite number or a boolean, not {value!r}"
                )
        part = "" if settings.partition_by is None else data.get(settings.partition_by)
        if not isinstance(part, str):
            raise InputError(
                f"metadata of vector {id!r} needs a string {settings.partition_by!r}, by which the index is partitioned"
            )
        rows[id] = Row(id, part, check_vector(index, settings, vector), dict(data))
    return list(rows.values())


def check_vector(index: str, settings: Settings, vector: Sequence[float]) -> array[float]:
    """Return ``vector`` as 32-bit numbers. Raises InputError."""
    try:
        numbers = array("f", vector)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"a vector is a sequence of numbers, not {type(vector).__name__}: {error}") from error
    if len(numbers) != settings.dimension:
        raise InputError(f"index {index!r} has {settings.dimension} dimensions, and the vector has {len(numbers)}")
    if not math.isfinite(sum(numbers)):  # a sum of finite 32-bit numbers does not overflow 64 bits
        raise InputError("a vector needs finite 32-bit numbers")
    if settings.metric == "cosine" and not any(numbers):
        raise InputError("a vector of zeros has no direction, so the metric cosine cannot compare it")
    return numbers


def check_query(top_k: int, filter: Filter | None) -> Node:
    """Return the parsed filter. Raises InputError."""
    check_whole("top_k", top_k, least=1)
    return parse_filter(filter)


def check_delete(ids: Sequence[str] | None, filter: Filter | None) -> Node | None:
    """Return the parsed filter, or None if ids are given. Raises InputError."""
    if (ids is None) == (filter is None):
        raise InputError("delete(...) takes either ids= or filter=")
    if filter is None:
        return None
    if not filter:
        raise InputError("an empty filter would remove everything: delete_index(name) does that")
    return parse_filter(filter)
