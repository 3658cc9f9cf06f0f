"""Semantic recall as a processor: adds related messages to the prompt, and embeds the run's own messages."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from diarist.chunks import DataChunk
from diarist.concurrency import finish_within
from diarist.exceptions import StorageError
from diarist.memory.memory_note import asked_in, joined, keep_date
from diarist.memory.message_filter import before_and_after
from diarist.memory.semantic.config import SemanticRecallConfig
from diarist.memory.semantic.embedding_jobs import EmbeddingJobs
from diarist.memory.semantic.index import MessageKey, SemanticIndex, message_key
from diarist.memory.semantic.notes import Recalled, quotes_what_is_gone, recall_note, told
from diarist.messages import Message
from diarist.processors.base import ProcessInputStepArgs, Processor
from diarist.run_context import Outcome, RunContext
from diarist.storage.base import Storage
from diarist.storage.records import Thread
from diarist.tokens import TokenCounter

_SPARE = 4

logger = logging.getLogger("diarist")


class SemanticRecallProcessor(Processor[Any]):
    """Puts messages close in meaning to the question into the memory note, and embeds the run's messages when it ends.

    Place the processor among the input processors. A failing store or embedder never fails the turn: the failure is
    logged and sent as a chunk ``data-recall-failed``.

    Args:
        config: None: do not search, only embed messages.
        embedding: Embeds the run's messages in the background. None: embed nothing.
        await_background: Wait for that work at the end of each committed run.
        timezone: Time zone of the dates in the note.
        obscured: True: the model sees hashes instead of thread ids.
    """

    id = "semantic-recall"
    needs_history = True
    edits_in_place = False

    def __init__(
        self,
        index: SemanticIndex,
        config: SemanticRecallConfig | None,
        storage: Storage,
        *,
        counter: TokenCounter,
        embedding: EmbeddingJobs | None,
        await_background: bool = False,
        timezone: str = "UTC",
        obscured: bool = False,
    ) -> None:
        self._index, self._config, self._storage, self._counter = index, config, storage, counter
        self._embedding, self._await_background = embedding, await_background
        self._timezone, self._obscured = timezone, obscured

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        context = args.context
        if context.thread_id is None or context.resource_id is None:
            return
        if not args.state and self._embedding is not None:  # a resumed run does not begin with step 0
            args.state["waits_for_end"] = True
            context.on_end(partial(self._after_end, self._embedding, context))
        if args.step_number:
            return
        asked = asked_in(args.message_list, context.run_id)
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
        self, config: SemanticRecallConfig, context: RunContext[Any], question: str, known: set[MessageKey]
    ) -> list[Recalled]:
        now = asyncio.get_running_loop().time
        late = TimeoutError(f"it took longer than its timeout of {config.timeout:g} s")
        context.waits_until = now() + config.timeout
        try:
            found = await finish_within(config.timeout, self._found(config, context, question, known), late)
        except Exception as error:  # any error of the user's store or embedder
            reason = str(error) if error is late else repr(error)
            logger.warning("semantic recall failed in run %s: %s", context.run_id, reason)
            context.writer.custom(DataChunk("data-recall-failed", {"error": reason}))
            return []
        finally:
            context.waits_until = now()
        if found:
            messages = [{"thread": one.found.thread_id, "message": one.found.id} for one in found]
            context.writer.custom(DataChunk("data-recall", {"messages": messages}))
        return found

    async def _found(
        self, config: SemanticRecallConfig, context: RunContext[Any], question: str, known: set[MessageKey]
    ) -> list[Recalled]:
        assert context.resource_id is not None
        near = await self._index.near(
            question,
            resource_id=context.resource_id,
            thread_id=context.thread_id if config.scope == "thread" else None,
            # The nearest messages are often in the prompt already.
            limit=config.top_k * _SPARE,
            threshold=config.threshold,
            filter=config.filter,
        )
        before, after = before_and_after(config.message_range)
        recalled: list[Recalled] = []
        for one in near:
            if len(recalled) == config.top_k:
                break
            if one.key in known:
                continue
            rows = await self._index.load(one, context.resource_id, after=after)
            if not rows:
                continue
            neighbours = rows[1:]
            if before:
                earlier = await self._storage.list_messages(
                    one.thread_id, before=one.seq, limit=before, newest_first=True
                )
                neighbours = [*earlier, *neighbours]
            said = [row for row in neighbours if row.role in ("user", "assistant") and row.text.strip()]
            shown = [row for row in said if message_key(row) not in known]
            recalled.append(Recalled(rows[0], [*shown, rows[0]], self._index.excerpt(one, rows[0])))
        return recalled

    async def _after_end(self, embedding: EmbeddingJobs, context: RunContext[Any], outcome: Outcome) -> None:
        """Embed the run's messages, stored by now."""
        if outcome == "discarded" or context.thread_id is None or context.resource_id is None:
            return
        thread = Thread(id=context.thread_id, resource_id=context.resource_id)
        embedding.start(thread)
        if self._await_background and outcome == "committed":
            context.wait_at_end(lambda: embedding.settled(thread))

    async def _check_note(self, context: RunContext[Any], asked: Message, outcome: Outcome) -> None:
        """Cut the note if a message that it quotes was deleted during the run: the note was not stored yet, so
        ``forget`` could not find it."""
        if outcome == "discarded" or context.thread_id is None or asked.sent is None:
            return
        try:
            if await quotes_what_is_gone(self._storage, asked.sent):
                await self._storage.rewrite_sent(context.thread_id, {asked.id: keep_date(asked.sent)})
        except StorageError as error:
            logger.warning("the note of run %s may quote a forgotten message: %s", context.run_id, error)
