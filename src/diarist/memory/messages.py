"""The part of ``Memory`` with which people read the messages of a thread, and change one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from diarist.counting import count_parts
from diarist.exceptions import InputError, NotFoundError
from diarist.memory.ending import end_run
from diarist.memory.forgetting import Forgetting
from diarist.memory.message_filter import MessageFilter, filtered_rows
from diarist.memory.observational.log.removal import own_words, remove_traces
from diarist.memory.opening import open_run
from diarist.message_check import part_flaw
from diarist.messages import Json, Message, Part, TextPart, new_id
from diarist.storage.codec import checked_metadata, merge_metadata
from diarist.storage.records import Run, Thread
from diarist.storage.words import message_terms


class Messages(Forgetting):
    """Messages as they are stored."""

    _thread_wait: float

    async def messages(
        self,
        *,
        thread: str,
        resource: str | None = None,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        metadata: Mapping[str, Json] | None = None,
        newest_first: bool = False,
    ) -> list[Message]:
        """Messages of a thread, in their order: the newest ``limit`` of those with ``seq < before``, which is how to
        page backwards; or, with ``after``, the oldest ``limit`` of those with ``seq > after`` (0: from the first).

        Args:
            since: Only messages said at this moment or later; one without a time is left out.
            until: Only messages said before this moment; likewise.
            metadata: Only messages that have all these values, compared as JSON: 1, 1.0 and True differ.
            newest_first: The newest ``limit`` of those that ``before`` and ``after`` leave, the newest first; the
                next page is ``before`` the last of them.

        Raises NotFoundError; InputError, also for a moment without a time zone and metadata that is not JSON.
        """
        wanted = MessageFilter(since=since, until=until, metadata=metadata)
        await self._thread(thread, resource)
        from_the_end = newest_first or after is None
        rows = await filtered_rows(
            self.storage, thread, wanted, after=after, before=before, limit=limit, newest_first=from_the_end
        )
        return rows[::-1] if from_the_end and not newest_first else rows

    async def update_message(
        self,
        message_id: str,
        *,
        thread: str,
        resource: str | None = None,
        text: str | None = None,
        parts: Sequence[Part] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Message:
        """Let a stored message say something else. It keeps its id, place, role and time.

        With new words goes what was made from the old ones, as ``forget`` takes it out: the message is raw again, and
        is observed, embedded and found as it is now. Vectors of messages behind it are made anew as well.

        Args:
            text: What it says, in place of all its parts.
            parts: Likewise, as parts.
            metadata: Changed key by key: others stay, and the value None removes a key.

        Returns:
            The message as it is stored now.

        Raises:
            NotFoundError: There is no such thread, or message in it.
            InputError: The thread belongs to another resource; no change, or both ``text`` and ``parts``, or no words
                at all; metadata that is not JSON.
            ThreadBusyError: Another run or call of this thread did not end within ``thread_wait``.
            StorageError: The message is as it was or as it should be. Where it is new, something made from the old
                words may be left: call it again.
        """
        said = _parts(text, parts)
        changes = checked_metadata(metadata)
        if said is None and not changes:
            raise InputError("say what is to change: text=, parts= or metadata=")
        found = await self._thread(thread, resource)
        run = await open_run(self.storage, new_id("run"), found, wait=self._thread_wait)
        try:
            row = await self._row(found, message_id)
            new = replace(
                row, metadata=merge_metadata(row.metadata, changes), parts=row.parts if said is None else said
            )
            new.part_tokens = count_parts(new, self.counter)
            await self._replace(run, found, row, new)
        finally:
            await end_run(self.storage, run, "discarded")  # it has no messages of its own
        await self.storage.purge()
        return new

    async def _row(self, thread: Thread, message_id: str) -> Message:
        for place in await self._places(thread.id, {message_id}):
            for row in await self.storage.list_messages(thread.id, after=place.seq - 1, before=place.seq + 1):
                return row
        raise NotFoundError(f"there is no message {message_id!r} in thread {thread.id!r}")

    async def _replace(self, run: Run, thread: Thread, row: Message, new: Message) -> None:
        """What was made from the old words goes before they do, so that a crash leaves nothing of them behind; and
        once more afterwards, for what was made in between."""
        await self._finished(thread)
        words = await own_words(self.storage, row) - message_terms(new)
        await self._forget_old(thread, row, new, words)
        await self.storage.rewrite_messages(run, [new])
        await self._forget_old(thread, row, new, words)

    async def _forget_old(self, thread: Thread, row: Message, new: Message, words: set[str]) -> None:
        says_else = row.parts != new.parts
        if says_else:
            await remove_traces(self.storage, await self._logs_with(thread), row, words, self.counter)
        await self._embed_again(row, says_else=says_else)


def _parts(text: str | None, parts: Sequence[Part] | None) -> list[Part] | None:
    """What a message is to say; None where that is not to change."""
    if text is not None and parts is not None:
        raise InputError("give text= or parts=, not both")
    if not isinstance(cast(Any, text), str | None):
        raise InputError(f"text must be a text, not {text!r}")
    if not isinstance(cast(Any, parts), list | tuple | None):
        raise InputError(f"parts must be a list of parts, such as [TextPart(text='...')], not {parts!r}")
    if wrong := next(filter(None, map(part_flaw, parts or ())), None):
        raise InputError(f"parts: {wrong}")
    said = parts if text is None else [TextPart(text=text)] if text else []
    if said is not None and not said:
        raise InputError("a message says something: to take it away, use forget(message_ids=[...], thread=...)")
    return None if said is None else list(said)
