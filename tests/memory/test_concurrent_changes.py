"""Who edits or forgets while a diary is observed or condensed by hand costs a call, and no error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import pytest

from diarist import Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.chunks import Chunk
from diarist.exceptions import ConflictError, NotFoundError
from diarist.models.base import Model, ModelRequest
from diarist.storage import InMemoryStorage, Storage
from diarist.testing import ScriptedModel
from tests.memory.diary_kit import condenser, everything, message, note_taker, word
from tests.scenarios.kit import WordCounter

Scope = Literal["thread", "resource"]
Act = Callable[[Memory], Awaitable[Any]]


class Interrupted(Model):
    """Runs ``act`` during the calls of a model that have these numbers."""

    def __init__(self, inner: ScriptedModel, act: Act | None = None, *, at: range = range(1, 2)) -> None:
        self.provider, self.name = inner.provider, inner.name
        self.memory: Memory | None = None
        self.calls = 0
        self._inner, self._act, self._at = inner, act, at

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self.calls += 1
        if self._act is not None and self.calls in self._at:
            assert self.memory is not None
            await self._act(self.memory)
        async for chunk in self._inner.stream(request):
            yield chunk


def keeping(
    storage: Storage,
    scope: Scope,
    *,
    observer: Interrupted | None = None,
    reflector: Interrupted | None = None,
    observation_tokens: int = 10_000,
) -> Memory:
    """A memory that observes two messages of 20 words at a time."""
    roles = observer or Interrupted(note_taker()), reflector or Interrupted(condenser())
    config = ObservationalMemoryConfig(
        scope=scope,
        observation=ObservationConfig(
            model=roles[0], message_tokens=100, buffer_tokens=20, observer_batch_tokens=40, max_tokens_per_batch=40
        ),
        reflection=ReflectionConfig(model=roles[1], observation_tokens=observation_tokens),
    )
    memory = Memory(storage=storage, observational_memory=config, token_counter=WordCounter())
    for role in roles:
        role.memory = memory
    return memory


async def say(memory: Memory, numbers: range, thread: str = "t") -> None:
    await memory.messages.save([message(number) for number in numbers], thread=thread, resource="ada")


async def covered_once(memory: Memory, *threads: str) -> None:
    """Every message is covered by one entry."""
    for thread in threads:
        sources = [s for e in (await memory.diary.get(thread=thread)).entries for s in e.sources]
        for row in await memory.messages.list(thread=thread):
            assert row.seq is not None
            covering = [s for s in sources if s.thread_id == thread and s.first_seq <= row.seq <= s.last_seq]
            assert len(covering) == 1, f"{row.id} of {thread} is covered {len(covering)} times"


def forgetting(*numbers: int, thread: str = "t") -> Act:
    return lambda memory: memory.forget(message_ids=[f"m{number}" for number in numbers], thread=thread)


async def edit_first(memory: Memory) -> None:
    entry = (await memory.diary.get(thread="t")).entries[0]
    await memory.diary.edit(entry.id, f"{entry.text} {word(77)}", thread="t")


async def change_last(memory: Memory) -> None:
    await memory.messages.update("m8", thread="t", text=f"it is {word(77)}")


def clear(memory: Memory) -> Awaitable[None]:
    return memory.diary.clear(thread="t")


def lines(text: str) -> set[str]:
    return set(text.split())


scopes = pytest.mark.parametrize("scope", ["thread", "resource"])

# --- observing -----------------------------------------------------------------------------------------------

CHANGES = {
    "what is noted": (forgetting(1), 2, {1}),
    "what is being noted": (forgetting(3), 2, {3}),
    "what is to be noted": (forgetting(6), 2, {6}),
    "in the first call": (forgetting(1), 1, {1}),
    "some of all": (forgetting(1, 4, 7), 3, {1, 4, 7}),
    "an update": (change_last, 2, {8}),
    "all notes": (clear, 2, set[int]()),
    "all notes at the end": (clear, 4, set[int]()),
}


@pytest.mark.parametrize(
    ("scope", "way"), [("thread", "thread"), ("resource", "thread"), ("resource", "whole resource")]
)
@pytest.mark.parametrize("change", CHANGES)
async def test_the_rest_is_observed_and_nothing_twice(scope: Scope, way: str, change: str) -> None:
    act, call, gone = CHANGES[change]
    storage = InMemoryStorage()
    memory = keeping(storage, scope, observer=Interrupted(note_taker(), act, at=range(call, call + 1)))
    await say(memory, range(1, 9))
    told: list[tuple[int, int]] = []
    thread, resource = ("t", None) if way == "thread" else (None, "ada")
    log = await memory.diary.observe(
        thread=thread, resource=resource, on_progress=lambda done, total: told.append((done, total))
    )
    left = set(range(1, 9)) - gone
    assert {number for number in range(1, 9) if word(number) in lines(log.text)} == left
    assert (word(77) in lines(log.text)) is (change == "an update")
    stored = lines(await everything(storage))
    assert not any(word(number) in stored for number in gone)
    await covered_once(memory, "t")
    assert told[-1][0] == told[-1][1]


async def test_of_a_resource_no_thread_is_left_out() -> None:
    storage = InMemoryStorage()
    observer = Interrupted(note_taker(), forgetting(3, thread="b"), at=range(2, 3))
    memory = keeping(storage, "resource", observer=observer)
    threads = {name: range(place, place + 4) for place, name in enumerate("abcde")}
    for name, numbers in threads.items():
        await say(memory, numbers, name)
    await memory.diary.observe(resource="ada")
    await covered_once(memory, *threads)
    assert [row.id for row in await memory.messages.list(thread="b")] == ["m1", "m2", "m4"]


@scopes
async def test_observing_a_deleted_thread_raises_not_found_error(scope: Scope) -> None:
    observer = Interrupted(note_taker(), lambda memory: memory.threads.delete("t"))
    memory = keeping(InMemoryStorage(), scope, observer=observer)
    await say(memory, range(1, 9))
    with pytest.raises(NotFoundError, match="'t'"):
        await memory.diary.observe(thread="t")
    assert observer.calls == 1


@scopes
@pytest.mark.parametrize("act", [edit_first, forgetting(1)], ids=["edit", "forget"])
async def test_a_change_while_it_reflects_does_not_stop_observing(scope: Scope, act: Act) -> None:
    reflector = Interrupted(condenser(), act)
    memory = keeping(InMemoryStorage(), scope, reflector=reflector, observation_tokens=24)
    await say(memory, range(1, 9))
    log = await memory.diary.observe(thread="t")
    assert reflector.calls
    assert (word(1) in lines(log.text)) is (act is edit_first)
    assert word(8) in lines(log.text)
    await covered_once(memory, "t")


@scopes
async def test_endless_changes_of_messages_raise_conflict_error(scope: Scope) -> None:
    async def change(memory: Memory) -> None:
        await memory.messages.update("m3", thread="t", text=f"now {observer.calls}")

    observer = Interrupted(note_taker(), change, at=range(2, 100))
    memory = keeping(InMemoryStorage(), scope, observer=observer)
    await say(memory, range(1, 9))
    with pytest.raises(ConflictError, match="dropped"):
        await memory.diary.observe(thread="t")
    assert observer.calls == 4
    assert word(1) in (await memory.diary.get(thread="t")).text  # what was done before is kept


# --- condensing ----------------------------------------------------------------------------------------------

WAYS: dict[str, Act] = {
    "reflect": lambda memory: memory.diary.reflect(thread="t"),
    "guided": lambda memory: memory.diary.reflect(thread="t", guidance="keep all"),
}
ways = pytest.mark.parametrize("way", WAYS)


@scopes
@ways
@pytest.mark.parametrize("act", [edit_first, forgetting(1)], ids=["edit", "forget"])
async def test_the_current_entries_are_condensed(scope: Scope, way: str, act: Act) -> None:
    storage = InMemoryStorage()
    reflector = Interrupted(condenser(), act)
    memory = keeping(storage, scope, reflector=reflector)
    await say(memory, range(1, 9))
    await memory.diary.observe(thread="t")
    log = await WAYS[way](memory)
    assert [entry.kind for entry in log.entries] == ["reflection"]
    assert reflector.calls == 2
    if act is edit_first:
        assert word(77) in lines(log.text)
    else:
        assert word(1) not in lines(await everything(storage))


@scopes
@ways
async def test_endless_edits_of_entries_raise_conflict_error(scope: Scope, way: str) -> None:
    reflector = Interrupted(condenser(), edit_first, at=range(1, 100))
    memory = keeping(InMemoryStorage(), scope, reflector=reflector)
    await say(memory, range(1, 9))
    before = await memory.diary.observe(thread="t")
    with pytest.raises(ConflictError, match="changed"):
        await WAYS[way](memory)
    assert reflector.calls == 3
    after = await memory.diary.get(thread="t")
    assert [entry.id for entry in after.entries] == [entry.id for entry in before.entries]
