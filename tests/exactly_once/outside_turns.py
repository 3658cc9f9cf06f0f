"""A turn as a loop outside the library takes it, on ``memory.turn``."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from diarist.chunks import DataChunk
from diarist.exceptions import InputError, StorageError
from diarist.memory.observational.processor import DiaryProcessorState
from diarist.memory.turn import TurnView
from diarist.messages import Message, Part, TextPart
from diarist.run_context import Outcome
from tests.exactly_once.checks import check_prompt
from tests.exactly_once.fake_models import call, marks_of, said_by, say
from tests.exactly_once.ledger import Ledger, RunRecord, Shown
from tests.exactly_once.processes import Process
from tests.exactly_once.turns import ModelDown, Turn


class OutsideTurn:
    """Takes one turn in a process. ``take()`` returns how it ended for the caller.

    Its ends are the end of the block, ``discard()`` for an answer that is blocked, and an exception.
    """

    def __init__(self, process: Process, turn: Turn, chance: random.Random) -> None:
        self.ledger: Ledger = process.ledger
        self._process, self._turn, self._chance = process, turn, chance
        self._status: dict[str, Any] = {}
        self._memory = process.memory.turn(
            thread=turn.thread,
            resource=turn.resource,
            fail_open=False,
            on_event=self._note,
            on_divergence="append",  # as in turns.py
        )
        self.record = RunRecord(self._memory.run_id, turn.thread)
        self.record.marks |= {mark for message in turn.input for mark in marks_of(said_by(message))}
        self.record.by_user = any(message.role == "user" for message in turn.input)
        self.ledger.begin(self.record)
        self._messages = list(turn.input)

    async def take(self) -> str:
        outcome: Outcome = "interrupted"
        said = "fails"
        try:
            async with self._memory:
                await self._steps()
                if self._turn.end == "is blocked":
                    await self._memory.discard()
            outcome, said = ("discarded", "blocked") if self._turn.end == "is blocked" else ("committed", "well")
        except (ModelDown, InputError, StorageError) as error:
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, StorageError):
                return said
        except asyncio.CancelledError:
            if self._process.dead:
                raise
            said = "cancelled"
        context = self._memory._context
        self.ledger.ended(self.record, outcome, [*context.messages.input, *context.messages.response])
        return said

    async def _steps(self) -> None:
        for number, words in enumerate([*self._turn.steps, None]):
            view = await self._memory.prompt(self._messages)
            if number == 0:
                messages, state = self._memory._context.messages, self._state()
                asked = [m.id for m in messages.of("input", "context") if m.role == "user"]
                self.record.asked = asked or sorted(state.recorder.pinned)
            if number in self._turn.overflows and await self._memory.overflowed("too long"):
                view = await self._memory.prompt(self._messages)
            await self._show(view)
            await self._answer(words)
        if self._turn.end == "fails":
            raise ModelDown

    async def _show(self, view: TurnView) -> None:
        state, inner = self._state(), self._process.storage._inner
        rows = await inner.list_messages(self._turn.thread, run_id=self.record.id)
        run = await inner.get_run(self.record.id)  # later: nobody else wrote rows before that
        if state.memory is None or run is None or run.state != "live" or state.halvings or self.record.disturbed:
            return
        shown = Shown(self.record, view.prompt, state.memory.log, state.memory.window.rows, self._status)
        check_prompt(self.ledger, shown, rows)

    async def _answer(self, words: int | None) -> None:
        """The model answers; its tools work."""
        for _ in range(self._chance.choice((0, 0, 2, 8))):
            await asyncio.sleep(0)
        if self._chance.random() < 0.1:
            await asyncio.sleep(self._chance.choice((0.5, 3.0, 30.0)) * self._process.pace)
        if words is not None:
            part = call(self.ledger.id("call"))
            self._messages.append(Message(id=self.ledger.id("m"), role="assistant", parts=[part], created_at=None))
            result = call(part.call_id, self._mark(), words)
            self._messages.append(Message(id=self.ledger.id("m"), role="tool", parts=[result], created_at=None))
            return
        parts: list[Part] = [TextPart(text=say(self._mark(), self._turn.words))]
        if self._turn.end == "asks the client":
            parts.append(waiting := call(self.ledger.id("call")))
            self.ledger.waits(waiting.call_id, self.record)
        self._messages.append(Message(id=self.ledger.id("m"), role="assistant", parts=parts, created_at=None))

    def _mark(self) -> str:
        mark = self.ledger.mark()
        self.ledger.answered(self.record, mark)
        return mark

    def _note(self, event: DataChunk) -> None:
        if event.type == "data-om-status":
            self._status = event.data

    def _state(self) -> DiaryProcessorState:
        """The state of the diary's processor: the checks compare the prompt with the rows and notes behind it."""
        return next(s for s in self._memory._pipeline.state._states.values() if isinstance(s, DiaryProcessorState))
