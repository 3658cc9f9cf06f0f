"""``Memory``: what it refuses, whom it asks to observe, and what people can do with it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diarist import Agent, Memory, Message, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.exceptions import ConfigError, DiaristError, InputError, ThreadBusyError
from diarist.messages import TextPart
from diarist.models import providers
from diarist.storage import InMemoryStorage, SQLiteStorage, Storage, Thread
from diarist.storage.records import own_resource
from diarist.testing import ScriptedModel
from tests.scenarios.kit import answering, failing, observational, observer, raw_rows, talk, words

KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)


@pytest.fixture
def storage() -> InMemoryStorage:
    return InMemoryStorage()


# --- what it refuses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"last_messages": 5, "observational_memory": True}, "last_messages"),
        ({"last_messages": 0, "observational_memory": True}, "last_messages"),
        ({"last_messages": False, "observational_memory": ObservationalMemoryConfig()}, "last_messages"),
        ({"last_messages": -1}, "last_messages"),
        ({"thread_wait": -1}, "thread_wait"),
        ({"observational_memory": {"model": "openai/gpt-5-mini"}}, "observational_memory"),
        ({"observational_memory": "extractive"}, "observational_memory"),
    ],
)
def test_contradictions_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Memory(storage=InMemoryStorage(), **options)


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("memory.db", r"such as SQLiteStorage\('memory.db'\)"),
        (Path("memory.db"), r"SQLiteStorage\(PosixPath\('memory.db'\)\)"),
        (SQLiteStorage, r"such as SQLiteStorage\('memory.db'\) .* not <class"),
        (SimpleNamespace(**dict.fromkeys(Storage.__abstractmethods__, print)), "must be a subclass of .*Storage"),
    ],
)
def test_a_wrong_storage_is_refused_with_the_remedy(storage: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Memory(storage=storage)


async def test_a_turn_reads_what_a_subclass_of_a_storage_reads() -> None:
    class Redacting(InMemoryStorage):
        async def list_messages(self, *args: Any, **options: Any) -> list[Message]:
            rows = await super().list_messages(*args, **options)
            return [replace(row, parts=[TextPart(text=row.text.replace("4711", "****"))]) for row in rows]

    model = answering()
    agent = Agent(model=model, memory=observational(Redacting()))
    await agent.generate("my pin is 4711", thread="t")
    await agent.generate("hello", thread="t")
    assert "my pin is ****" in model.requests[-1].text


def test_options_are_named() -> None:
    with pytest.raises(TypeError):
        Memory(InMemoryStorage())  # type: ignore[misc]
    with pytest.raises(TypeError, match="last_mesages"):
        Memory(last_mesages=5)  # type: ignore[call-arg]


def test_the_parts_of_a_memory_print_their_storage(storage: InMemoryStorage) -> None:
    memory = Memory(storage=storage)
    assert repr(memory.threads) == "Threads(InMemoryStorage('memory'))"
    assert repr(memory.messages) == "Messages(InMemoryStorage('memory'))"
    assert repr(memory.diary) == "Diary(InMemoryStorage('memory'))"
    assert repr(memory.working) == "Working(InMemoryStorage('memory'))"


async def test_switched_off_means_history(storage: InMemoryStorage) -> None:
    memory = Memory(storage=storage, last_messages=2, observational_memory=ObservationalMemoryConfig(enabled=False))
    model = answering()
    await talk(Agent(model=model, memory=memory), 3)
    assert len(model.requests[-1].prompt.messages) == 3
    with pytest.raises(ConfigError, match="observational_memory"):
        await memory.diary.observe(thread="t")


# --- who observes --------------------------------------------------------------------------------------


async def test_without_a_model_and_a_key_the_agents_own_observes(
    storage: InMemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="diarist")
    model = ScriptedModel(lambda r: "- 🔴 a note of it" if "<transcript>" in r.text else "Noted.")
    agent = Agent(model=model, memory=Memory(storage=storage, observational_memory=True))
    for _ in range(3):
        await agent.generate(words("long", 15_000), thread="t")
    asked = [request.text for request in model.requests if "<transcript>" not in request.text]
    assert len(asked) == 3 < len(model.requests)
    assert "a note of it" in asked[-1]
    assert "Observer: no model is configured, the agent's own scripted/model is used" in caplog.messages


@pytest.mark.parametrize("choice", [None, "default"])
@pytest.mark.parametrize("key", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
def test_with_its_key_the_default_model_observes(
    storage: InMemoryStorage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    choice: str | None,
    key: str,
) -> None:
    monkeypatch.setenv(key, "not-a-key")
    caplog.set_level(logging.INFO, logger="diarist")
    Agent(
        model=answering(),
        memory=Memory(storage=storage, observational_memory=ObservationalMemoryConfig(model=choice)),
    )
    assert caplog.messages == [
        f"{role}: no model is configured, google/gemini-2.5-flash is the default since {key} is set; to choose another "
        "model, pass observational_memory=ObservationalMemoryConfig(model=...)"
        for role in ("Observer", "Reflector")
    ]


async def test_without_the_package_of_the_default_model_the_agents_own_observes(
    storage: InMemoryStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "not-a-key")
    monkeypatch.setattr(providers, "find_spec", lambda name: None)
    model = ScriptedModel(lambda r: "- 🔴 a note of it" if "<transcript>" in r.text else "Noted.")
    memory = Memory(storage=storage, observational_memory=True)
    agent = Agent(model=model, memory=memory)
    for _ in range(3):
        await agent.generate(words("long", 15_000), thread="t")
    assert any("<transcript>" in request.text for request in model.requests)
    assert caplog.messages[0] == (
        "Observer: the agent's own scripted/model is used: google/gemini-2.5-flash is the default since GOOGLE_API_KEY "
        "is set, but 'google' needs a package: pip install 'diarist[google]'; to choose another model, pass "
        "observational_memory=ObservationalMemoryConfig(model=...)"
    )
    with pytest.raises(ConfigError, match=r"the Observer has no model: .* since GOOGLE_API_KEY is set, but .*model="):
        await memory.diary.observe(thread="t")


@pytest.mark.parametrize(
    "config",
    [
        ObservationalMemoryConfig(model="openai/gpt-5-mini"),
        ObservationalMemoryConfig(observation=ObservationConfig(model="anthropic/claude-haiku-4-5")),
        ObservationalMemoryConfig(model="no-such-provider/x"),
        ObservationalMemoryConfig(model="no-slash"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_at_once(config: ObservationalMemoryConfig) -> None:
    with pytest.raises(ConfigError):
        Memory(storage=InMemoryStorage(), observational_memory=config)


async def test_a_memory_without_an_agent_needs_a_model(storage: InMemoryStorage) -> None:
    memory = Memory(storage=storage, observational_memory=True)
    await memory.messages.save([Message.user("hello")], thread="t")
    with pytest.raises(ConfigError, match="Observer has no model"):
        await memory.diary.observe(thread="t")


async def test_one_role_lends_its_model_to_the_other(storage: InMemoryStorage) -> None:
    model = ScriptedModel(lambda _: "- 🔴 one line of it")
    config = ObservationalMemoryConfig(
        reflection=ReflectionConfig(model=model, observation_tokens=20),
        observation=ObservationConfig(message_tokens=200),
    )
    memory = Memory(storage=storage, observational_memory=config)
    await talk(Agent(model=answering(), memory=memory), 12)
    assert any("<transcript>" in request.text for request in model.requests)
    assert any("<old-notes>" in request.text for request in model.requests)


# --- messages --------------------------------------------------------------------------------------------


async def test_messages_are_paged_from_the_newest(storage: InMemoryStorage) -> None:
    memory = Memory(storage=storage)
    assert await memory.messages.save([Message.user(f"m{n}") for n in range(1, 8)], thread="t") == 7
    page = await memory.messages.list(thread="t", limit=3)
    assert [message.text for message in page] == ["m5", "m6", "m7"]
    page = await memory.messages.list(thread="t", limit=3, before=page[0].seq)
    assert [message.text for message in page] == ["m2", "m3", "m4"]


async def test_saved_messages_are_new_once_and_known_to_agents(storage: InMemoryStorage) -> None:
    memory = observational(storage)
    model = answering()
    batch = [Message.user(words("early", 5), id="m1"), Message.assistant("I see.", id="m2")]
    assert await memory.messages.save(batch, thread="t", resource="ada", title="Trip") == 2
    assert await memory.messages.save([*batch, Message.user("more", id="m3")], thread="t", resource="ada") == 1
    assert await memory.messages.save(batch, thread="t", resource="ada") == 0
    await Agent(model=model, memory=memory).generate("and?", thread="t", resource="ada")
    assert "early" in model.requests[-1].text
    (thread,) = (await memory.threads.list()).items
    assert thread.title == "Trip"
    assert [row.part_tokens for row in await memory.messages.list(thread="t")] == [(5,), (2,), (1,), (1,), (2,)]


async def test_saving_is_all_or_nothing(storage: InMemoryStorage) -> None:
    memory = Memory(storage=storage)
    with pytest.raises(InputError, match="message id"):
        await memory.messages.save([Message.user("one", id="m1"), Message.user("two", id="m\0")], thread="t")
    assert (await memory.threads.list()).items == []
    await memory.messages.save([Message.user("one", id="m1")], thread="t")


async def test_saving_does_not_get_between_the_steps_of_a_run(storage: InMemoryStorage) -> None:
    memory = Memory(storage=storage, thread_wait=0)
    run = await storage.begin_run("run-1", Thread(id="t", resource_id=own_resource("t")))
    with pytest.raises(ThreadBusyError):
        await memory.messages.save([Message.user("one")], thread="t")
    await storage.finish_run(run, "discarded")


# --- observing by hand -----------------------------------------------------------------------------------


async def test_observe_takes_everything_whatever_the_thresholds(storage: InMemoryStorage) -> None:
    memory = observational(storage, message_tokens=100_000)
    await talk(Agent(model=answering(), memory=memory), 5)
    assert (await memory.diary.get(thread="t")).entries == ()
    progress: list[tuple[int, int]] = []
    events: list[str] = []
    log = await memory.diary.observe(
        thread="t",
        on_progress=lambda done, total: progress.append((done, total)),
        on_event=lambda event: events.append(event.type),
    )
    assert log.entries == (await memory.diary.get(thread="t")).entries
    assert await raw_rows(storage) == []
    assert progress[0][0] == 0
    assert progress[-1][0] == progress[-1][1] == sum(entry.message_tokens for entry in log.entries)
    assert events == ["data-om-observation-start", "data-om-observation-end"] * len(log.entries)
    assert await memory.diary.observe(thread="t") == log


async def test_observe_says_why_it_failed_and_keeps_what_was_done(storage: InMemoryStorage) -> None:
    writes = observer()
    noted = "Date: 2026-03-02\n- 🔴 the first piece"
    replies: list[Any] = [noted, RuntimeError("the observer is down")]
    memory = observational(storage, message_tokens=1000, observer_model=ScriptedModel(*replies))
    await memory.messages.save([Message.user(words(f"m{n}", 300)) for n in range(6)], thread="t")
    with pytest.raises(RuntimeError, match="observer is down"):
        await memory.diary.observe(thread="t")
    assert [entry.text for entry in (await memory.diary.get(thread="t")).entries] == [noted]
    await raw_rows(storage)
    again = observational(storage, message_tokens=1000, observer_model=writes)
    log = await again.diary.observe(thread="t")
    assert log.entries[0].text == noted
    assert await raw_rows(storage) == []


async def test_an_agent_that_fails_to_observe_does_not_keep_people_from_it(storage: InMemoryStorage) -> None:
    """A call by hand does not back off."""
    await talk(Agent(model=answering(), memory=observational(storage, observer_model=failing())), 6)
    log = await observational(storage).diary.observe(thread="t")
    assert log.entries
    assert log.observer_failures.count == 0


# --- threads and closing -----------------------------------------------------------------------------------


async def test_a_deleted_thread_is_gone_with_its_diary(storage: InMemoryStorage) -> None:
    memory = observational(storage)
    agent = Agent(model=answering(), memory=memory)
    await talk(agent, 6)
    await memory.threads.delete("t")
    assert (await memory.threads.list()).items == []
    assert await storage.get_log("thread:t") is None
    await agent.generate("fresh start", thread="t")
    assert len(await memory.messages.list(thread="t")) == 2


async def test_threads_are_paged(storage: InMemoryStorage) -> None:
    memory = Memory(storage=storage)
    for number in range(5):
        await memory.messages.save([Message.user("hello")], thread=f"t{number}", resource="ada")
    first = await memory.threads.list(resource="ada", limit=3)
    rest = await memory.threads.list(resource="ada", limit=3, cursor=first.cursor)
    assert sorted(thread.id for thread in [*first.items, *rest.items]) == [f"t{n}" for n in range(5)]
    assert rest.cursor is None


async def test_the_default_storage_is_a_file_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with Memory() as memory:
        await Agent(model=answering(), memory=memory).generate("hello", thread="t")
    async with SQLiteStorage(tmp_path / "memory.db") as storage:
        assert len(await storage.list_messages("t")) == 2


async def test_a_memory_that_its_agent_closed_opens_again(tmp_path: Path) -> None:
    memory = Memory(storage=SQLiteStorage(tmp_path / "memory.db"))
    async with Agent(model=answering(), memory=memory) as agent:
        await agent.generate("hello", thread="t")
    assert len(await memory.messages.list(thread="t")) == 2
    await memory.close()


def test_errors_of_memory_are_ours() -> None:
    assert issubclass(ThreadBusyError, DiaristError)


@pytest.mark.parametrize(
    "messages", ["hi", Message.user("hi"), {"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]]
)
async def test_messages_are_saved_in_every_form_that_generate_takes(storage: InMemoryStorage, messages: Any) -> None:
    memory = Memory(storage=storage)
    assert await memory.messages.save(messages, thread="t") == 1
    assert [(row.role, row.text) for row in await memory.messages.list(thread="t")] == [("user", "hi")]
    assert await memory.messages.save([], thread="t") == 0


async def test_a_wrong_message_is_not_saved(storage: InMemoryStorage) -> None:
    for value, wrong in ((5, "not int"), ([Message.user("a"), "b"], "message 1")):
        with pytest.raises(InputError, match=wrong):
            await Memory(storage=storage).messages.save(value, thread="t")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert await storage.get_thread("t") is None
