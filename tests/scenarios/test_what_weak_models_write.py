"""Observers that break off, copy or keep to no form: each message is noted or raw, and nothing is paid for ever."""

from __future__ import annotations

import contextlib
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig
from diarist.chunks import DataChunk
from diarist.messages import TextPart, ToolPart
from diarist.models.base import ModelRequest
from diarist.storage import Storage
from diarist.testing import Reply, ScriptedModel
from tests.scenarios.kit import answering, observational

Answer = str | Reply
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
TOWNS = ["Aachen", "Bergen", "Cadiz", "Delft", "Evora", "Faro", "Ghent", "Hamar", "Izmir", "Jena", "Kassel", "Lugano"]
TOWNS += ["Malmo", "Narvik", "Oulu", "Porto", "Quimper", "Riga", "Siena", "Turku", "Udine", "Vigo", "Worms", "Xanten"]


def said(town: str, number: int) -> str:
    return f"In {town} I met {number} people at {town.lower()}-bridge and paid {number * 7} crowns for {town} cake"


def talk(count: int = 20) -> list[Message]:
    return [
        Message(
            id=f"m{number}",
            role="user" if number % 2 else "assistant",
            parts=[TextPart(text=said(TOWNS[number - 1], number))],
            created_at=NOON + timedelta(minutes=number),
        )
        for number in range(1, count + 1)
    ]


def shown(request: ModelRequest) -> list[tuple[int, str, str]]:
    """Number, time and text of each message in a question to the Observer."""
    found = re.findall(r"^\[#(\d+)\] (\d\d:\d\d) \w+: (.*)$", request.text, re.MULTILINE)
    return [(int(number), time, text) for number, time, text in found]


def note(number: int, time: str, text: str, *, cites: bool = True) -> str:
    return f"- 🔴 {time} User was in {text.split()[1]}" + (f" [#{number}]" if cites else "")


def framed(lines: list[str], *, whole: bool = True) -> Answer:
    body = "\n".join(["<diary>", "Date: 2026-03-02", *lines])
    if whole:
        return f"{body}\n</diary>\n<current-task>\nTravel\n</current-task>"
    return Reply(text=f"{body}\n- 🔴 12:59 User was i", finish_reason="length")


def breaking_off(after: int, *, cites: bool = True) -> ScriptedModel:
    """Notes message by message, and has room for so many lines."""

    def answer(request: ModelRequest) -> Answer:
        lines = [note(*entry, cites=cites) for entry in shown(request)]
        return framed(lines[:after], whole=len(lines) <= after)

    return ScriptedModel(answer, name="observer")


async def covered(memory: Memory) -> dict[str, str]:
    """By message the text of the one entry that covers it."""
    rows = {row.seq: row.id for row in await memory.messages.list(thread="t")}
    found: dict[str, str] = {}
    for entry in (await memory.diary.get(thread="t")).entries:
        for source in entry.sources:
            for seq in range(source.first_seq, source.last_seq + 1):
                assert rows[seq] not in found, "noted twice"
                found[rows[seq]] = entry.text
    return found


def told(events: list[DataChunk], type: str) -> list[dict[str, object]]:
    return [event.data for event in events if event.type == f"data-om-{type}"]


async def begun(storage: Storage, observer: ScriptedModel, *messages: Message) -> Memory:
    memory = Memory(storage=storage, observational_memory=ObservationalMemoryConfig(model=observer))
    await memory.messages.save(list(messages), thread="t")
    return memory


@pytest.mark.parametrize("cites", [True, False])
async def test_after_a_cut_answer_fewer_messages_are_sent(storage: Storage, cites: bool) -> None:
    observer = breaking_off(6, cites=cites)
    memory = await begun(storage, observer, *talk())
    events: list[DataChunk] = []
    await memory.diary.observe(thread="t", on_event=events.append)

    noted = await covered(memory)
    assert len(noted) == 20
    for number, town in enumerate(TOWNS[:20], 1):
        assert f"User was in {town}" in noted[f"m{number}"]
    assert len(observer.requests) <= 12
    first = told(events, "observation-end")[0]
    assert "messages are noted, the others stay raw" in str(first["shortfall"])
    assert sum(int(str(end["tokensObserved"])) for end in told(events, "observation-end")) > 0


