"""Semantic recall as a processor: before the model is called, what was said elsewhere and is near to the question."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from diarist.chunks import DataChunk
from diarist.concurrency import contained
from diarist.exceptions import StorageError
from diarist.memory.observational.prompt.sent_block import asked_in, joined, keep_date
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.semantic.index import Near, SemanticIndex
from diarist.memory.semantic.notes import Place, Recalled, place_of, quotes_what_is_gone, recall_note, told
from diarist.messages import Message
from diarist.processors.base import ProcessInputStepArgs, Processor
from diarist.run_context import Outcome, RunContext
from diarist.storage.base import Storage
from diarist.storage.records import Thread
from diarist.tokens import TokenCounter

_SPARE = 4

logger = logging.getLogger("diarist")


class SemanticRecall(Processor[Any]):
    """Puts messages that mean something like the question into the note of the user's message, and has what the run
    said embedded once it has ended well.

    It needs to be among the input processors, before the one that stores the run's messages. A store or embedder that
    fails never fails the turn: it is logged, and told in a chunk ``data-recall-failed``.

    Args:
        config: None looks for nothing; the messages are embedded all the same.
        embed: Has a thread embedded, in the background.
        settle: Waits for that, at the end of each run that ends well; None: nobody waits.
        timezone: Of the dates.
        obscured: Whether the model sees hashes instead of thread ids.
    """

    id = "semantic-recall"
    edits_in_place = False

    def __init__(
        self,
        index: SemanticIndex,
        config: SemanticRecallConfig | None,
        storage: Storage,
        *,
        counter: TokenCounter,
        embed: Callable[[Thread], None],
        settle: Callable[[Thread], Awaitable[None]] | None = None,
        timezone: str = "UTC",
        obscured: bool = False,
    ) -> None:
        self._index = index
        self._config = config
        self._storage = storage
        self._counter = counter
        self._embed = embed
        self._settle = settle
        self._timezone = timezone
        self._obscured = obscured

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        context = args.context
        if context.thread_id is None or context.resource_id is None:
            return
        if not args.state:  # not by the number of the step: a run that is resumed begins with a later one
            args.state["waits_for_end"] = True
            context.on_end(lambda outcome: self._after_end(context, outcome))
        if args.step_number:
            return
        asked = asked_in(args.message_list)
        if self._config is None or asked is None or not asked.text.strip():
            return
        known = told(message for message in args.message_list.messages if message is not asked)
        recalled = await self._recall(self._config, context, asked.text, known)
        note = recall_note(
            recalled,
            own=context.thread_id,
            timezone=self._timezone,
            obscured=self._obscured,
            max_tokens=self._config.max_tokens,
            counter=self._counter,
        )
        asked.sent = joined(asked.sent, note, self._counter)
        if note is not None:
            context.on_end(lambda outcome: self._check_note(context, asked, outcome))

    async def _recall(
        self, config: SemanticRecallConfig, context: RunContext[Any], question: str, known: set[Place]
    ) -> list[Recalled]:
        try:
            async with asyncio.timeout(config.timeout):
                found = await contained(self._found(config, context, question, known))
        except Exception as error:  # whatever somebody's store or embedder raises, the turn goes on without
            logger.warning("semantic recall failed in run %s: %r", context.run_id, error)
            context.writer.custom(DataChunk("data-recall-failed", {"error": repr(error)}))
            return []
        if found:
            messages = [{"thread": one.found.thread_id, "message": one.found.id} for one in found]
            context.writer.custom(DataChunk("data-recall", {"messages": messages}))
        return found

    async def _found(
        self, config: SemanticRecallConfig, context: RunContext[Any], question: str, known: set[Place]
    ) -> list[Recalled]:
        assert context.resource_id is not None
        near = await self._index.near(
            question,
            resource_id=context.resource_id,
            thread_id=context.thread_id if config.scope == "thread" else None,
            # What the prompt shows anyway is often the nearest.
            limit=config.top_k * _SPARE,
            threshold=config.threshold,
            filter=config.filter,
        )
        recalled: list[Recalled] = []
        gone: list[Near] = []
        for one in near:
            if len(recalled) == config.top_k:
                break
            if (one.thread_id, one.message_id) in known:
                continue
            before, after = config.before_and_after
            rows = await self._index.load(one, context.resource_id, after=after)
            if not rows:
                gone.append(one)
                continue
            neighbours = [*await self._before(one, before), *rows[1:]]
            shown = [row for row in neighbours if _is_said(row) and place_of(row) not in known]
            recalled.append(Recalled(rows[0], [*shown, rows[0]], self._index.excerpt(one, rows[0])))
        await self._index.discard(gone)
        return recalled

    async def _before(self, near: Near, count: int) -> list[Message]:
        if not count:
            return []
        return await self._storage.list_messages(near.thread_id, before=near.seq, limit=count, newest_first=True)

    async def _after_end(self, context: RunContext[Any], outcome: Outcome) -> None:
        """The run has ended in storage already; there is none where memory is read-only."""
        if outcome == "discarded" or context.thread_id is None or context.resource_id is None:
            return
        try:
            if await self._storage.get_run(context.run_id) is None:
                return
        except StorageError as error:
            logger.warning("what run %s said is embedded with the next one: %s", context.run_id, error)
            return
        thread = Thread(id=context.thread_id, resource_id=context.resource_id)
        self._embed(thread)
        settle = self._settle
        if settle is not None and outcome == "committed":
            context.wait_at_end(lambda: settle(thread))

    async def _check_note(self, context: RunContext[Any], asked: Message, outcome: Outcome) -> None:
        """Cut the note if something that it quotes was forgotten while nobody else could see this run's messages."""
        if outcome == "discarded" or context.thread_id is None or asked.sent is None:
            return
        try:
            if await quotes_what_is_gone(self._storage, asked.sent):
                await self._storage.rewrite_sent(context.thread_id, {asked.id: keep_date(asked.sent, self._counter)})
        except StorageError as error:
            logger.warning("the note of run %s may quote what was forgotten: %s", context.run_id, error)


def _is_said(row: Message) -> bool:
    return row.role in ("user", "assistant") and bool(row.text.strip())
