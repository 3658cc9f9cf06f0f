"""The diary of a read-only memory: agents see it, and it stores none of their messages."""

from __future__ import annotations

from typing import Any

from diarist.memory.memory_note import asked_in
from diarist.memory.observational.processor import TAG, DiaryProcessor, DiaryProcessorState
from diarist.memory.rows import seq_of
from diarist.memory.run_recorder import RunRecorder
from diarist.processors.base import (
    APIErrorResult,
    InputStepHookResult,
    ProcessAPIErrorArgs,
    ProcessInputArgs,
    ProcessInputStepArgs,
)


class ReadOnlyDiary(DiaryProcessor):
    """Shows the diary of the thread and the messages it does not cover. It observes and stores nothing."""

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
