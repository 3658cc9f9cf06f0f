"""The part of ``Memory`` with which people make, find, change and copy threads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from diarist.memory.forgetting import Forgetting
from diarist.memory.moving.cloning import CopiedRows, Selection, clone
from diarist.memory.title_marks import without_mark
from diarist.messages import Json, new_id
from diarist.storage.codec import check_ids, check_limit, check_names, checked, checked_metadata, refuse_empty
from diarist.storage.records import Page, Thread


class Threads(Forgetting):
    """What people can do with threads as a whole; ``delete_thread`` is among what can be removed.

    Where a method takes a ``resource``, the thread must belong to it: InputError where it is another's, and
    NotFoundError where there is no such thread.
    """

    async def create_thread(
        self,
        thread: str | None = None,
        *,
        resource: str | None = None,
        title: str = "",
        metadata: Mapping[str, Json] | None = None,
    ) -> Thread:
        """Make a thread that has no messages yet. The first call that names a thread makes it, too.

        Args:
            thread: Its id; a new one by default.
            resource: Whose it is; by default the thread is its own resource.
            metadata: Values that ``threads`` can filter by; keys with the value None are left out.

        Raises ConflictError if there is a thread of this id; InputError for an id or title that is no text, and for
        metadata that is not JSON.
        """
        check_names(thread=thread, resource=resource)
        name = new_id("thread") if thread is None else thread
        owner = resource if resource is not None else name
        made = Thread(id=name, resource_id=owner, title=title, metadata=checked_metadata(metadata))
        return await self.storage.create_thread(made)

    async def thread(self, thread: str, *, resource: str | None = None) -> Thread:
        """The thread: its resource, title, metadata, and when it was made and changed.

        Raises NotFoundError, InputError.
        """
        return await self._thread(thread, resource)

    async def threads(
        self,
        *,
        resource: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = True,
    ) -> Page[Thread]:
        """Threads by when they were made, the newest first.

        Args:
            resource: Whose; by default everybody's.
            metadata: Only threads that have all these values, compared as JSON: 1, 1.0 and True differ.
            limit: Threads of a page.
            cursor: Of the page before, in the same order. A thread that is there throughout appears exactly once.
            newest_first: False: the oldest first.

        Raises InputError for a limit below 1, a foreign cursor, or values that cannot be looked for.
        """
        if resource is not None:
            refuse_empty(resource=checked(resource, "a resource id"))
        if metadata is not None:
            metadata = checked_metadata(metadata)
        return await self.storage.list_threads(
            resource_id=resource, metadata=metadata, limit=limit, cursor=cursor, newest_first=newest_first
        )

    async def update_thread(
        self,
        thread: str,
        *,
        resource: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Thread:
        """Change the title, and metadata key by key: others stay, and the value None removes a key.

        A title that is given here is not replaced by one that a model makes up; an empty one may be.

        Raises NotFoundError, InputError.
        """
        found = await self._thread(thread, resource)
        given = checked_metadata(metadata)
        changes = given if title is None else without_mark(given)
        return await self.storage.update_thread(found.id, title=title, metadata=changes)

    async def clone_thread(
        self,
        thread: str,
        *,
        resource: str | None = None,
        new_thread: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        message_ids: Collection[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Thread:
        """Copy a thread, or some of its messages, into a new thread of the same resource.

        Messages get new ids, and keep everything else. The diary comes along as far as it was made from messages
        that are copied; where a reflection was made from others as well, the entries that it replaced stand again,
        as far as that. With ``scope="resource"`` the one diary of the resource covers the copies, too. A working
        memory of the thread's own comes along, and memory notes sent with messages where all messages do; otherwise
        only their date.

        Args:
            new_thread: The id of the copy; a new one by default.
            title: Of the copy; by default that of the thread.
            metadata: Merged over that of the thread; the value None leaves a key out.
            message_ids: Only these messages.
            since: Only messages said at this moment or later; one without a time is left out.
            until: Only messages said before this moment; likewise.
            limit: Of those, only so many of the newest.

        Returns:
            The new thread. On any failure nothing of it is left.

        Raises:
            NotFoundError: There is no such thread, or it has not all of ``message_ids``.
            ConflictError: There is a thread of the id ``new_thread``; or messages were removed meanwhile.
            InputError: The thread belongs to another resource; a limit below 0; a moment without a time zone.
        """
        changes = checked_metadata(metadata)
        check_names(new_thread=new_thread)
        found = await self._thread(thread, resource)
        check_limit(limit)
        if message_ids is not None:
            check_ids("message_ids", message_ids)
        selection = Selection(
            ids=None if message_ids is None else frozenset(message_ids), since=since, until=until, limit=limit
        )
        copy = Thread(
            id=new_id("thread") if new_thread is None else new_thread,
            resource_id=found.resource_id,
            title=found.title if title is None else title,
            metadata={**(found.metadata if title is None else without_mark(found.metadata)), **changes},
        )
        await self._finished(found)
        return await clone(
            self.storage,
            self.counter,
            found,
            copy,
            selection,
            derive=self._thread_copied,
            withdraw=self._copy_withdrawn,
        )

    async def _thread_copied(self, source: Thread, copy: Thread, rows: CopiedRows) -> None:
        """Called when a copy is there: what was derived from the rows of ``source`` may be copied as well.

        If it raises, the copy is removed again.
        """
        await self._thread_added(copy)

    async def _copy_withdrawn(self, copy: Thread) -> None:
        """Called when a copy was removed again: takes away what ``_thread_copied`` made. Must not raise."""

    async def _thread_added(self, thread: Thread) -> None:
        """Called when a thread has come in whole, as a copy or from a file: makes what else is derived from messages.

        If it raises, the thread is removed again.
        """
