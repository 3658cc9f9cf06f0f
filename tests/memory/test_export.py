"""What was exported comes back the same, into whatever storage; and what is no whole export is refused by its line."""

from __future__ import annotations

import string
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diarist import Agent, Memory, Message
from diarist.counting import count_parts
from diarist.exceptions import ConflictError, InputError, StorageError, ThreadBusyError
from diarist.messages import DataPart, FilePart, ReasoningPart, SourcePart, TextPart, ToolPart
from diarist.storage import InMemoryStorage, Storage, Thread
from diarist.storage.records import WorkingMemory
from tests.memory.diary_kit import everything, keeping_diary, message, note_taker, told, word
from tests.memory.stores import made_storage, storage
from tests.properties import examples
from tests.scenarios.kit import WatchedStorage, answering

__all__ = ["made_storage", "storage"]


async def lines_of(memory: Memory, resource: str | None = None) -> list[str]:
    return [line async for line in memory.threads.export_all(resource=resource)]


async def imported(lines: Sequence[str], storage: Storage | None = None) -> Memory:
    memory = keeping_diary(storage or InMemoryStorage())
    await memory.threads.import_all(lines)
    return memory


async def filled(storage: Storage, scope: Literal["thread", "resource"] = "thread") -> Memory:
    """Two threads, one with a diary in its second generation and messages that it does not cover."""
    memory = keeping_diary(storage, scope=scope)
    await memory.threads.create("t", resource="ada", title="Rome", metadata={"n": 1, "when": {"day": 2}})
    await told(memory, [1, 2, 3, 4])
    await memory.diary.reflect(thread="t", guidance="keep all")
    await told(memory, [5, 6])
    await memory.messages.save([message(7)], thread="t", resource="ada")
    await Agent(model=answering(), memory=memory).generate("go on", thread="u", resource="ada")
    await memory.settled()
    return memory


@pytest.mark.parametrize("counts", [["x"], [None], "abc", [1.5], [-(10**6)]])
async def test_token_counts_in_a_file_are_counted_again(counts: Any) -> None:
    lines = [orjson.loads(line) for line in await lines_of(await filled(InMemoryStorage()))]
    rows = [line for line in lines if line["type"] == "message"]
    for row in rows:
        row["part_tokens"] = counts
    memory = await imported([orjson.dumps(line).decode() + "\n" for line in lines])
    await Agent(model=answering(), memory=memory).generate("go on", thread="t", resource="ada")
    stored = await memory.storage.list_messages("t")
    assert [row.part_tokens for row in stored] == [count_parts(row, memory.counter) for row in stored]
    rows[0]["sent"] = {"text": "In your diary", "tokens": "x", "made_from": {}}
    with pytest.raises(InputError, match="tokens of a SentBlock must be int"):
        await imported([orjson.dumps(line).decode() + "\n" for line in lines])


async def test_it_comes_back_the_same(storage: Storage) -> None:
    memory = await filled(storage)
    lines = await lines_of(memory)
    copy = await imported(lines, InMemoryStorage())
    assert await lines_of(copy) == lines
    for name in ("t", "u"):
        old, new = [await m.storage.list_messages(name) for m in (memory, copy)]
        assert [unplaced(row) for row in new] == [unplaced(row) for row in old]
        assert (await copy.diary.get(thread=name)).text == (await memory.diary.get(thread=name)).text
    thread = await copy.threads.get("t")
    assert (thread.resource_id, thread.title, thread.metadata) == ("ada", "Rome", {"n": 1, "when": {"day": 2}})
    assert thread.created_at == (await memory.threads.get("t")).created_at
    assert [log.generation for log in await copy.diary.history(thread="t")] == [0]


async def test_a_character_in_two_surrogates_counts_as_one(storage: Storage) -> None:
    memory = Memory(storage=storage)
    call = ToolPart(call_id="1", name="draw", args={"what": "\ud83d\udc69"}, state="result", result=["\ud83d\udc69"])
    said = Message(role="assistant", parts=[TextPart(text="A woman: \ud83d\udc69"), call])
    await memory.messages.save([said], thread="t", resource="ada")
    lines = await lines_of(memory)
    copy = Memory(storage=InMemoryStorage())
    await copy.threads.import_all(lines)
    assert await lines_of(copy) == lines


