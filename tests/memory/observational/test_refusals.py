"""A message that the Observer refuses for good does not stop the diary; an outage writes nothing off."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest

from diarist.exceptions import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelResponseError,
    RateLimitError,
    RoleError,
)
from diarist.memory.observational.manual import observe_now
from diarist.memory.observational.roles.observer import ModelObserver
from diarist.messages import Message, ToolPart
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage
from diarist.testing import ScriptedModel
from tests.memory.observational.harness import (
    NOON,
    Conversation,
    WordCounter,
    assert_exactly_once,
    small_config,
    user,
)

HOUR = 3600.0
LOST = "could not be noted"
HARMLESS = "going to Rome"
SAID = re.compile(r"^\[#\d+\] \d\d:\d\d (?:User|Assistant|Tool call|Tool result look): ?(.*)", re.MULTILINE)


class Refusing(ScriptedModel):
    """Notes the first word of each message. Refuses whatever one of the ``bad`` messages is among.

    Attributes:
        calls: The first words of the messages of each call; of the harmless message, "harmless".
    """

    def __init__(self, *bad: str, error: Exception | str | None = None) -> None:
        super().__init__(lambda request: self.write(request))
        self.bad: Collection[str] = bad
        self.error = error or ContentFilterError("content filter", status=400)
        self.calls: list[list[str]] = []

    def write(self, request: ModelRequest) -> str | Exception:
        transcript = request.text.rpartition("<transcript>")[2]
        self.calls.append(["harmless" if HARMLESS in said else said.split()[0] for said in SAID.findall(transcript)])
        if not {*self.calls[-1]}.isdisjoint(self.bad):
            return self.error
        lines = [f"- 🟡 {name} [#{number}]" for number, name in enumerate(self.calls[-1], 1)]
        return "\n".join(["<diary>", f"Date: {NOON:%Y-%m-%d}", *lines, "</diary>"])


def talking_to(model: Refusing, *, buffer_tokens: float = False) -> Conversation:
    """A conversation that this model observes."""
    config = small_config(buffer_tokens=buffer_tokens)
    observer = ModelObserver(model, config, counter=WordCounter())
    return Conversation(InMemoryStorage(), config, observer=observer)  # type: ignore[arg-type]


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
    return {line.removeprefix("- 🟡 ") for line in lines if line.startswith("- 🟡")}


@pytest.mark.parametrize("buffer_tokens", [False, 30])
@pytest.mark.parametrize(
    "error",
    [ContentFilterError("content filter"), BadRequestError("bad request", status=400), "I cannot help with that."],
    ids=lambda error: type(error).__name__,
)
async def test_a_message_that_is_always_refused_does_not_stop_the_diary(
    error: Exception | str, buffer_tokens: int | bool
) -> None:
    chat = talking_to(Refusing("bad", error=error), buffer_tokens=buffer_tokens)
    await chat.commit(user("bad", 10))

    await talk(chat, 40)

    memory = await chat.open()
    assert memory.window.sizes().message_tokens <= 150
    assert await lost_lines(chat) == [f"- 🟢 1 message {LOST}: the Observer refused it each time"]
    assert {f"q{number}" for number in range(25)} <= await noted(chat)
    assert chat.data("observation-failed") == []
    await assert_exactly_once(chat, memory)


async def test_the_line_of_what_was_refused_is_dated_and_told() -> None:
    model = Refusing("bad")
    chat = talking_to(model)
    await chat.commit(user("bad", 10))

    await talk(chat, 20)

    entry = next(entry for entry in (await chat.stored()).entries if LOST in entry.text)
    assert entry.text.startswith(f"Date: {NOON:%Y-%m-%d}\n")
    assert (entry.message_count, entry.model) == (1, "")
    assert [e for e in chat.data("observation-end") if LOST in str(e["observations"])]
    refused = [len(call) for call in model.calls if "bad" in call]
    assert refused == [4, 2, 1, 1, 1]
    assert model.calls.count(["harmless"]) == 1


@pytest.mark.parametrize("buffer_tokens", [False, 30])
async def test_refused_messages_in_the_middle_are_found_by_halving(buffer_tokens: int | bool) -> None:
    model = Refusing("q17", "q18", "q30")
    chat = talking_to(model, buffer_tokens=buffer_tokens)

    await talk(chat, 90)

    assert len(await lost_lines(chat)) == 3
    assert {f"q{n}" for n in range(80)} - await noted(chat) == {"q17", "q18", "q30"}
    assert sum(any(bad in call for bad in model.bad) for call in model.calls) < 50
    assert max(map(len, model.calls[-5:])) >= 3  # batches are as large as ever
    await assert_exactly_once(chat, await chat.open())


async def test_a_call_and_its_result_are_written_off_together() -> None:
    call = ToolPart(call_id="c", name="look", args={}, state="call")
    result = ToolPart(call_id="c", name="look", args={}, state="result", result="result " * 10)
    chat = talking_to(Refusing("result"))
    await chat.commit(
        user("ask", 10),
        Message(id="call", role="assistant", parts=[call], created_at=NOON),
        Message(id="result", role="tool", parts=[result], created_at=NOON),
    )

    await talk(chat, 30)

    assert await lost_lines(chat) == [f"- 🟢 2 messages {LOST}: the Observer refused them each time"]
    assert "ask" in await noted(chat)
    await assert_exactly_once(chat, await chat.open())


@pytest.mark.slow
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
    model = Refusing(error=error)
    chat = talking_to(model, buffer_tokens=buffer_tokens)
    model.bad = {"harmless", *(f"q{number}" for number in range(40))}
    await talk(chat, 40)
    assert (await chat.stored()).entries == ()
    assert min(len(call) for call in model.calls if call != ["harmless"]) >= 2  # the batches are as large as ever

    model.bad = ()
    await talk(chat, 20, name="later")

    assert {f"q{number}" for number in range(40)} <= await noted(chat)
    assert await lost_lines(chat) == []


async def test_an_outage_amid_the_refusals_changes_nothing() -> None:
    model = Refusing("bad", "harmless")
    chat = talking_to(model)
    await chat.commit(user("bad", 10))
    await talk(chat, 20, name="refused")
    model.bad = ["bad"]
    model.error = ModelConnectionError("down")
    await talk(chat, 20, name="down")
    assert (await chat.stored()).entries == ()

    model.bad = ()
    await talk(chat, 15, name="up")
    assert "bad" in await noted(chat)
    assert await lost_lines(chat) == []


async def test_observing_by_hand_narrows_batches_too() -> None:
    chat = talking_to(Refusing("u3"))
    for number in range(1, 9):
        await chat.commit(user(f"u{number}", 10))

    await observe_now(chat.engine, "ada", chat.thread)

    assert await noted(chat) == {"u1", "u2", "u4", "u5", "u6", "u7", "u8"}
    assert len(await lost_lines(chat)) == 1


@pytest.mark.parametrize("buffer_tokens", [False, 30])
async def test_messages_that_are_all_refused_are_skipped_one_by_one_with_a_pause(buffer_tokens: int | bool) -> None:
    """A filter that is too strict for an hour costs few calls, and does not take the messages from the prompt."""
    model = Refusing(*(f"q{number}" for number in range(30)))
    chat = talking_to(model, buffer_tokens=buffer_tokens)
    for number in range(30):
        await chat.turn(user(f"q{number}", 10))
        await chat.settled()
    assert len(await lost_lines(chat)) == 1
    assert len(model.calls) < 10
    assert (await chat.stored()).observer_failures.last_error == "ContentFilterError"

    model.bad = ()
    await talk(chat, 20, name="later")

    assert {f"q{number}" for number in range(1, 30)} <= await noted(chat)
    assert (await chat.stored()).observer_failures.count == 0


async def test_observing_by_hand_ends_where_all_is_refused() -> None:
    model = Refusing(*(f"u{number}" for number in range(30)))
    chat = talking_to(model)
    for number in range(30):
        await chat.commit(user(f"u{number}", 10))

    with pytest.raises(RoleError, match="refused three messages in a row"):
        await observe_now(chat.engine, "ada", chat.thread)

    assert len(await lost_lines(chat)) == 3


async def test_an_interrupted_search_goes_on_and_leaves_other_threads_alone() -> None:
    model = Refusing("bad")
    chat = talking_to(model)
    other = Conversation(chat.storage, chat.config, observer=chat.observer, thread="other")
    await chat.commit(user("bad", 10))
    refuse, failed = model.write, list[str]()

    def fail_once(request: ModelRequest) -> str | Exception:
        answer = refuse(request)
        if model.calls[-1] == ["bad"] and not failed:
            failed.append("bad")
            return ModelConnectionError("down")
        return answer

    model.write = fail_once  # type: ignore[method-assign]
    await talk(chat, 9)
    assert failed
    searched = len(model.calls)

    await talk(other, 10, name="other")
    assert len(model.calls[searched]) == 4

    model.calls.clear()
    await talk(chat, 1, name="next")
    assert model.calls[0] == ["bad"]


@pytest.mark.parametrize("buffer_tokens", [False, 30])
async def test_earlier_notes_that_are_refused_are_not_shown_and_no_message_is_skipped(
    buffer_tokens: int | bool,
) -> None:
    model = Refusing()
    chat = talking_to(model, buffer_tokens=buffer_tokens)
    accept = model.write
    model.write = lambda request: (  # type: ignore[method-assign]
        model.error if "🟡 q3" in request.text else accept(request)
    )

    await talk(chat, 40)

    assert await lost_lines(chat) == []
    assert {f"q{number}" for number in range(25)} <= await noted(chat)


async def test_after_answers_without_notes_the_batches_are_as_large_as_ever() -> None:
    model = Refusing("harmless", *(f"q{number}" for number in range(40)), error="I cannot help with that.")
    chat = talking_to(model)
    await talk(chat, 20)
    model.bad = ()
    model.calls.clear()

    await talk(chat, 1, name="later")

    assert len(model.calls[0]) == 4
