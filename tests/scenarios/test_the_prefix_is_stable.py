"""Each prompt extends the one before it, except where memory observes or reflects; nothing before the
messages depends on the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from diarist import Agent, Message, Processor, Tool
from diarist.models.base import ModelRequest
from diarist.processors import ProcessOutputStepArgs
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import (
    Played,
    answering,
    log_of,
    observational,
    play,
    raw_rows,
    ways,
    words,
)

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def asked(number: int, at: datetime, size: int = 12) -> Message:
    return Message.user(words(f"turn-{number}", size), created_at=at)


def system(request: ModelRequest) -> list[str]:
    return [message.text for message in request.prompt if message.role == "system"]


def dated_observer() -> ScriptedModel:
    """Notes with a date heading, a plan, a task and a response, so that there is much to say beside them."""
    count = iter(range(1000))

    def write(_: ModelRequest) -> str:
        n = next(count)
        day = MONDAY + timedelta(days=n)
        plan = day + timedelta(days=2)
        return (
            f"<diary>\nDate: {day:%Y-%m-%d}\n- 🔴 09:00 plan {n} (meaning {plan:%Y-%m-%d})\n</diary>\n"
            f"<current-task>task {n}</current-task>\n<suggested-response>answer {n}</suggested-response>"
        )

    return ScriptedModel(write)


async def walk(agent: Agent, model: ScriptedModel, turns: int, *, hours: int = 7) -> tuple[int, int]:
    """Talk for many days. Returns how many prompts extended the one before, and how many changed it."""
    extended = changed = 0
    for number in range(turns):
        first = len(model.requests)
        played: Played = await play(agent, asked(number, MONDAY + timedelta(hours=hours * number)), thread="t")
        acted_at: set[int] = set()
        step = 0
        for chunk in played.chunks:
            if chunk.type == "step-start":
                step += 1
            elif chunk.type in ("data-om-observation-end", "data-om-activation"):
                acted_at.add(step)
        for step, request in enumerate(model.requests[first:]):
            before = model.requests[first + step - 1].text if first + step else ""
            if request.text.startswith(before):
                extended += 1
            else:
                assert step in acted_at, f"turn {number}, step {step}: the prompt changed and nobody said why"
                changed += 1
    return extended, changed


@ways
async def test_prompts_of_many_days_extend_each_other(storage: Storage, buffer_tokens: float) -> None:
    model = answering()
    memory = observational(storage, observation_tokens=60, observer_model=dated_observer(), buffer_tokens=buffer_tokens)
    agent = Agent(model=model, instructions="Be kind.", memory=memory)
    extended, changed = await walk(agent, model, 60)
    log = await log_of(storage)
    assert log.generation >= 2, "the walk must see reflections"
    assert extended > 15, "how often depends on how fast the Observer is"
    assert changed >= 5


@ways
async def test_with_tool_loops_too(storage: Storage, buffer_tokens: float) -> None:
    def answer(request: ModelRequest) -> Any:
        looked = sum(message.role == "tool" for message in request.prompt)
        return "Done." if looked % 4 == 3 else ToolCall("look", {})

    model = ScriptedModel(answer)
    agent = Agent(
        model=model,
        tools=[Tool(name="look", function=lambda: words("found", 10))],
        memory=observational(
            storage, observation_tokens=60, observer_model=dated_observer(), buffer_tokens=buffer_tokens
        ),
        max_steps=4,
    )
    extended, changed = await walk(agent, model, 25)
    assert extended > 15
    assert changed >= 5


async def test_nothing_before_the_messages_depends_on_the_clock(storage: Storage) -> None:
    model = answering()
    agent = Agent(model=model, instructions="Be kind.", memory=observational(storage, observer_model=dated_observer()))
    for number in range(10):
        await agent.generate(asked(number, MONDAY), thread="t")
    assert (await log_of(storage)).entries
    before = system(model.requests[-1])
    later = MONDAY + timedelta(days=400)
    await agent.generate(asked(10, later, size=1), thread="t")
    after = system(model.requests[-1])
    assert after[: len(before)] == before
    assert "2027" not in "".join(after)
    assert "6 April 2027" in model.requests[-1].prompt.messages[-1].text


async def test_a_diary_grows_at_its_end(storage: Storage) -> None:
    model = answering()
    agent = Agent(model=model, memory=observational(storage))
    await walk(agent, model, 30)
    blocks = [system(request) for request in model.requests]
    for earlier, later in pairwise(blocks):
        assert later[: len(earlier)] == earlier
    assert len(blocks[-1]) > 4


# --- what was sent with a message --------------------------------------------------------------------


async def test_the_note_is_stored_with_the_message_and_sent_again_byte_for_byte(storage: Storage) -> None:
    model = answering()
    memory = observational(storage, message_tokens=300, observer_model=dated_observer())
    agent = Agent(model=model, memory=memory)
    for number in range(4):
        await agent.generate(asked(number, MONDAY + timedelta(days=number)), thread="t")
    rows = await memory.messages.list(thread="t")
    notes = [row.sent.text for row in rows if row.sent is not None]
    assert len(notes) == 4
    assert "Today is Monday, 2 March 2026." in notes[0]
    assert "Today is Thursday, 5 March 2026." in notes[3]
    last = model.requests[-1]
    for note, row in zip(notes, rows[::2], strict=True):
        sent = next(message for message in last.prompt if message.message_id == row.id)
        assert sent.text == f"{note}\n\n{row.text}"


async def test_what_was_said_already_is_not_said_again(storage: Storage) -> None:
    memory = observational(storage, message_tokens=300)
    agent = Agent(model=answering(), memory=memory)
    for number in range(4):
        await agent.generate(asked(number, MONDAY + timedelta(minutes=number)), thread="t")
    assert [row.sent is not None for row in (await memory.messages.list(thread="t"))[::2]] == [
        True,
        False,
        False,
        False,
    ]


async def test_the_note_is_never_shown_nor_observed(storage: Storage) -> None:
    observer = dated_observer()
    memory = observational(storage, observer_model=observer)
    agent = Agent(model=answering(), memory=memory)
    for number in range(12):
        played = await play(agent, asked(number, MONDAY + timedelta(days=number)), thread="t")
        assert played.result is not None
        assert not any("memory-note" in message.text for message in played.result.messages)
    rows = await memory.messages.list(thread="t")
    assert any(row.sent is not None and "Current task: task" in row.sent.text for row in rows)
    assert not any("memory-note" in row.text or "Today is" in row.text for row in rows)
    assert observer.requests
    for request in observer.requests:
        assert "memory-note" not in request.prompt.messages[-1].text
        assert "Today is" not in request.text


@ways
async def test_the_first_prompt_after_an_observation_is_up_to_date(storage: Storage, buffer_tokens: float) -> None:
    """The note is composed before the Observer is asked, and again when the diary has changed by then."""
    model = answering()
    memory = observational(storage, observer_model=dated_observer(), buffer_tokens=buffer_tokens)
    agent = Agent(model=model, memory=memory)
    changes = 0
    for number in range(20):
        played = await play(agent, asked(number, MONDAY + timedelta(days=number)), thread="t")
        if played.data("observation-end") or played.data("activation"):
            changes += 1
            note = model.requests[-1].prompt.messages[-1].text
            assert f"Current task: {(await log_of(storage)).current_task}\n" in note
    assert changes > 1
    rows = await raw_rows(storage)
    stored = {row.id: row for row in await storage.list_messages("t")}
    for message in model.requests[-1].prompt:
        if message.role == "user" and message.message_id in stored:
            sent = stored[message.message_id].sent
            text = stored[message.message_id].text
            assert message.text == (f"{sent.text}\n\n{text}" if sent else text)
    assert rows


@pytest.mark.parametrize("retries", [1, 2])
async def test_an_attempt_that_was_sent_back_leaves_the_prefix_alone(storage: Storage, retries: int) -> None:
    class Picky(Processor[Any]):
        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
            if args.retry_count < retries:
                args.abort("say it better", retry=True)

    model = answering()
    memory = observational(storage, message_tokens=300)
    agent = Agent(model=model, memory=memory, output_processors=[Picky()], max_processor_retries=3)
    for number in range(3):
        await agent.generate(asked(number, MONDAY + timedelta(days=number)), thread="t")
    first_attempts = model.requests[:: retries + 1]
    for earlier, later in pairwise(first_attempts):
        assert later.text.startswith(earlier.text)
    assert len(await storage.list_messages("t")) == 6
    assert "say it better" not in first_attempts[-1].text
