"""Fixtures: one server of each kind for a test session, emptied before each test.

Their threads end with the process. Stopping them could take 10 seconds: simulations change the clock of the whole
process, after which a server may look at its stop flag an hour late.
"""

from __future__ import annotations

import pytest

from tests.loopback.anthropic_server import AnthropicServer
from tests.loopback.google_server import GoogleServer
from tests.loopback.openai_server import OpenAIServer

__all__ = [
    "_anthropic_server",
    "_google_server",
    "_openai_server",
    "anthropic_server",
    "google_server",
    "openai_server",
]


@pytest.fixture(scope="session")
def _openai_server() -> OpenAIServer:
    return OpenAIServer()


@pytest.fixture(scope="session")
def _anthropic_server() -> AnthropicServer:
    return AnthropicServer()


@pytest.fixture(scope="session")
def _google_server() -> GoogleServer:
    return GoogleServer()


@pytest.fixture
def openai_server(_openai_server: OpenAIServer) -> OpenAIServer:
    """Speaks chat completions and responses at ``openai_server.base_url``."""
    _openai_server.reset()
    return _openai_server


@pytest.fixture
def anthropic_server(_anthropic_server: AnthropicServer) -> AnthropicServer:
    """Speaks Anthropic's messages protocol at ``anthropic_server.base_url``."""
    _anthropic_server.reset()
    return _anthropic_server


@pytest.fixture
def google_server(_google_server: GoogleServer) -> GoogleServer:
    """Speaks generateContent at ``google_server.base_url``."""
    _google_server.reset()
    return _google_server
