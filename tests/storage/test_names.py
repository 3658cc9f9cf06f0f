"""The names of the back ends in ``diarist.storage``."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature

import pytest

import diarist.storage
from diarist.storage import SearchStorage, Storage

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


@pytest.mark.parametrize("name", BACK_ENDS)
def test_each_method_has_the_arguments_of_the_interface(name: str) -> None:
    back_end = getattr(diarist.storage, name)
    for interface in (Storage, SearchStorage):
        if issubclass(back_end, interface):
            for method in interface.__abstractmethods__:
                given, wanted = [
                    list(signature(getattr(each, method)).parameters.values()) for each in (back_end, interface)
                ]
                assert given[1:] == wanted[1:], method
