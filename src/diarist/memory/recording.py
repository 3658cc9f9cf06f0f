"""Writing a run's messages to storage as the run goes, and ending it as it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import groupby, takewhile
from operator import attrgetter
from typing import cast

from diarist.concurrency import undisturbed
from diarist.counting import count_parts
from diarist.encoding import dumps
from diarist.exceptions import InputError, RunLostError, StorageError
from diarist.memory.ending import RUN_TTL, end_run
from diarist.memory.heartbeat import Heartbeat
from diarist.memory.opening import open_run
from diarist.memory.resent import resent
from diarist.message_list import MessageList
from diarist.messages import Message, Part, new_id
from diarist.prompting import APPROVED_KEY
from diarist.run_context import Outcome, RunContext
from diarist.storage.base import Storage
from diarist.storage.codec import check_metadata_of
from diarist.storage.records import MessageSource, Run, Thread
from diarist.tokens import TokenCounter

logger = logging.getLogger("diarist")


@dataclass(frozen=True, slots=True)
class Synced:
    """What ``sync`` wrote: rows that are new, rows as they are now, and rows as they were."""

    added: list[Message]
    changed: list[Message]
    removed: list[Message]


class RunRecorder:
    """One run's way into storage.

    ``begin`` opens the run and keeps it alive; ``sync`` brings storage in line with its messages, step by
    step; the end follows from how the run ends.

    Args:
        thread_wait: Seconds to wait for another run of the thread.

    Attributes:
        pinned: Ids of stored messages that are this run's question, since its caller sent them once more.
        kept: Ids of stored messages that a repair does not delete, since notes stand on them.
    """

    def __init__(self, storage: Storage, counter: TokenCounter, *, thread_wait: float) -> None:
        self._storage = storage
        self._counter = counter
        self._thread_wait = thread_wait
        self.pinned: set[str] = set()
        self.kept: set[str] = set()
        self._saved: dict[str, tuple[Message, list[object]]] = {}
        self._repeated: list[Message] = []
        self._heartbeat: Heartbeat | None = None
        self._run: Run | None = None

    async def begin(self, context: RunContext[object]) -> None:
        """Open the run. Input messages that the thread has already leave the run's messages: they are not
        new, and what is stored of them is what memory shows.

        Raises:
            ThreadBusyError: Another run of the thread did not end in time.
            InputError: The thread belongs to another resource; metadata of the input is not JSON.
        """
        assert context.thread is not None
        check_metadata_of(context.messages.input)
        thread = Thread(
            id=context.thread.id,
            resource_id=context.resource_id or context.thread.id,
            title=context.thread.title,
            metadata=dict(context.thread.metadata),
        )
        self._run = run = await open_run(
            self._storage, context.run_id, thread, wait=self._thread_wait, ttl=RUN_TTL, guarded=context.guarded
        )
        context.on_end(lambda outcome: self._end(context, run, outcome))
        context.on_approval(self._approve)
        self._heartbeat = Heartbeat(self._storage, run, RUN_TTL)
        await self._take_in(context)

    async def _take_in(self, context: RunContext[object]) -> None:
        """Keep of the input what the thread does not have, as new messages."""
        assert context.thread is not None
        given = context.messages.input
        known: set[str] = set()
        if asked := [message.id for message in given if message.id not in context.made]:
            known = await self._storage.existing_ids(context.thread.id, asked)
            known |= await resent(self._storage, context.thread.id, given, known)
        context.messages.remove(known)
        for message in given:
            if message.id not in known:
                context.messages.add(unstored(message), "input")
        if len(known) == len(given):
            self._repeated = list(takewhile(lambda message: message.role == "user", reversed(given)))[::-1]

    def ask_again(self, messages: MessageList, window: Sequence[Message]) -> None:
        """Where the caller sent nothing new, let its last words be the question all the same.

        A client does that when it got no answer, or wants another. At the end of ``window`` they stay where
        they are, pinned; anywhere else they are shown once more at the end, for this run alone.
        """
        ids = [message.id for message in self._repeated]
        if ids and [row.id for row in window[-len(ids) :]] == ids:
            self.pinned = set(ids)
            return
        for message in self._repeated:
            messages.add(replace(unstored(message), id=new_id("msg")), "context")

    async def sync(self, context: RunContext[object], *, only: Collection[str] | None = None) -> Synced:
        """Bring storage in line with the run's messages as processors left them.

        Args:
            only: Of the messages that are not stored yet, store those with these ids. None: all. Those added get
                their ``seq`` and token counts.

        Raises:
            RunLostError: Somebody else took this run for dead and ended it.
        """
        changed, removed = await self._follow(context.messages, same=not context.edits_in_place)
        added = self._fresh(context.messages, only)
        for source, together in added:
            await self._append(together, source)
        return Synced([message for _, together in added for message in together], changed, removed)

    async def _follow(self, messages: MessageList, *, same: bool = False) -> tuple[list[Message], list[Message]]:
        """Store what is stored as it is by now; returns what was changed and what was removed. ``same``: what is still
        the same object says the same, and is not looked at: a long run would pay for that at each step."""
        present = {message.id: message for message in messages.of("input", "response")}
        changed = [
            there
            for message_id, (message, content) in self._saved.items()
            if (there := present.get(message_id)) is not None
            and not (same and there is message)
            and content != _content(there)
        ]
        removed = [message for message_id, (message, _) in self._saved.items() if message_id not in present]
        await self.rewrite(changed, remove=removed)
        return changed, removed

    def _fresh(self, messages: MessageList, only: Collection[str] | None) -> list[tuple[MessageSource, list[Message]]]:
        """What is not stored yet, in order: what comes from the same source together."""
        fresh = [
            message
            for message in messages.of("input", "response")
            if message.id not in self._saved and (only is None or message.id in only)
        ]
        groups = groupby(fresh, key=lambda message: messages.source_of(message.id))
        return [(cast(MessageSource, source), list(together)) for source, together in groups]

    async def _repair(self, messages: MessageList) -> None:
        """Store earlier rows as a processor repaired them, so that their thread pays for a refusal once.

        Rows are deleted where a model has answered without them: only then has the repair served its purpose. Where it
        cannot be stored the thread pays once more.
        """
        try:
            await self._store_repair(messages)
        except RunLostError:
            raise
        except (StorageError, InputError) as error:
            logger.warning("what was repaired of thread %s cannot be stored: %s", self._require().thread_id, error)

    async def _store_repair(self, messages: MessageList) -> None:
        repaired = [row for row in messages.remembered if row.id in messages.repaired and row.seq is not None]
        if repaired:
            there = await self._storage.existing_ids(self._require().thread_id, [row.id for row in repaired])
            repaired = [row for row in repaired if row.id in there]  # the others were forgotten meanwhile
            self._count(repaired)
            await self._storage.rewrite_messages(self._require(), repaired)
        if gone := messages.obsolete - self.kept:
            await self._storage.delete_messages(self._require().thread_id, sorted(gone))

    async def _approve(self, message: Message, call_ids: Sequence[str]) -> None:
        """Note with a stored row that these of its calls have begun, whatever becomes of this run."""
        run, seq = self._require(), message.seq
        if seq is None:
            return
        message.metadata = {
            **message.metadata,
            APPROVED_KEY: [*message.metadata.get(APPROVED_KEY, ()), *call_ids],
        }
        for row in await self._storage.list_messages(run.thread_id, after=seq - 1, before=seq + 1):
            row.metadata[APPROVED_KEY] = message.metadata[APPROVED_KEY]  # not what processors made of the row since
            await self._storage.rewrite_messages(run, [row])

    async def rewrite(self, messages: Sequence[Message], *, remove: Sequence[Message] = ()) -> None:
        """Store these rows of the run again as they are now, and drop others."""
        if not messages and not remove:
            return
        run, gone = self._require(), [message.id for message in remove]
        for message in messages:
            message.seq = self._saved[message.id][0].seq
        self._count(messages)
        await undisturbed(self._replace(run, messages, gone))  # or the run's end would remove the same rows again

    async def _replace(self, run: Run, messages: Sequence[Message], gone: Sequence[str]) -> None:
        await self._storage.rewrite_messages(run, messages, remove=gone)
        self._saved |= {message.id: (message, _content(message)) for message in messages}
        for message_id in gone:
            del self._saved[message_id]

    async def _append(self, messages: Sequence[Message], source: MessageSource) -> None:
        self._count(messages)
        await undisturbed(self._write(messages, source))  # or the run's end would write it again

    async def _write(self, messages: Sequence[Message], source: MessageSource) -> None:
        self._stored(messages, await self._storage.append_messages(self._require(), messages, source=source))

    def _count(self, messages: Sequence[Message]) -> None:
        for message in messages:
            message.part_tokens = count_parts(message, self._counter)

    def _stored(self, messages: Sequence[Message], numbers: Sequence[int]) -> None:
        run = self._require()
        for message, seq in zip(messages, numbers, strict=True):
            message.seq, message.run_id = seq, run.id
            message.thread_id, message.resource_id = run.thread_id, run.resource_id
            self._saved[message.id] = message, _content(message)

    def _require(self) -> Run:
        if self._run is None:
            raise StorageError("the run was not begun")
        return self._run

    async def _end(self, context: RunContext[object], run: Run, outcome: Outcome) -> None:
        """End the run; what cannot be stored completely is kept as far as it got, and the error is raised."""
        if self._heartbeat is not None:
            await self._heartbeat.end()
        if outcome == "discarded":
            await end_run(self._storage, run, outcome)
            return
        last: list[Message] = []
        try:
            last = await self._store_but_last(context, None if outcome == "committed" else context.finished)
            stored = max((message.seq or 0 for message, _ in self._saved.values()), default=0)
            self._stored(last, await end_run(self._storage, run, outcome, last, after=stored))
        except BaseException:  # whatever it is: a run that is left open would block its thread
            with suppress(RunLostError):  # it has ended
                await self._interrupt(run, last)
            raise

    async def _interrupt(self, run: Run, last: Sequence[Message]) -> None:
        """End the run, with its last messages if they can be stored."""
        if last:
            try:
                await end_run(self._storage, run, "interrupted", last)
                return
            except RunLostError:
                raise
            except Exception as error:  # whatever it is: without them it can be ended
                logger.warning("the last messages of run %s cannot be stored: %s", run.id, error)
        await end_run(self._storage, run, "interrupted")

    async def _store_but_last(self, context: RunContext[object], only: Collection[str] | None) -> list[Message]:
        """Store all but the last responses, and return those: they are stored in one write with the run's end.

        Where earlier rows have to be repaired, that comes between the responses and the end.
        """
        messages = context.messages
        await self._follow(messages)
        fresh = self._fresh(messages, only)
        mends = messages.repaired | messages.obsolete
        last = fresh.pop()[1] if fresh and fresh[-1][0] == "response" and not mends else []
        for source, together in fresh:
            await self._append(together, source)
        await self._repair(messages)
        self._count(last)
        return last


def unstored(message: Message) -> Message:
    """The caller's message as a new one: it may be stored in another thread, and stays the caller's."""
    return replace(
        message,
        parts=list(message.parts),
        metadata=dict(message.metadata),
        thread_id=None,
        resource_id=None,
        run_id=None,
        seq=None,
        part_tokens=None,
        sent=None,
    )


def _content(message: Message) -> list[object]:
    """What storage holds of a message, to notice that a processor changed it. Every step compares that of all messages
    of the run: what can be edited in place is written down, all else is kept as it is, which compares at once."""
    sent = message.sent
    content: list[object] = [message.role, message.created_at, dumps(message.metadata) if message.metadata else None]
    content.append(sent and (sent.text, dumps(sent.made_from)))
    for part in message.parts:
        plain, json = _fields_of(type(part))
        content.append(plain(part))
        content += [
            value if type(value) in _FIXED else dumps(value) for value in (getattr(part, name) for name in json)
        ]
    return content


_FIXED = {str, type(None)}


@cache
def _fields_of(kind: type[Part]) -> tuple[Callable[[Part], object], list[str]]:
    """A getter of those that cannot be edited in place, and the names of the others."""
    json = [item.name for item in fields(kind) if "Json" in cast(str, item.type)]
    return attrgetter("type", *(item.name for item in fields(kind) if item.name not in json)), json
