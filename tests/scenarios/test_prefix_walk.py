"""Long walks: every prompt begins as the one before it, as far as the rules allow, and the report says so.

A walk goes over days of made-up time, with tool loops, retries, resent histories, work in the background, forgetting,
and other processes. Each prompt is compared with the one before it, block by block.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diarist import Agent, Memory, Message, Processor, Tool
from diarist.models.base import ModelRequest
from diarist.processors import ProcessOutputStepArgs
from diarist.prompt_cache import StepCache
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.loopback.anthropic_server import AnthropicServer
from tests.loopback.server import Answer, Call
from tests.models.wires import AnthropicWire
from tests.scenarios.kit import Played, configured, play, reflector, words

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
WHY = {"activation", "reflection"}
WHY_BESIDE = {*WHY, "forgetting"}

Block = tuple[str, str]


def blocks_of(request: ModelRequest) -> list[Block]:
    """Tools and messages, without the feedback that is meant for one attempt alone."""
    sent = [m for m in request.prompt if m.role == "system" or m.message_id is not None]
    return [*(("offered", repr(tool)) for tool in request.tools), *((m.role, m.text) for m in sent)]


def fixed(blocks: Sequence[Block]) -> tuple[list[Block], list[Block]]:
    """What stands before the notes, and the notes."""
    notes = [block for block in blocks if block[0] == "system" and block[1].startswith("<observations>")]
    return [block for block in blocks if block[0] in ("offered", "system") and block not in notes], notes


def acting(played: Played) -> set[int]:
    """The steps before which memory observed, reflected or activated."""
    steps, step = set[int](), 0
    for chunk in played.chunks:
        if chunk.type == "step-start":
            step += 1
        elif chunk.type in ("data-om-observation-end", "data-om-activation"):
            steps.add(step)
    return steps


def shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@dataclass
class Walk:
    """Compares; counts what it saw.

    Attributes:
        excused: Something beside a run has changed the thread: the next prompt may differ anywhere.
    """

    before: list[Block] | None = None
    messages: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    excused: str = ""
    seen: dict[str, int] = field(default_factory=dict[str, int])

    def go(self, request: ModelRequest, report: StepCache, *, first: bool, acted: bool) -> None:
        """``first``: of this process. ``acted``: memory has told of work of its own before this step."""
        blocks = blocks_of(request)
        messages = [(m.message_id or "", m.role, m.text) for m in request.prompt if m.message_id is not None]
        before = self.before or []
        same = shared(before, blocks)
        assert report.first == first
        if not first:
            assert report.stable_characters == sum(_length(block) for block in blocks[:same]), "the report is wrong"
            assert (report.changed is None) == (same == len(before))
        if same == len(before):
            self._count("extended")
            assert report.why == ""
        elif self.excused:
            assert first or report.why in WHY_BESIDE
            self._count(self.excused)
        else:
            assert acted, f"the prompt changed in {report.changed}, and memory has done nothing"
            assert first or report.why in WHY, f"the prompt changed in {report.changed} and nobody said why"
            self._count(report.why)
            self._check_notes(before, blocks)
            self._check_messages(messages)
        self.before, self.messages, self.excused = blocks, messages, ""

    def _check_notes(self, before: Sequence[Block], blocks: Sequence[Block]) -> None:
        """Instructions stay; of the notes all stay up to the first one that a reflection has replaced."""
        (front, notes), (old_front, old_notes) = fixed(blocks), fixed(before)
        assert front[: len(old_front)] == old_front
        kept = shared(old_notes, notes)
        if kept < len(old_notes):
            assert old_notes[kept] not in notes, "a note that was not replaced has moved"
            assert any("summary-" in text for _, text in notes[kept:])

    def _check_messages(self, messages: Sequence[tuple[str, str, str]]) -> None:
        """What stays is sent as it was, and what leaves is the oldest: but a question stays while it is answered, and
        gets the date if no note in the window has it any more."""
        ids = {message_id for message_id, _, _ in messages}
        stayed = {message[0]: message for message in self.messages if message[0] in ids}
        now = {message[0]: message for message in messages if message[0] in stayed}
        assert list(stayed) == list(now)
        changed = [id for id, message in now.items() if message != stayed[id]]
        if changed:
            (id,) = changed
            assert "Today is" in now[id][2]
            assert not any("Today is" in text for _, _, text in stayed.values())
        steps = [message for message in self.messages if message[1] != "user"]
        left = [message[0] in ids for message in steps]
        assert left == sorted(left), "what left was not the oldest"

    def _count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1


def _length(block: Block) -> int:
    return len(block[1]) if block[0] == "offered" else len(f"{block[0]}\n{block[1]}")


def dated_observer() -> ScriptedModel:
    """Notes with days, plans, a task and a response, so that the memory note has much to say."""
    numbers = iter(range(10_000))

    def write(_: ModelRequest) -> str:
        n = next(numbers)
        day = MONDAY + timedelta(days=n)
        meant = day + timedelta(days=2)
        return (
            f"<diary>\nDate: {day:%Y-%m-%d}\n- 🔴 09:00 plan-{n} (meaning {meant:%Y-%m-%d})\n</diary>\n"
            f"<current-task>task {n}</current-task>\n<suggested-response>answer {n}</suggested-response>"
        )

    return ScriptedModel(write, name="observer")


class Picky(Processor[Any]):
    """Sends some answers back, with feedback."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        if args.retry_count == 0 and self._chance.random() < 0.2:
            args.abort("say it better", retry=True)


