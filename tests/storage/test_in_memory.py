"""The in-memory storage keeps the contract."""

from __future__ import annotations

import pytest

from diarist.storage import InMemoryStorage, Storage
from diarist.testing import StorageConformance


class TestInMemoryStorage(StorageConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return InMemoryStorage()


def test_location() -> None:
    assert InMemoryStorage().location == "memory"
