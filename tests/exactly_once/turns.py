"""A turn as an agent's loop takes it: the processors of memory around a model that follows a plan."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Literal

from diarist.exceptions import ContextOverflowError, InputError, StorageError
from diarist.message_list import MessageList
from diarist.messages import Message, Part, TextPart
from diarist.models.base import ModelSettings
from diarist.processors.base import ProcessAPIErrorArgs, ProcessInputArgs, ProcessInputStepArgs
from diarist.prompting import build_prompt
from diarist.run_context import CancelSignal, Outcome, RunContext, ThreadRef, Writer
from diarist.testing import ScriptedModel
from tests.exactly_once.checks import check_prompt
from tests.exactly_once.fake_models import call, marks_of, said_by, say
from tests.exactly_once.ledger import Ledger, RunRecord, Shown
from tests.exactly_once.processes import Process

MODEL = ScriptedModel(lambda _: "")

End = Literal["answers", "asks the client", "is blocked", "fails", "is redacted", "is trimmed"]


class Blocked(Exception):
    """A guard of the user's refuses what was said."""


class ModelDown(Exception):
    """The provider is out."""


@dataclass
class Turn:
    """A plan.

    Attributes:
        input: What the caller sends.
        steps: Words of each tool result before the last step.
        end: What comes of the last step.
        words: Of the last answer.
        overflows: Steps at which the provider first refuses the prompt as too long.
    """

    thread: str
    input: list[Message]
    steps: list[int] = field(default_factory=list[int])
    end: End = "answers"
    words: int = 3
    overflows: frozenset[int] = frozenset()
    resource: str = "ada"

    def __str__(self) -> str:
        given = [f"{message.role} {message.id} {' '.join(marks_of(said_by(message)))}" for message in self.input]
        return f"{self.thread} {given} steps={self.steps} {self.end} overflows={sorted(self.overflows)}"

    @property
    def guarded(self) -> bool:
        return self.end in ("is blocked", "is redacted", "is trimmed")