def remembering(storage: Storage, notes: ScriptedModel, condenses: ScriptedModel, **observation: Any) -> Memory:
    return configured(
        storage,
        observation={"model": notes, "message_tokens": 150, **observation},
        reflection={"model": condenses, "observation_tokens": 60},
        temporal_markers=True,
    )


async def walk(storage: Storage, seed: int, turns: int, **observation: Any) -> Walk:
    chance = random.Random(seed)
    calls = random.Random(seed + 1)
    model = ScriptedModel(lambda _: ToolCall("look", {}) if calls.random() < 0.4 else "Done and noted.")
    roles = dated_observer(), reflector()
    memory = remembering(storage, *roles, **observation)
    walk, at = Walk(), MONDAY
    for number in range(turns):
        at += timedelta(minutes=chance.choice([1, 3, 30, 300, 2000]))
        asked: list[Message] = [Message.user(words(f"turn-{number}", chance.randint(1, 30)), created_at=at)]
        if number and chance.random() < 0.2:  # a client that sends everything each time
            asked = [*await memory.messages.list(thread="t"), *asked]
        fresh = chance.random() < 0.1
        if fresh:  # another process goes on with the thread
            await memory.settled()
            memory = remembering(storage, *roles, **observation)
        if number and chance.random() < 0.08:
            await memory.settled()
            rows = await memory.messages.list(thread="t")
            await memory.forget(message_ids=[chance.choice(rows).id], thread="t")
            walk.excused = "forgotten"
        if number and chance.random() < 0.05:
            await memory.diary.observe(thread="t")
            walk.excused = "asked for"
        agent = Agent(
            model=model,
            instructions="Be kind.",
            memory=memory,
            tools=[Tool(name="look", function=lambda: words("found", chance.randint(1, 20)))],
            output_processors=[Picky(chance)],
            max_steps=8,
            max_processor_retries=3,
        )
        first = len(model.requests)
        played = await play(agent, asked, thread="t")
        assert played.result is not None
        reports, acted = played.result.memory.cache, acting(played)
        for step, (request, report) in enumerate(zip(model.requests[first:], reports, strict=True)):
            walk.go(request, report, first=step == 0 and (fresh or number == 0), acted=step in acted)
        if chance.random() < 0.7:
            await memory.settled()
    await memory.settled()
    return walk


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
async def test_with_work_in_the_background(storage: Storage, seed: int) -> None:
    seen = (await walk(storage, 100 + seed, 60)).seen
    assert seen["extended"] > 60
    assert seen["activation"] > 2
    assert seen["reflection"] > 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
async def test_with_turns_that_wait(storage: Storage, seed: int) -> None:
    seen = (await walk(storage, 200 + seed, 50, buffer_tokens=False)).seen
    assert seen["extended"] > 50
    assert seen["activation"] > 2
    assert seen["reflection"] > 0


# --- where the provider's cache has to be told ------------------------------------------------------------


def marked(body: Any) -> tuple[list[Any], list[int]]:
    """All content blocks of a request of Anthropic's protocol, without their marks, and the places of the marks."""
    blocks = [*body.get("system", []), *(block for one in body["messages"] for block in one["content"])]
    places = [place for place, block in enumerate(blocks) if "cache_control" in block]
    return [{name: of for name, of in block.items() if name != "cache_control"} for block in blocks], places


@pytest.mark.slow
async def test_anthropic_is_told_where_prompts_repeat(storage: Storage, anthropic_server: AnthropicServer) -> None:
    """After the instructions, after the diary, where the request before ended, and at the end: four at most."""
    model = AnthropicWire(anthropic_server).model()
    memory = remembering(storage, dated_observer(), reflector(), message_tokens=200)
    tools = [Tool(name="look", function=lambda: words("found", 12))]
    agent = Agent(model=model, instructions="Be kind.", memory=memory, tools=tools, max_steps=8)
    chance, repeated = random.Random(7), 0
    for number in range(25):
        steps = chance.randint(0, 3)
        anthropic_server.will(
            *(Answer(calls=[Call(name="look", id=f"call_{number}_{step}")]) for step in range(steps)),
            Answer(text=["Done."]),
        )
        at = MONDAY + timedelta(hours=5 * number)
        played = await play(agent, Message.user(words(f"turn-{number}", 12), created_at=at), thread="t")
        await memory.settled()
        acted = acting(played)
        for step, request in enumerate(anthropic_server.requests[-steps - 1 :]):
            blocks, places = marked(request.body)
            assert len(places) <= 4
            assert places[0] == 0
            assert blocks[0]["text"] == "Be kind."
            assert places[-1] == len(blocks) - 1
            notes = [place for place, block in enumerate(blocks) if "<observations>" in block.get("text", "")]
            assert not notes or notes[-1] in places
            before = anthropic_server.requests.index(request) - 1
            if before >= 0 and step not in acted:
                sent, ends = marked(anthropic_server.requests[before].body)
                assert blocks[: len(sent)] == sent
                assert ends[-1] in places
                repeated += 1
    assert repeated > 30
    assert (await memory.diary.get(thread="t")).generation > 0
    await model.close()
