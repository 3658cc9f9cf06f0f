"""``PrefillErrorHandler``: retries with a user turn if a prompt must end with one."""

from __future__ import annotations

import pytest

from diarist import Agent, Message
from diarist.exceptions import BadRequestError, ConfigError
from diarist.processors import PrefillErrorHandler
from diarist.testing import ScriptedModel

MESSAGES = [
    "This model does not support assistant message prefill. The conversation must end with a user message.",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    "Cannot set `add_generation_prompt` to True when the last message is from the assistant.",
    "Please ensure that multiturn requests end with a user role or a function response.",
]
TALK = [Message.user("Count."), Message.assistant("One, two,")]


def refusal(message: str = MESSAGES[0]) -> BadRequestError:
    return BadRequestError("anthropic refused the request", body=message, status=400)


@pytest.mark.parametrize("message", MESSAGES)
async def test_a_user_turn_is_added_and_the_call_retried(message: str) -> None:
    model = ScriptedModel(refusal(message), "three.")
    result = await Agent(model=model, error_processors=[PrefillErrorHandler()]).generate(TALK)
    assert result.text == "three."
    assert [m.role for m in model.requests[0].prompt] == ["user", "assistant"]
    assert [(m.role, m.text) for m in model.requests[1].prompt][-1] == ("user", "Continue.")
    assert [m.role for m in result.messages] == ["assistant"]


async def test_it_retries_once() -> None:
    model = ScriptedModel(refusal(), refusal())
    with pytest.raises(BadRequestError):
        await Agent(model=model, error_processors=[PrefillErrorHandler("Go on.")]).generate(TALK)
    assert len(model.requests) == 2


@pytest.mark.parametrize("error", [refusal("max_tokens is too large"), refusal()])
async def test_other_errors_and_prompts_are_not_retried(error: BadRequestError) -> None:
    model = ScriptedModel(error)
    with pytest.raises(BadRequestError):
        await Agent(model=model, error_processors=[PrefillErrorHandler()]).generate("hi")
    assert len(model.requests) == 1


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        PrefillErrorHandler(" ")
