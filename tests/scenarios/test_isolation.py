"""Two users of one memory never meet: whatever is called, by whom, and with whose names."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from typing import Any

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.exceptions import ConfigError, DiaristError
from diarist.memory import TitleConfig, WorkingMemoryConfig
from diarist.memory.diary import Diary
from diarist.memory.messages import Messages
from diarist.memory.threads import Threads
from diarist.memory.working_memory import Working
from diarist.models.base import ModelRequest
from diarist.storage import Storage
from diarist.testing import ScriptedModel, ToolCall
from tests.memory.semantic.kit import TopicEmbedder
from tests.scenarios.kit import WordCounter

USERS = ("ada", "bob")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
SECRET = re.compile(r"\b(ada|bob)-secret-\d+\b")
NOT_ASKED = {
    "close": "shuts down",
    "sync": "the same methods for synchronous code",
    "settled": "waits",
    "tools": "definitions, the same for everybody",
    "run_worker": "serves a queue, for everybody",
    "input_processors": "the agent's, and driven by it",
    "output_processors": "the agent's, and driven by it",
}


def owners(value: object) -> set[str]:
    """Whose secrets a value tells."""
    return set(SECRET.findall(str(value)))


def keeping(request: ModelRequest) -> str:
    """An Observer and a Reflector that keep every secret they are shown."""
    asked = request.prompt.messages[-1].text
    told = asked.partition("<transcript>")[2] or asked
    secrets = dict.fromkeys(match.group() for match in SECRET.finditer(told))
    lines = "\n".join(f"- 🔴 the garden of {secret}" for secret in secrets)
    return f"<diary>\nDate: 2026-03-02\n{lines or '- 🟢 nothing'}\n</diary>\n<current-task>the garden</current-task>"


def _entitle(request: ModelRequest) -> str:
    found = SECRET.search(request.text)
    return found.group() if found else "of nobody"


class World:
    """A memory that two users share, with everything switched on."""

    def __init__(self, storage: Storage, scope: Any, chance: random.Random) -> None:
        self.chance = chance
        self.storage = storage
        self.notes = ScriptedModel(keeping, name="observer")
        self.actor = ScriptedModel(self._act, name="actor")
        self.titles = ScriptedModel(_entitle, name="titles")
        self.memory = Memory(
            storage=storage,
            observational_memory=ObservationalMemoryConfig(
                scope=scope,
                observation=ObservationConfig(model=self.notes, message_tokens=40),
                reflection=ReflectionConfig(model=self.notes, observation_tokens=60),
                retrieval=True,
            ),
            working_memory=WorkingMemoryConfig(template="# User\n- **Garden**:"),
            semantic_recall=True,
            embedder=TopicEmbedder(),
            generate_title=TitleConfig(model=self.titles),
            token_counter=WordCounter(),
            await_background=True,
        )
        self.agent = Agent(model=self.actor, memory=self.memory)
        self.known: dict[str, list[str]] = {user: [f"{user}s-{n}" for n in range(2)] for user in USERS}
        self.entries: list[str] = []
        self.ids: list[str] = []
        self.who = USERS[0]
        self._number = 0

    def secret(self) -> str:
        self._number += 1
        return f"{self.who}-secret-{self._number}"

    def thread(self) -> str:
        """Mostly one's own; at times the other's."""
        whose = self.who if self.chance.random() < 0.7 else self.other
        return self.chance.choice(self.known[whose])

    @property
    def other(self) -> str:
        return USERS[1 - USERS.index(self.who)]

    def _act(self, request: ModelRequest) -> Any:
        last = request.prompt.messages[-1]
        if last.role == "tool":
            return f"Noted, the garden of {self.who}."
        return self.chance.choice(
            [
                "Noted, the garden.",
                ToolCall("recall", {"mode": "search", "query": "garden"}),
                ToolCall("recall", {"mode": "threads"}),
                ToolCall("recall", {"mode": "browse", "thread": self.chance.choice(self.known[self.other])}),
                ToolCall("recall", {"mode": "browse", "observation": self.chance.choice([*self.entries, "none"])}),
                ToolCall("recall", {"mode": "browse", "message": self.chance.randint(1, 9)}),
                ToolCall("update_working_memory", {"memory": f"# User\n- **Garden**: {self.secret()}"}),
            ]
        )

    async def turn(self) -> object:
        thread = self.thread()
        result = await self.agent.generate(f"My garden is {self.secret()}.", thread=thread, resource=self.who)
        return result.text, [message.to_dict() for message in result.messages]


Call = Callable[[World], Awaitable[object]]


async def collected(items: AsyncIterator[Any], most: int = 1_000) -> list[Any]:
    found: list[Any] = []
    async for item in items:
        found.append(item)
        if len(found) == most:
            break
    return found


async def _import(world: World) -> object:
    """The lines of what one may export, in a place of one's own."""
    lines = await collected(world.memory.threads.export(world.thread(), resource=world.who))
    return await world.memory.threads.import_all(lines, resource=world.who, existing="skip")


