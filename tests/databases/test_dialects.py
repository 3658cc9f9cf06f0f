"""SQL is written once and read by both dialects."""

from __future__ import annotations

import pytest

from diarist.databases.base import in_postgresql, in_sqlite, numbered

CASES = [
    ("SELECT a FROM t WHERE b = :b", "SELECT a FROM t WHERE b = :b", "SELECT a FROM t WHERE b = $1", ("b",)),
    ("SELECT :x, :y, :x", "SELECT :x, :y, :x", "SELECT $1, $2, $1", ("x", "y")),
    ("SELECT a::text", "SELECT a::text", "SELECT a::text", ()),
    ("SELECT 1 {for update}", "SELECT 1 ", "SELECT 1 FOR UPDATE", ()),
    (
        "SELECT 1 WHERE id {any ids}",
        "SELECT 1 WHERE id IN (SELECT value FROM json_each(:ids))",
        "SELECT 1 WHERE id = ANY($1)",
        ("ids",),
    ),
]


@pytest.mark.parametrize(("sql", "sqlite", "postgresql", "names"), CASES)
def test_marks_and_values(sql: str, sqlite: str, postgresql: str, names: tuple[str, ...]) -> None:
    assert in_sqlite(sql)[0] == sqlite
    assert in_postgresql(sql) == (postgresql, names)


def test_numbers_for_libsql() -> None:
    assert numbered("SELECT :x, :y, :x", "?") == ("SELECT ?1, ?2, ?1", ("x", "y"))
