"""Observational memory as a processor: an adapter from a ``RunMemory`` of the engine to the agent loop.

``DiaryProcessor`` records runs, ``ReadOnlyDiary`` shows the diary alone, and ``ObservationalMemory`` stands without a
``Memory``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import dropwhile, takewhile
from typing import Any, cast

from diarist.checks import flags, instance, seconds
from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError, ContextOverflowError, StorageError
from diarist.memory.access import Access
from diarist.memory.memory_note import asked_in, joined
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.engine import Engine, RunMemory
from diarist.memory.observational.events import OBSERVATION_FAILED, Trigger
from diarist.memory.observational.log.transitions import backing_off
from diarist.memory.observational.message_units import newest_half
from diarist.memory.observational.prompt.tails import Tail, read_tails
from diarist.memory.observational.recall_tool import Search, recall_tool, with_recall
from diarist.memory.observational.roles.role_models import RoleModels
from diarist.memory.rows import seq_of
from diarist.memory.run_recorder import RunRecorder
from diarist.messages import Json, Message, SentBlock, utc_now
from diarist.processors.base import (
    APIErrorResult,
    InputStepHookResult,
    ProcessAPIErrorArgs,
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMResponseArgs,
    Processor,
)
from diarist.prompt_cache import DiaryState, PromptHistory
from diarist.run_context import Outcome, RunContext, Writer
from diarist.storage.base import Storage, checked_storage
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter, checked_counter
from diarist.tools import Tool

TAG = "observational-memory"

_MAX_HALVINGS = 4
_ROWS_WITHOUT_LOG = 40
"""Number of newest rows to show if the diary cannot be read."""
_CACHE_LIFETIMES = {"openai": 600, "openai-responses": 600, "google": 3600, "deepseek": 3600}
_SHORTEST_CACHE_LIFETIME = 300
"""In seconds. Anthropic and Bedrock document five minutes, and OpenAI five to ten minutes of inactivity. Gemini and
DeepSeek keep the cache for an hour or more. Others: five minutes."""

logger = logging.getLogger("diarist")


class Listener:
    """Forwards events to the run's client while it is connected.

    Holds no reference to the run, since background work may outlive it.

    Attributes:
        warning: The last failure of the Observer, of the Reflector or of the diary; empty if there was none.
    """

    def __init__(self) -> None:
        self.writer: Writer | None = None
        self.warning = ""

    def emit(self, event: DataChunk) -> None:
        """Send an event to the client if it is still connected; the event log has it in any case."""
        if event.type == OBSERVATION_FAILED:
            self.warning = f"memory could not take notes: {cast('dict[str, Json]', event.data)['error']}"
        if self.writer is not None:
            self.writer.custom(event)


class DiaryProcessorState:
    """The state of observational memory for one request.

    Attributes:
        memory: None if the call has no thread, or its diary cannot be read.
        notes: Number of system messages with the diary.
        halvings: Number of times the window was halved because the provider rejected the prompt as too long.
    """

    def __init__(self, recorder: RunRecorder) -> None:
        self.recorder = recorder
        self.listener = Listener()
        self.memory: RunMemory | None = None
        self.made_room = False
        self.halvings = 0
        self.notes = 0


class DiaryProcessor(Processor[Any]):
    """Stores a run's messages, prompts the model with the diary and the raw messages, and observes when due.

    List it among the input processors only: it stores the messages of the last step, and changes by other processors,
    when the run ends.

    Args:
        await_background: Let a run wait at its end until the background work of its thread is done.
        search: Search function for the tool ``recall``, instead of the storage's full-text search.
        prompts: The last prompt of each thread; pass one object to processors that should share it.
    """

    id = TAG
    opens_run = True
    stores_run = True
    loads_history = True
    edits_in_place = False

    def __init__(
        self,
        engine: Engine,
        access: Access,
        *,
        await_background: bool = False,
        search: Search | None = None,
        prompts: PromptHistory | None = None,
    ) -> None:
        self._engine, self._access = engine, access
        self._storage, self._counter = access.storage, access.counter
        self._await_background = await_background
        self._search = search
        self._prompts = prompts or PromptHistory()

    def create_state(self) -> DiaryProcessorState:
        return DiaryProcessorState(RunRecorder(self._access))

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        """Open the run and add the raw messages to the conversation.

        If the diary cannot be read, the turn continues with the newest messages.
        """
        context, state = args.context, args.state
        if context.thread_id is None or context.resource_id is None:
            return
        context.on_end(lambda outcome: self._before_end(context, state, outcome))
        await state.recorder.begin(context)
        context.on_end(lambda outcome: self._after_end(context, state, outcome))
        state.listener.writer = context.writer
        thread_id, resource_id, run_id = context.thread_id, context.resource_id, context.run_id
        try:
            state.memory = await self._engine.open(
                thread_id,
                resource_id,
                run_id,
                emit=state.listener.emit,
                on_wait=partial(setattr, context, "waits_until"),
                own_rows=context.edits_in_place,
            )
            window = state.memory.window.messages()
        except StorageError as error:
            await self._engine.report(thread_id, resource_id, error, emit=state.listener.emit)
            rows = await self._storage.list_messages(
                thread_id, limit=_ROWS_WITHOUT_LOG, newest_first=True, run_id=run_id
            )
            window = newest_half(rows[::-1], (), halvings=0)
        args.message_list.remember(window)
        state.recorder.ask_again(args.message_list, window)

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        """Store new messages, run memory work that is due, and put the diary and the raw messages into the prompt."""
        context, state, messages = args.context, args.state, args.message_list
        memory: RunMemory | None = state.memory
        if context.thread_id is None:
            return None
        if memory is None:
            context.report.warning = state.listener.warning
            await state.recorder.sync(context)
            return self._add_diary(args)
        state.listener.warning = ""
        asked = asked_in(messages)
        note_of_others = asked.sent if asked is not None else None  # what other parts of memory wrote for this question
        tails = await self._tails(memory) if asked is not None else []
        if asked is not None:
            self._compose(memory, asked, note_of_others, tails)
        synced = await state.recorder.sync(context)
        if synced.changed or synced.removed:
            await memory.drop_notes_of(synced.changed, synced.removed)
        memory.window.add(synced.added)
        if mended := messages.dropped | messages.repaired:
            rows = memory.window.rows
            state.recorder.kept |= messages.dropped - {row.id for row in rows}
            await memory.drop_notes_of([row for row in rows if row.id in mended])  # made from their old text
        pinned = _pinned(context) | state.recorder.pinned
        before = memory.log
        await memory.prepare(pinned, cold=await self._why_cold(args, memory, asked))
        if memory.log is not before:
            if asked is not None:  # its memory note was made from the old diary
                asked.sent = None
                self._compose(memory, asked, note_of_others, tails)
                await self._rewrite(state, asked)
            elif not memory.window.has_date and (question := asked_in(messages, context.run_id)) is not None:
                question.sent = memory.window.dated(question)
                await self._rewrite(state, question)
        context.report.warning = state.listener.warning
        failures = memory.window.stored.observer_failures
        if not context.report.warning and backing_off(failures, memory.diary.clock()):
            context.report.warning = f"memory takes notes again later, after a failure: {failures.last_error}"
        state.recorder.events.append(memory.send_status(args.step_number, pinned))
        messages.remember(newest_half(memory.window.messages(), pinned, halvings=state.halvings))
        return self._add_diary(args)

    def _add_diary(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        """Add the diary to the prompt, and the tool ``recall`` if the configuration has it."""
        config, context = self._engine.config, args.context
        state: DiaryProcessorState = args.state
        blocks = state.memory.window.blocks() if state.memory is not None else []
        for block in blocks:
            args.message_list.add_system(block, tag=TAG)
        state.notes = len(blocks)
        if config.retrieves is None:
            return None
        assert context.thread_id is not None
        assert context.resource_id is not None
        empty = ObservationLog(key="", scope=config.scope, resource_id=context.resource_id)
        tool: Tool = recall_tool(
            self._storage,
            lambda: state.memory.log if state.memory is not None else empty,
            resource_id=context.resource_id,
            thread_id=context.thread_id,
            run_id=context.run_id,
            counter=self._counter,
            config=config,
            shown=lambda: {message.id for message in context.messages.messages},
            search=self._search,
        )
        return {"tools": with_recall(args.tools, tool)}

    async def process_llm_response(self, args: ProcessLLMResponseArgs[Any]) -> None:
        """Report how much of the prompt was the same as in the previous one."""
        memory: RunMemory | None = args.state.memory
        if memory is not None:
            log = memory.log
            entries = tuple([hash((entry.id, entry.text)) for entry in log.active])
            args.context.report.cache.append(
                self._prompts.compare(
                    memory.diary.thread_id,
                    args.model.id,
                    args.request.prompt,
                    args.request.tools,
                    notes=args.state.notes,
                    diary=DiaryState(log.born, log.erasures, log.generation, entries),
                    step_number=args.step_number,
                )
            )

    async def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        """Make room if the prompt is too long for the provider: first by observing, then by a shorter window for this
        run only."""
        state: DiaryProcessorState = args.state
        if state.memory is None or not isinstance(args.error, ContextOverflowError):
            return None
        pinned = _pinned(args.context) | state.recorder.pinned
        if not state.made_room:
            state.made_room = True
            if await state.memory.make_room(pinned):
                return {"retry": True}
        rows = state.memory.window.messages()
        shown = newest_half(rows, pinned, halvings=state.halvings)
        while state.halvings < _MAX_HALVINGS:
            state.halvings += 1
            if newest_half(rows, pinned, halvings=state.halvings) != shown:
                await state.memory.report(args.error)
                return {"retry": True}
        return None  # only the question is left

    async def _why_cold(
        self, args: ProcessInputStepArgs[Any], memory: RunMemory, asked: Message | None
    ) -> Trigger | None:
        """Return why the provider's prompt cache has expired; None if it has not, or if no option asks for this check.
        Once it has expired, the window can change at no extra cost. Checked once per run."""
        config, model_id, last_model_id = memory.config, args.model.id, memory.log.actor
        if asked is None or not (config.activate_on_provider_change or config.activate_after_idle):
            return None
        if config.activate_on_provider_change:
            await memory.remember_model(model_id)
            if last_model_id and last_model_id != model_id:
                return "provider_change"
        seconds = config.idle_seconds
        earlier = [row.created_at for row in memory.window.rows if row.run_id != args.context.run_id and row.created_at]
        if seconds is None or not earlier:
            return None
        if seconds == "auto":
            seconds = _CACHE_LIFETIMES.get(model_id.partition("/")[0], _SHORTEST_CACHE_LIFETIME)
        pause = (asked.created_at or utc_now()) - earlier[-1]
        return "idle" if pause.total_seconds() >= seconds else None

    async def _tails(self, memory: RunMemory) -> list[Tail]:
        """Return the news of the resource's other threads, if they share the diary; failures become events."""
        if memory.log.scope == "thread":
            return []
        try:
            return await read_tails(
                self._storage,
                memory.log,
                memory.diary.thread_id,
                message_tokens=memory.window.limits().message_tokens,
                counter=self._counter,
                obscured=memory.config.obscures_threads,
            )
        except StorageError as error:
            await memory.report(error)
            return []

    async def _rewrite(self, state: DiaryProcessorState, question: Message) -> None:
        assert state.memory is not None
        await state.recorder.rewrite([question])
        state.memory.window.add([question])

    def _compose(
        self, memory: RunMemory, asked: Message, note_of_others: SentBlock | None, tails: Sequence[Tail]
    ) -> None:
        """Compose the memory note of a question, behind the note that other parts of memory made for it."""
        own = memory.window.sent_block(asked.created_at or utc_now(), tails)
        asked.sent = joined(note_of_others, own, self._counter)

    async def _before_end(self, context: RunContext[Any], state: DiaryProcessorState, outcome: Outcome) -> None:
        """Drop the notes of a discarded run before its rows are removed."""
        if state.memory is None or outcome != "discarded":
            return
        try:
            await state.memory.discard(context.messages.of("input", "response"))
        except StorageError as error:
            logger.warning("the thread's next run drops the notes of run %s: %s", context.run_id, error)

    async def _after_end(self, context: RunContext[Any], state: DiaryProcessorState, outcome: Outcome) -> None:
        """Make the notes of a run permanent after it has ended in storage. If this fails, the next ``open`` does it."""
        state.listener.writer = None
        if state.memory is None or outcome == "discarded":
            return
        messages = context.messages
        own = messages.of("input", "response") if outcome == "committed" else []
        changed = messages.obsolete | messages.repaired
        mended = [row for row in state.memory.window.rows if row.id in changed] if changed else []
        try:
            if mended:  # a background job may have saved notes of their old text since the last step
                removed = [row for row in mended if row.id in messages.obsolete]
                await state.memory.drop_notes_of([row for row in mended if row not in removed], removed)
            await state.memory.commit([message for message in own if message.seq])
        except StorageError as error:
            logger.warning("the thread's next run makes the notes of run %s permanent: %s", context.run_id, error)
        if self._await_background and outcome == "committed":
            context.wait_at_end(state.memory.settled)


