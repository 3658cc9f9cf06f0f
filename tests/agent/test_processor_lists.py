"""Where processors are listed: the three lists, ``processors=``, a call's own, and functions of the request."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Processor
from diarist.exceptions import ConfigError
from diarist.processors.compose import Sequence
from diarist.testing import ScriptedModel
from tests.agent.kit import RecordingMemory


class Notes(Processor[Any]):
    """Notes when it is asked in ``process_input`` and in ``process_output_result``."""

    def __init__(self, id: str, log: list[str]) -> None:
        self.id = id
        self._log = log

    def process_input(self, args: Any) -> None:
        self._log.append(f"in {self.id}")

    def process_output_result(self, args: Any) -> None:
        self._log.append(f"out {self.id}")


def model() -> ScriptedModel:
    return ScriptedModel(lambda request: "ok")


@pytest.fixture
def log() -> list[str]:
    return []


async def test_the_hooks_own_list_comes_first_then_processors(log: list[str]) -> None:
    a, b, c, d = (Notes(name, log) for name in "abcd")
    await Agent(model=model(), input_processors=[a], output_processors=[b], processors=[c, d]).generate("hi")
    assert log == ["in a", "in c", "in d", "out b", "out c", "out d"]


async def test_a_calls_list_replaces_the_agents_and_extra_adds(log: list[str]) -> None:
    a, b, c = (Notes(name, log) for name in "abc")
    agent = Agent(model=model(), input_processors=[a], processors=[b])
    for options, asked in (
        ({"processors": [c]}, ["in a", "in c", "out c"]),
        ({"input_processors": [c]}, ["in c", "in b", "out b"]),
        ({"extra_processors": [c]}, ["in a", "in b", "in c", "out b", "out c"]),
        ({"processors": [], "extra_processors": [c]}, ["in a", "in c", "out c"]),
        ({"input_processors": [], "processors": []}, []),
        ({}, ["in a", "in b", "out b"]),
    ):
        log.clear()
        await agent.generate("hi", **options)  # type: ignore[arg-type]
        assert log == asked


async def test_memorys_processors_stay_around_the_calls_own(log: list[str]) -> None:
    memory = RecordingMemory()
    memory.recorder.events = log
    agent = Agent(model=model(), memory=memory, input_processors=[Notes("a", log)])
    await agent.generate("hi", thread="t", input_processors=[Notes("b", log)], output_processors=[Notes("c", log)])
    assert log == ["memory: input", "in b", "out c", "memory: result"]


@pytest.mark.parametrize("name", ["input_processors", "processors"])
async def test_a_list_may_be_a_function_of_the_request(log: list[str], name: str) -> None:
    def chosen(request_context: dict[str, Any]) -> list[Processor[Any]]:
        return [Notes(str(request_context["tier"]), log)] if "tier" in request_context else []

    agent = Agent(model=model(), **{name: chosen})
    await agent.generate("hi", request_context={"tier": "free"})
    await agent.generate("hi")
    assert [entry for entry in log if entry.startswith("in")] == ["in free"]
    log.clear()
    await agent.generate("hi", request_context={"tier": "paid"}, extra_processors=lambda context: [Notes("x", log)])
    assert [entry for entry in log if entry.startswith("in")] == ["in paid", "in x"]


async def test_what_a_function_returns_is_checked(log: list[str]) -> None:
    agent = Agent(model=model(), processors=lambda context: [Notes("a", log), Notes("a", log)])
    with pytest.raises(ConfigError, match="'a'"):
        await agent.generate("hi")
    with pytest.raises(ConfigError, match="no processor"):
        await Agent(model=model()).generate("hi", processors=["text"])  # type: ignore[list-item]


async def test_one_object_in_several_lists_has_one_state(log: list[str]) -> None:
    class Counts(Processor[Any]):
        def process_input(self, args: Any) -> None:
            args.state["seen"] = 1

        def process_output_step(self, args: Any) -> None:
            log.append(str(args.state.get("seen")))

    counts = Counts()
    await Agent(model=model(), input_processors=[counts], output_processors=[Sequence(counts)]).generate("hi")
    assert log == ["1"]


def test_a_guard_in_the_list_where_it_is_never_asked_is_refused() -> None:
    class Guard(Processor[Any]):
        def process_output_step(self, args: Any) -> None:
            args.abort("no")

    with pytest.raises(ConfigError, match=r"input_processors: processor 'guard' has none of this list's hooks"):
        Agent(model=ScriptedModel("x"), input_processors=[Guard()])
    Agent(model=ScriptedModel("x"), processors=[Guard()])
