"""Stores a run's messages step by step, and ends the run in storage.

Each processor that keeps a thread's messages has one ``RunRecorder`` per run. ``run_lifecycle`` begins and ends runs in
the storage, and ``branches`` decides which input messages are new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import cast

from diarist.checks import check_metadata_of
from diarist.chunks import DataChunk
from diarist.concurrency import CLEANUP_GRACE, shield_until_done
from diarist.counting import count_messages
from diarist.encoding import dumps
from diarist.exceptions import InputError, RunLostError, StorageError
from diarist.memory.access import Access
from diarist.memory.branches import Branches, unstored
from diarist.memory.divergence import REWRITTEN_KEY, key_of
from diarist.memory.run_lifecycle import Heartbeat, check_owner, end_run, open_run
from diarist.message_list import MessageList
from diarist.messages import FilePart, Json, Message, new_id
from diarist.prompting import APPROVED_KEY
from diarist.run_context import Outcome, RunContext
from diarist.storage.records import MessageSource, NewEvent, Run, Thread

logger = logging.getLogger("diarist")

DIVERGED = "data-thread-diverged"
"""Event: the input did not continue the active branch of its thread."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The changes that ``sync`` wrote: new rows, changed rows as they are now, and removed rows as they were."""

    added: list[Message]
    changed: list[Message]
    removed: list[Message]


