"""Random actions of users and clients: turns, late answers, repetitions, work by hand, removals."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime

from diarist.messages import Message, ToolPart
from diarist.storage import Storage
from tests.exactly_once.fake_models import marks_of, say
from tests.exactly_once.ledger import Ledger, RunRecord
from tests.exactly_once.outside_turns import OutsideTurn
from tests.exactly_once.processes import Process
from tests.exactly_once.removals import Removal, remove
from tests.exactly_once.turns import End, RunningTurn, Turn

_ENDS: dict[End, float] = {
    "answers": 10,
    "asks the client": 2,
    "is blocked": 3,
    "fails": 2,
    "is redacted": 2,
    "is trimmed": 1,
}
_REMOVALS: dict[Removal, float] = {"messages": 6, "clear": 1, "delete": 1, "thread": 1, "resource": 1}

Action = Callable[[], Awaitable[str]]


class Actions:
    """Picks random actions: functions that act and return a line about the result.

    Args:
        storage: The shared storage, without crashes.
        threads: The threads; one that is named twice is chosen twice as often.
        now: The time of day.
        removals: The weight of removals; turns have 10.
        resource: The owner of the threads.
        whole: Whole resources are removed too.
    """

    def __init__(
        self,
        ledger: Ledger,
        storage: Storage,
        chance: random.Random,
        threads: Sequence[str],
        now: Callable[[], datetime],
        removals: float = 1.0,
        *,
        resource: str = "ada",
        whole: bool = True,
    ) -> None:
        self._resource = resource
        self.ledger = ledger
        self.threads = threads
        self._storage = storage
        self._chance = chance
        self._now = now
        self._removals = {kind: weight for kind, weight in _REMOVALS.items() if whole or kind != "resource"}
        self._weights = [10, 1.5, 1.5, 1.5, removals]
        self._sent: dict[str, list[Message]] = {}
        self._calls: list[tuple[str, str]] = []

    async def introduce(self) -> None:
        """Save a working memory, so that forgetting the resource has something to remove."""
        found = await self._storage.get_working_memory(f"resource:{self._resource}")
        await self._storage.save_working_memory(replace(found, text=say(self.ledger.mark(), 3)))

    def any(self, process: Process) -> Action:
        kinds = [self._turn, self._answer, self._repeat, self._by_hand, self._remove]
        return self._chance.choices(kinds, self._weights)[0](process)

    def plain_turn(self, process: Process, thread: str) -> Action:
        """A question and an answer."""
        return self._take(process, Turn(thread, [self._user(thread)], resource=self._resource))

    def _turn(self, process: Process) -> Action:
        thread = self._chance.choice(self.threads)
        return self._take(process, self._plan(thread, [self._user(thread)]))

    def _plan(self, thread: str, input: list[Message]) -> Turn:
        chance = self._chance
        steps = [chance.randint(2, 8) for _ in range(chance.choice((0, 0, 1, 2, 3, 4)))]
        overflows = frozenset([chance.randint(0, len(steps))]) if chance.random() < 0.05 else frozenset[int]()
        end = chance.choices(list(_ENDS), list(_ENDS.values()))[0]
        return Turn(thread, input, steps, end, chance.randint(2, 6), overflows, self._resource)

    def _user(self, thread: str) -> Message:
        words = 40 if self._chance.random() < 0.03 else self._chance.randint(2, 8)
        text = say(self.ledger.mark(), words)
        message = Message.user(text, id=self.ledger.id("m"), created_at=self._now())
        self._sent.setdefault(thread, []).append(message)
        return message

    def _take(self, process: Process, turn: Turn) -> Action:
        async def take() -> str:
            running = (OutsideTurn if process.outside else RunningTurn)(process, turn, self._chance)
            self.ledger.log(process.name, "takes", running.record.id, turn)
            said = await running.take()
            if said == "well" and turn.end == "asks the client":
                last = next(part for row in reversed(running.record.kept) for part in row.tool_parts)
                self._calls.append((turn.thread, last.call_id))
            return f"{running.record.id} {said}"

        return take

    def _answer(self, process: Process) -> Action:
        """Answer an open call as the client, perhaps too late."""
        if not self._calls:
            return self._turn(process)
        thread, call_id = self._calls.pop(self._chance.randrange(len(self._calls)))
        part = ToolPart(call_id=call_id, name="look", args={}, state="result", result=say(self.ledger.mark(), 3))
        result = Message(id=self.ledger.id("m"), role="tool", parts=[part], created_at=self._now())
        return self._take(process, self._plan(thread, [result]))

    def _repeat(self, process: Process) -> Action:
        """Send earlier messages again: all with a new one, or the last one alone."""
        thread = self._chance.choice(self.threads)
        sent = self._sent.get(thread, [])
        if not sent:
            return self._turn(process)
        if self._chance.random() < 0.5:
            return self._take(process, self._plan(thread, sent[-1:]))
        return self._take(process, self._plan(thread, [*sent, self._user(thread)]))

    def _by_hand(self, process: Process) -> Action:
        memory, thread = process.memory, self._chance.choice(self.threads)
        name = self._chance.choice(("observe", "observe", "reflect", "reflect", "import"))

        async def act() -> str:
            self.ledger.log(process.name, "does", name, thread)
            try:
                match name:
                    case "observe":
                        await memory.diary.observe(thread=thread)
                    case "reflect":
                        await memory.diary.reflect(thread=thread)
                    case _:
                        await self._import(process, thread)
            except Exception as error:  # any error is fine here; the checks judge what is stored
                return f"{type(error).__name__}: {error}"
            return "done"

        return act

    async def _import(self, process: Process, thread: str) -> None:
        messages = [self._user(thread), Message.assistant(say(self.ledger.mark(), 4), id=self.ledger.id("m"))]
        record = RunRecord(self.ledger.id("import"), thread)
        record.marks = {mark for message in messages for mark in marks_of(message.text)}
        self.ledger.begin(record)
        await process.memory.messages.save(messages, thread=thread, resource=self._resource)
        self.ledger.ended(record, "committed", messages)

    def _remove(self, process: Process) -> Action:
        what: Removal = self._chance.choices(list(self._removals), list(self._removals.values()))[0]

        async def act() -> str:
            self.ledger.log(process.name, "removes", what)
            return await remove(process, self._storage, self.threads, self._resource, what, self._chance)

        return act