async def test_what_a_cut_answer_left_is_raw_in_the_prompt(storage: Storage) -> None:
    """Only two calls are possible: what the second one did not get stands word for word in the next prompt."""

    def answer(request: ModelRequest) -> Answer | Exception:
        if len(observer.requests) > 2:
            return RuntimeError("the observer is down")
        lines = [note(*entry) for entry in shown(request)]
        return framed(lines[:10], whole=len(lines) <= 10)

    observer = ScriptedModel(answer)
    memory = observational(storage, observer_model=observer, buffer_tokens=False)
    await memory.messages.save(talk(), thread="t")
    model = answering()
    await Agent(model=model, memory=memory).generate("Where was I?", thread="t")

    sent, noted = model.requests[0].text, await covered(memory)
    assert set(noted) == {f"m{number}" for number in range(1, 11)}
    for number, town in enumerate(TOWNS[:20], 1):
        assert (f"m{number}" in noted) is (f"User was in {town}" in sent)
        assert (f"m{number}" in noted) is not (said(town, number) in sent)


async def test_one_message_that_no_answer_has_room_for_ends_with_what_fits(storage: Storage) -> None:
    long = framed(
        [f"- 🔴 12:0{n} User paid {n} crowns for a cake with many words about it" for n in range(10)] * 2, whole=False
    )
    observer = ScriptedModel(lambda request: long)
    memory = await begun(storage, observer, talk(1)[0])
    events: list[DataChunk] = []
    await memory.diary.observe(thread="t", on_event=events.append)
    assert "the rest of the message is not noted" in (await covered(memory))["m1"]
    assert len(observer.requests) == 2
    assert told(events, "observation-end")[0]["shortfall"]
    await memory.diary.observe(thread="t")
    assert len(observer.requests) == 2


async def test_a_call_and_its_result_are_not_parted_by_a_cut(storage: Storage) -> None:
    call = ToolPart(call_id="c", name="look", args={"town": "Faro"}, state="call")
    result = ToolPart(call_id="c", name="look", args={}, state="result", result="sunny in Faro")
    messages = talk(8)
    messages[3] = Message(id="m4", role="assistant", parts=[call], created_at=messages[3].created_at)
    messages[4] = Message(id="m5", role="tool", parts=[result], created_at=messages[4].created_at)

    def answer(request: ModelRequest) -> Answer:
        if "paid 56 crowns" in request.text and "paid 7 crowns" in request.text:
            return framed(["- 🔴 12:01 something"], whole=False)
        return framed([f"- 🔴 12:09 part {len(observer.requests)}"])

    observer = ScriptedModel(answer)
    memory = await begun(storage, observer, *messages)
    await memory.diary.observe(thread="t")
    noted = await covered(memory)
    assert noted["m4"] == noted["m5"] != noted["m3"]


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_each_message_of_a_resource_is_noted_once_whatever_is_cut(storage: Storage, scope: str) -> None:
    observer = breaking_off(4)
    config = ObservationalMemoryConfig(model=observer, scope=scope)  # type: ignore[arg-type]
    memory = Memory(storage=storage, observational_memory=config)
    for thread in ("a", "b", "c"):
        rows = [Message.user(each.text, id=f"{thread}-{each.id}", created_at=each.created_at) for each in talk(9)]
        await memory.messages.save(rows, thread=thread, resource="ada")
    if scope == "resource":
        await memory.diary.observe(resource="ada")
    else:
        for thread in ("a", "b", "c"):
            await memory.diary.observe(thread=thread)
    for thread in ("a", "b", "c"):
        log = await memory.diary.get(thread=thread)
        own = [(s, entry) for entry in log.entries for s in entry.sources if s.thread_id == thread]
        seqs = [seq for source, _ in own for seq in range(source.first_seq, source.last_seq + 1)]
        assert sorted(seqs) == [row.seq for row in await memory.messages.list(thread=thread)]
        assert all(any(town in entry.text for _, entry in own) for town in TOWNS[:9])
    assert len(observer.requests) <= 30


async def test_a_diary_that_was_closed_before_the_cut_is_paid_once(storage: Storage) -> None:
    def answer(request: ModelRequest) -> Answer:
        notes = framed([note(*entry) for entry in shown(request)])
        return Reply(text=f"{notes}\n<suggested-response>\nAsk which of the tow", finish_reason="length")

    observer = ScriptedModel(answer)
    memory = await begun(storage, observer, *talk())
    await memory.diary.observe(thread="t")
    log = await memory.diary.get(thread="t")
    assert len(await covered(memory)) == 20
    assert len(observer.requests) == 1
    assert (log.hints.current_task, log.hints.suggested_response) == ("Travel", None)


def copying(request: ModelRequest) -> Answer:
    return framed([f"- 🔴 {time} User: {text} [#{number}]" for number, time, text in shown(request)])


async def test_copied_messages_are_asked_for_once_more(storage: Storage) -> None:
    def answer(request: ModelRequest) -> Answer:
        if "said the messages again" not in request.text:
            return copying(request)
        return framed([note(*entry) for entry in shown(request)])

    observer = ScriptedModel(answer)
    memory = await begun(storage, observer, *talk())
    await memory.diary.observe(thread="t")
    assert len(observer.requests) == 2
    text = (await memory.diary.get(thread="t")).text
    assert "crowns" not in text
    assert "User was in Turku" in text


