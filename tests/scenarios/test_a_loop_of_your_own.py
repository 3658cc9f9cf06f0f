"""A loop outside the library, on ``memory.turn``, leaves what an agent leaves: rows, diary and prompts."""

from __future__ import annotations

from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor
from diarist.exceptions import ContextOverflowError, ModelConnectionError
from diarist.memory.turn import TurnView
from diarist.messages import TextPart, as_text
from diarist.models import ModelEntry
from diarist.processors import ProcessOutputResultArgs
from diarist.storage import InMemoryStorage, Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.scenarios.kit import log_of, observational, words

TURNS = 50
RETRIED, OVERFLOWED, DISCARDED = 20, 30, 40


class Script:
    """What the model answers: text, one tool call, or two at once; an error at the first call of some turns."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.turn, self.step, self.failed = 0, 0, set[int]()

    def begin(self, turn: int) -> str:
        self.turn, self.step = turn, 0
        return words(f"question-{turn}", 25)

    async def answer(self) -> Any:
        await self._memory.settled()  # background work ends at the same places in both loops
        if self.turn in (RETRIED, OVERFLOWED) and self.turn not in self.failed:
            self.failed.add(self.turn)
            if self.turn == RETRIED:
                return ModelConnectionError("the line broke")
            return ContextOverflowError("too long")
        self.step += 1
        if self.turn % 3 == 0 and self.step == 1:
            calls = [
                ToolCall("look", {"at": f"{self.turn}-{n}"}, id=f"c{self.turn}-{n}") for n in range(self.turn % 2 + 1)
            ]
            return ["Let me look.", *calls] if self.turn % 2 else calls
        return words(f"answer-{self.turn}", 12)


def look(at: str) -> str:
    """Look at something."""
    return words(f"seen-{at}", 15)


class Blocks(Processor[None]):
    """Blocks one answer."""

    edits_in_place = False

    def __init__(self, script: Script) -> None:
        self._script = script

    def process_output_result(self, args: ProcessOutputResultArgs[None]) -> None:
        if self._script.turn == DISCARDED:
            args.abort("not this one")


async def by_agent(memory: Memory) -> list[str]:
    """The conversation by an agent. Returns its prompts."""
    script = Script(memory)
    model = ScriptedModel(lambda _: script.answer(), provider="openai", name="m")
    agent = Agent(
        model=[ModelEntry(model=model, max_retries=1)],
        instructions="You help.",
        tools=[look],
        memory=memory,
        output_processors=[Blocks(script)],
    )
    for number in range(TURNS):
        await agent.generate(script.begin(number), thread="t", resource="ada")
    return [request.text for request in model.requests]


async def by_hand(memory: Memory) -> list[str]:
    """The same conversation by a loop of its own."""
    script, prompts = Script(memory), list[str]()
    for number in range(TURNS):
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You help."},
            {"role": "user", "content": script.begin(number)},
        ]
        async with memory.turn(thread="t", resource="ada", model_id="openai/m", fail_open=False) as turn:
            while True:
                view = await turn.prompt(messages)
                prompts.append(view.prompt.text)
                check(view, messages)
                answer = await script.answer()
                if isinstance(answer, ContextOverflowError):
                    assert await turn.overflowed(answer)
                    continue
                if isinstance(answer, Exception):
                    continue
                pieces = answer if isinstance(answer, list) else [answer]
                calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
                text = "".join(piece for piece in pieces if isinstance(piece, str))
                called = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": as_text(call.args)},
                    }
                    for call in calls
                ]
                messages.append({"role": "assistant", "content": text or None, "tool_calls": called})
                if not calls:
                    break
                for call in calls:
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": look(**call.args)})
            if number == DISCARDED:
                await turn.discard()
    return prompts


def check(view: TurnView, given: list[dict[str, Any]]) -> None:
    """The view's own arrangement of the given messages is the prompt."""
    arranged = view.arrange(
        given,
        make=lambda message: [{"role": message.role, "content": message.text}],
        note=lambda message, note: {**message, "content": f"{note}\n\n{message['content']}"},
    )
    said = "\n".join(message["content"] or "" for message in arranged)
    for part in (part for message in view.messages for part in message.parts):
        assert not isinstance(part, TextPart) or part.text in said


async def left(storage: Storage) -> tuple[list[Any], list[Any]]:
    """What is stored, without ids and times."""
    rows = [(m.seq, m.role, m.parts, note(m), m.part_tokens) for m in await storage.list_messages("t", limit=1000)]
    log = await log_of(storage)
    entries = [(e.text, e.tokens, e.state, e.message_tokens, e.run_id is None) for e in log.entries]
    return rows, [log.generation, entries]


def note(message: Message) -> Any:
    """The memory note of a message, without the diary's own id."""
    if message.sent is None:
        return None
    return message.sent.text, {name: value for name, value in message.sent.made_from.items() if name != "born"}


@pytest.mark.parametrize("buffer_tokens", [False, 0.2], ids=["awaited", "background"])
async def test_a_loop_of_your_own_leaves_what_an_agent_leaves(buffer_tokens: Any) -> None:
    stored: list[Any] = []
    for play in (by_agent, by_hand):
        storage = InMemoryStorage()
        memory = observational(storage, await_background=True, buffer_tokens=buffer_tokens, message_tokens=300)
        prompts = await play(memory)
        rows, log = await left(storage)
        stored.append((prompts, rows, log))
    (prompts, rows, log), (own_prompts, own_rows, own_log) = stored
    assert own_prompts == prompts
    assert own_rows == rows
    assert own_log == log
    assert log[1], "nothing was observed"
