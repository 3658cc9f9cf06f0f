"""Tests that every adapter to another library's agents must pass.

Subclass ``AdapterConformance`` in a test file, name the entry points, and build the user's program::

    class TestMyAdapter(AdapterConformance):
        module, package, extra = "diarist.integrations.mine", "their_package", "mine"
        entry_points = ("run", "run_stream", "run_sync")

        def program(self, script, *, memory, **options) -> AdapterProgram:
            return MyProgram(script, memory, **options)

A program is one conversation of an agent of the framework, as a user writes it, with a fake model of the framework. It
has three tools, which call ``look_up``, and the instructions ``INSTRUCTIONS``.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeAlias

import pytest

from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError, ModelError, StorageError
from diarist.memory import Memory, ObservationalMemoryConfig, ObservationConfig
from diarist.messages import as_text
from diarist.models.base import ModelRequest
from diarist.storage import InMemoryStorage, Run
from diarist.testing.scripted import ScriptedModel, ToolCall
from diarist.tokens import default_counter

__all__ = [
    "INSTRUCTIONS",
    "TOOLS",
    "WAIT",
    "AdapterConformance",
    "AdapterProgram",
    "Script",
    "SentMessage",
    "SentRequest",
    "Step",
    "look_up",
]

INSTRUCTIONS = "You plan trips."
"""The instructions of the user's agent."""

TOOLS = ("weather", "hotels", "trains")
"""The tools of the user's agent. Each has one argument, ``city``."""

WAIT = "wait"
"""A step of a script: the fake model does not answer until it is cancelled."""

MESSAGE_TOKENS = 2000
"""When messages are observed, in the tests."""

SECRET = "written-by-the-observer"


def look_up(tool: str, city: str) -> str:
    """Return the result of a tool."""
    return f"{tool} of {city}: " + "found " * 40


@dataclass(frozen=True, kw_only=True)
class SentMessage:
    """A message of a request or of a history. One result of a tool is one message.

    Attributes:
        text: The text; of a tool's result, its content.
        calls: Ids of the calls in an assistant message.
        result_of: Id of the call that a tool's message answers; empty for others.
    """

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: tuple[str, ...] = ()
    result_of: str = ""


@dataclass(frozen=True, kw_only=True)
class SentRequest:
    """A request as the fake model received it.

    Attributes:
        system: Texts of the system prompt, in order.
        tools: Names of the offered tools.
    """

    system: Sequence[str]
    messages: Sequence[SentMessage]
    tools: Sequence[str] = ()

    @property
    def text(self) -> str:
        return "\n".join([*self.system, *(message.text for message in self.messages)])


Step: TypeAlias = str | list[ToolCall] | BaseException
"""What a fake model does: answers with a text or with calls (with ids), raises an error, or ``WAIT``."""

Script: TypeAlias = Callable[[SentRequest], Step]


class AdapterProgram(ABC):
    """One conversation with an agent of the framework, as a user's program has it.

    Attributes:
        requests: Everything that the fake model was sent, in order.
        shown: What the user's program was shown beside the answer, as text: items of streams, callbacks, traces.
            Leave out memory's own events.
    """

    def __init__(self) -> None:
        self.requests: list[SentRequest] = []
        self.shown: list[str] = []

    @abstractmethod
    async def ask(self, text: str, *, entry: str = "") -> str:
        """Run one turn and return the answer. Raises what the framework raises.

        Args:
            entry: One of ``AdapterConformance.entry_points``; by default the first. Call synchronous ones in a thread.
        """

    @abstractmethod
    async def stored(self) -> list[SentMessage]:
        """Return the framework's own history of the conversation: its result, checkpoint or session."""


