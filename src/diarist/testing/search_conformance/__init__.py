"""The tests that every storage with a full-text search must pass, beside ``StorageConformance``.

A back end's test file subclasses ``SearchConformance`` with the same fixtures, ``storage`` and where there is one
``second_storage``.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("order", "visibility", "words")))

from diarist.storage import Storage  # noqa: E402 - the line above must come first
from diarist.testing.search_conformance.order import OrderConformance  # noqa: E402
from diarist.testing.search_conformance.visibility import VisibilityConformance  # noqa: E402
from diarist.testing.search_conformance.words import WordConformance  # noqa: E402

__all__ = ["SearchConformance"]


@pytest.mark.anyio
class SearchConformance(WordConformance, OrderConformance, VisibilityConformance):
    """All of the contract of ``SearchStorage``. Subclass it and define the fixture ``storage``."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def second_storage(self, storage: Storage) -> Storage:
        """Another object on the same data; the same one where the back end has no other."""
        return storage
