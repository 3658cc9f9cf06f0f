"""Fixtures and settings of the adapters' tests. They run beside one framework each: ``make test-integrations``."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("diarist", deadline=None)  # a busy machine is no failure
settings.load_profile("diarist")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the one event loop that the library supports."""
    return "asyncio"