async def test_into_every_storage(storage: Storage) -> None:
    lines = await lines_of(await filled(InMemoryStorage()))
    copy = await imported(lines, storage)
    assert await lines_of(copy) == lines
    await copy.messages.save([message(8)], thread="t", resource="ada")
    await copy.diary.observe(thread="t")
    assert word(8) in (await copy.diary.get(thread="t")).text


async def test_the_diary_of_a_resource_is_moved_too(storage: Storage) -> None:
    memory = await filled(storage, "resource")
    await told(memory, [11, 12], thread="v")
    await memory.storage.save_resource(await memory.storage.get_resource("ada"))
    lines = await lines_of(memory)
    other = keeping_diary(InMemoryStorage(), scope="resource")
    await other.threads.import_all(lines)
    assert (await other.diary.get(thread="v")).text == (await memory.diary.get(thread="v")).text
    assert await lines_of(other) == lines


async def test_resources_without_threads_come_along(storage: Storage) -> None:
    source = Memory(storage=storage, working_memory=True)
    await source.messages.save("Hi", thread="t", resource="ada")
    await source.working.update("Bob lives in Rome.", resource="bob")
    await storage.save_resource(replace(await storage.get_resource("cy"), metadata={"plan": "free"}))
    lines = await lines_of(source)
    copy = Memory(storage=InMemoryStorage(), working_memory=True)
    moved = await copy.threads.import_all(lines)
    assert (moved.threads, moved.resources) == (1, 2)
    assert await copy.working.get(resource="bob") == "Bob lives in Rome."
    assert (await copy.storage.get_resource("cy")).metadata == {"plan": "free"}
    assert await lines_of(copy) == lines


async def test_one_thread_alone(storage: Storage) -> None:
    memory = await filled(storage)
    lines = [line async for line in memory.threads.export("t", resource="ada")]
    copy = await imported(lines)
    assert [thread.id for thread in (await copy.threads.list()).items] == ["t"]
    with pytest.raises(InputError, match="bob"):
        [line async for line in memory.threads.export("t", resource="bob")]


async def test_one_thread_alone_has_nothing_of_a_shared_diary(storage: Storage) -> None:
    memory = await filled(storage, "resource")
    alone = [line async for line in memory.threads.export("t")]
    assert {orjson.loads(line)["type"] for line in alone} == {"diarist", "thread", "message", "end"}
    other = keeping_diary(InMemoryStorage(), scope="resource")
    await told(other, [21, 22], thread="v")
    await other.threads.import_all(alone)
    assert word(1) not in (await other.diary.get(resource="ada")).text
    log = await other.diary.observe(thread="t")
    assert all(word(number) in log.text for number in (1, 7, 21))


async def test_only_the_threads_of_a_resource_or_with_metadata() -> None:
    memory = Memory(storage=InMemoryStorage())
    for name, resource, kind in (("a", "ada", 1), ("b", "ada", 2), ("c", "bob", 1)):
        await memory.threads.create(name, resource=resource, metadata={"kind": kind})

    async def exported(**which: Any) -> set[str]:
        values = [orjson.loads(line) async for line in memory.threads.export_all(**which)]
        return {value["id"] for value in values if value["type"] == "thread"}

    assert await exported() == {"a", "b", "c"}
    assert await exported(resource="ada") == {"a", "b"}
    assert await exported(metadata={"kind": 1}) == {"a", "c"}


async def test_what_was_removed_leaves_no_gap_behind() -> None:
    memory = keeping_diary(InMemoryStorage())
    for some in ([1, 2], [3, 4], [5, 6]):
        await told(memory, some)
    await memory.forget(message_ids=["m3"], thread="t")
    copy = await imported(await lines_of(memory))
    assert [row.seq for row in await copy.storage.list_messages("t")] == [1, 2, 3, 4, 5]
    assert word(3) not in await everything(copy.storage)
    asked = await raw_after(copy)
    assert asked == await raw_after(memory)
    assert word(4) in asked


class Refusing(WatchedStorage):
    """Deletes no messages as long as ``refuses``."""

    refuses = True

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.refuses and name == "delete_messages":
            raise StorageError("no answer")
        return await call()


@pytest.mark.parametrize("thread", ["t", None])
@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_an_interrupted_deletion_is_finished_first(
    scope: Literal["thread", "resource"], thread: str | None
) -> None:
    storage = Refusing()
    memory = keeping_diary(storage, scope=scope)
    await told(memory, [1, 2, 3, 4])
    with pytest.raises(StorageError):
        await memory.forget(message_ids=["m3"], thread="t")
    storage.refuses = False
    lines = memory.threads.export_all() if thread is None else memory.threads.export(thread)
    text = "".join([line async for line in lines])
    assert word(3) not in text
    assert word(4) in text


