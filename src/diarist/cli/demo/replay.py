"""Plays the conversation through a real agent with a real memory, turn by turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from diarist.agent import Agent
from diarist.cli.demo.meter import Call, History, MeteredModel
from diarist.cli.demo.script import Turn, recorded_tools, scripted_replies
from diarist.memory import Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.messages import Message, utc_now
from diarist.models.base import Model
from diarist.processors import Processor, ProcessOutputStepArgs
from diarist.storage import Event, SQLiteStorage
from diarist.testing import ScriptedModel

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
    """Return observational memory on the demo's database. The timeout with a model allows for slow local models."""
    return Memory(
        storage=SQLiteStorage(settings.path),
        observational_memory=ObservationalMemoryConfig(
            model=settings.model or "extractive",
            observation=ObservationConfig(message_tokens=settings.message_tokens),
            reflection=ReflectionConfig(observation_tokens=settings.observation_tokens),
            observe_timeout=600.0 if settings.model else 30.0,
        ),
    )


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


class Replay:
    """The demo's agent. ``play`` yields a report per turn; ``memory`` can be inspected afterwards."""

    def __init__(self, settings: Settings, turns: Sequence[Turn]) -> None:
        self.scripted = settings.model is None
        self.memory = make_memory(settings)
        actor = settings.model or ScriptedModel(*scripted_replies(turns))
        self.model = MeteredModel(actor, self.memory.counter)
        self._turns = turns
        self._clock = _Dates(self.memory if self.scripted else None)
        self._seen = 0
        self._agent = Agent(
            name="assistant",
            instructions=INSTRUCTIONS,
            model=self.model,
            tools=recorded_tools(turns),
            memory=self.memory,
            output_processors=[self._clock],
            max_steps=12,
        )

    async def close(self) -> None:
        """Close the model's connections and the database."""
        await self._agent.close()

    async def play(self, before: Sequence[Message]) -> AsyncIterator[TurnReport]:
        """Play all turns. ``before`` has the messages that are already in the thread."""
        counter = self.memory.counter
        history = History(counter, before)
        overhead = counter.count(INSTRUCTIONS)
        await self._news()
        for turn in self._turns:
            self._clock.now = turn.day
            asked = Message(id=turn.asked.id, role="user", parts=turn.asked.parts, created_at=turn.day)
            first = len(self.model.calls)
            result = await self._agent.generate(asked, thread=THREAD, resource=RESOURCE)
            await self.memory.settled()  # a user would pause before the next message
            history.add([asked, *result.messages[:-1]])
            yield TurnReport(
                day=turn.day,
                asked=asked.text,
                answer=result.text,
                raw=history.tokens + overhead,
                calls=self.model.calls[first:],
                events=await self._news(),
            )
            history.add(result.messages[-1:])

    async def _news(self) -> list[Event]:
        """Return events added to the log since the last call."""
        news: list[Event] = []
        while page := await self.memory.storage.list_events(f"thread:{THREAD}", after=self._seen):
            self._seen = page[-1].seq
            news += page
        return news


class _Dates(Processor[Any]):
    """Dates the replies like the conversation, half a minute apart.

    Args:
        memory: Memory to wait for at each step. A script answers at once and a model after seconds, so without waiting,
            the Observer's progress would vary between runs.
    """

    def __init__(self, memory: Memory | None) -> None:
        self.now = utc_now()
        self._memory = memory

    async def process_output_step(self, args: ProcessOutputStepArgs[Any]) -> None:
        if self._memory is not None:
            await self._memory.settled()
        for number, message in enumerate(args.message_list.response, start=1):
            message.created_at = self.now + timedelta(seconds=30 * number)
