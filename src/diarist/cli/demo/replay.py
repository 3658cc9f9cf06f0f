"""Plays the conversation through a real agent with a real memory, turn by turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from os.path import commonprefix
from pathlib import Path
from typing import Any

from diarist.agent import Agent
from diarist.cli.demo.script import ScriptedTurn, recorded_tools, scripted_replies
from diarist.counting import count_parts
from diarist.memory import Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.messages import Message, utc_now
from diarist.models.base import Model
from diarist.processors import ProcessLLMRequestArgs, Processor, ProcessOutputStepArgs
from diarist.storage import Event, SQLiteStorage
from diarist.testing import ScriptedModel
from diarist.tokens import TokenCounter

THREAD, RESOURCE = "slow-hands", "ada"
INSTRUCTIONS = "You are Ada's assistant. You know her plans and keep her bookings in order. Be brief and exact."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of the command line. Without ``model``, replies are scripted and the Observer uses no model."""

    path: Path
    message_tokens: int
    observation_tokens: int
    model: Model | None = None


def make_memory(settings: Settings) -> Memory:
    """Return observational memory on the demo's database. The timeout of a model's calls is long enough for slow local
    models."""
    return Memory(
        storage=SQLiteStorage(settings.path),
        observational_memory=ObservationalMemoryConfig(
            model=settings.model or "extractive",
            observation=ObservationConfig(message_tokens=settings.message_tokens),
            reflection=ReflectionConfig(observation_tokens=settings.observation_tokens),
            observe_timeout=600.0 if settings.model else 30.0,
        ),
    )


def count_tokens(messages: Iterable[Message], counter: TokenCounter) -> int:
    """Return the tokens of messages: without memory, every call would send so many."""
    return sum(sum(message.part_tokens or count_parts(message, counter)) for message in messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call: tokens sent, and how many of them repeat the beginning of the previous call."""

    sent: int
    repeated: int


class Meter(Processor[Any]):
    """Measures every prompt.

    Attributes:
        calls: Measurements of all calls, in order.
        prompt: The last call's prompt, as text.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.calls: list[Call] = []
        self.prompt = ""
        self._counter = counter

    def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
        text = args.prompt.text
        prefix = commonprefix([text, self.prompt])  # noqa: RUF071 - of characters, not of paths
        self.calls.append(Call(sent=self._counter.count(text), repeated=self._counter.count(prefix)))
        self.prompt = text


@dataclass(slots=True, kw_only=True)
class TurnReport:
    """Measurements and events of one turn.

    Attributes:
        raw: Tokens of the whole history at the turn's last call.
        events: Memory events during the turn and in the background after it, from the event log.
    """

    day: datetime
    asked: str
    answer: str
    raw: int
    calls: list[Call]
    events: list[Event] = field(default_factory=list[Event])

    @property
    def sent(self) -> int:
        return self.calls[-1].sent if self.calls else 0

    @property
    def repeated(self) -> float:
        """Share of the turn's prompt tokens that repeat the previous prompt."""
        sent = sum(call.sent for call in self.calls)
        return sum(call.repeated for call in self.calls) / sent if sent else 0.0


async def replay(
    memory: Memory, settings: Settings, turns: Sequence[ScriptedTurn], before: Sequence[Message]
) -> AsyncGenerator[TurnReport]:
    """Play the turns, and yield a report of each. ``before`` has the messages that are already in the thread."""
    counter, storage = memory.counter, memory.storage
    meter, dates = Meter(counter), _Dates(memory if settings.model is None else None)
    tokens = count_tokens(before, counter) + counter.count(INSTRUCTIONS)
    seen = 0
    while page := await storage.list_events(f"thread:{THREAD}", after=seen):
        seen = page[-1].seq
    agent = Agent(
        name="assistant",
        instructions=INSTRUCTIONS,
        model=settings.model or ScriptedModel(*scripted_replies(turns)),
        tools=recorded_tools(turns),
        memory=memory,
        input_processors=[meter],
        output_processors=[dates],
        max_steps=12,
    )
    async with agent:
        for turn in turns:
            dates.now = turn.day
            asked = Message(id=turn.asked.id, role="user", parts=turn.asked.parts, created_at=turn.day)
            first = len(meter.calls)
            result = await agent.generate(asked, thread=THREAD, resource=RESOURCE)
            await memory.settled()  # a user would pause before the next message
            tokens += count_tokens([asked, *result.messages[:-1]], counter)
            events: list[Event] = []
            while page := await storage.list_events(f"thread:{THREAD}", after=seen):
                seen = page[-1].seq
                events += page
            yield TurnReport(
                day=turn.day,
                asked=asked.text,
                answer=result.text,
                raw=tokens,
                calls=meter.calls[first:],
                events=events,
            )
            tokens += count_tokens(result.messages[-1:], counter)


class _Dates(Processor[Any]):
    """Dates the replies like the conversation, half a minute apart.

    Args:
        memory: Memory to wait for at each step. (A script answers at once, a model after seconds: without waiting, the
            Observer's progress would vary between runs.)
    """

    def __init__(self, memory: Memory | None) -> None:
        self.now = utc_now()
        self._memory = memory

    async def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        if self._memory is not None:
            await self._memory.settled()
        for number, message in enumerate(args.message_list.response, start=1):
            message.created_at = self.now + timedelta(seconds=30 * number)