async def _clone(world: World) -> object:
    made = await world.memory.threads.clone(world.thread(), resource=world.who)
    world.known[world.who].append(made.id)
    return made


async def _create(world: World) -> object:
    name = f"{world.who}s-{len(world.known[world.who])}"
    made = await world.memory.threads.create(name, resource=world.who, title=world.secret())
    world.known[world.who].append(made.id)
    return made


async def _watch(world: World) -> object:
    thread = world.thread()
    present = await world.memory.diary.events(thread=thread, resource=world.who)
    return await collected(world.memory.diary.watch(thread=thread, resource=world.who), len(present)) if present else []


async def _observations(world: World) -> object:
    log = await world.memory.diary.get(thread=world.thread(), resource=world.who)
    world.entries += [entry.id for entry in log.entries]
    return log


async def _messages(world: World) -> object:
    rows = await world.memory.messages.list(
        thread=world.thread(), resource=world.who, since=LONG_AGO, newest_first=world.chance.random() < 0.5
    )
    world.ids += [row.id for row in rows]
    return [row.to_dict() for row in rows]


async def _take_turn(world: World) -> object:
    asked = [{"role": "user", "content": f"My garden is {world.secret()}."}]
    async with world.memory.turn(thread=world.thread(), resource=world.who) as turn:
        view = await turn.prompt(asked)
        await turn.commit([*asked, {"role": "assistant", "content": "Noted, the garden."}])
    return view.prompt.text, view.notes


async def _rewind(world: World) -> object:
    to = world.chance.choice([*world.ids, "none"])
    return await world.memory.threads.rewind(world.thread(), to=to, resource=world.who)


async def _switch(world: World) -> object:
    thread = world.thread()
    branches = await world.memory.threads.branches(thread, resource=world.who)
    branch = world.chance.choice([*(branch.id for branch in branches), "none"])
    await world.memory.threads.switch_branch(thread, branch, resource=world.who)
    return branches


def on_thread(name: str, *args: Any, **options: Any) -> Call:
    async def call(world: World) -> object:
        return await attrgetter(name)(world.memory)(*args, thread=world.thread(), resource=world.who, **options)

    return call


def with_entry(name: str, *args: str) -> Call:
    """Return a call that takes the id of any resource's entry."""

    async def call(world: World) -> object:
        entry = world.chance.choice([*world.entries, "none"])
        texts = [f"{text} {world.secret()}" for text in args]
        return await attrgetter(name)(world.memory)(entry, *texts, thread=world.thread(), resource=world.who)

    return call


def searching(name: str, **options: Any) -> Call:
    async def call(world: World) -> object:
        thread = world.chance.choice([None, world.thread()])
        return await attrgetter(name)(world.memory)("garden", resource=world.who, thread=thread, **options)

    return call