class RunRecorder:
    """Stores one run.

    ``begin`` opens the run and keeps it alive; ``sync`` brings storage in line with its messages, step by
    step; the outcome of the run decides how it ends in storage.

    Args:
        read_only: Write nothing, and wait for no other run.

    Attributes:
        hidden_after: If the client went back in the conversation and this run writes nothing: ``seq`` of the last row
            to show.
        pinned: Ids of stored messages that the caller sent again as this run's question.
        kept: Ids of stored messages that a repair must not delete, since diary entries cover them.
        events: Events to store with the run's next messages; dropped if the run is discarded.
    """

    def __init__(self, access: Access, *, read_only: bool = False) -> None:
        self._storage, self._counter, self._thread_wait = access.storage, access.counter, access.thread_wait
        self._read_only = read_only
        self._branches, self._embedding = Branches(access), access.embedding
        self.hidden_after: int | None = None
        self.pinned: set[str] = set()
        self.kept: set[str] = set()
        self.events: list[NewEvent] = []
        self._saved: dict[str, tuple[Message, int]] = {}  # the run's rows by id, each with the hash of what is stored
        self._repeated: list[Message] = []  # the questions to ask again, if the input had nothing new
        self._heartbeat: Heartbeat
        self._run: Run
        self._writing = asyncio.Lock()  # held by a write, which may outlive a cancelled caller
        self._has_input = False  # ``begin`` has removed what the thread has from the run's messages
        self._given: dict[str, Hashable] = {}  # the input by id, before other processors change it

    async def begin(self, context: RunContext[object]) -> None:
        """Open the run. Input messages that the thread already has are removed from the run's messages: memory shows
        their stored version.

        Raises:
            ThreadBusyError: Another run of the thread did not end in time.
            InputError: The thread belongs to another resource; metadata of the input is not JSON; all questions in the
                input were deleted.
        """
        assert context.thread is not None
        assert context.resource_id is not None
        check_metadata_of(context.messages.input)
        thread = Thread(
            id=context.thread.id,
            resource_id=context.resource_id,
            title=context.thread.title,
            metadata=dict(context.thread.metadata),
        )
        if self._read_only:
            found = await self._storage.get_thread(thread.id)
            if found is not None:
                check_owner(found, thread.resource_id)
        else:

            def note_wait(reason: str, seconds: float) -> None:
                context.waits_for = reason
                context.begins_at = asyncio.get_running_loop().time() + seconds

            self._run = await open_run(
                self._storage,
                context.run_id,
                thread,
                wait=self._thread_wait,
                guarded=context.guarded,
                on_wait=note_wait,
            )
            context.waits_for = ""
            context.on_end(partial(self._end, context))
            context.store_approval = self._approve
            self._heartbeat = Heartbeat(self._storage, self._run, context)
        await self._add_input(context, thread.id)
        self._given = {message.id: key_of(message) for message in context.messages.input}
        self._has_input = True

    async def _add_input(self, context: RunContext[object], thread_id: str) -> None:
        """Keep those input messages in the run that the thread does not have yet, and remove the others.

        If the client went back in the conversation, so does the thread.
        """
        messages, given = context.messages, context.messages.input
        taken = await self._branches.take_in(
            None if self._read_only else self._run,
            thread_id,
            given,
            made=context.made,
            on_divergence=context.on_divergence,
        )
        messages.remove({message.id for message in given} - taken.new.keys())
        for given_id, message in taken.new.items():
            messages.substitute(given_id, message)
        self._repeated, self.hidden_after = taken.repeated, taken.hidden_after
        if taken.event is not None:
            data: dict[str, Json] = {"threadId": thread_id, **taken.event}
            context.writer.custom(DataChunk(DIVERGED, data, transient=True))
            self.events.append(NewEvent(f"thread:{thread_id}", DIVERGED, data))
            if not self._read_only:
                context.on_end(self._embed)

    def ask_again(self, messages: MessageList, window: Sequence[Message]) -> None:
        """If the input had no new message, use its last user messages as the question.

        Clients send such an input to get a missing answer, or another one. If the messages are at the end of
        ``window``, they stay in place and are pinned. Otherwise copies are added at the end, for this run only.
        """
        if not self._repeated:
            return
        ids = [message.id for message in self._repeated]
        if [row.id for row in window[-len(ids) :]] == ids:
            self.pinned = set(ids)
            return
        for message in self._repeated:
            messages.add(replace(unstored(message), id=new_id("msg")), "context")

    async def sync(self, context: RunContext[object]) -> Synced:
        """Bring storage in line with the run's messages as processors left them. New rows get their ``seq`` and token
        counts.

        Raises:
            RunLostError: The run expired, and another process ended it.
        """
        if self._read_only:
            return Synced([], [], [])
        await self._written()
        changed, removed = await self._store_changes(context.messages, same=not context.edits_in_place)
        added: list[Message] = []
        for source, together in self._new_messages(context.messages):
            # Shielded: after an interrupted write, the end of the run would store the same messages again.
            await shield_until_done(partial(self._append, together, source))
            added += together
        return Synced(added, changed, removed)

    async def _written(self) -> None:
        """Wait for a write that a cancelled caller left behind: its messages may be stored already."""
        if self._writing.locked():
            try:
                async with asyncio.timeout(CLEANUP_GRACE), self._writing:
                    pass
            except TimeoutError:  # it may never end
                self._writing = asyncio.Lock()

    async def _store_changes(self, messages: MessageList, *, same: bool = False) -> tuple[list[Message], list[Message]]:
        """Store the changes that processors made to stored rows; return the changed and the removed ones.

        ``same``: treat identical objects as unchanged, which keeps long runs fast.
        """
        present = {message.id: message for message in messages.of("input", "response")}
        changed: list[Message] = []
        removed: list[Message] = []
        for message_id, (message, content) in self._saved.items():
            now = present.get(message_id)
            if now is None:
                removed.append(message)
            elif not (same and now is message) and _content_hash(now) != content:
                changed.append(now)
        for message in (*[one for one in messages.input if one.id not in self._saved], *changed):
            if message.id in self._given and self._given[message.id] != key_of(message):
                del self._given[message.id]
                message.metadata = {**message.metadata, REWRITTEN_KEY: True}
        if changed or removed:
            await self.rewrite(changed, remove=removed)
        return changed, removed

    def _new_messages(
        self, messages: MessageList, only: Collection[str] | None = None
    ) -> list[tuple[MessageSource, list[Message]]]:
        """Return the messages that are not stored yet, in order, grouped by source. ``only``: ids to select from."""
        new = [
            message
            for message in messages.of("input", "response")
            if message.id not in self._saved and (only is None or message.id in only)
        ]
        groups = groupby(new, key=lambda message: messages.origin_of(message.id))
        return [(cast(MessageSource, source), list(together)) for source, together in groups]

    async def _repair(self, messages: MessageList) -> None:
        """Store repairs of earlier rows, which processors made after the provider refused the conversation.

        The next run then does not fail for the same reason. Rows are deleted only after a model has answered without
        them, which proves that the repair works. If storing fails, the next run repeats the repair.
        """
        thread_id = self._run.thread_id
        repaired = [row for row in messages.remembered if row.id in messages.repaired and row.seq is not None]
        try:
            if repaired:
                there = await self._storage.existing_ids(thread_id, [row.id for row in repaired])
                repaired = [row for row in repaired if row.id in there]  # the others were deleted
                await count_messages(repaired, self._counter)
                await self._storage.rewrite_messages(self._run, repaired)
            if gone := messages.obsolete - self.kept:
                await self._storage.delete_messages(thread_id, sorted(gone))
        except RunLostError:
            raise
        except (StorageError, InputError) as error:
            logger.warning("repairs of thread %s cannot be stored: %s", thread_id, error)

    async def _approve(self, message: Message, call_ids: Sequence[str]) -> None:
        """Mark these calls of a stored row as approved, regardless of how this run ends."""
        if message.seq is None:
            return
        approved = [*message.metadata.get(APPROVED_KEY, ()), *call_ids]
        message.metadata = {**message.metadata, APPROVED_KEY: approved}
        for row in await self._storage.list_messages(
            self._run.thread_id, after=message.seq - 1, before=message.seq + 1
        ):
            row.metadata[APPROVED_KEY] = approved  # store no other change that a processor made to the row
            await self._storage.rewrite_messages(self._run, [row])

    async def rewrite(self, messages: Sequence[Message], *, remove: Sequence[Message] = ()) -> None:
        """Store the current versions of these rows of the run, and delete others."""
        for message in messages:
            message.seq = self._saved[message.id][0].seq
        await count_messages(messages, self._counter)
        # Shielded: after an interrupted write, the end of the run would remove the same rows again.
        await shield_until_done(partial(self._replace, messages, [message.id for message in remove]))

    async def _replace(self, messages: Sequence[Message], gone: Sequence[str]) -> None:
        async with self._writing:
            await self._storage.rewrite_messages(self._run, messages, remove=gone)
            self._saved |= {message.id: (message, _content_hash(message)) for message in messages}
            for message_id in gone:
                del self._saved[message_id]

    async def _append(self, messages: Sequence[Message], source: MessageSource) -> None:
        async with self._writing:
            await count_messages(messages, self._counter)
            events, self.events = self.events, []
            numbers = await self._storage.append_messages(self._run, messages, source=source, events=events)
            self._note_stored(messages, numbers)

    def _note_stored(self, messages: Sequence[Message], numbers: Sequence[int]) -> None:
        run = self._run
        for message, seq in zip(messages, numbers, strict=True):
            message.seq, message.run_id = seq, run.id
            message.thread_id, message.resource_id = run.thread_id, run.resource_id
            self._saved[message.id] = message, _content_hash(message)

    async def _end(self, context: RunContext[object], outcome: Outcome) -> None:
        """End the run. If some messages cannot be stored, keep the stored ones and raise the error."""
        await self._heartbeat.end()
        if outcome == "discarded" or not self._has_input:
            await end_run(self._storage, self._run, "discarded")
            return
        answer: list[Message] = []
        try:
            await self._written()
            answer = await self._store_all_but_answer(
                context.messages, None if outcome == "committed" else context.finished
            )
            if outcome == "interrupted" and not answer and not self._saved:
                outcome = "discarded"  # nothing is stored: a thread that the run created goes, too
            await count_messages(answer, self._counter)
            self._note_stored(answer, await end_run(self._storage, self._run, outcome, answer, self.events))
        except BaseException:  # any error: a run that is left open would block its thread
            with suppress(RunLostError):  # the run has ended already
                # A database that did not answer may not answer the next statements either.
                await shield_until_done(partial(self._interrupt, answer), hurried=True, repeat=True)
            raise

    async def _embed(self, outcome: Outcome) -> None:
        """Embed again the messages that the run superseded, if they have come back since it did not commit."""
        if outcome != "committed":
            self._embedding.start(Thread(id=self._run.thread_id, resource_id=self._run.resource_id))

    async def _interrupt(self, answer: Sequence[Message]) -> None:
        """End the run after a failure, with its last messages if they can be stored."""
        if answer:
            try:
                await end_run(self._storage, self._run, "interrupted", answer)
                return
            except RunLostError:
                raise
            except Exception as error:  # any error: the run can end without them
                logger.warning("the last messages of run %s cannot be stored: %s", self._run.id, error)
        await end_run(self._storage, self._run, "interrupted", late=answer)

    async def _store_all_but_answer(self, messages: MessageList, only: Collection[str] | None) -> list[Message]:
        """Store all messages except the last responses. Return those, to be stored in the write that ends the run.

        If earlier rows were repaired, store all messages, then the repairs, and return an empty list.

        Args:
            only: Ids of the messages to store; None for all.
        """
        await self._store_changes(messages)
        new = self._new_messages(messages, only)
        is_repaired = bool(messages.repaired or messages.obsolete)
        answer: list[Message] = []
        if not is_repaired and new and new[-1][0] == "response":
            _, answer = new.pop()
        for source, together in new:
            await shield_until_done(partial(self._append, together, source))
        if is_repaired:
            await self._repair(messages)
        return answer


def _content_hash(message: Message) -> int:
    """Return a hash of the stored content of a message, to detect changes by processors."""
    parts = [
        (part.media_type, hash(part.data), part.url, part.name) if isinstance(part, FilePart) else part
        for part in message.parts
    ]
    return hash(dumps([message.role, message.created_at, message.metadata, message.sent, parts]))
