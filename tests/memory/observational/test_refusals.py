"""A message that the Observer refuses for good does not stop the diary; an outage writes nothing off."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelResponseError,
    RateLimitError,
)
from diarist.memory.observational.manual import observe_now
from diarist.memory.observational.roles.base import Observed, RoleError
from diarist.messages import Message, ToolPart
from diarist.storage import InMemoryStorage, Observation
from tests.memory.observational.harness import (
    NOON,
    Conversation,
    FakeObserver,
    assert_exactly_once,
    small_config,
    user,
)

HOUR = 3600.0
LOST = "could not be noted"


@dataclass
class Refusing(FakeObserver):
    """Refuses whatever one of the ``bad`` messages is among."""

    bad: Collection[str] = ("bad",)
    error: Exception = field(default_factory=lambda: ContentFilterError("content filter", status=400))

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        self.fail = self.error if any(message.id in self.bad for message in messages) else None
        return await super().observe(messages, earlier=earlier)


async def talk(chat: Conversation, turns: int, *, name: str = "q") -> None:
    """So many turns of 10 tokens, an hour apart."""
    for number in range(turns):
        chat.clock.advance(HOUR)
        await chat.turn(user(f"{name}{number}", 10))
        await chat.settled()


async def lost_lines(chat: Conversation) -> list[str]:
    return [line for entry in (await chat.stored()).entries for line in entry.text.splitlines() if LOST in line]


async def noted(chat: Conversation) -> set[str]:
    """The ids of which the diary says something."""
    lines = [line for entry in (await chat.stored()).entries for line in entry.text.splitlines()]
    return {line.removeprefix("- ").split()[0] for line in lines}


@pytest.mark.parametrize("buffer_tokens", [False, 30])
@pytest.mark.parametrize(
    "error",
    [
        ContentFilterError("content filter"),
        BadRequestError("bad request", status=400),
        RoleError("nothing usable"),
        ValueError("not for me"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_message_that_is_always_refused_does_not_stop_the_diary(
    error: Exception, buffer_tokens: int | bool
) -> None:
    observer = Refusing(error=error)
    chat = Conversation(InMemoryStorage(), small_config(buffer_tokens=buffer_tokens), observer=observer)
    await chat.commit(user("bad", 10))

    await talk(chat, 40)

    memory = await chat.open()
    assert memory.window.sizes().message_tokens <= 150
    assert await lost_lines(chat) == [f"- 🟢 1 message {LOST}: the Observer refused it each time"]
    assert {f"q{number}" for number in range(25)} <= await noted(chat)
    assert (await chat.stored()).observer_failures.refused == ()
    await assert_exactly_once(chat, memory)


async def test_the_line_of_what_was_refused_is_dated_and_told() -> None:
    chat = Conversation(InMemoryStorage(), observer=Refusing())
    await chat.commit(user("bad", 10))

    await talk(chat, 20)

    entry = next(entry for entry in (await chat.stored()).entries if LOST in entry.text)
    assert entry.text.startswith(f"Date: {NOON:%Y-%m-%d}\n")
    assert (entry.message_count, entry.model) == (1, "")
    assert [e for e in chat.data("observation-end") if LOST in str(e["observations"])]
    refusals = chat.data("observation-failed")
    assert [event["error"] for event in refusals] == ["content filter"] * len(refusals)
    assert [event["tokensAttempted"] for event in refusals] == [40, 40, 40, 20, 10, 10, 10]


@pytest.mark.parametrize("buffer_tokens", [False, 30])
async def test_refused_messages_in_the_middle_are_found_by_halving(buffer_tokens: int | bool) -> None:
    observer = Refusing(bad=("q17", "q18", "q30"))
    chat = Conversation(InMemoryStorage(), small_config(buffer_tokens=buffer_tokens), observer=observer)

    await talk(chat, 90)

    assert len(await lost_lines(chat)) == 3
    assert {f"q{n}" for n in range(80)} - await noted(chat) == {"q17", "q18", "q30"}
    assert sum(any(bad in call for bad in observer.bad) for call in observer.calls) < 30
    await assert_exactly_once(chat, await chat.open())


async def test_a_call_and_its_result_are_written_off_together() -> None:
    call = ToolPart(call_id="c", name="look", args={}, state="call")
    result = ToolPart(call_id="c", name="look", args={}, state="result", result="words " * 10)
    chat = Conversation(InMemoryStorage(), observer=Refusing(bad=("result",)))
    await chat.commit(
        user("ask", 10),
        Message(id="call", role="assistant", parts=[call], created_at=NOON),
        Message(id="result", role="tool", parts=[result], created_at=NOON),
    )

    await talk(chat, 30)

    assert await lost_lines(chat) == [f"- 🟢 2 messages {LOST}: the Observer refused them each time"]
    assert "ask" in await noted(chat)
    await assert_exactly_once(chat, await chat.open())


@pytest.mark.parametrize("buffer_tokens", [False, 30])
@pytest.mark.parametrize(
    "error",
    [
        ModelConnectionError("down"),
        ModelAPIError("overloaded", status=503),
        RateLimitError("slow down", status=429),
        AuthenticationError("wrong key", status=401),
        BadRequestError("no such model", status=404),
        ModelResponseError("a page of the gateway"),
        OSError("no route"),
        RuntimeError("what is this?"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_outage_writes_nothing_off(error: Exception, buffer_tokens: int | bool) -> None:
    observer = FakeObserver(fail=error)
    chat = Conversation(InMemoryStorage(), small_config(buffer_tokens=buffer_tokens), observer=observer)
    await talk(chat, 40)
    assert (await chat.stored()).entries == ()
    assert min(len(call) for call in observer.calls) >= 2  # the batches are as large as ever

    observer.fail = None
    await talk(chat, 20, name="later")

    assert {f"q{number}" for number in range(40)} <= await noted(chat)
    assert await lost_lines(chat) == []


async def test_a_hook_that_raises_writes_nothing_off() -> None:
    hooked = RoleError("the hook before_observation raised OSError: down")
    hooked.__cause__ = OSError("down")
    chat = Conversation(InMemoryStorage(), observer=Refusing(error=hooked))
    await chat.commit(user("bad", 10))

    await talk(chat, 30)

    assert (await chat.stored()).entries == ()


async def test_an_outage_amid_the_refusals_changes_nothing() -> None:
    observer = Refusing()
    chat = Conversation(InMemoryStorage(), observer=observer)
    await chat.commit(user("bad", 10))
    turns = 0
    while observer.calls[-2:] != [["bad"], ["bad"]]:  # once more, and it is given up
        await talk(chat, 1, name=f"turn{(turns := turns + 1)}-")
    observer.error = ModelConnectionError("down")

    await talk(chat, 20, name="down")
    assert await lost_lines(chat) == []

    observer.bad = ()
    await talk(chat, 5, name="up")
    assert "bad" in await noted(chat)
    assert await lost_lines(chat) == []


async def test_observing_by_hand_narrows_batches_too() -> None:
    chat = Conversation(InMemoryStorage(), observer=Refusing(bad=("u3",)))
    for number in range(1, 9):
        await chat.commit(user(f"u{number}", 10))

    for _ in range(12):
        chat.clock.advance(1)
        try:
            await observe_now(chat.engine, "ada", chat.thread)
        except ContentFilterError:
            continue
        break

    assert await noted(chat) >= {"u1", "u2", "u4", "u5", "u6", "u7", "u8"}
    assert len(await lost_lines(chat)) == 1


async def test_an_observer_that_refuses_everything_writes_nothing_off() -> None:
    """A wrong setting is no fault of the messages: once it is right, all of them are noted."""
    observer = FakeObserver()
    observer.fail = BadRequestError("there is no parameter 'temperature'", status=400)
    chat = Conversation(InMemoryStorage(), observer=observer)

    await talk(chat, 40)
    assert (await chat.stored()).entries == ()

    observer.fail = None
    await talk(chat, 15, name="later")
    assert {f"q{number}" for number in range(40)} <= await noted(chat)
    assert await lost_lines(chat) == []
    await assert_exactly_once(chat, await chat.open())