CALLS: dict[str, Call] = {
    "diary.as_of": on_thread("diary.as_of", date(2026, 3, 2)),
    "context": on_thread("context"),
    "diary.clear": on_thread("diary.clear"),
    "threads.clone": _clone,
    "threads.create": _create,
    "diary.delete": with_entry("diary.delete"),
    "threads.delete": lambda world: world.memory.threads.delete(world.thread(), resource=world.who),
    "diary.edit": with_entry("diary.edit", "the garden of"),
    "messages.embed": lambda world: world.memory.messages.embed(resource=world.who, thread=world.thread()),
    "diary.events": on_thread("diary.events"),
    "threads.export": lambda world: collected(world.memory.threads.export(world.thread(), resource=world.who)),
    "threads.export_all": lambda world: collected(world.memory.threads.export_all(resource=world.who)),
    "forget": lambda world: world.memory.forget(
        message_ids=world.chance.sample(world.ids, min(2, len(world.ids))) or ["none"],
        thread=world.thread(),
        resource=world.who,
    ),
    "diary.history": on_thread("diary.history"),
    "threads.import_all": _import,
    "messages.list": _messages,
    "diary.get": _observations,
    "diary.observe": on_thread("diary.observe"),
    "recall": searching("recall", message_range=3, since=LONG_AGO, threshold=-1),
    "diary.reflect": on_thread("diary.reflect"),
    "messages.save": lambda world: world.memory.messages.save(
        [Message.user(f"The garden: {world.secret()}")], thread=world.thread(), resource=world.who
    ),
    "messages.search": searching("messages.search", message_range=3, since=LONG_AGO),
    "diary.search": searching("diary.search"),
    "diary.sources": with_entry("diary.sources"),
    "threads.get": lambda world: world.memory.threads.get(world.thread(), resource=world.who),
    "threads.list": lambda world: world.memory.threads.list(
        resource=world.who, newest_first=world.chance.random() < 0.5
    ),
    "messages.update": lambda world: world.memory.messages.update(
        world.chance.choice([*world.ids, "none"]),
        thread=world.thread(),
        resource=world.who,
        text=f"The garden: {world.secret()}",
    ),
    "threads.prune": lambda world: world.memory.threads.prune(older_than=timedelta(), resource=world.who),
    "threads.branches": lambda world: world.memory.threads.branches(world.thread(), resource=world.who),
    "threads.rewind": _rewind,
    "threads.switch_branch": _switch,
    "turn": _take_turn,
    "threads.update": lambda world: world.memory.threads.update(
        world.thread(), resource=world.who, title=world.secret(), metadata={"garden": world.secret()}
    ),
    "working.update": lambda world: world.memory.working.update(
        f"# User\n- **Garden**: {world.secret()}", thread=world.thread(), resource=world.who
    ),
    "diary.usage": on_thread("diary.usage"),
    "diary.watch": _watch,
    "working.get": lambda world: world.memory.working.get(thread=world.thread(), resource=world.who),
}


def test_every_public_call_is_driven() -> None:
    nouns = {"diary": Diary, "messages": Messages, "threads": Threads, "working": Working}
    public = {name for name in vars(Memory) if not name.startswith("_")}
    public |= {f"{noun}.{name}" for noun, kind in nouns.items() for name in vars(kind) if not name.startswith("_")}
    assert public == CALLS.keys() | NOT_ASKED.keys()


async def belongings(storage: Storage, user: str) -> dict[str, Any]:
    """All that storage keeps of a user."""
    threads = (await storage.list_threads(resource_id=user)).items
    logs = [f"resource:{user}", *(f"thread:{thread.id}" for thread in threads)]
    return {
        "threads": [(thread.id, thread.title, thread.metadata) for thread in threads],
        "rows": {thread.id: [row.to_dict() for row in await storage.list_messages(thread.id)] for thread in threads},
        "logs": {key: (log := await storage.get_log(key)) and asdict(log) for key in logs},
        "working": str(await storage.get_working_memory(f"resource:{user}")),
    }


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["thread", "resource"])
@pytest.mark.parametrize("seed", range(3))
async def test_no_call_reads_or_changes_data_of_another_resource(storage: Storage, scope: str, seed: int) -> None:
    chance = random.Random(seed)
    world = World(storage, scope, chance)
    for user in USERS:
        world.who = user
        for thread in world.known[user]:
            await world.agent.generate(f"My garden is {world.secret()}.", thread=thread, resource=user)
    refused, heard = 0, set[str]()
    names = [*CALLS] * 3
    chance.shuffle(names)
    for name in names:
        world.who = chance.choice(USERS)
        kept = await belongings(storage, world.other)
        models = (world.actor, world.notes, world.titles)
        begun = [len(model.requests) for model in models]
        for call in (CALLS[name], World.turn):
            try:
                told: object = await call(world)
            except ConfigError:
                raise
            except DiaristError as error:
                told = error
                refused += 1
            await world.memory.settled()
            assert owners(told) <= {world.who}, f"{name} for {world.who}"
            heard |= {name} if owners(told) and call is not World.turn else set()
        for model, first in zip(models, begun, strict=True):
            for request in model.requests[first:]:
                assert owners(request.text) <= {world.who}, f"a prompt of {world.who} after {name}"
        assert await belongings(storage, world.other) == kept, f"{name} of {world.who} changed what is the other's"
    assert refused > 20, "nobody tried"
    assert len(heard) > 10, "nobody was told anything"
