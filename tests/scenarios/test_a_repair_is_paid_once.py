"""What a processor repairs after a provider refused the history is repaired for good: the thread pays once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from diarist import Agent, CancelSignal, Memory, Processor, Tool
from diarist.exceptions import BadRequestError, ModelConnectionError, ModelError
from diarist.messages import TextPart
from diarist.models import resolve
from diarist.models.base import ModelRequest
from diarist.processors import ProcessAPIErrorArgs, ProcessOutputResultArgs, ProcessOutputStepArgs
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import HttpError
from tests.scenarios.kit import answering, log_of, observational, observer, raw_rows, talk, words

REFUSED = HttpError(status=400, code="invalid_value", message="the message about poison is not allowed")

MEMORIES: dict[str, Callable[[Storage], Memory]] = {
    "history": lambda storage: Memory(storage=storage),
    "observational": lambda storage: observational(storage, message_tokens=10_000),
}


class LeaveOutPoison(Processor[Any]):
    """Removes what the provider does not take."""

    def __init__(self) -> None:
        self.asked = 0

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> Any:
        self.asked += 1
        poison = [message.id for message in args.messages if "poison" in message.text]
        args.message_list.remove(poison)
        return {"retry": bool(poison)}


def sent(server: OpenAIServer) -> list[list[str]]:
    """The contents of each request."""
    return [[message["content"] for message in request.body["messages"]] for request in server.requests]


@pytest.mark.parametrize("memory", MEMORIES)
async def test_a_removed_message_is_gone_from_the_thread(
    storage: Storage, openai_server: OpenAIServer, memory: str
) -> None:
    model = resolve("openai/gpt-5-mini", api_key="none", base_url=openai_server.base_url)
    repair = LeaveOutPoison()
    async with Agent(model=model, memory=MEMORIES[memory](storage), processors=[repair]) as agent:
        await agent.generate("tell me about poison", thread="t")
        openai_server.will(REFUSED)
        assert (await agent.generate("and now?", thread="t")).text == "ok"
        await agent.generate("and then?", thread="t")
    assert repair.asked == 1
    assert any("poison" in text for text in sent(openai_server)[1])
    assert all("poison" not in text for request in sent(openai_server)[2:] for text in request)
    assert [row.text for row in await storage.list_messages("t")] == ["ok", "and now?", "ok", "and then?", "ok"]


@pytest.mark.parametrize("memory", MEMORIES)
async def test_a_message_stays_where_the_run_came_to_nothing(storage: Storage, memory: str) -> None:
    """Whatever was removed for its sake: the run was blocked, or failed all the same."""

    class Block(Processor[Any]):
        def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
            args.abort("no")

    refused = BadRequestError("poison", status=400)
    model = ScriptedModel("ok", refused, "blocked", refused, refused, "ok")
    agent = Agent(model=model, memory=MEMORIES[memory](storage), processors=[LeaveOutPoison()])
    await agent.generate("poison", thread="t")
    blocked = await agent.generate("b", thread="t", output_processors=[Block()])
    assert blocked.tripwire is not None
    with pytest.raises(ModelError):
        await agent.generate("c", thread="t")
    assert [row.text for row in await storage.list_messages("t")] == ["poison", "ok", "c"]
    await agent.generate("d", thread="t")
    assert "poison" in model.requests[-1].text


class Rewrite(Processor[Any]):
    """Changes what the provider does not take."""

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> Any:
        poison = [message for message in args.messages if "poison" in message.text]
        for message in poison:
            message.parts = [TextPart(text="honey")]
        return {"retry": bool(poison)}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("repair", [LeaveOutPoison, Rewrite])
@pytest.mark.parametrize("end", ["fails", "is cancelled", "is cancelled while a tool runs"])
async def test_a_repair_that_helped_is_kept_where_the_run_ends_badly_later(
    storage: Storage, memory: str, repair: type[Processor[Any]], end: str
) -> None:
    cancel = CancelSignal()

    async def stop(_: Any = None) -> str:
        cancel.cancel()
        await asyncio.Event().wait()
        return "never"

    async def look() -> str:
        """Look."""
        return await stop() if "tool" in end else "seen"

    refused = BadRequestError("poison", status=400)
    last: Any = ModelConnectionError("cut") if end == "fails" else stop
    model = ScriptedModel("ok", refused, ToolCall("look"), *([] if "tool" in end else [last]), "ok")
    agent = Agent(model=model, memory=MEMORIES[memory](storage), processors=[repair()], tools=[look])
    await agent.generate("poison", thread="t")
    if end == "fails":
        with pytest.raises(ModelError):
            await agent.generate("b", thread="t")
    else:
        assert (await agent.generate("b", thread="t", cancel=cancel)).stopped_by == "cancelled"
    rows = [row.text for row in await storage.list_messages("t")]
    assert rows == [*(["honey"] if repair is Rewrite else []), "ok", "b", ""]
    await agent.generate("c", thread="t")
    assert "poison" not in model.requests[-1].text
    await raw_rows(storage)


POISON = 3
"""The number of the row that the provider rejects."""


async def notes_of_poison(storage: Storage) -> list[str]:
    entries = (await log_of(storage)).entries
    return [e.text for e in entries if any(source.first_seq <= POISON <= source.last_seq for source in e.sources)]


class ReleasesObserver(LeaveOutPoison):
    """Lets a waiting Observer finish right before the run ends."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self.storage, self.go_on = storage, asyncio.Event()

    async def process_output_result(self, args: ProcessOutputResultArgs[Any]) -> None:
        if self.asked:
            self.go_on.set()
            while not await notes_of_poison(self.storage):  # noqa: ASYNC110 — a storage sends no events
                await asyncio.sleep(0)


