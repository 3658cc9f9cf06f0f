"""What people and clients do with a memory: turns, answers, repetitions, work by hand, removals."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime

from diarist.messages import Message, ToolPart
from diarist.storage import Storage
from tests.exactly_once.books import Books, RunFacts
from tests.exactly_once.cast import marks_of, say
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

Deed = Callable[[], Awaitable[str]]


class Deeds:
    """Deeds by chance. Each is a function that does it and says what came of it.

    Args:
        storage: Without crashes, to look into.
        threads: Where it happens; what is named twice is chosen twice as often.
        now: The time of day.
        removals: How often something is removed, where 10 is how often there is a turn.
        resource: Whose threads they are.
        whole: Resources are removed as well.
    """

    def __init__(
        self,
        books: Books,
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
        self.books = books
        self.threads = threads
        self._storage = storage
        self._chance = chance
        self._now = now
        self._removals = {kind: weight for kind, weight in _REMOVALS.items() if whole or kind != "resource"}
        self._weights = [10, 1.5, 1.5, 1.5, removals]
        self._sent: dict[str, list[Message]] = {}
        self._calls: list[tuple[str, str]] = []

    async def introduce(self) -> None:
        """Something is known of the resource, so that there is something to forget."""
        found = await self._storage.get_working_memory(f"resource:{self._resource}")
        await self._storage.save_working_memory(replace(found, text=say(self.books.mark(), 3)))

    def any(self, process: Process) -> Deed:
        kinds = [self._turn, self._answer, self._repeat, self._by_hand, self._remove]
        return self._chance.choices(kinds, self._weights)[0](process)

    def plain_turn(self, process: Process, thread: str) -> Deed:
        """A question and an answer."""
        return self._take(process, Turn(thread, [self._user(thread)], resource=self._resource))

    def _turn(self, process: Process) -> Deed:
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
        text = say(self.books.mark(), words)
        message = Message.user(text, id=self.books.id("m"), created_at=self._now())
        self._sent.setdefault(thread, []).append(message)
        return message

    def _take(self, process: Process, turn: Turn) -> Deed:
        async def take() -> str:
            running = RunningTurn(process, turn, self._chance)
            self.books.tell(process.name, "takes", running.facts.id, turn)
            said = await running.take()
            if said == "well" and turn.end == "asks the client":
                last = next(part for row in reversed(running.facts.kept) for part in row.tool_parts)
                self._calls.append((turn.thread, last.call_id))
            return f"{running.facts.id} {said}"

        return take

    def _answer(self, process: Process) -> Deed:
        """The client answers a call, perhaps too late."""
        if not self._calls:
            return self._turn(process)
        thread, call_id = self._calls.pop(self._chance.randrange(len(self._calls)))
        part = ToolPart(call_id=call_id, name="look", args={}, state="result", result=say(self.books.mark(), 3))
        result = Message(id=self.books.id("m"), role="tool", parts=[part], created_at=self._now())
        return self._take(process, self._plan(thread, [result]))

    def _repeat(self, process: Process) -> Deed:
        """The client sends what it sent before: all of it with something new, or its last words alone."""
        thread = self._chance.choice(self.threads)
        sent = self._sent.get(thread, [])
        if not sent:
            return self._turn(process)
        if self._chance.random() < 0.5:
            return self._take(process, self._plan(thread, sent[-1:]))
        return self._take(process, self._plan(thread, [*sent, self._user(thread)]))

    def _by_hand(self, process: Process) -> Deed:
        memory, thread = process.memory, self._chance.choice(self.threads)
        name = self._chance.choice(("observe", "observe", "reflect", "compact", "import"))

        async def act() -> str:
            self.books.tell(process.name, "does", name, thread)
            try:
                match name:
                    case "observe":
                        await memory.observe(thread=thread)
                    case "reflect":
                        await memory.reflect(thread=thread)
                    case "compact":
                        await memory.compact(5, thread=thread)
                    case _:
                        await self._import(process, thread)
            except Exception as error:  # all that may fail here may fail: what counts is what is left
                return f"{type(error).__name__}: {error}"
            return "done"

        return act

    async def _import(self, process: Process, thread: str) -> None:
        messages = [self._user(thread), Message.assistant(say(self.books.mark(), 4), id=self.books.id("m"))]
        facts = RunFacts(self.books.id("import"), thread)
        facts.marks = {mark for message in messages for mark in marks_of(message.text)}
        self.books.begin(facts)
        await process.memory.save_messages(messages, thread=thread, resource=self._resource)
        self.books.ended(facts, "committed", messages)

    def _remove(self, process: Process) -> Deed:
        what: Removal = self._chance.choices(list(self._removals), list(self._removals.values()))[0]

        async def act() -> str:
            self.books.tell(process.name, "removes", what)
            return await remove(process, self._storage, self.threads, self._resource, what, self._chance)

        return act
