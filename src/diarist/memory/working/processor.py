"""Working memory as a processor: every prompt shows it, a tool updates it, and updates commit with their run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from diarist.exceptions import ConfigError, InputError, StorageError, ToolError
from diarist.memory.memory_note import asked_in, joined
from diarist.memory.working.config import WorkingMemoryConfig
from diarist.memory.working.rendering import element, records, sent_note, system_text, without_earlier_updates
from diarist.memory.working.shapes import UPDATE_TOOL, shape_of
from diarist.memory.working.store import WorkingMemoryStore, apply, stage
from diarist.message_list import MessageList
from diarist.messages import Json, Message, TextPart
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
from diarist.tools import ToolDefinition

TAG = "working-memory"

logger = logging.getLogger("diarist")


@dataclass(slots=True)
class WorkingMemoryState:
    """State of working memory for one request.

    Attributes:
        key: Key of the value in storage; set at the first step, when the run's resource is known.
        text: The working memory at the start of the run, as shown to the model; None if it could not be read.
        updates: Updates that the run made, in order, each with the id of the message that has its tool call.
        written: Number of updates that are already stored as pending, counted from the first.
        shown: The system text of the current step.
        keeps: True if the model has the tool that updates working memory.
    """

    key: str = ""
    text: str | None = None
    updates: list[tuple[str, WorkingMemoryUpdate]] = field(default_factory=list[tuple[str, WorkingMemoryUpdate]])
    written: int = 0
    shown: str = ""
    keeps: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class WorkingMemoryProcessor(Processor[Any]):
    """Shows the model the working memory, and gives it a tool to update it.

    An update takes effect once its run has committed. Place the processor among the input processors.
    """

    id = TAG
    opens_run = True
    needs_history = True
    edits_in_place = False

    def __init__(self, storage: Storage, config: WorkingMemoryConfig, *, counter: TokenCounter) -> None:
        self._storage, self._config, self._counter = storage, config, counter
        self._store = WorkingMemoryStore(storage, config.scope)
        self._shape = shape_of(config)
        self._tool = self._shape.tool()

    @property
    def offered(self) -> list[ToolDefinition]:
        """The tool that the model gets, unless ``read_only`` of a call says otherwise."""
        return [self._tool.definition] if self._config.kept_by == "actor" and self._config.read_only is not True else []

    def create_state(self) -> WorkingMemoryState:
        return WorkingMemoryState()

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        """Register a callback that stores the updates. It runs before the callback that ends the run in storage."""
        context, state = args.context, args.state
        if context.thread_id is None or context.resource_id is None:
            return
        state.keeps = self._config.kept_by == "actor" and not self._config.is_read_only(context.request_context)
        context.on_end(lambda outcome: self._before_end(context, state, outcome), first=True)

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepHookResult:
        context, state, messages = args.context, args.state, args.message_list
        if context.thread_id is None or context.resource_id is None:
            return None
        if not state.key:
            state.key = self._store.key(context.thread_id, context.resource_id)
            context.on_end(lambda outcome: self._after_end(state))
            try:
                if state.keeps and await self._storage.get_run(context.run_id) is None:
                    raise ConfigError(
                        "working memory must be in the same storage as the messages of its runs: give the message "
                        "history of this call the memory's own storage"
                    )
                state.text = (await self._store.read(state.key)).text
            except StorageError as error:  # the turn continues without working memory
                state.keeps = False
                logger.warning("the working memory of %s cannot be read: %s", state.key, error)
            asked = asked_in(messages, context.run_id)
            if asked is not None and state.text is not None:
                earlier = records((message for message in messages.messages if message is not asked), state.key)
                asked.sent = joined(sent_note(state.key, state.text, earlier, self._counter), asked.sent, self._counter)
        for said in messages.response[-1:]:  # a loop outside the agent gives the message after its calls
            state.updates = [(message_id or said.id, update) for message_id, update in state.updates]
        await self._write(context, state)
        state.shown = self._system_text(messages, state)
        messages.add_system(state.shown, tag=TAG)
        if not state.keeps:
            return None
        if UPDATE_TOOL in args.tools:
            raise ConfigError(f"rename your tool {UPDATE_TOOL!r}: working memory has a tool of that name")
        return {"tools": {**args.tools, UPDATE_TOOL: self._tool.with_function(partial(self._update, context, state))}}

    async def process_llm_request(self, args: ProcessLLMRequestArgs[Any]) -> None:
        """Update the system text, now that the messages of the prompt are known, and drop earlier updates from them."""
        state: WorkingMemoryState = args.state
        if not state.key:
            return
        shown = self._system_text(args.message_list, state)
        if shown != state.shown:
            for message in args.prompt.messages:
                if message.role == "system" and message.text == state.shown:
                    message.parts = [TextPart(text=shown)]
            state.shown = shown
        own = {message.id for message in args.message_list.response}
        args.prompt.messages[:] = without_earlier_updates(args.prompt.messages, own)

    # -- what the model is shown

    async def system_block(self, thread_id: str, resource_id: str, messages: Sequence[Message]) -> str:
        """Return the system text of a prompt with these messages. Changes nothing. Raises StorageError."""
        key = self._store.key(thread_id, resource_id)
        keeps = self._config.kept_by == "actor" and not self._config.is_read_only({})
        return system_text(records(messages, key), (await self._store.peek(key)).text, self._shape, keeps=keeps)

    def _system_text(self, messages: MessageList, state: WorkingMemoryState) -> str:
        known = records(messages.messages, state.key)
        return system_text(known, state.text or "", self._shape, keeps=state.keeps)

    async def _update(
        self, context: RunContext[Any], state: WorkingMemoryState, memory: Json = None, **others: Json
    ) -> str:
        if others:
            raise ToolError(f"pass the update in the argument memory, and leave out {', '.join(others)}")
        async with state.lock:
            stored = (await self._store.read(state.key)).text
            if self._shape.replaces and stored != state.text:
                state.text = stored
                raise ToolError(
                    "nothing was changed: another conversation has changed your working memory. Apply your change to "
                    f"the newer version, and pass the whole text:\n{element(stored)}"
                )
            try:
                current = apply(stored, [update for _, update in state.updates])
                update = self._shape.update(memory, current, context.run_id)
            except InputError as error:
                raise ToolError(str(error)) from error
            if update is None:
                return "Nothing has changed."
            said = [message.id for message in context.messages.response[-1:] if message.id not in context.finished]
            state.updates.append((said[0] if said else "", update))
            return "Updated."

    # -- with the run

    async def _write(self, context: RunContext[Any], state: WorkingMemoryState) -> None:
        """Store the updates made so far. Like the run's messages, they are pending until the run ends."""
        if state.written == len(state.updates):
            return
        run = await self._storage.get_run(context.run_id)
        if run is None or run.state != "live":
            return  # the run expired and another process ended it, or its thread was deleted
        updates = [update for _, update in state.updates]
        await self._store.update(state.key, lambda memory: stage(memory, context.run_id, updates))
        state.written = len(updates)

    async def _before_end(self, context: RunContext[Any], state: WorkingMemoryState, outcome: Outcome) -> None:
        """Store the updates before the run ends in storage. Raises StorageError."""
        if not state.key or outcome == "discarded":
            return
        if outcome == "interrupted":  # updates of an unfinished step are dropped
            state.updates = [(said, update) for said, update in state.updates if said in context.finished]
        await self._write(context, state)

    async def _after_end(self, state: WorkingMemoryState) -> None:
        """Let a reader apply the updates, or drop those of a discarded run."""
        if state.written or self._config.kept_by == "observer":
            try:
                await self._store.read(state.key)
            except StorageError as error:
                logger.warning("the next reader of %s applies the updates of this run: %s", state.key, error)
