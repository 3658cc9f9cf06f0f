"""The names of the back ends in ``diarist.storage``."""

from __future__ import annotations

import subprocess
import sys

import pytest

import diarist.storage

BACK_ENDS = ("InMemoryStorage", "LibSQLStorage", "MongoDBStorage", "PostgresStorage", "SQLiteStorage")


@pytest.mark.parametrize("name", BACK_ENDS)
def test_each_back_end_is_a_name_of_the_package(name: str) -> None:
    assert getattr(diarist.storage, name).__name__ == name
    assert name in dir(diarist.storage)


def test_a_back_end_without_its_package_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['asyncpg'] = None; from diarist.storage import PostgresStorage; PostgresStorage('x')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'diarist[postgres]'" in run.stderr