class ReadOnlyDiary(DiaryProcessor):
    """Shows agents of a read-only memory the diary of the thread and the messages it does not cover. It observes and
    stores nothing."""

    id = TAG
    stores_run = False
    edits_in_place = False

    def create_state(self) -> DiaryProcessorState:
        return DiaryProcessorState(RunRecorder(self._access, read_only=True))

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        context, state = args.context, args.state
        if context.thread_id is None or context.resource_id is None:
            return
        await state.recorder.begin(context)
        state.memory = memory = await self._engine.open_read_only(context.thread_id, context.resource_id)
        if (upto := state.recorder.hidden_after) is not None:
            memory.window.remove([row for row in memory.window.rows if seq_of(row) > upto])
        window = memory.window.messages()
        args.message_list.remember(window)
        state.recorder.ask_again(args.message_list, window)

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        state: DiaryProcessorState = args.state
        if state.memory is None:
            return None
        asked = asked_in(args.message_list)
        if args.step_number == 0 and asked is not None:  # the note that a recorded run would send
            self._compose(state.memory, asked, asked.sent, await self._tails(state.memory))
        return self._add_diary(args)

    async def process_api_error(self, args: ProcessAPIErrorArgs[Any]) -> APIErrorResult | None:
        """Do nothing: making room in the prompt would need an observation."""


