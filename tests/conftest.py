"""Fixtures that every test may use."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

from tests.postgres import postgres_server, postgres_url

gc.disable()  # collecting tests makes a million objects and hardly any garbage

__all__ = ["anyio_backend", "postgres_server", "postgres_url", "pytest_collection_finish", "pytest_terminal_summary"]


settings.register_profile("thorough", deadline=None)  # a busy machine is no failure
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile("quick")  # `make test-all` loads the other one


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
