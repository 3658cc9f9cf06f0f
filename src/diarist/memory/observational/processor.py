"""Observational memory as a processor: the engine's view of a run, fitted to our pipeline."""

from __future__ import annotations

import logging
from typing import Any

from diarist.chunks import DataChunk
from diarist.exceptions import ContextOverflowError, StorageError
from diarist.memory.observational.cold import why_cold
from diarist.memory.observational.data_parts import Trigger
from diarist.memory.observational.engine import Engine, ThreadMemory
from diarist.memory.observational.prompt.sent_block import asked_in, joined
from diarist.memory.observational.recall import Search, recall_tool, with_recall
from diarist.memory.observational.window import newest_half
from diarist.memory.observational.work.other_threads import TAIL_SHARE, Tail, tails_of
from diarist.memory.recording import RunRecorder
from diarist.messages import Message, SentBlock, utc_now
from diarist.processors.base import (
    APIErrorHookResult,
    InputStepHookResult,
    ProcessAPIErrorArgs,
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMResponseArgs,
    Processor,
)
from diarist.prompt_cache import PromptHistory
from diarist.run_context import Outcome, RunContext, Writer
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter
from diarist.tools import Tool

TAG = "observational-memory"

_MAX_CUTS = 4
_ROWS_WITHOUT_LOG = 40

logger = logging.getLogger("diarist")


class RunState:
    """What observational memory keeps for one request.

    Attributes:
        memory: None where the call has no thread, or its diary cannot be read.
        notes: How many system messages the diary takes.
        given: What other parts of memory have to say in the note for this run's user message.
        cuts: How many times the prompt was halved, since the provider takes no more.
    """

    def __init__(self, recorder: RunRecorder, writer: Writer | None = None) -> None:
        self.recorder = recorder
        self.memory: ThreadMemory | None = None
        self.made_room = False
        self.cuts = 0
        self.notes = 0
        self.tails: list[Tail] = []
        self.given: SentBlock | None = None
        self._writer = writer

    def listen(self, writer: Writer) -> None:
        self._writer = writer

    def emit(self, part: DataChunk) -> None:
        """Send a part to the client while there is one; the event log has it anyway."""
        if self._writer is not None:
            self._writer.custom(part)

    def hang_up(self) -> None:
        self._writer = None