class RecordingStorage(InMemoryStorage):
    """Records how each run ended, and fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self.away = False

    async def begin_run(self, run_id: str, *args: Any, **options: Any) -> Run:
        if self.away:
            raise StorageError("the database is away")
        self.outcomes[run_id] = "open"
        return await super().begin_run(run_id, *args, **options)

    async def finish_run(self, run: Run, outcome: Any, *args: Any, **options: Any) -> Any:
        self.outcomes[run.id] = outcome
        return await super().finish_run(run, outcome, *args, **options)


@dataclass
class Travel:
    """The script of most tests: by the number in the question, an answer, one call first, or two at once.

    Attributes:
        first: Steps to take before all others, in order.
    """

    first: list[Step] = field(default_factory=list[Step])
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, request: SentRequest) -> Step:
        if is_observer(request):
            return notes(request.text)
        self.reached.set()
        if self.first:
            return self.first.pop(0)
        number = int(re.findall(r"turn-(\d+)", "".join(m.text for m in request.messages if m.role == "user"))[-1])
        if request.messages[-1].role == "user" and number % 3:
            return [
                ToolCall(TOOLS[(number + at) % 3], {"city": f"city-{number}"}, id=f"call-{number}-{at}")
                for at in range(number % 3)
            ]
        return answer(number)


def question(number: int) -> str:
    """Return the user's message of a turn; the first five state a fact each."""
    fact = f" FACT-{number} is true." if number < 5 else ""
    return f"turn-{number}:{fact} " + "please " * 50


def answer(number: int) -> str:
    return f"answer-{number} " + "gladly " * 20


def is_observer(request: SentRequest) -> bool:
    return "diary of an assistant" in "".join(request.system)


def notes(transcript: str) -> str:
    """Return an entry with the facts of a transcript."""
    facts = dict.fromkeys(re.findall(r"FACT-\d is true", transcript))
    return "\n".join(["<diary>", "Date: 2026-03-02", f"- 🟡 {SECRET}", *(f"- 🔴 {fact}" for fact in facts), "</diary>"])


def assert_whole(request: SentRequest) -> None:
    """Fail if a call lacks its result, or a result its call."""
    calls = [call for message in request.messages for call in message.calls]
    results = [message.result_of for message in request.messages if message.role == "tool"]
    assert sorted(calls) == sorted(results)
    assert len(set(calls)) == len(calls)
    waiting: set[str] = set()
    for message in request.messages:
        if message.role == "tool":
            assert message.result_of in waiting
            waiting.remove(message.result_of)
        else:
            assert not waiting
            waiting |= set(message.calls)


