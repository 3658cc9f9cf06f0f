"""``memory.messages``: read, save, change and search the messages of a thread."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from diarist.checks import check_ids, check_metadata_of, check_moment, check_names, checked_metadata
from diarist.counting import count_messages
from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.memory.access import Access
from diarist.memory.branches import unstored
from diarist.memory.forgetting import Forgetting
from diarist.memory.message_filter import (
    MessageFilter,
    MessageRange,
    filtered_hits,
    filtered_rows,
    with_neighbours,
)
from diarist.memory.observational.log.removal import finish_earlier_removals
from diarist.memory.run_lifecycle import check_owner
from diarist.message_check import part_flaw
from diarist.message_list import MessageInput, to_messages
from diarist.messages import Json, Message, Part, TextPart, utc_now
from diarist.storage.base import SearchStorage
from diarist.storage.codec import merge_metadata
from diarist.storage.records import Hit, Page, Thread, own_resource


class Messages:
    """Access to stored messages."""

    def __init__(self, access: Access, forgetting: Forgetting) -> None:
        self._access, self._forgetting = access, forgetting
        self._storage, self._counter, self._embedding = access.storage, access.counter, access.embedding

    def __repr__(self) -> str:
        return f"Messages({self._storage!r})"

    async def list(
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
    ) -> builtins.list[Message]:
        """Return messages of a thread, oldest first: the newest ``limit``; with ``before``, the newest ``limit`` below
        that ``seq``, to page backwards; with ``after``, the oldest ``limit`` above that ``seq`` (0: from the first
        message). A thread that does not exist yet has none.

        Args:
            since: Only messages sent at this time or later; messages without a time are left out.
            until: Only messages sent before this time; messages without a time are left out.
            metadata: Only messages that have all these values, compared as JSON: 1, 1.0 and True differ.
            newest_first: Return the newest ``limit`` within ``before`` and ``after``, newest first. For the next page,
                set ``before`` to the last of them.

        Raises InputError if the thread belongs to another resource, for a time without a time zone, and for metadata
        that is not JSON.
        """
        wanted = MessageFilter(since=since, until=until, metadata=metadata)
        try:
            await self._access.thread(thread, resource)
        except NotFoundError:  # as before the first turn of a conversation
            return []
        from_the_end = newest_first or after is None
        rows = await filtered_rows(
            self._storage, thread, wanted, after=after, before=before, limit=limit, newest_first=from_the_end
        )
        return rows[::-1] if from_the_end and not newest_first else rows

    async def save(
        self,
        messages: MessageInput,
        *,
        thread: str,
        resource: str | None = None,
        title: str = "",
        created_at: datetime | None = None,
    ) -> int:
        """Add messages at the end of a thread, all or none. Creates the thread if necessary.

        Skips system messages, and messages with an id that the thread has or had. If two new messages share an id, the
        later one takes the place of the first, as in ``generate``. Returns the number of new messages.

        Args:
            messages: As for ``generate``: a text, a message, or a list of messages or OpenAI-style dictionaries.
            title: The title, if this call creates the thread.
            created_at: When the conversation began, if this call creates the thread. None, or a future time: now.

        Raises:
            InputError: The thread belongs to another resource; or an input entry is invalid (the error names it).
            ThreadBusyError: Another run or call of this thread did not end within ``thread_wait``.
        """
        if isinstance(messages, list | tuple) and not messages:
            return 0
        said = [message for message in to_messages(messages) if message.role != "system"]
        given = list({message.id: message for message in said}.values())
        check_metadata_of(given)
        check_names(thread=thread, resource=resource)
        check_moment("created_at", created_at)
        found = await self._storage.get_thread(thread)
        if found is not None:
            check_owner(found, resource or own_resource(thread))
        fresh = await self._unknown(thread, given)
        if not fresh:
            return 0
        fresh = list(map(unstored, fresh))
        await count_messages(fresh, self._counter)
        owner = Thread(id=thread, resource_id=resource or own_resource(thread), title=title)
        if created_at is not None and created_at < utc_now():
            owner.created_at = created_at
        async with self._access.hold(owner) as run:
            fresh = await self._unknown(thread, fresh)  # messages may have been stored while this call waited
            numbers = await self._storage.append_messages(run, fresh, source="input")
            if numbers[:1] == [1]:
                await finish_earlier_removals(self._storage, owner)
        self._embedding.start(owner)
        return len(fresh)

    async def update(
        self,
        message_id: str,
        *,
        thread: str,
        resource: str | None = None,
        text: str | None = None,
        parts: Sequence[Part] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Message:
        """Replace the content of a stored message. It keeps its id, place, role and time.

        Data made from the old words is deleted, as with ``forget``: the message becomes raw again, and is observed,
        embedded and found with its new content. Vectors of later messages are also rebuilt.

        Args:
            text: The new content as text, in place of all its parts.
            parts: The new content as parts.
            metadata: Changed key by key: other keys stay, and the value None removes a key.

        Returns:
            The message as it is stored now.

        Raises:
            NotFoundError: The thread does not exist, or has no such message.
            InputError: The thread belongs to another resource; no change is given, or both ``text`` and ``parts``; the
                new content is empty; or the metadata is not JSON.
            ThreadBusyError: Another run or call of this thread did not end within ``thread_wait``.
            StorageError: The message is either unchanged or fully changed. If it is changed, some data made from the
                old words may remain: repeat the call.
        """
        check_ids("message_id", [message_id])
        if text is not None and parts is not None:
            raise InputError("give text= or parts=, not both")
        if not isinstance(cast(Any, text), str | None):
            raise InputError(f"text must be a string, not {text!r}")
        if not isinstance(cast(Any, parts), list | tuple | None):
            raise InputError(f"parts must be a list of parts, such as [TextPart(text='...')], not {parts!r}")
        if wrong := next(filter(None, map(part_flaw, parts or ())), None):
            raise InputError(f"parts: {wrong}")
        content: Sequence[Part] | None = parts
        if text is not None:
            content = [TextPart(text=text)] if text else []
        if content is not None and not content:
            raise InputError("the new content is empty; to delete a message, use forget(message_ids=[...], thread=...)")
        changes = checked_metadata(metadata)
        if content is None and not changes:
            raise InputError("nothing to change: pass text=, parts= or metadata=")
        found = await self._access.thread(thread, resource)
        async with self._access.hold(found, adds=False) as run:
            row = next(iter(await self._forgetting.rows_with(found.id, {message_id})), None)
            if row is None:
                raise NotFoundError(f"there is no message {message_id!r} in thread {found.id!r}")
            new = replace(
                row,
                metadata=merge_metadata(row.metadata, changes),
                parts=row.parts if content is None else list(content),
            )
            # The content may be stored already: an earlier call may have failed after that.
            await self._forgetting.rewrite(run, found, row, new, says_else=content is not None)
        if content is not None:
            await self._forgetting.empty_recalls(found, {row.id}, title=True)
        await self._forgetting.purge()
        return new

    async def search(
        self,
        query: str,
        *,
        resource: str | None = None,
        thread: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        metadata: Mapping[str, Json] | None = None,
        message_range: MessageRange = 0,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        """Find messages of a resource, or of one thread, that contain all words of ``query``, newest first.

        Matches whole words and ignores case.

        Args:
            resource: The resource to search; with ``thread``, the thread must belong to it.
            since, until, metadata: As for ``list``.
            message_range: Neighbours to return with each hit, as its ``before`` and ``after``: a number for both sides,
                or a pair (before, after); 100 at most.
            limit: Hits per page. With a filter the last page may be empty.
            cursor: The cursor of the previous page of the same search.

        Raises:
            InputError: Neither ``resource`` nor ``thread`` is given; the thread belongs to another resource; or another
                argument is invalid, such as a query without words, an invalid cursor, or a time without a time
                zone.
            NotFoundError: The thread does not exist.
            ConfigError: The storage cannot search.
        """
        if not isinstance(self._storage, SearchStorage):
            raise ConfigError(f"{type(self._storage).__name__} cannot search; use SQLiteStorage or PostgresStorage")
        wanted = MessageFilter(since=since, until=until, metadata=metadata)
        owner = await self._access.resource_of(thread, resource)
        page = await filtered_hits(
            self._storage, query, wanted, resource_id=owner, thread_id=thread, limit=limit, cursor=cursor
        )
        return replace(page, items=await with_neighbours(self._storage, page.items, message_range))

    async def embed(self, *, resource: str | None = None, thread: str | None = None) -> int:
        """Embed the messages of a thread, or of all threads of a resource, that have no vectors yet. New messages are
        embedded in the background.

        Returns:
            The number of messages read. A thread that another process is embedding is skipped, also for up to a minute
            after that process was killed.

        Raises:
            ConfigError: This memory has no vectors; or the embedder's vectors do not have the length it declares.
            InputError: Neither ``resource`` nor ``thread`` is given, or the thread belongs to another resource.
            NotFoundError: The thread does not exist.
            ModelError, StorageError: The call failed; finished work is kept.
        """
        self._embedding.index()
        owner = await self._access.resource_of(thread, resource)
        return await self._embedding.catch_up(None if thread is None else Thread(id=thread, resource_id=owner), owner)

    async def _unknown(self, thread: str, messages: Sequence[Message]) -> builtins.list[Message]:
        """Return the messages that the thread does not have, on any branch, and did not forget."""
        known = await self._storage.existing_ids(thread, [message.id for message in messages], forgotten=True)
        known |= {one.message.id for one in await self._storage.list_superseded(thread)}
        return [message for message in messages if message.id not in known]
