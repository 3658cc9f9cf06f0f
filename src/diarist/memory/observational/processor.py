"""Observational memory as a processor: the engine's view of a run, fitted to our pipeline."""

from __future__ import annotations

import logging
from typing import Any

from diarist.exceptions import StorageError
from diarist.memory.observational.engine import Engine, ThreadMemory
from diarist.memory.recording import RunRecorder
from diarist.messages import Message, utc_now
from diarist.processors.base import (
    ProcessInputArgs,
    ProcessInputStepArgs,
    Processor,
)
from diarist.run_context import Outcome, RunContext
from diarist.storage.base import Storage
from diarist.tokens import TokenCounter

TAG = "observational-memory"

logger = logging.getLogger("diarist")


class RunState:
    """What observational memory keeps for one request."""

    def __init__(self, recorder: RunRecorder) -> None:
        self.recorder = recorder
        self.memory: ThreadMemory | None = None


class ObservationalMemory(Processor[Any]):
    """Stores a run's messages, shows the model the diary and what it does not cover yet, and has the
    conversation observed when it is due.

    It needs to be among the input processors only: what the last step says, and what other processors
    change, is stored when the run ends.
    """

    id = TAG
    opens_run = True

    def __init__(self, engine: Engine, storage: Storage, *, counter: TokenCounter, thread_wait: float = 30.0) -> None:
        self._engine = engine
        self._storage = storage
        self._counter = counter
        self._thread_wait = thread_wait

    def create_state(self) -> RunState:
        return RunState(RunRecorder(self._storage, self._counter, thread_wait=self._thread_wait))

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        """Open the run and bring what the diary does not cover into the conversation."""
        context, state = args.context, args.state
        if context.thread_id is None or context.resource_id is None:
            return
        await state.recorder.begin(context)
        context.on_end(lambda outcome: self._end(context, state, outcome))
        state.memory = await self._engine.open(
            context.thread_id, context.resource_id, context.run_id, emit=context.writer.custom
        )
        window = state.memory.window()
        args.message_list.remember(window)
        state.recorder.ask_again(args.message_list, window)

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        """Store what is new, observe what is due, and show the model the diary and the raw rest."""
        state: RunState = args.state
        memory = state.memory
        if memory is None:
            return
        context, messages = args.context, args.message_list
        asked = next((m for m in reversed(messages.input) if m.role == "user" and m.seq is None), None)
        if asked is not None:
            asked.sent = memory.compose_sent_block(asked.created_at or utc_now())
        synced = await state.recorder.sync(context)
        if synced.changed or synced.removed:
            await memory.forget(synced.changed, synced.removed)
        memory.add(synced.added)
        before, pinned = memory.log, _pinned(context) | state.recorder.pinned
        await memory.act(pinned)
        if asked is not None and memory.log is not before:
            await self._recompose(state.recorder, memory, asked)
        await memory.send_status(args.step_number, pinned)
        messages.remember(memory.window())
        for block in memory.prompt_blocks():
            messages.add_system(block, tag=TAG)

    async def _recompose(self, recorder: RunRecorder, memory: ThreadMemory, asked: Message) -> None:
        """The diary changed before the first call: the block must say what is true now."""
        asked.sent = None
        asked.sent = memory.compose_sent_block(asked.created_at or utc_now())
        await recorder.rewrite([asked])
        memory.add([asked])

    async def _end(self, context: RunContext[Any], state: RunState, outcome: Outcome) -> None:
        """What was observed of this run stays or goes with it.

        The run has ended in storage already, and the next ``open`` makes good what fails here.
        """
        memory = state.memory
        if memory is None or context.thread_id is None or context.resource_id is None:
            return
        if not any(entry.run_id == context.run_id for entry in memory.log.entries):
            return
        end = self._engine.drop_run if outcome == "discarded" else self._engine.close_run
        try:
            await end(context.thread_id, context.resource_id, context.run_id)
        except StorageError as error:
            logger.warning("the notes of run %s are closed by the next run of its thread: %s", context.run_id, error)


def _pinned(context: RunContext[Any]) -> set[str]:
    """The run's own input and its newest step: always in the prompt, never observed yet."""
    messages = context.messages
    return {message.id for message in [*messages.input, *messages.response[-1:]]}