async def test_an_observer_that_only_copies_gives_way_to_fixed_rules(storage: Storage) -> None:
    observer = ScriptedModel(copying)
    memory = await begun(storage, observer, *talk(24))
    events: list[DataChunk] = []
    await memory.diary.observe(thread="t", on_event=events.append)
    log = await memory.diary.get(thread="t")
    source = sum(len(message.text) for message in talk(24))
    assert len(await covered(memory)) == 24
    assert len(log.text) < source * 0.8
    assert {entry.model for entry in log.entries} == {"extractive"}
    assert any("by fixed rules" in str(end.get("shortfall")) for end in told(events, "observation-end"))
    assert len(observer.requests) == 2


async def test_short_messages_may_be_noted_in_their_own_words(storage: Storage) -> None:
    observer = ScriptedModel(copying)
    memory = await begun(storage, observer, *talk(2))
    await memory.diary.observe(thread="t")
    assert len(observer.requests) == 1


SLOPPY = [
    "<diary>\n{notes}</diary><current-task>Find a hotel</current-task>",
    "<diary>\n{notes}\n</diary>\n<current_task>\nFind a hotel\n</current_task>",
    '<diary lang="en">\n{notes}\n</diary>\n<current-task id="1">Find a hotel</current-task>',
    "<diary>\n{notes}\n</diary>\n\n### Current Task\nFind a hotel\n\n### Suggested Response\nnone",
    "&lt;diary&gt;\n{notes}\n&lt;/diary&gt;\n&lt;current-task&gt;Find a hotel&lt;/current-task&gt;",
    "<diary>\n{flat}\n</diary>\n<current-task>Find a hotel</current-task>",
    "<diary>{flat}</diary><current-task>Find a hotel</current-task><suggested-response>none</suggested-response>",
    "{json}",
]


@pytest.mark.parametrize("form", SLOPPY)
async def test_notes_in_any_form_are_read_and_their_frame_stays_out(storage: Storage, form: str) -> None:
    notes = "Date: 2026-03-02\n- 🔴 12:01 The room costs 80 EUR"
    answer = form.format(
        notes=notes,
        flat=notes.replace("\n", " "),
        json=json.dumps({"diary": notes.splitlines(), "current_task": "Find a hotel", "suggested_response": "none"}),
    )
    memory = await begun(storage, ScriptedModel(answer), talk(1)[0])
    model = answering()
    await memory.diary.observe(thread="t")
    log = await memory.diary.get(thread="t")
    assert (log.text, log.current_task, log.suggested_response) == (notes, "Find a hotel", None)
    await Agent(model=model, memory=memory).generate("What does it cost?", thread="t")
    assert "Find a hotel" in model.requests[0].text


async def test_the_agent_is_told_how_to_speak_of_its_notes(storage: Storage) -> None:
    memory = await begun(storage, breaking_off(99), *talk(3))
    await memory.diary.observe(thread="t")
    model = answering()
    await Agent(model=model, memory=memory).generate("Where was I?", thread="t")
    told_so = model.requests[0].text
    assert 'Speak to the user as "you"' in told_so
    assert "not in the style of the notes" in told_so
    assert "say that you do not remember it" in told_so


async def test_an_observer_that_is_slow_and_copies_comes_to_an_end(storage: Storage) -> None:
    """Each try has time for one answer only: the next one asks for fewer messages, and does not begin all over."""
    calls = 0

    def answer(request: ModelRequest) -> Answer | Exception:
        nonlocal calls
        calls += 1
        if len(shown(request)) > 8:
            return copying(request) if calls % 2 else TimeoutError("too slow")
        return framed([note(*entry) for entry in shown(request)])

    memory = await begun(storage, ScriptedModel(answer), *talk(24))
    for _ in range(4):
        with contextlib.suppress(TimeoutError):
            await memory.diary.observe(thread="t")
    assert len(await covered(memory)) == 24
    assert calls < 12


async def test_a_task_as_long_as_a_conversation_is_cut(storage: Storage) -> None:
    task = " ".join(said(town, number) for number, town in enumerate(TOWNS * 2))
    observer = ScriptedModel(f"<diary>\n- 🔴 User travels\n</diary>\n<current-task>\n{task}\n</current-task>")
    memory = Memory(storage=storage, observational_memory=ObservationalMemoryConfig(model=observer))
    await memory.messages.save(talk(), thread="t")
    log = await memory.diary.observe(thread="t")
    assert log.hints.current_task == task[:2_000].strip()
