"""``StreamErrorRetry``: retries transient errors."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent
from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ConfigError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelError,
    ModelResponseError,
    ModelTimeoutError,
    RateLimitError,
)
from diarist.processors import StreamErrorRetry
from diarist.processors.base import APIErrorResult, ProcessAPIErrorArgs
from diarist.testing import Reply, ScriptedModel
from tests.agent.kit import run_both


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ModelConnectionError("cut"), True),
        (ModelTimeoutError("slow"), True),
        (RateLimitError("slow down", status=429), True),
        (ModelAPIError("error in the stream"), True),
        (ModelAPIError("bad gateway", status=502), True),
        (ModelAPIError("error", status=400, body='{"type": "overloaded_error"}'), True),
        (ModelAPIError("teapot", status=418), False),
        (BadRequestError("no", status=400), False),
        (ContentFilterError("no"), False),
        (AuthenticationError("no", status=401), False),
        (ModelResponseError("what?"), False),
    ],
    ids=str,
)
async def test_transient_errors_are_retried(error: ModelError, passes: bool) -> None:
    model = ScriptedModel(error, "ok")
    agent = Agent(model=model, error_processors=[StreamErrorRetry()])
    if passes:
        assert (await agent.generate("hi")).text == "ok"
    else:
        with pytest.raises(type(error)):
            await agent.generate("hi")
    assert len(model.requests) == 1 + passes


async def test_the_partial_answer_of_a_failed_call_is_dropped() -> None:
    def make() -> Agent:
        cut = Reply(text=["Once ", "upon"], error_after=ModelConnectionError("cut"))
        return Agent(model=ScriptedModel(cut, "The end."), error_processors=[StreamErrorRetry()])

    result, _ = await run_both(make)
    assert result.text == "The end."
    assert [message.text for message in result.messages] == ["The end."]


async def test_max_retries_counts_per_step() -> None:
    model = ScriptedModel(*[ModelConnectionError("cut")] * 3)
    with pytest.raises(ModelConnectionError):
        await Agent(model=model, error_processors=[StreamErrorRetry(2)]).generate("hi")
    assert len(model.requests) == 3


async def test_matchers_add_errors_but_not_authentication() -> None:
    def anything(error: ModelError) -> bool:
        return True

    model = ScriptedModel(BadRequestError("flaky"), "ok")
    agent = Agent(model=model, error_processors=[StreamErrorRetry(matchers=[anything])])
    assert (await agent.generate("hi")).text == "ok"
    with pytest.raises(AuthenticationError):
        await agent.generate("hi", model=ScriptedModel(AuthenticationError("no key")))


async def test_a_delay_over_max_delay_is_not_retried() -> None:
    model = ScriptedModel(RateLimitError("tomorrow", status=429, retry_after=31))
    with pytest.raises(RateLimitError):
        await Agent(model=model, error_processors=[StreamErrorRetry()]).generate("hi")
    assert len(model.requests) == 1


async def test_the_providers_delay_is_kept() -> None:
    asked: list[object] = []

    class Watched(StreamErrorRetry):
        def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
            asked.append(super().process_api_error(args))
            return None

    agent = Agent(model=ScriptedModel(RateLimitError("wait", retry_after=12.5)), error_processors=[Watched()])
    with pytest.raises(RateLimitError):
        await agent.generate("hi")
    assert asked == [{"retry": True, "delay": 12.5}]


@pytest.mark.parametrize("options", [{"max_retries": -1}, {"max_delay": -1.0}])
def test_negative_numbers_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match=f"StreamErrorRetry: {next(iter(options))} must .*, not -1"):
        StreamErrorRetry(**options)
