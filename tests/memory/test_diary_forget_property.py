"""Whatever was said, noted, condensed and forgotten, in whatever order: no forgotten word is left in the file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, Memory
from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.rows import seq_of
from diarist.storage import SQLiteStorage
from tests.memory.diary_kit import everything, keeping_diary, message, word
from tests.properties import examples
from tests.scenarios.kit import answering

THREADS = ("t", "u")

acts = st.tuples(
    st.sampled_from(["say", "say", "observe", "reflect", "run", "edit", "forget", "forget"]),
    st.sampled_from(THREADS),
    st.integers(1, 5),
)
"""What is done, where, and a number: how many messages are said, or which entry or which messages it is."""


@settings(max_examples=examples(40), deadline=None)
@given(
    history=st.lists(acts, min_size=3, max_size=14),
    scope=st.sampled_from(["thread", "resource"]),
    last=st.sampled_from(["message", "thread", "resource"]),
)
async def test_no_word_of_a_forgotten_message_is_left(
    history: list[tuple[str, str, int]],
    scope: Literal["thread", "resource"],
    last: Literal["message", "thread", "resource"],
) -> None:
    with TemporaryDirectory() as folder:
        async with SQLiteStorage(Path(folder) / "memory.db") as storage:
            story = Story(storage, keeping_diary(storage, scope=scope))
            for act, thread, number in [("say", "t", 3), ("say", "u", 3), *history]:
                await story.play(act, thread, number)
            await story.end(last)


class Story:
    """Two threads, what was said in them and is not forgotten yet."""

    def __init__(self, storage: SQLiteStorage, memory: Memory) -> None:
        self.storage, self.memory = storage, memory
        self.kept: dict[str, list[int]] = {thread: [] for thread in THREADS}
        self.said = 0

    async def play(self, act: str, thread: str, number: int) -> None:
        memory = self.memory
        match act:
            case "say":
                numbers = range(self.said + 1, self.said + 1 + number)
                await memory.messages.save([message(n) for n in numbers], thread=thread, resource="ada")
                self.said = numbers[-1]
                self.kept[thread] += numbers
            case "observe":
                await memory.diary.observe(thread=thread)
            case "reflect":
                await memory.diary.reflect(thread=thread, guidance="keep all")
            case "run":
                await Agent(model=answering(), memory=memory).generate("go on", thread=thread, resource="ada")
                await memory.settled()
            case "edit":
                entries = (await memory.diary.get(thread=thread)).entries
                if entries:
                    entry = entries[number % len(entries)]
                    await memory.diary.edit(entry.id, f"{entry.text} edited", thread=thread)
            case _:
                gone = self.kept[thread][number - 1 :: 4]
                receipt = await memory.forget(message_ids=[f"m{n}" for n in gone], thread=thread)
                assert set(receipt.message_ids) == {f"m{n}" for n in gone}
                self.kept[thread] = [n for n in self.kept[thread] if n not in gone]
                await self.check()

    async def end(self, last: Literal["message", "thread", "resource"]) -> None:
        if last == "message":
            await self.play("forget", "t", 1)
        elif last == "thread":
            await self.memory.forget(thread="t")
            del self.kept["t"]
        else:
            await self.memory.forget(resource="ada")
            self.kept.clear()
        await self.check()
        for thread in self.kept:
            await self.memory.diary.observe(thread=thread)
            assert await self.raw(thread) == []
        await self.check()

    async def check(self) -> None:
        """Nothing of what was forgotten is stored, and all the rest is, raw or covered once."""
        stored = await everything(self.storage)
        left = {number for number in range(1, self.said + 1) if word(number) in stored}
        assert left == {number for numbers in self.kept.values() for number in numbers}
        for thread in self.kept:
            await self.raw(thread)

    async def raw(self, thread: str) -> list[str]:
        """The messages that no entry covers, none being covered twice."""
        entries = (await self.memory.diary.get(thread=thread)).active
        raw: list[str] = []
        for row in await self.storage.list_messages(thread):
            covering = sum(seq_of(row) in Coverage([entry], thread) for entry in entries)
            assert covering <= 1
            raw += [] if covering else [row.id]
        return raw