async def raw_after(memory: Memory) -> str:
    """What the Observer is shown when it is asked for all that no entry covers."""
    notes = note_taker()
    await keeping_diary(memory.storage, observer_model=notes).diary.observe(thread="t")
    return notes.requests[-1].text.split("<transcript>")[-1]


# --- any content ---------------------------------------------------------------------------------------------------

texts = st.text(max_size=20)
ids = st.text(string.ascii_letters + "äß€ /\"'", min_size=1, max_size=8)
times = st.none() | st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, values.filter(lambda value: value is not None), max_size=3)
parts = st.one_of(
    st.builds(TextPart, text=texts),
    st.builds(ReasoningPart, text=texts, signature=st.none() | texts),
    st.builds(ToolPart, call_id=ids, name=ids, args=objects, state=st.just("result"), result=values),
    st.builds(FilePart, media_type=st.just("image/png"), data=st.binary(max_size=9)),
    st.builds(SourcePart, url=texts, title=texts),
    st.builds(DataPart, type=st.just("data-x"), data=values),
)
messages = st.lists(
    st.builds(
        Message,
        id=ids,
        role=st.sampled_from(["user", "assistant", "tool"]),
        parts=st.lists(parts, max_size=3),
        created_at=times,
        metadata=objects,
    ),
    max_size=6,
    unique_by=lambda row: row.id,
)
contents = st.lists(
    st.tuples(ids, st.sampled_from(["ada", "bob"]), st.text(string.printable, max_size=20), objects, messages),
    max_size=4,
    unique_by=lambda thread: thread[0],
)


@settings(max_examples=examples(30), deadline=None)
@given(contents)
async def test_any_content_comes_back_the_same(content: list[Any]) -> None:
    memory, copy = Memory(storage=InMemoryStorage()), Memory(storage=InMemoryStorage())  # as strict as the others
    for name, resource, title, metadata, rows in content:
        await memory.threads.create(name, resource=resource, title=title, metadata=metadata)
        await memory.messages.save(rows, thread=name, resource=resource)
    lines = await lines_of(memory)
    moved = await copy.threads.import_all(lines)
    assert await lines_of(copy) == lines
    assert moved.threads == len(content)
    for name, *_ in content:
        old, new = [await m.storage.list_messages(name) for m in (memory, copy)]
        assert [unplaced(row) for row in new] == [unplaced(row) for row in old]


def unplaced(row: Message) -> dict[str, Any]:
    """A message without its run, which is another one."""
    value = row.to_dict()
    value.pop("run_id")
    return value


acts = st.lists(
    st.tuples(st.sampled_from(["say", "observe", "reflect", "forget", "run"]), st.sampled_from("tu")), max_size=8
)


@settings(max_examples=examples(25), deadline=None)
@given(acts, st.sampled_from(["thread", "resource"]))
async def test_any_history_comes_back_the_same(history: list[tuple[str, str]], scope: Any) -> None:
    memory = keeping_diary(InMemoryStorage(), scope=scope)
    said = 0
    for act, thread in [("say", "t"), ("say", "u"), *history]:
        match act:
            case "say":
                said += 3
                await told(memory, [said - 2, said - 1, said], thread=thread)
            case "observe":
                await memory.messages.save([message(said := said + 1)], thread=thread, resource="ada")
            case "reflect":
                await memory.diary.reflect(thread=thread, guidance="keep all")
            case "forget":
                await memory.forget(message_ids=[f"m{said - 1}"], thread=thread)
            case _:
                await Agent(model=answering(), memory=memory).generate("go on", thread=thread, resource="ada")
                await memory.settled()
    lines = await lines_of(memory)
    copy = keeping_diary(InMemoryStorage(), scope=scope)
    await copy.threads.import_all(lines)
    assert await lines_of(copy) == lines
    for thread in "tu":
        assert (await copy.diary.get(thread=thread)).text == (await memory.diary.get(thread=thread)).text
    for thread in "tu":
        await copy.diary.observe(thread=thread)


# --- what is refused ------------------------------------------------------------------------------------------------


