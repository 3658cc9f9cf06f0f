"""Errors reach the caller of another process: a pool of processes pickles them."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest

from diarist.exceptions import (
    BlockedError,
    ConfigError,
    DiaristError,
    OutputError,
    ProcessorResultError,
    RateLimitError,
    ToolError,
)


class TooSlow(ToolError, TimeoutError):
    """An error of an application, which is an OSError, too."""


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("no model"),
        TooSlow("no answer"),
        RateLimitError("slow down", provider="openai", status=429, body="{}", retry_after=2.0),
        ProcessorResultError("wrong", processor_id="guard", hook="process_input", step=1),
        OutputError("does not fit", text="I don't know."),
        BlockedError("a poem", processor_id="no-poems", metadata={"lines": 4}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled_and_copied(error: DiaristError) -> None:
    error.add_note("during a test")
    for other in (pickle.loads(pickle.dumps(error)), deepcopy(error)):
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))
