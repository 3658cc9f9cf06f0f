"""Fixtures that every test may use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest
from hypothesis import settings

from tests.loopback.fixtures import *  # noqa: F403 - fixtures
from tests.postgres import postgres_server, postgres_url  # noqa: F401 - fixtures

gc.disable()  # collecting tests makes a million objects and hardly any garbage

settings.register_profile("thorough", deadline=None)  # a busy machine is no failure
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile("quick")  # `make test-all` loads the other one


@pytest.fixture(scope="session", autouse=True)
def one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one certificate authority: each client of a provider would read all of them, in 30 milliseconds."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(first + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the one event loop that the library supports."""
    return "asyncio"


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # the collector need not look through the tests again and again
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many cases the generated matrix had, and which cells it left out, where it was run."""
    reports = [report for found in terminalreporter.stats.values() for report in found if hasattr(report, "nodeid")]
    if not any("matrix/test_matrix.py" in report.nodeid for report in reports):
        return
    from tests.matrix.cases import cells, counted

    terminalreporter.section("matrix of hooks")
    terminalreporter.write_line(counted())
    by_reason: dict[str, int] = {}
    for reason in cells()[1].values():
        by_reason[reason] = by_reason.get(reason, 0) + 1
    for reason, count in by_reason.items():
        terminalreporter.write_line(f"  {count} left out: {reason}")