async def test_an_existing_thread_is_refused_or_skipped(storage: Storage) -> None:
    memory = keeping_diary(storage)
    await told(memory, [1, 2])
    lines = await lines_of(memory)
    before = await everything(storage)
    with pytest.raises(ConflictError, match="'t'"):
        await memory.threads.import_all(lines)
    moved = await memory.threads.import_all(lines, existing="skip")
    assert (moved.threads, moved.messages, moved.skipped) == (0, 0, ["t"])
    assert await everything(storage) == before
    with pytest.raises(InputError, match="'refuse' or 'skip'"):
        await memory.threads.import_all(lines, existing="replace")  # type: ignore[arg-type]


async def test_a_concurrently_written_working_memory_stays() -> None:
    class Slow(InMemoryStorage):
        meanwhile = True

        async def save_working_memory(self, memory: WorkingMemory) -> WorkingMemory:
            if self.meanwhile:
                self.meanwhile = False
                await Memory(storage=self, working_memory=True).working.update("Ada moved.", resource="ada")
            return await super().save_working_memory(memory)

    source = Memory(storage=InMemoryStorage(), working_memory=True)
    await source.messages.save([Message.user("Hi")], thread="t", resource="ada")
    await source.working.update("Ada lives in Rome.", resource="ada")
    target = Memory(storage=Slow(), working_memory=True)
    await target.threads.import_all([line async for line in source.threads.export_all()])
    assert await target.working.get(resource="ada") == "Ada moved."


async def test_threads_of_another_resource_are_refused_if_asked() -> None:
    lines = await lines_of(await filled(InMemoryStorage()))
    memory = Memory(storage=InMemoryStorage())
    with pytest.raises(InputError, match="'ada', not 'bob'"):
        await memory.threads.import_all(lines, resource="bob")
    assert (await memory.threads.list()).items == []
    assert (await memory.threads.import_all(lines, resource="ada")).threads == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: lines[:-1], "cut off"),
        (lambda lines: [*lines[:-2], lines[-2][:-9]], "line"),
        (lambda lines: [], "cut off"),
        (lambda lines: ['{"role": "user"}\n', *lines[1:]], "line 1: not an export"),
        (lambda lines: ['{"type": "diarist", "version": 99}\n', *lines[1:]], "version 99"),
        (lambda lines: [lines[0], *lines[2:]], "precedes the first thread"),
        (lambda lines: [line for line in lines if '"m2"' not in line], "made from messages|messages, but the file has"),
        (lambda lines: [lines[0], '{"type": "secret"}\n', *lines[1:]], "line 2: not a secret"),
        (lambda lines: [*lines, lines[1]], "no line may follow"),
        (
            lambda lines: [lines[0], lines[1].replace('"ada"', "7"), *lines[2:]],
            "line 2: not a thread: resource_id must be a str, not 7",
        ),
        (lambda lines: [*lines[:2], lines[2].replace('"text"', '"smell"'), *lines[3:]], "line 3: not a message"),
        (lambda lines: [*lines[:2], lines[2].replace('"user"', '"system"'), *lines[3:]], "the role 'system'"),
        (lambda lines: [*lines[:2], lines[2].replace('"user"', '"wiz"'), *lines[3:]], "line 3: .*role must be .*'wiz'"),
        (lambda lines: [lines[0], lines[1].replace('"ada"', '""'), *lines[2:]], "line 2: .*resource is empty"),
        (
            lambda lines: [lines[0], f" {lines[1]}".replace("{}", '{"n": NaN}'), *lines[2:]],
            r"line 2: .*metadata\['n'\] is not JSON",
        ),
        (lambda lines: [lines[0], lines[1].replace("{}", "[]"), *lines[2:]], "line 2: not a thread: metadata"),
        (
            lambda lines: [
                line.replace('"digest": "', '"digest": "x').replace('"digest":"', '"digest":"x') for line in lines
            ],
            "a digest that is not hexadecimal: 'x",
        ),
    ],
)
async def test_an_incomplete_export_is_refused(change: Any, said: str) -> None:
    source = keeping_diary(InMemoryStorage())
    await told(source, [1, 2])
    memory = keeping_diary(InMemoryStorage())
    with pytest.raises(InputError, match=said):
        await memory.threads.import_all(change(await lines_of(source)))


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_overrides_of_earlier_versions_are_ignored(scope: Any) -> None:
    source = keeping_diary(InMemoryStorage(), scope=scope)
    await told(source, [1, 2])
    lines = await lines_of(source)
    earlier = [line.replace('"suppressed":', '"overrides":{"message_tokens":70},"suppressed":') for line in lines]
    assert earlier != lines
    memory = keeping_diary(InMemoryStorage(), scope=scope)
    await memory.threads.import_all(earlier)
    assert await lines_of(memory) == lines


