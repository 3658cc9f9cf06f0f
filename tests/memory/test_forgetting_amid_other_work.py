"""What is forgotten does not come back by what others write at the same moment: each writes what it has read before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Literal

import pytest

from diarist import Agent, tool
from diarist.models.base import ModelRequest
from diarist.testing import ScriptedModel, ToolCall
from tests.memory.diary_kit import everything, keeping_diary, message, take_notes, told, transcript_of, word
from tests.scenarios.kit import WatchedStorage, failing, observational, words


class Interrupted(WatchedStorage):
    """Lets something else happen, once, after a call has been made and before it is carried out."""

    def __init__(self) -> None:
        super().__init__()
        self._meanwhile: tuple[str, Callable[[], Awaitable[object]]] | None = None

    def interrupt(self, name: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._meanwhile = name, meanwhile

    @property
    def was_interrupted(self) -> bool:
        return self._meanwhile is None

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self._meanwhile is not None and name == self._meanwhile[0]:
            (_, meanwhile), self._meanwhile = self._meanwhile, None
            await meanwhile()
        return await call()


@pytest.fixture
def storage() -> Interrupted:
    return Interrupted()


async def assert_gone(storage: Interrupted, *numbers: int) -> None:
    assert storage.was_interrupted
    stored = await everything(storage)
    assert [number for number in numbers if word(number) in stored] == []


# --- earlier generations of the diary ------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [("m1", "m6"), ("m6", "m1")])
async def test_two_forget_at_once(storage: Interrupted, first: str, second: str) -> None:
    memory = keeping_diary(storage)
    for numbers in ([1, 2], [3, 4], [5, 6]):
        await told(memory, numbers)
    await memory.diary.reflect(thread="t", guidance="keep all")
    storage.interrupt("rewrite_generation", lambda: memory.forget(message_ids=[second], thread="t"))
    await memory.forget(message_ids=[first], thread="t")
    await assert_gone(storage, 1, 6)


# --- errors that quote -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", ["append_event", "save_log"])
@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_an_error_is_told_while_its_words_are_forgotten(
    storage: Interrupted, scope: Literal["thread", "resource"], write: str
) -> None:
    def refuse(_: ModelRequest) -> BaseException:
        storage.interrupt(write, lambda: memory.forget(message_ids=["m3"], thread="t"))
        return RuntimeError(f"cannot take {word(3)}")

    memory = keeping_diary(storage, scope=scope, observer_model=ScriptedModel("- 🟡 noted", refuse))
    await told(memory, [1, 2])
    with pytest.raises(RuntimeError, match=word(3)):
        await told(memory, [3, 4])
    await assert_gone(storage, 3)
    log = await storage.get_log(f"{scope}:{'t' if scope == 'thread' else 'ada'}")
    assert log is not None
    assert (log.observer_failures.count, log.observer_failures.last_error) == (1, "RuntimeError")


@pytest.mark.slow
@pytest.mark.parametrize("write", ["append_event", "save_log"])
@pytest.mark.parametrize("whose", [{"thread": "t"}, {"resource": "ada"}])
@pytest.mark.parametrize("scope", ["thread", "resource"])
@pytest.mark.parametrize("observed", [False, True])
async def test_an_error_is_told_while_all_of_its_thread_is_forgotten(
    storage: Interrupted, observed: bool, scope: Literal["thread", "resource"], whose: dict[str, str], write: str
) -> None:
    def refuse(_: ModelRequest) -> BaseException:
        storage.interrupt(write, lambda: memory.forget(**whose))
        return RuntimeError(f"cannot take {word(3)}")

    replies = ["- 🟡 noted", refuse] if observed else [refuse]
    memory = keeping_diary(storage, scope=scope, observer_model=ScriptedModel(*replies))
    if observed:
        await told(memory, [1, 2])
    with pytest.raises(RuntimeError, match=word(3)):
        await told(memory, [3, 4])
    assert storage.was_interrupted
    key = f"{scope}:{'t' if scope == 'thread' else 'ada'}"
    log = await storage.get_log(key)
    assert word(3) not in f"{log and asdict(log)} {await storage.list_events(key)}"
    assert log is None or (scope, whose) == ("resource", {"thread": "t"})


async def test_an_error_that_quotes_words_being_removed(storage: Interrupted) -> None:
    """The run began before; the Observer is asked when all is cleaned, but for the message itself."""
    cleaned, go_on = asyncio.Event(), asyncio.Event()
    jobs: list[asyncio.Task[object]] = []

    async def pause() -> None:
        cleaned.set()
        await go_on.wait()

    async def look_up(_: ModelRequest) -> ToolCall:
        storage.interrupt("delete_messages", pause)
        jobs.append(asyncio.create_task(memory.forget(message_ids=["m3"], thread="t")))
        await cleaned.wait()
        return ToolCall("weather", {})

    @tool
    def weather() -> str:
        """The weather."""
        return words("sunny", 60)

    observer = failing(RuntimeError(f"cannot take {word(3)}"))
    memory = observational(storage, observer_model=observer, buffer_tokens=False)
    await memory.messages.save([message(3, size=60), message(4)], thread="t", resource="ada")
    agent = Agent(model=ScriptedModel(look_up, "Sunny."), memory=memory, tools=[weather])
    await agent.generate("and now?", thread="t", resource="ada")
    assert len(observer.requests) > 0
    assert word(3) in observer.requests[0].text
    go_on.set()
    await asyncio.gather(*jobs)
    await assert_gone(storage, 3)


# --- titles --------------------------------------------------------------------------------------------------


async def test_the_observer_titles_a_thread_with_words_being_forgotten(storage: Interrupted) -> None:
    memory = keeping_diary(storage, titles=True)
    await told(memory, [1, 2])
    storage.interrupt("update_thread", lambda: memory.forget(message_ids=["m4"], thread="t"))
    await told(memory, [3, 4])
    await assert_gone(storage, 4)
    assert (await memory.threads.get("t")).title == f"of {word(3)}"  # message 3 was observed again, alone
    await told(memory, [5, 6])
    assert (await memory.threads.get("t")).title == f"of {word(6)}"


# --- notes that know nothing of it ---------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_notes_in_flight_are_kept_where_something_else_is_forgotten(
    storage: Interrupted, scope: Literal["thread", "resource"]
) -> None:
    """The Observer was told nothing of it: to ask again would be wasted money."""
    asked = list[str]()

    async def write(request: ModelRequest) -> str:
        asked.extend(word(number) for number in (1, 3, 5, 7) if word(number) in transcript_of(request))
        if word(5) in asked[-1:]:
            await memory.forget(message_ids=["m7"], thread="t")
        return take_notes(request)

    memory = keeping_diary(storage, scope=scope, observer_model=ScriptedModel(write, name="observer"))
    await told(memory, range(1, 9))
    assert asked == [word(number) for number in (1, 3, 5)]
    log = await memory.diary.get(thread="t")
    assert [word(number) in log.text for number in (1, 3, 5, 7, 8)] == [True, True, True, False, True]


async def test_notes_in_flight_that_were_told_of_it_are_dropped(storage: Interrupted) -> None:
    asked = 0

    async def write(request: ModelRequest) -> str:
        nonlocal asked
        if word(5) in transcript_of(request):
            asked += 1
            if asked == 1:
                await memory.forget(message_ids=["m3"], thread="t")
        return take_notes(request, echoes=True)

    memory = keeping_diary(storage, observer_model=ScriptedModel(write, name="observer"))
    await told(memory, range(1, 9))
    assert asked == 2
    stored = await everything(storage)
    assert (word(3) in stored, word(5) in stored) == (False, True)