async def test_notes_that_were_saved_between_the_repair_and_the_end_of_its_run_go_too(storage: Storage) -> None:
    releases, numbers = ReleasesObserver(storage), count(1)

    async def write(request: ModelRequest) -> str:
        if "poison" in request.text:
            await releases.go_on.wait()
        return f"<diary>\nDate: 2026-03-02\n- 🟡 note-{next(numbers)} noted\n</diary>"

    def strict(request: ModelRequest) -> Any:
        return BadRequestError("poison", status=400) if "poison" in request.text else "Understood, noted."

    memory = observational(storage, observer_model=ScriptedModel(write, name="observer"))
    agent = Agent(model=answering(), memory=memory, processors=[releases])
    await talk(agent, 1)
    await memory.settled()  # so that the next turn starts a job of its own
    await agent.generate(words("poison", 20), thread="t")
    await agent.generate("go on", thread="t")
    await agent.generate("look", thread="t", model=ScriptedModel(strict))
    await memory.settled()
    rows = await storage.list_messages("t")
    assert not any("poison" in row.text for row in rows)
    assert not await notes_of_poison(storage)


@pytest.mark.parametrize("buffers", [False, True])
async def test_what_was_removed_is_not_observed_either(storage: Storage, buffers: bool) -> None:
    """The row stands in the middle of what is observed in the steps after the repair. Where notes of it were waiting
    already, or were being written when it was removed, they go with it."""

    def strict(request: ModelRequest) -> Any:
        if "poison" in request.text:
            return BadRequestError("poison", status=400)
        return ToolCall("look", {}) if request.prompt.messages[-1].role == "user" else "Understood, noted."

    notes = observer()
    agent = Agent(
        model=answering(),
        memory=observational(storage, observer_model=notes, **({} if buffers else {"buffer_tokens": False})),
        tools=[Tool(name="look", function=lambda: words("seen", 60))],
        processors=[LeaveOutPoison()],
    )
    await talk(agent, 1)
    await agent.generate(words("poison", 20), thread="t")
    await agent.generate("go on", thread="t")
    await agent.memory.settled()
    assert buffers or not notes.requests
    await agent.generate("look", thread="t", model=ScriptedModel(strict))
    assert buffers or len(notes.requests) == 1
    await agent.memory.settled()
    before = len(notes.requests)
    await talk(agent, 4, first=2)
    await agent.memory.settled()
    assert len(notes.requests) > before
    about = [number for number, request in enumerate(notes.requests, start=1) if "poison" in request.text]
    assert not about or (buffers and about[-1] <= before)
    kept = [f"{note.text} " for note in (await log_of(storage)).entries]
    assert not [number for number in about if any(f"note-{number} " in text for text in kept)]
    assert not any("poison" in row.text for row in await storage.list_messages("t"))
    assert await raw_rows(storage)