async def test_a_failed_import_leaves_whole_threads_only(storage: Storage) -> None:
    source = Memory(storage=InMemoryStorage())
    for name in ("one", "two"):
        await source.messages.save([message(n) for n in range(1, 700)], thread=name, resource="ada")
    lines = await lines_of(source)
    memory = Memory(storage=storage)
    with pytest.raises(InputError, match="cut off"):
        await memory.threads.import_all(lines[:-50])
    assert [thread.id for thread in (await memory.threads.list()).items] == ["two"]
    moved = await memory.threads.import_all(lines, existing="skip")
    assert (moved.threads, moved.messages, moved.skipped) == (1, 699, ["two"])
    assert sorted(await lines_of(memory)) == sorted(lines)


@pytest.mark.parametrize("kept", [1, 2, 3])
async def test_going_on_after_a_failure_is_like_an_unbroken_import(storage: Storage, kept: int) -> None:
    """The diary of a resource comes behind its threads: those that are skipped the second time have their part in
    it."""
    source = keeping_diary(InMemoryStorage(), scope="resource")
    for name, numbers in (("a", [1, 2, 3, 4]), ("b", [5, 6]), ("c", [7, 8])):
        await source.messages.save([replace(message(n), id=f"{name}{n}") for n in numbers], thread=name, resource="ada")
        await source.diary.observe(thread=name)
    await source.diary.reflect(resource="ada", guidance="keep all")
    lines = await lines_of(source)
    memory = keeping_diary(storage, scope="resource")
    heads = [place for place, line in enumerate(lines) if '"type":"thread"' in line or '"type":"resource"' in line]
    next_thread = lines[heads[0]].replace('"id":"c"', '"id":"next"')  # it ends the one before, and does not come in
    with pytest.raises(InputError, match="not JSON"):
        await memory.threads.import_all([*lines[: heads[kept]], next_thread, "{damaged"])
    moved = await memory.threads.import_all(lines, existing="skip")
    assert (moved.threads, len(moved.skipped), moved.resources) == (3 - kept, kept, 1)
    assert await lines_of(memory) == lines


async def test_notes_of_a_thread_that_differs_from_the_file_are_not_imported(storage: Storage) -> None:
    source = keeping_diary(InMemoryStorage(), scope="resource")
    await told(source, [1, 2])
    await told(source, [3, 4], thread="u")
    lines = await lines_of(source)
    memory = keeping_diary(storage, scope="resource")
    await memory.messages.save([message(1), message(6)], thread="t", resource="ada")
    await memory.threads.import_all(lines, existing="skip")
    notes = (await memory.diary.get(resource="ada")).text
    assert word(3) in notes
    assert word(1) not in notes


async def test_what_a_killed_import_left_does_not_stand_in_the_way(storage: Storage) -> None:
    lines = await lines_of(await filled(InMemoryStorage()))
    killed = await storage.begin_run("killed", Thread(id="t", resource_id="ada", title="half"), ttl=0, guarded=True)
    await storage.append_messages(killed, [message(1), message(2)])
    memory = keeping_diary(storage)
    await memory.threads.import_all(lines, existing="skip")
    assert await lines_of(memory) == lines


async def test_a_running_import_of_the_same_thread_is_refused_at_once(storage: Storage) -> None:
    lines = await lines_of(await filled(InMemoryStorage()))
    await storage.begin_run("other", Thread(id="t", resource_id="ada"), guarded=True)
    with pytest.raises(ThreadBusyError, match="is being created by another call"):
        await keeping_diary(storage).threads.import_all(lines)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("export.jsonl", "lines must be the lines of a file, not str: pass an open file"),
        (b"{}", "not bytes: pass an open file"),
        (Path("export.jsonl"), "not PosixPath: pass an open file"),
        ([b"{}"], "a line must be a text, not bytes"),
    ],
)
async def test_values_that_are_not_lines_of_text_are_refused(lines: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        await imported(lines)


async def test_a_short_thread_is_read_with_one_call() -> None:
    class Counted(InMemoryStorage):
        calls = 0

        async def list_messages(self, *args: Any, **options: Any) -> list[Message]:
            self.calls += 1
            return await super().list_messages(*args, **options)

    memory = Memory(storage=(storage := Counted()))
    await memory.messages.save([message(1)], thread="t", resource="ada")
    storage.calls = 0
    assert len(await lines_of(memory, "ada")) == 4
    assert storage.calls == 1
