"""Processors are closed by whoever has them: the agent, or the call that brought them along."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diarist import Agent, AgentStream, Processor
from diarist.exceptions import ConfigError
from diarist.processors import Sequence
from diarist.testing import ScriptedModel
from tests.agent.kit import collect


class Holds(Processor[Any]):
    """Holds something open from the first input that it sees until it is closed."""

    def __init__(self, id: str = "holds") -> None:
        self.id = id
        self.is_open = False
        self.closed = 0
        self.opened = asyncio.Event()
        self.gate: asyncio.Event | None = None

    async def process_input(self, args: Any) -> None:
        self.is_open = True
        self.opened.set()
        if self.gate is not None and args.messages[-1].text == "wait":
            await self.gate.wait()
            assert self.is_open, "closed while it was in use"

    async def close(self) -> None:
        self.is_open, self.closed = False, self.closed + 1


class Fails(Holds):
    error: BaseException = OSError("gone")

    async def close(self) -> None:
        await super().close()
        raise self.error


def model(name: str = "m") -> ScriptedModel:
    return ScriptedModel(lambda _: "ok", name=name)


async def test_what_a_function_made_is_closed_with_its_call() -> None:
    made: list[Holds] = []

    def make(request_context: dict[str, Any]) -> list[Processor[Any]]:
        made.append(Holds())
        return [Sequence(made[-1])]

    agent = Agent(model=model(), processors=make)
    await agent.generate("hi")
    await collect(agent.stream("hi"))
    assert [holds.closed for holds in made] == [1, 1]
    await agent.close()
    assert [holds.closed for holds in made] == [1, 1]


async def test_what_was_given_beside_a_function_is_closed_with_the_agent() -> None:
    own = Holds()
    agent = Agent(model=model(), input_processors=[own], processors=lambda _: [])
    await agent.generate("hi")
    assert (own.is_open, own.closed) == (True, 0)
    await agent.close()
    assert own.closed == 1


@pytest.mark.parametrize("option", ["processors", "input_processors", "extra_processors"])
async def test_what_a_call_brought_is_closed_with_it(option: str) -> None:
    own, brought = Holds("own"), Holds("brought")
    agent = Agent(model=model(), processors=[own])
    await agent.generate("hi", **{option: [brought]})  # type: ignore[arg-type]
    assert (brought.closed, own.closed) == (1, 0)
    await agent.generate("hi", **{option: lambda _: [brought]})  # type: ignore[arg-type]
    assert (brought.closed, own.closed) == (2, 0)


async def test_what_the_agent_has_stays_open_when_a_call_brings_it_once_more() -> None:
    own = Holds()
    agent = Agent(model=model(), processors=[own])
    await agent.generate("hi", processors=[own])
    assert own.closed == 0


@pytest.mark.parametrize("elsewhere", ["another call of it", "a run of an agent that has it"])
async def test_nothing_is_closed_while_another_run_uses_it(elsewhere: str) -> None:
    shared = Holds()
    shared.gate = asyncio.Event()
    agent, brings = Agent(model=model()), {"extra_processors": [shared]}
    owner = Agent(model=model(), processors=[shared])
    slow = agent.generate("wait", **brings) if "call" in elsewhere else owner.generate("wait")  # type: ignore[arg-type]
    run = asyncio.create_task(slow)
    await shared.opened.wait()
    await agent.generate("hi", **brings)  # type: ignore[arg-type]
    assert shared.closed == 0
    shared.gate.set()
    await run
    assert shared.closed == (1 if "call" in elsewhere else 0)
    await owner.close()
    assert not shared.is_open


@pytest.mark.parametrize("how", ["blocked", "failed", "cancelled", "left", "never read"])
async def test_however_the_call_ends(how: str) -> None:
    brought = Holds()

    class Ends(Processor[Any]):
        async def process_input_step(self, args: Any) -> None:
            if how == "blocked":
                args.abort("no")
            if how == "failed":
                raise ValueError("bug")
            if how == "cancelled":
                args.cancel.cancel()
                await asyncio.Event().wait()

    agent = Agent(model=model(), processors=[Ends()])
    stream: AgentStream[Any] = agent.stream("hi", extra_processors=[brought])
    async with stream:
        if how == "left":
            await anext(aiter(stream))
        elif how != "never read":
            await collect(stream)
    assert brought.closed == 1


async def test_closing_is_over_before_the_last_chunk() -> None:
    brought = Holds()
    async for chunk in Agent(model=model()).stream("hi", extra_processors=[brought]):
        assert chunk.type != "finish" or brought.closed == 1
    assert brought.closed == 1


@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError("gone")], ids=repr)
async def test_what_cannot_be_closed_is_logged_and_the_result_stays(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    fails = Fails()
    fails.error = error
    result = await Agent(model=model()).generate("hi", extra_processors=[fails])
    assert result.text == "ok"
    assert "processor 'holds' could not be closed" in caplog.text


@pytest.mark.parametrize("wrong", [Holds(), ["no processor"], "text"])
def test_a_wrong_list_beside_a_function_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="processor"):
        Agent(model=model(), input_processors=wrong, processors=lambda _: [])


async def test_an_agent_closes_the_others_too_where_one_fails() -> None:
    others = [Fails("a"), Holds("b")]
    with pytest.raises(OSError, match="gone"):
        await Agent(model=model(), processors=others).close()
    assert [holds.closed for holds in others] == [1, 1]