class AdapterConformance(ABC):
    """The contract of an adapter: its user's program works as without it, and the diary is in each prompt."""

    module: ClassVar[str]
    """The adapter, such as ``diarist.integrations.pydantic_ai``."""
    package: ClassVar[str]
    """The framework's module."""
    extra: ClassVar[str] = ""
    """The extra of diarist that installs the framework; empty: diarist itself does."""
    entry_points: ClassVar[Sequence[str]]
    """Names of the ways to run an agent, the plain asynchronous one first."""
    server_state: ClassVar[Sequence[str]] = ()
    """Names of the options that make the provider keep the conversation."""
    refusal: ClassVar[type[Exception] | None] = None
    """The error of a run with an answer that a guard refused; None: the framework has no guards."""

    @abstractmethod
    def program(
        self,
        script: Script,
        *,
        memory: Memory | None,
        thread: str = "trip",
        resource: str = "ada",
        reject: str = "",
        retries: bool = False,
        server_state: str = "",
        **options: Any,
    ) -> AdapterProgram:
        """Return a new conversation.

        Args:
            script: Decides what the framework's fake model does, for each request. Its model also answers as Observer
                where ``memory`` has no model.
            memory: None: the same program without the adapter.
            reject: Refuse final answers that contain this text, with a guard of the framework that ends the run.
            retries: Let the framework call the model again after a ``ConnectionError``.
            server_state: Set this option, to any value.
            options: Passed to the adapter: ``fail_open``, ``on_event``.
        """

    def overflow(self) -> Exception | None:
        """Return the framework's error of a prompt that is too long; None if it does not let an adapter try again."""
        return None

    def memory(self, storage: InMemoryStorage | None = None, **options: Any) -> Memory:
        """Return a memory with a small threshold and an Observer of its own."""
        return _memory(storage, model=ScriptedModel(_observe, name="observer"), **options)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name, values in (("entry", self.entry_points), ("refused", self.server_state)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values)

    # -- 1. a long conversation

    async def test_a_long_conversation_stays_small_and_remembers(self) -> None:
        limit, turns = 2 * MESSAGE_TOKENS, 60
        memory = self.memory(message_tokens=limit)
        program = self.program(Travel(), memory=memory)
        for number in range(turns):
            assert (await program.ask(question(number))).strip() == answer(number).strip()
        counter = default_counter()
        for request in program.requests:
            assert_whole(request)
            assert counter.count(request.text) <= 1.3 * limit
            assert request.system[0].startswith(INSTRUCTIONS)
        last = program.requests[-1]
        assert not any("turn-0:" in message.text for message in last.messages)
        for number in range(5):
            assert f"FACT-{number} is true" in "\n".join(last.system)
        await self.assert_complete(program, memory, range(turns))

    async def assert_complete(self, program: AdapterProgram, memory: Memory, numbers: Sequence[int]) -> None:
        """Fail if the framework's history or the thread's is not all that was said."""
        stored = await program.stored()
        assert [m.text.strip() for m in stored if m.role == "user"] == [question(number).strip() for number in numbers]
        said = [m.text.strip() for m in stored if m.role == "assistant" and not m.calls]
        assert said == [answer(number).strip() for number in numbers]
        results = [m for m in stored if m.role == "tool"]
        assert len(results) == sum(number % 3 for number in numbers)
        assert_whole(SentRequest(system=[], messages=stored))
        rows = await memory.messages.list(thread="trip")
        assert [row.text.strip() for row in rows if row.role == "user"] == [question(n).strip() for n in numbers]
        assert [row.text.strip() for row in rows if row.role == "assistant" and row.text] == said
        tools = [part for row in rows for part in row.tool_parts]
        assert [as_text(part.result) for part in tools] == [message.text for message in results]

    async def test_the_system_prompt_stays_the_same_until_the_diary_changes(self) -> None:
        program = self.program(Travel(), memory=self.memory())
        for number in range(20):
            await program.ask(question(number))
        texts = ["\n".join(request.system) for request in program.requests]
        changes = sum(one != other for one, other in pairwise(texts))
        assert 0 < changes <= 8

    async def test_another_program_continues_the_thread(self) -> None:
        memory = self.memory()
        first = self.program(Travel(), memory=memory)
        for number in range(3):
            await first.ask(question(number))
        second = self.program(Travel(), memory=memory)
        await second.ask(question(3))
        asked = [m.text for m in second.requests[0].messages if m.role == "user"]
        assert [sum(f"turn-{number}:" in text for text in asked) for number in range(4)] == [1, 1, 1, 1]
        assert_whole(second.requests[0])
        rows = await memory.messages.list(thread="trip")
        assert [row.text.strip() for row in rows if row.role == "user"] == [question(n).strip() for n in range(4)]

    async def test_threads_do_not_mix(self) -> None:
        memory = self.memory()
        trip, work = (self.program(Travel(), memory=memory, thread=thread) for thread in ("trip", "work"))
        await trip.ask(question(0))
        await work.ask(question(3))
        assert "turn-0" not in work.requests[0].text
        assert [row.text for row in await memory.messages.list(thread="work")] == [question(3), answer(3)]
        found = await memory.threads.get("work")
        assert found.resource_id == "ada"

    # -- 2. entry points

    async def test_each_entry_point_remembers(self, entry: str) -> None:
        storage = RecordingStorage()
        memory = self.memory(storage)
        program = self.program(Travel(), memory=memory)
        for number in range(16):
            assert (await program.ask(question(number), entry=entry)).strip() == answer(number).strip()
        assert "FACT-0 is true" in "\n".join(program.requests[-1].system)
        for request in program.requests:
            assert_whole(request)
        await self.assert_complete(program, memory, range(16))
        assert list(storage.outcomes.values()) == ["committed"] * 16

    # -- 3. turns that do not end well

    @pytest.mark.parametrize("step", ["at once", "after a tool"])
    async def test_an_error_interrupts_the_turn_and_the_next_one_works(self, step: str) -> None:
        storage = RecordingStorage()
        memory, script = self.memory(storage), Travel([RuntimeError("the model is down")])
        if step == "after a tool":
            script.first.insert(0, [ToolCall("weather", {"city": "Rome"}, id="call-x")])
        program = self.program(script, memory=memory)
        with pytest.raises(Exception, match="the model is down"):
            await program.ask(question(0))
        await self.assert_interrupted(program, storage, memory, tools=int(step == "after a tool"))

    async def test_a_cancelled_turn_is_interrupted_and_the_next_one_works(self) -> None:
        storage = RecordingStorage()
        memory, script = self.memory(storage), Travel([WAIT])
        program = self.program(script, memory=memory)
        asking = asyncio.create_task(program.ask(question(0)))
        await script.reached.wait()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await self.assert_interrupted(program, storage, memory, tools=0)

    async def assert_interrupted(
        self, program: AdapterProgram, storage: RecordingStorage, memory: Memory, *, tools: int
    ) -> None:
        await program.ask(question(3))
        assert list(storage.outcomes.values()) == ["interrupted", "committed"]
        rows = await memory.messages.list(thread="trip")
        assert [row.text for row in rows if row.text] == [question(0), question(3), answer(3)]
        assert len([part for row in rows for part in row.tool_parts]) == tools
        assert_whole(program.requests[-1])
        assert "turn-0" in program.requests[-1].text

    async def test_a_refused_answer_is_not_kept_and_the_next_turn_works(self) -> None:
        if self.refusal is None:
            pytest.skip("the framework cannot refuse an answer")
        storage = RecordingStorage()
        memory = self.memory(storage)
        program = self.program(Travel(["a forbidden answer"]), memory=memory, reject="forbidden")
        with pytest.raises(self.refusal):
            await program.ask(question(0))
        assert (await program.ask(question(3))).strip() == answer(3).strip()
        rows = await memory.messages.list(thread="trip")
        assert not any("forbidden" in row.text for row in rows)
        assert rows[-1].text.strip() == answer(3).strip()
        first, second = storage.outcomes.values()
        assert first in ("interrupted", "discarded")
        assert second == "committed"

    async def test_without_storage_the_program_goes_on_and_its_turn_is_stored_later(self) -> None:
        storage = RecordingStorage()
        memory = self.memory(storage)
        program = self.program(Travel(), memory=memory)
        await program.ask(question(0))
        storage.away = True
        assert (await program.ask(question(1))).strip() == answer(1).strip()
        assert "turn-0:" in program.requests[-1].text
        storage.away = False
        assert (await program.ask(question(2))).strip() == answer(2).strip()
        for request in program.requests:
            assert_whole(request)
        await self.assert_complete(program, memory, range(3))

    async def test_without_the_observer_the_program_has_its_memory(self) -> None:
        away = ScriptedModel(lambda _: ModelError("the Observer is away"))
        config = ObservationConfig(message_tokens=MESSAGE_TOKENS, buffer_tokens=False)
        memory = Memory(
            storage=InMemoryStorage(), observational_memory=ObservationalMemoryConfig(model=away, observation=config)
        )
        for number in range(20):
            program = self.program(Travel(), memory=memory)
            await program.ask(question(number))
            for request in program.requests:
                assert all(f"turn-{earlier}:" in request.text for earlier in range(number))
        assert away.requests

    async def test_a_memory_that_stores_nothing_leaves_the_history_to_the_program(self) -> None:
        program = self.program(Travel(), memory=self.memory(read_only=True))
        for number in range(3):
            await program.ask(question(number))
        last = program.requests[-1]
        assert all(f"turn-{number}:" in last.text for number in range(3))
        assert_whole(last)

    async def test_the_history_of_a_deleted_thread_is_stored_again(self) -> None:
        memory = self.memory()
        program = self.program(Travel(), memory=memory)
        await program.ask(question(1))
        await memory.threads.delete("trip")
        await program.ask(question(2))
        assert "turn-1:" in program.requests[-1].text
        await self.assert_complete(program, memory, [1, 2])

    async def test_events_reach_the_application(self) -> None:
        events: list[DataChunk] = []
        program = self.program(Travel(), memory=self.memory(), on_event=events.append)
        for number in range(16):
            await program.ask(question(number))
        assert any(event.type.startswith("data-om-") for event in events)

    # -- 4. the Observer is not seen

    async def test_the_frameworks_model_takes_notes_unseen(self, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        program = self.program(Travel(), memory=_memory(None))
        for number in range(16):
            await program.ask(question(number), entry=entry)
        assert any(is_observer(request) for request in program.requests)
        asked = [request for request in program.requests if not is_observer(request)]
        assert SECRET in "\n".join(asked[-1].system)
        assert not any(SECRET in text or "diary of an assistant" in text for text in program.shown)
        assert not any(SECRET in message.text for message in await program.stored())

    # -- 5. retries

    async def test_a_retry_of_the_framework_stores_nothing_twice(self) -> None:
        storage = RecordingStorage()
        memory = self.memory(storage)
        program = self.program(Travel([ConnectionError("try again")]), memory=memory, retries=True)
        assert (await program.ask(question(3))).strip() == answer(3).strip()
        one, other = program.requests
        assert one == other
        assert list(storage.outcomes.values()) == ["committed"]
        assert [row.text for row in await memory.messages.list(thread="trip")] == [question(3), answer(3)]

    async def test_a_prompt_that_is_too_long_becomes_shorter(self) -> None:
        error = self.overflow()
        if error is None:
            pytest.skip("the framework does not let an adapter call the model again")
        storage = RecordingStorage()
        memory, script = self.memory(storage), Travel()
        program = self.program(script, memory=memory)
        for number in range(8):
            await program.ask(question(number))
        script.first.append(error)
        await program.ask(question(9))
        long, short = program.requests[-2:]
        assert len(short.text) < len(long.text)
        assert "turn-9" in short.text
        assert_whole(short)
        assert list(storage.outcomes.values()) == ["committed"] * 9
        await self.assert_complete(program, memory, [*range(8), 9])

    # -- 6. without the framework, or without a memory

    def test_without_its_framework_the_import_says_what_to_install(self) -> None:
        code = (
            f"import sys; sys.modules[{self.package!r}] = None\n"
            "from diarist.exceptions import ConfigError\n"
            f"try:\n    import {self.module}\n"
            "except ConfigError as error:\n    print(error)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        wanted = f"'diarist[{self.extra}]'" if self.extra else "diarist"
        assert done.stdout == f"{self.module} needs a package: pip install {wanted}\n"

    @pytest.mark.parametrize("wrong", ["memory.db", InMemoryStorage(), Memory])
    def test_what_is_no_memory_is_refused(self, wrong: Any) -> None:
        with pytest.raises(ConfigError, match="memory must be a Memory, such as"):
            self.program(Travel(), memory=wrong)

    # -- 7. conversations that the provider keeps

    async def test_state_on_the_server_is_refused_by_name(self, refused: str) -> None:
        program = self.program(Travel(), memory=self.memory(), server_state=refused)
        with pytest.raises(ConfigError, match=refused):
            await program.ask(question(0))
        assert program.requests == []


def _memory(
    storage: InMemoryStorage | None, *, message_tokens: int = MESSAGE_TOKENS, model: Any = None, **options: Any
) -> Memory:
    config = ObservationalMemoryConfig(model=model, observation=ObservationConfig(message_tokens=message_tokens))
    return Memory(storage=storage or InMemoryStorage(), observational_memory=config, await_background=True, **options)


def _observe(request: ModelRequest) -> str:
    return notes(request.prompt.text)