class RunningTurn:
    """Takes one turn in a process. ``take()`` returns how it ended for the caller."""

    def __init__(self, process: Process, turn: Turn, chance: random.Random) -> None:
        self.ledger: Ledger = process.ledger
        self._process = process
        self._turn = turn
        self._chance = chance
        self._list = MessageList(["Be brief."])
        self._writer = Writer("")
        self.record = RunRecord(self.ledger.id("run"), turn.thread, guarded=turn.guarded)
        self.record.marks |= {mark for message in turn.input for mark in marks_of(said_by(message))}
        self.record.by_user = any(message.role == "user" for message in turn.input)
        self.ledger.begin(self.record)
        for message in turn.input:
            self._list.add(message, "input")
        self._context: RunContext[Any] = RunContext(
            run_id=self.record.id,
            deps=None,
            messages=self._list,
            writer=self._writer,
            cancel=CancelSignal(),
            thread=ThreadRef(id=turn.thread),
            resource_id=turn.resource,
            guarded=turn.guarded,
            on_divergence="append",  # tests/memory/test_branches_and_kills.py has turns that go back
        )
        self._memory = process.memory.input_processors(MODEL)[0]
        self._common: dict[str, Any] = {
            "context": self._context,
            "message_list": self._list,
            "processor_id": self._memory.id,
            "state": self._memory.create_state(),
        }

    async def take(self) -> str:
        outcome: Outcome = "interrupted"
        said = "fails"
        try:
            await self._steps()
            outcome, said = "committed", "well"
        except Blocked:
            outcome, said = "discarded", "blocked"
        except (ModelDown, InputError, StorageError) as error:  # InputError: the message was forgotten
            said = f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            if self._process.dead:
                raise
            said = "cancelled"
        try:
            await self._context.end(outcome)
        except StorageError as error:
            return f"{said}, then {type(error).__name__}: {error}"
        self.ledger.ended(self.record, outcome, [*self._list.input, *self._list.response])
        return said

    async def _steps(self) -> None:
        messages = self._list
        await self._memory.process_input(
            ProcessInputArgs(**self._common, messages=messages.messages, system_messages=messages.system)
        )
        repeated = self._common["state"].recorder.pinned
        self.record.asked = [m.id for m in messages.of("input", "context") if m.role == "user"] or sorted(repeated)
        system = messages.system
        for number, words in enumerate([*self._turn.steps, None]):
            before = messages.snapshot(contents=True) if number in self._turn.overflows else None
            await self._prepare(number, system)
            if before is not None:
                messages.restore(before)
                await self._overflow(number)
                await self._prepare(number, system)
            await self._show()
            await self._answer(number, words)
            self._context.finished = {message.id for message in messages.of("input", "response")}
        await self._conclude()

    async def _prepare(self, number: int, system: Any) -> None:
        self._list.replace_system(system)
        await self._memory.process_input_step(
            ProcessInputStepArgs(
                **self._common,
                messages=self._list.messages,
                system_messages=self._list.system,
                step_number=number,
                is_last=False,
                steps=[],
                model=MODEL,
                tools={},
                tool_choice="auto",
                active_tools=None,
                model_settings=ModelSettings(),
                provider_options={},
                structured_output=None,
            )
        )

    async def _overflow(self, number: int) -> None:
        error = ContextOverflowError("too long")
        args: Any = {"error": error, "step_number": number}
        known = ProcessAPIErrorArgs.__dataclass_fields__
        rest = {name: None for name in known if name not in {*self._common, *args, "retry_count"}}
        await self._memory.process_api_error(ProcessAPIErrorArgs(**self._common, **args, **rest))

    async def _show(self) -> None:
        """The model gets its prompt."""
        prompt = build_prompt(self._list.system, self._list.messages)
        memory = self._common["state"].memory
        status: list[Any] = []
        while self._writer:
            chunk = self._writer.take()
            if chunk.type == "data-om-status":
                status.append(chunk.data)
        rows = await self._process.storage._inner.list_messages(self._turn.thread, run_id=self.record.id)
        run = await self._process.storage._inner.get_run(self.record.id)  # later: nobody else wrote rows before that
        if (
            memory is None
            or run is None
            or run.state != "live"
            or self._common["state"].halvings
            or self.record.disturbed
        ):
            return
        shown = Shown(self.record, prompt, memory.log, memory.window.rows, status[-1] if status else {})
        self.ledger.log(f"  {self.record.id} is shown", [m.message_id for m in prompt if m.role != "system"])
        check_prompt(self.ledger, shown, rows)

    async def _answer(self, number: int, words: int | None) -> None:
        """The model answers; its tools work."""
        for _ in range(self._chance.choice((0, 0, 2, 8))):
            await asyncio.sleep(0)
        if self._chance.random() < 0.1:
            await asyncio.sleep(self._chance.choice((0.5, 3.0, 30.0)) * self._process.pace)
        if words is None:
            self._list.add(self._last(), "response")
            return
        part = call(self.ledger.id("call"))
        message = Message(id=self.ledger.id("m"), role="assistant", parts=[part], created_at=None)
        self._list.add(message, "response")
        await asyncio.sleep(0)
        mark = self._mark()
        part.state, part.result = "result", say(mark, words)

    def _last(self) -> Message:
        text = TextPart(text=say(self._mark(), self._turn.words))
        parts: list[Part] = [text]
        if self._turn.end == "asks the client":
            parts.append(waiting := call(self.ledger.id("call")))
            self.ledger.waits(waiting.call_id, self.record)
        return Message(id=self.ledger.id("m"), role="assistant", parts=parts, created_at=None)

    async def _conclude(self) -> None:
        """What comes of the run when its last step is done; a guard's word counts for all of it."""
        response = self._list.response
        match self._turn.end:
            case "is blocked":
                raise Blocked
            case "fails":
                raise ModelDown
            case "is redacted":
                self._redact(self._chance.choice(response))
            case "is trimmed" if len(response) > 1:
                self._list.remove([self._chance.choice(response[:-1]).id])
            case _:
                pass
        left = {mark for message in self._list.response for mark in marks_of(said_by(message))}
        self.ledger.took_out(self.record, self.record.answered - left)

    def _redact(self, message: Message) -> None:
        for part in message.parts:
            if isinstance(part, TextPart):
                part.text = say(self._mark(), self._turn.words)
            elif part.type == "tool" and part.state == "result":
                part.result = say(self._mark(), 2)

    def _mark(self) -> str:
        mark = self.ledger.mark()
        self.ledger.answered(self.record, mark)
        return mark
