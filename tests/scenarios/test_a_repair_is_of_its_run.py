"""What a processor changes after a provider refused the history holds for the run. The thread keeps its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from diarist import Agent, Memory, Processor, Tool
from diarist.exceptions import BadRequestError
from diarist.messages import TextPart
from diarist.models.base import ModelRequest
from diarist.processors import ProcessAPIErrorArgs
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import answering, log_of, observational, observer, raw_rows, talk, words

MEMORIES: dict[str, Callable[[Storage], Memory]] = {
    "history": lambda storage: Memory(storage=storage),
    "observational": lambda storage: observational(storage, message_tokens=10_000),
}


class Repair(Processor[Any]):
    """Takes out what the provider does not take."""

    def __init__(self) -> None:
        self.asked = 0

    def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> Any:
        self.asked += 1
        found = [message for message in args.messages if "poison" in message.text]
        self.repair(args, found)
        return {"retry": bool(found)}

    def repair(self, args: ProcessAPIErrorArgs[Any], found: list[Any]) -> None:
        raise NotImplementedError


class LeaveOut(Repair):
    def repair(self, args: ProcessAPIErrorArgs[Any], found: list[Any]) -> None:
        args.message_list.remove([message.id for message in found])


class Rewrite(Repair):
    edits_in_place = False  # even so, its edits change no message of others

    def repair(self, args: ProcessAPIErrorArgs[Any], found: list[Any]) -> None:
        for message in found:
            message.parts[0] = TextPart(text="honey")


def strict(request: ModelRequest) -> Any:
    """The model refuses poison, and calls a tool in each run."""
    if "poison" in request.text:
        return BadRequestError("poison", status=400)
    return ToolCall("look", {}) if request.prompt.messages[-1].role == "user" else "Understood, noted."


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", [LeaveOut, Rewrite])
async def test_the_thread_keeps_what_a_repair_changed(storage: Storage, memory: str, kind: type[Repair]) -> None:
    repair, model = kind(), ScriptedModel(strict)
    look = Tool(name="look", function=lambda: "seen")
    agent = Agent(model=answering(), memory=MEMORIES[memory](storage), processors=[repair], tools=[look])
    await agent.generate("poison", thread="t")
    await agent.generate("now?", thread="t", model=model)
    assert (repair.asked, len(model.requests)) == (1, 3)  # the second step needs no other repair
    await agent.generate("then?", thread="t", model=model)
    assert (repair.asked, len(model.requests)) == (2, 6)
    rows = [row.text for row in await storage.list_messages("t") if row.text]
    assert rows[:4] == ["poison", "Understood, noted.", "now?", "Understood, noted."]
    await raw_rows(storage)


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize("kind", [LeaveOut, Rewrite])
async def test_the_diary_is_made_from_what_the_thread_keeps(
    storage: Storage, kind: type[Repair], buffers: bool
) -> None:
    """Also if it is observed in the steps after the repair."""
    notes = observer()
    agent = Agent(
        model=answering(),
        memory=observational(storage, observer_model=notes, **({} if buffers else {"buffer_tokens": False})),
        tools=[Tool(name="look", function=lambda: words("seen", 60))],
        processors=[kind()],
    )
    await talk(agent, 1)
    await agent.generate(words("poison", 20), thread="t")
    await agent.generate("go on", thread="t")
    await agent.memory.settled()
    await agent.generate("look", thread="t", model=ScriptedModel(strict))
    await agent.memory.settled()
    await talk(agent, 4, first=2)
    await agent.memory.settled()
    about = [number for number, request in enumerate(notes.requests, start=1) if "poison" in request.text]
    kept = [f"{note.text} " for note in (await log_of(storage)).entries]
    assert [number for number in about if any(f"note-{number} " in text for text in kept)]
    assert any("poison" in row.text for row in await storage.list_messages("t"))
    await raw_rows(storage)
