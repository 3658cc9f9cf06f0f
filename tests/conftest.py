"""Fixtures that every test may use."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the one event loop that the library supports."""
    return "asyncio"
