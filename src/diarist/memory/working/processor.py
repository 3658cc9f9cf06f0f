"""Working memory as a processor: shown in every prompt, updated by a tool, with a run or not at all."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from diarist.exceptions import ConfigError, InputError, StorageError, ToolError
from diarist.memory.observational.prompt.sent_block import asked_in, joined
from diarist.memory.working.config import WorkingMemoryConfig
from diarist.memory.working.merging import apply, drop, stage
from diarist.memory.working.rendering import element, records, sent_note, system_text
from diarist.memory.working.shapes import UPDATE_TOOL, shape_of
from diarist.memory.working.store import WorkingMemoryStore
from diarist.message_list import MessageList
from diarist.messages import Json, TextPart
from diarist.processors.base import (
    InputStepHookResult,
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMRequestArgs,
    Processor,
)
from diarist.run_context import Outcome, RunContext
from diarist.storage.base import Storage
from diarist.storage.records import WorkingMemoryUpdate
from diarist.tokens import TokenCounter
from diarist.tools import Tool

TAG = "working-memory"

logger = logging.getLogger("diarist")


class RunState:
    """What working memory keeps for one request.

    Attributes:
        key: Of the value in storage; empty where the call has no thread.
        text: What it was when the run began, as the model was told; None where it could not be read.
        updates: What the run has changed, in order; the first ``written`` of them wait in storage.
        called_in: For each of them the id of the message that has the call.
        shown: The system text of the present step.
        keeps: Whether the model has the tool.
    """

    def __init__(self) -> None:
        self.key = ""
        self.opened = False
        self.text: str | None = None
        self.updates: list[WorkingMemoryUpdate] = []
        self.called_in: list[str] = []
        self.written = 0
        self.shown = ""
        self.keeps = False
        self.lock = asyncio.Lock()


class WorkingMemoryProcessor(Processor[Any]):
    """Shows the model the working memory, and gives it the tool to update it.

    An update counts once its run has ended well. It needs to be among the input processors, before the one that
    stores the run's messages.
    """

    id = TAG
    opens_run = True
    edits_in_place = False

    def __init__(self, storage: Storage, config: WorkingMemoryConfig, *, counter: TokenCounter) -> None:
        self._storage = storage
        self._config = config
        self._counter = counter
        self._store = WorkingMemoryStore(storage, config.scope)
        self._shape = shape_of(config)
        self._tool = self._shape.tool()

    def create_state(self) -> RunState:
        return RunState()

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        """What is to happen before the run ends in storage has to be said before it begins there."""
        context, state = args.context, args.state
        if context.thread_id is None or context.resource_id is None:
            return
        state.key = self._store.key(context.thread_id, context.resource_id)
        writes = self._config.kept_by == "actor" and not self._config.is_read_only(context.request_context)
        state.keeps = writes
        context.on_end(lambda outcome: self._before_end(context, state, outcome))

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        state: RunState = args.state
        if not state.key:
            return None
        if not state.opened:
            await self._open(args.context, state)
            self._tell(args.message_list, state)
        await self._write(args.context, state)
        state.shown = self._system_text(args.message_list, state)
        args.message_list.add_system(state.shown, tag=TAG)
        return {"tools": self._with_tool(args.tools, args.context, state)} if state.keeps else None

    async def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
        """Which messages are in the prompt is known only now."""
        state: RunState = args.state
        shown = self._system_text(args.message_list, state) if state.key else state.shown
        if shown != state.shown:
            for message in args.prompt.messages:
                if message.role == "system" and message.text == state.shown:
                    message.parts = [TextPart(text=shown)]
            state.shown = shown

    # -- what the model is shown

    async def _open(self, context: RunContext[Any], state: RunState) -> None:
        state.opened = True
        context.on_end(lambda outcome: self._after_end(state))
        try:
            if state.keeps and await self._storage.get_run(context.run_id) is None:
                raise ConfigError(
                    "working memory needs the storage in which the messages of its runs are stored: give the message "
                    "history of this call the memory's own storage"
                )
            state.text = (await self._store.read(state.key)).text
        except StorageError as error:  # the turn goes on without
            state.keeps = False
            logger.warning("the working memory of %s cannot be read: %s", state.key, error)

    def _tell(self, messages: MessageList, state: RunState) -> None:
        asked = asked_in(messages)
        if asked is not None and state.text is not None:
            earlier = records((message for message in messages.messages if message is not asked), state.key)
            asked.sent = joined(sent_note(state.key, state.text, earlier, self._counter), asked.sent, self._counter)

    def _system_text(self, messages: MessageList, state: RunState) -> str:
        known = [*records(messages.messages, state.key), state.text or ""]
        return system_text(known[0], self._shape, keeps=state.keeps)

    # -- the tool

    def _with_tool(self, tools: dict[str, Tool], context: RunContext[Any], state: RunState) -> dict[str, Tool]:
        if UPDATE_TOOL in tools:
            raise ConfigError(f"a tool is named {UPDATE_TOOL!r}, as is that of working memory: rename it")
        return {**tools, UPDATE_TOOL: self._tool.with_function(partial(self._update, context, state))}

    async def _update(self, context: RunContext[Any], state: RunState, memory: Json = None, **others: Json) -> str:
        if others:
            raise ToolError(f"give the update in memory, and nothing beside it: not {', '.join(others)}")
        async with state.lock:
            stored = (await self._store.read(state.key)).text
            if self._shape.replaces and stored != state.text:
                state.text = stored
                raise ToolError(
                    "nothing was changed: your working memory was changed elsewhere meanwhile. Put what you want to "
                    f"change into the newer one, and give that as a whole:\n{element(stored)}"
                )
            try:
                update = self._shape.update(memory, apply(stored, state.updates), context.run_id)
            except InputError as error:
                raise ToolError(str(error)) from error
            if update is None:
                return "Nothing has changed."
            state.updates.append(update)
            state.called_in.append(context.messages.response[-1].id)
            return "Updated."

    # -- with the run

    async def _write(self, context: RunContext[Any], state: RunState) -> None:
        """Let the updates of the steps so far wait in storage for the end of the run, as its messages do."""
        if state.written == len(state.updates):
            return
        run = await self._storage.get_run(context.run_id)
        if run is None or run.state != "live":
            return  # somebody took it for dead, or its thread is gone
        updates = tuple(state.updates)
        await self._store.update(state.key, lambda memory: stage(memory, context.run_id, updates))
        state.written = len(updates)

    async def _before_end(self, context: RunContext[Any], state: RunState, outcome: Outcome) -> None:
        """Before the run ends in storage; raises StorageError where its updates cannot be stored."""
        if outcome == "interrupted":  # what did not finish is not kept
            finished = [called_in in context.finished for called_in in state.called_in]
            state.updates = [update for update, is_kept in zip(state.updates, finished, strict=True) if is_kept]
        if outcome != "discarded":
            await self._write(context, state)
        elif state.written or self._config.kept_by == "observer":
            try:
                await self._store.update(state.key, lambda memory: drop(memory, {context.run_id}))
            except StorageError as error:
                logger.warning("updates of %s are dropped by whoever reads it next: %s", state.key, error)

    async def _after_end(self, state: RunState) -> None:
        if state.written or self._config.kept_by == "observer":
            try:
                await self._store.read(state.key)
            except StorageError as error:
                logger.warning("updates of %s are taken in by whoever reads it next: %s", state.key, error)
