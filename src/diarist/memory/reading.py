"""Memory that is read and never written: what agents see of it, and nothing of what they say in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from diarist.exceptions import InputError
from diarist.memory.history import MessageHistory
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.processor import TAG
from diarist.memory.observational.prompt.sent_block import asked_in, joined
from diarist.memory.observational.recall import Search, recall_tool, with_recall
from diarist.memory.observational.thread_memory import ThreadMemory
from diarist.memory.observational.work.other_threads import TAIL_SHARE, Tail, tails_of
from diarist.memory.recording import RunRecorder, Synced
from diarist.messages import utc_now
from diarist.processors.base import InputStepHookResult, ProcessInputArgs, ProcessInputStepArgs, Processor
from diarist.run_context import RunContext
from diarist.storage.base import Storage
from diarist.tokens import TokenCounter


class RunReader(RunRecorder):
    """A run that is not recorded: it opens nothing in storage, waits for no other, and leaves nothing."""

    def __init__(self, storage: Storage, counter: TokenCounter) -> None:
        super().__init__(storage, counter, thread_wait=0)

    async def begin(self, context: RunContext[object]) -> None:
        """Take out of the input what the thread has already.

        Raises InputError where the thread belongs to another resource.
        """
        assert context.thread is not None
        thread = await self._storage.get_thread(context.thread.id)
        owner = context.resource_id or context.thread.id
        if thread is not None and thread.resource_id != owner:
            raise InputError(f"thread {thread.id!r} belongs to resource {thread.resource_id!r}, not {owner!r}")
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
    memory: ThreadMemory | None = None


class ReadOnlyDiary(Processor[Any]):
    """Shows the diary of the thread and what it does not cover, as they are; nothing is observed.

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
        state.memory = memory = await self._engine.look(context.thread_id, context.resource_id)
        window = memory.window()
        args.message_list.remember(window)
        state.reader.ask_again(args.message_list, window)

    async def _note(self, memory: ThreadMemory, args: ProcessInputStepArgs[Any]) -> None:
        """Put the memory note into the question, as it would be sent."""
        asked = asked_in(args.message_list)
        if asked is not None:
            tails = await self._tails(memory)
            note = memory.compose_sent_block(asked.created_at or utc_now(), tails)
            asked.sent = joined(asked.sent, note, self._counter)

    async def _tails(self, memory: ThreadMemory) -> Sequence[Tail]:
        if memory.log.scope == "thread":
            return ()
        return await tails_of(
            self._storage,
            memory.log,
            but=memory.thread_id,
            obscured=memory.config.obscures_threads,
            room=TAIL_SHARE * memory.limits().message_tokens,
            counter=self._counter,
        )

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        memory: ThreadMemory | None = args.state.memory
        context = args.context
        if memory is None or context.thread_id is None or context.resource_id is None:
            return None
        if args.step_number == 0:
            await self._note(memory, args)
        for block in memory.prompt_blocks():
            args.message_list.add_system(block, tag=TAG)
        if self._engine.config.retrieves is None:
            return None
        tool = recall_tool(
            self._storage,
            lambda: memory.log,
            resource_id=context.resource_id,
            thread_id=context.thread_id,
            run_id=context.run_id,
            counter=self._counter,
            config=self._engine.config,
            shown=lambda: {message.id for message in context.messages.messages},
            search=self._search,
        )
        return {"tools": with_recall(args.tools, tool)}
