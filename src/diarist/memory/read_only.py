"""Read-only memory: agents see it, and it stores none of their messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from diarist.memory.history import MessageHistory
from diarist.memory.memory_note import asked_in, joined
from diarist.memory.observational.engine import Engine, Turn
from diarist.memory.observational.other_threads import TAIL_SHARE, tails_of
from diarist.memory.observational.processor import TAG
from diarist.memory.observational.prompt.diary_note import Tail
from diarist.memory.observational.recall import Search, recall_tool, with_recall
from diarist.memory.run_lifecycle import check_owner
from diarist.memory.run_recorder import RunRecorder, Synced
from diarist.messages import utc_now
from diarist.processors.base import InputStepHookResult, ProcessInputArgs, ProcessInputStepArgs, Processor
from diarist.run_context import RunContext
from diarist.storage.base import Storage
from diarist.storage.records import own_resource
from diarist.tokens import TokenCounter


class RunReader(RunRecorder):
    """An unrecorded run: it writes nothing to storage and waits for no other run."""

    def __init__(self, storage: Storage, counter: TokenCounter) -> None:
        super().__init__(storage, counter, thread_wait=0)

    async def begin(self, context: RunContext[object]) -> None:
        """Remove messages from the input that the thread already has.

        Raises InputError if the thread belongs to another resource.
        """
        assert context.thread is not None
        thread = await self._storage.get_thread(context.thread.id)
        if thread is not None:
            check_owner(thread, context.resource_id or own_resource(context.thread.id))
            context.resource_id = thread.resource_id
        await self._take_in(context)

    async def sync(self, context: RunContext[object], *, only: Collection[str] | None = None) -> Synced:
        return Synced([], [], [])


class ReadOnlyHistory(MessageHistory):
    """Shows the last messages of the thread."""

    id = MessageHistory.id
    stores_run = False
    edits_in_place = False

    def create_state(self) -> RunRecorder:
        return RunReader(self._storage, self._counter)


@dataclass(slots=True)
class _State:
    reader: RunReader
    turn: Turn | None = None


class ReadOnlyDiary(Processor[Any]):
    """Shows the diary of the thread and the messages it does not cover. It observes nothing.

    Args:
        search: As for ``DiaryProcessor``.
    """

    id = TAG
    opens_run = True
    edits_in_place = False

    def __init__(
        self, engine: Engine, storage: Storage, *, counter: TokenCounter, search: Search | None = None
    ) -> None:
        self._engine, self._storage, self._counter, self._search = engine, storage, counter, search

    def create_state(self) -> _State:
        return _State(RunReader(self._storage, self._counter))

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        context, state = args.context, args.state
        if context.thread_id is None or context.resource_id is None:
            return
        await state.reader.begin(context)
        state.turn = turn = await self._engine.look(context.thread_id, context.resource_id)
        window = turn.window.messages()
        args.message_list.remember(window)
        state.reader.ask_again(args.message_list, window)

    async def _note(self, turn: Turn, args: ProcessInputStepArgs[Any]) -> None:
        """Add the memory note to the question, as a recorded run would send it."""
        asked = asked_in(args.message_list)
        if asked is not None:
            tails = await self._tails(turn)
            note = turn.window.sent_block(asked.created_at or utc_now(), tails)
            asked.sent = joined(asked.sent, note, self._counter)

    async def _tails(self, turn: Turn) -> Sequence[Tail]:
        if turn.log.scope == "thread":
            return ()
        return await tails_of(
            self._storage,
            turn.log,
            but=turn.diary.thread_id,
            obscured=turn.config.obscures_threads,
            room=TAIL_SHARE * turn.window.limits().message_tokens,
            counter=self._counter,
        )

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        turn: Turn | None = args.state.turn
        context = args.context
        if turn is None or context.thread_id is None or context.resource_id is None:
            return None
        if args.step_number == 0:
            await self._note(turn, args)
        for block in turn.window.blocks():
            args.message_list.add_system(block, tag=TAG)
        if self._engine.config.retrieves is None:
            return None
        tool = recall_tool(
            self._storage,
            lambda: turn.log,
            resource_id=context.resource_id,
            thread_id=context.thread_id,
            run_id=context.run_id,
            counter=self._counter,
            config=self._engine.config,
            shown=lambda: {message.id for message in context.messages.messages},
            search=self._search,
        )
        return {"tools": with_recall(args.tools, tool)}
