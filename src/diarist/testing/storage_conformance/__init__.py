"""The tests that every storage must pass.

A back end's test file subclasses ``StorageConformance`` and says how to make a storage::

    class TestMyStorage(StorageConformance):
        @pytest.fixture
        async def storage(self) -> AsyncIterator[Storage]:
            async with MyStorage(...) as storage:
                yield storage

Each test gets a fresh, empty storage. Override the fixture ``second_storage`` as well where several objects
can share the same data: tests of concurrent writers then use both.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "events",
    "lifecycle",
    "leases",
    "logs",
    "messages",
    "resources",
    "runs",
    "threads",
    "values",
    "working_memory",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from diarist.storage import Storage  # noqa: E402 - the line above must come first
from diarist.testing.storage_conformance.events import EventConformance  # noqa: E402
from diarist.testing.storage_conformance.leases import LeaseConformance  # noqa: E402
from diarist.testing.storage_conformance.lifecycle import LifecycleConformance  # noqa: E402
from diarist.testing.storage_conformance.logs import LogConformance  # noqa: E402
from diarist.testing.storage_conformance.messages import MessageConformance  # noqa: E402
from diarist.testing.storage_conformance.resources import ResourceConformance  # noqa: E402
from diarist.testing.storage_conformance.runs import RunConformance  # noqa: E402
from diarist.testing.storage_conformance.threads import ThreadConformance  # noqa: E402
from diarist.testing.storage_conformance.values import ValueConformance  # noqa: E402
from diarist.testing.storage_conformance.working_memory import WorkingMemoryConformance  # noqa: E402

__all__ = ["StorageConformance"]


@pytest.mark.anyio
class StorageConformance(
    ThreadConformance,
    RunConformance,
    MessageConformance,
    ValueConformance,
    ResourceConformance,
    WorkingMemoryConformance,
    LogConformance,
    LeaseConformance,
    EventConformance,
    LifecycleConformance,
):
    """All of the contract. Subclass it and define the fixture ``storage``."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def second_storage(self, storage: Storage) -> Storage:
        """Another object on the same data; the same one where the back end has no other."""
        return storage
