"""A prompt that is too long for the provider: the diary makes room first, then the window of that run is cut."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent
from diarist.exceptions import ContextOverflowError
from diarist.models.base import ModelRequest
from diarist.storage import Storage
from diarist.testing import ScriptedModel
from tests.scenarios.kit import (
    Recount,
    assert_all_well_formed,
    failing,
    log_of,
    observational,
    play,
    raw_rows,
    talk,
    ways,
    words,
)


def narrow(limit: int) -> ScriptedModel:
    """Refuses conversations of more than so many words."""

    def answer(request: ModelRequest) -> Any:
        said = sum(len(message.text.split()) for message in request.prompt if message.role != "system")
        return ContextOverflowError("too long") if said > limit else "Understood, noted."

    return ScriptedModel(answer, name="actor")


@ways
async def test_the_diary_makes_room(storage: Storage, buffer_tokens: float) -> None:
    """Long before its own threshold: all that may be observed is, and the call is made again."""
    model = narrow(120)
    memory = observational(storage, message_tokens=1000, buffer_tokens=buffer_tokens)
    agent = Agent(model=model, memory=memory, input_processors=[Recount(storage)])
    await talk(agent, 3)
    played = await play(agent, words("turn-4", 30), thread="t")
    assert played.result is not None
    assert played.result.text == "Understood, noted."
    assert "note-1" in model.requests[-1].text
    assert "turn-1" not in model.requests[-1].text
    assert model.requests[-1].text.count("turn-4") == 30
    await memory.settled()
    await raw_rows(storage)


async def test_what_waits_is_used_first(storage: Storage) -> None:
    model = narrow(120)
    memory = observational(storage, message_tokens=200, buffer_tokens=40, await_background=True)
    agent = Agent(model=model, memory=memory)
    await talk(agent, 3)
    assert (await log_of(storage)).buffered
    assert not (await log_of(storage)).active
    played = await play(agent, words("turn-4", 30), thread="t")
    assert [data["triggeredBy"] for data in played.data("activation")] == ["overflow"]
    assert "note-1" in model.requests[-1].text
    await raw_rows(storage)


@ways
async def test_where_the_diary_cannot_help_this_prompt_alone_is_cut(storage: Storage, buffer_tokens: float) -> None:
    model = narrow(120)
    memory = observational(storage, message_tokens=1000, observer_model=failing(), buffer_tokens=buffer_tokens)
    agent = Agent(model=model, memory=memory)
    await talk(agent, 3)
    played = await play(agent, words("turn-4", 30), thread="t")
    assert played.result is not None
    assert played.result.text == "Understood, noted."
    assert played.data("observation-failed")
    assert model.requests[-1].text.count("turn-4") == 30, "the question stays"
    assert "turn-1" not in model.requests[-1].text
    assert_all_well_formed([model])
    await memory.settled()
    assert len(await raw_rows(storage)) == 8, "nothing is lost"
    wide = narrow(10_000)
    await talk(Agent(model=wide, memory=memory), 1, first=5)
    assert "turn-1" in wide.requests[-1].text


async def test_a_question_that_is_too_long_alone_is_an_error(storage: Storage) -> None:
    model = narrow(120)
    agent = Agent(model=model, memory=observational(storage, message_tokens=1000))
    await talk(agent, 2)
    with pytest.raises(ContextOverflowError):
        await agent.generate(words("huge", 200), thread="t")
    assert len(model.requests) == 2 + 2, "it is not sent again when nothing can be left out"


async def test_a_call_can_wait_for_what_it_began(storage: Storage) -> None:
    """Where nothing runs between two calls, the next one still finds the work done."""
    memory = observational(storage, await_background=True)
    agent = Agent(model=narrow(10_000), memory=memory)
    await talk(agent, 2)
    before = await log_of(storage)
    assert before.buffered
    await memory.settled()
    assert await log_of(storage) == before