class DiaryProcessor(Processor[Any]):
    """Stores a run's messages, shows the model the diary and what it does not cover yet, and has the
    conversation observed when it is due.

    It needs to be among the input processors only: what the last step says, and what other processors
    change, is stored when the run ends.

    Args:
        thread_wait: Seconds to wait for another run of the same thread.
        await_background: Let a run wait at its end until the background work of its thread is done.
        search: What the tool ``recall`` searches by, in place of the storage's full-text search.
    """

    id = TAG
    opens_run = True
    stores_run = True
    edits_in_place = False

    def __init__(
        self,
        engine: Engine,
        storage: Storage,
        *,
        counter: TokenCounter,
        thread_wait: float = 30.0,
        await_background: bool = False,
        search: Search | None = None,
    ) -> None:
        self._engine = engine
        self._storage = storage
        self._counter = counter
        self._thread_wait = thread_wait
        self._await_background = await_background
        self._search = search
        self._prompts = PromptHistory()

    def create_state(self) -> RunState:
        return RunState(RunRecorder(self._storage, self._counter, thread_wait=self._thread_wait))

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        """Open the run and bring what the diary does not cover into the conversation."""
        context, state = args.context, args.state
        if context.thread_id is None or context.resource_id is None:
            return
        context.on_end(lambda outcome: self._before_end(context, state, outcome))
        await state.recorder.begin(context)
        context.on_end(lambda outcome: self._after_end(context, state, outcome))
        state.listen(context.writer)
        window = await self._open(context, state)
        args.message_list.remember(window)
        state.recorder.ask_again(args.message_list, window)

    async def _open(self, context: RunContext[Any], state: RunState) -> list[Message]:
        """The window of the thread. Where the diary cannot be read the turn goes on with the newest messages."""
        assert context.thread_id is not None
        assert context.resource_id is not None
        try:
            state.memory = await self._engine.open(
                context.thread_id, context.resource_id, context.run_id, emit=state.emit
            )
        except StorageError as error:
            await self._engine.report(context.thread_id, context.resource_id, error, emit=state.emit)
            rows = await self._storage.list_messages(
                context.thread_id, limit=_ROWS_WITHOUT_LOG, newest_first=True, run_id=context.run_id
            )
            return newest_half(rows[::-1], (), cuts=0)
        return state.memory.window()

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        """Store what is new, do what is due, and show the model the diary and the raw rest."""
        await self._prepare(args, args.state)
        if self._engine.config.retrieves is None or args.thread_id is None:
            return None
        return {"tools": with_recall(args.tools, self._recall(args.context, args.state))}

    def _recall(self, context: RunContext[Any], state: RunState) -> Tool:
        assert context.thread_id is not None
        assert context.resource_id is not None
        empty = ObservationLog(key="", scope=self._engine.config.scope, resource_id=context.resource_id)
        return recall_tool(
            self._storage,
            lambda: state.memory.log if state.memory is not None else empty,
            resource_id=context.resource_id,
            thread_id=context.thread_id,
            run_id=context.run_id,
            counter=self._counter,
            config=self._engine.config,
            shown=lambda: {message.id for message in context.messages.messages},
            search=self._search,
        )

    async def _prepare(self, args: ProcessInputStepArgs[Any], state: RunState) -> None:
        context, messages, memory = args.context, args.message_list, state.memory
        if memory is None:
            if context.thread_id is not None:
                await state.recorder.sync(context)
            return
        asked = asked_in(messages)
        if asked is not None:
            state.tails, state.given = await self._tails(memory, context), asked.sent
            self._compose(state, memory, asked)
        synced = await state.recorder.sync(context)
        if synced.changed or synced.removed:
            await memory.forget(synced.changed, synced.removed)
        memory.add(synced.added)
        if mended := messages.dropped | messages.repaired:
            state.recorder.kept |= messages.dropped - {row.id for row in memory.rows.all}
            await memory.forget([row for row in memory.rows.all if row.id in mended])  # waiting notes of them go
        before, pinned = memory.log, _pinned(context) | state.recorder.pinned
        await memory.act(pinned, cold=await self._why_cold(args, memory, asked))
        if asked is not None and memory.log is not before:
            await self._recompose(state, memory, asked)
        await memory.send_status(args.step_number, pinned)
        messages.remember(newest_half(memory.window(), pinned, cuts=state.cuts))
        blocks = memory.prompt_blocks()
        for block in blocks:
            messages.add_system(block, tag=TAG)
        state.notes = len(blocks)

    async def process_llm_response(self, args: ProcessLLMResponseArgs[Any]) -> None:
        """Report how much of the prompt repeated the one before."""
        state: RunState = args.state
        if state.memory is not None and args.context.thread_id is not None:
            args.context.report.cache.append(
                self._prompts.compare(
                    args.context.thread_id,
                    args.request.prompt,
                    args.request.tools,
                    notes=state.notes,
                    step_number=args.step_number,
                    why=state.memory.take_reason(),
                )
            )

    async def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorHookResult:
        """Where the prompt is too long for the provider: make room, by the diary first, then by a shorter window
        for this run alone."""
        state: RunState = args.state
        if state.memory is None or not isinstance(args.error, ContextOverflowError):
            return None
        pinned = _pinned(args.context) | state.recorder.pinned
        if not state.made_room:
            state.made_room = True
            if await state.memory.make_room(pinned):
                return {"retry": True}
        if state.cuts == _MAX_CUTS:
            return None
        state.cuts += 1
        await state.memory.report(args.error)
        return {"retry": True}

    async def _why_cold(
        self, args: ProcessInputStepArgs[Any], memory: ThreadMemory, asked: Message | None
    ) -> Trigger | None:
        """Why this turn may rearrange the window for free; asked once per run."""
        config = memory.config
        if asked is None or not (config.activate_on_provider_change or config.activate_after_idle):
            return None
        earlier = [row for row in memory.rows.all if row.run_id != args.context.run_id]
        now, last = asked.created_at or utc_now(), memory.log.actor
        why = why_cold(config, earlier, now=now, model_id=args.model.id, last_model_id=last)
        if config.activate_on_provider_change:
            await memory.remember_actor(args.model.id)
        return why

    async def _tails(self, memory: ThreadMemory, context: RunContext[Any]) -> list[Tail]:
        """What the diary does not have yet of the resource's other threads; a failure is told in an event."""
        if memory.log.scope == "thread" or context.thread_id is None:
            return []
        try:
            return await tails_of(
                self._storage,
                memory.log,
                but=context.thread_id,
                obscured=memory.config.obscures_threads,
                room=TAIL_SHARE * memory.limits().message_tokens,
                counter=self._counter,
            )
        except StorageError as error:
            await memory.report(error)
            return []

    async def _recompose(self, state: RunState, memory: ThreadMemory, asked: Message) -> None:
        """The diary changed before the first call: the block must say what is true now."""
        asked.sent = None
        self._compose(state, memory, asked)
        await state.recorder.rewrite([asked])
        memory.add([asked])

    def _compose(self, state: RunState, memory: ThreadMemory, asked: Message) -> None:
        own = memory.compose_sent_block(asked.created_at or utc_now(), state.tails)
        asked.sent = joined(state.given, own, self._counter)

    async def _before_end(self, context: RunContext[Any], state: RunState, outcome: Outcome) -> None:
        """Before the rows of a discarded run are removed, what was noted of them goes, and may not come back."""
        memory = state.memory
        if memory is None or outcome != "discarded" or context.thread_id is None or context.resource_id is None:
            return
        try:
            own = context.messages.of("input", "response")
            await self._engine.drop_run(
                context.thread_id,
                context.resource_id,
                context.run_id,
                in_flight=memory.jobs.started,
                seqs=[message.seq for message in own if message.seq is not None],
            )
        except StorageError as error:
            logger.warning("the notes of run %s are dropped by the next run of its thread: %s", context.run_id, error)

    async def _after_end(self, context: RunContext[Any], state: RunState, outcome: Outcome) -> None:
        """What was observed of this run stays with it, and the time until the next turn is used.

        The run has ended in storage already, and the next ``open`` makes good what fails here.
        """
        state.hang_up()
        memory = state.memory
        if memory is None or context.thread_id is None or context.resource_id is None:
            return
        try:
            if outcome != "discarded" and (memory.jobs.started or memory.has_own_notes):
                await self._engine.close_run(context.thread_id, context.resource_id, context.run_id)
            if outcome == "committed":
                memory.add([message for message in context.messages.of("input", "response") if message.seq])
                memory.buffer_when_due()
                await memory.update_title()
        except StorageError as error:
            logger.warning("the notes of run %s are closed by the next run of its thread: %s", context.run_id, error)
        if self._await_background and outcome == "committed":
            context.wait_at_end(memory.jobs.settled)


def _pinned(context: RunContext[Any]) -> set[str]:
    """What is never observed yet: the run's own input and its newest step, which are always in the prompt; and rows
    that a repair changed or dropped, which are not stored so before the run ends."""
    messages = context.messages
    newest = {message.id for message in [*messages.input, *messages.response[-1:]]}
    return newest | messages.repaired | messages.dropped