def _pinned(context: RunContext[Any]) -> set[str]:
    """Return the ids of rows that must not be observed yet.

    These are the run's question and its newest step, which are always in the prompt, and the rows that a repair changed
    or dropped, because a repair is stored only when the run ends.
    """
    messages = context.messages
    from_question = dropwhile(lambda message: message.role != "user", reversed(messages.input))
    question = takewhile(lambda message: message.role != "assistant", from_question)
    newest = {message.id for message in [*question, *messages.input[-1:], *messages.response[-1:]]}
    return newest | messages.repaired | messages.dropped


class ObservationalMemory(DiaryProcessor):
    """Observational memory as a processor, the same that ``Memory(observational_memory=...)`` gives an agent.

    List it among the input processors, in any position; listing it among the output processors too has no effect.
    Closing the agent finishes the background work of this processor, and closes the processor and its storage. Do not
    combine it with a ``Memory`` that shows the last messages.

    Args:
        storage: The storage for messages and diary.
        config: As for ``Memory``. It must name the models of Observer and Reflector, unless there is a key for the
            default model.
        token_counter: Default: o200k_base.
        thread_wait: Seconds to wait until another call of the same thread has ended.
        await_background: Let every call wait at its end until the background work of its thread is done.

    Raises:
        ConfigError: Options contradict each other, ``enabled`` is False, or a model cannot be used.
    """

    def __init__(
        self,
        storage: Storage,
        config: ObservationalMemoryConfig | None = None,
        *,
        token_counter: TokenCounter | None = None,
        thread_wait: float = 30.0,
        await_background: bool = False,
    ) -> None:
        flags("ObservationalMemory", await_background=await_background)
        seconds("ObservationalMemory", "thread_wait", thread_wait, zero=True)
        storage = checked_storage(storage)
        config = ObservationalMemoryConfig() if config is None else config
        instance("ObservationalMemory", "config", config, ObservationalMemoryConfig)
        if not config.enabled:
            raise ConfigError(
                "config has enabled=False: leave ObservationalMemory out of the agent's processors instead"
            )
        counter = checked_counter("ObservationalMemory", token_counter)
        self._models = RoleModels(config, counter)
        observer, reflector = self._models.roles(None)
        engine = Engine(storage=storage, config=config, observer=observer, reflector=reflector, counter=counter)
        super().__init__(
            engine, Access(storage, counter, config, thread_wait=thread_wait), await_background=await_background
        )

    async def settled(self) -> None:
        """Wait until all background work is done."""
        await self._engine.background.settled()

    async def close(self) -> None:
        """Finish background work, and close the storage and the models that this object created from ids."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._storage.close)
            stack.push_async_callback(self._models.close)
            await self.settled()
