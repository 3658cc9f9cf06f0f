"""``memory.threads``: create, find, change, copy and delete threads, and move them between storages."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from diarist.checks import check_ids, check_limit, check_names, checked_metadata
from diarist.exceptions import InputError, NotFoundError, RunLostError, ThreadBusyError
from diarist.memory.access import Access
from diarist.memory.branches import Branch, Branches
from diarist.memory.forgetting import Forgetting
from diarist.memory.generated_titles import without_mark
from diarist.memory.message_filter import MessageFilter
from diarist.memory.receipt import Receipt
from diarist.memory.rows import seq_of, threads_of
from diarist.memory.run_lifecycle import end_run, open_run
from diarist.memory.transfer.cloning import clone
from diarist.memory.transfer.format import Lines, Moved, items_of, lines_of
from diarist.memory.transfer.importer import Existing, Importer
from diarist.memory.transfer.thread_reader import all_items, thread_items
from diarist.messages import Json, new_id, utc_now
from diarist.storage.records import CLONED_FROM, Page, Thread, is_own_resource, own_resource


class Threads:
    """Access to whole threads.

    Methods that take a ``resource`` raise InputError if the thread belongs to another one, and NotFoundError if the
    thread does not exist.
    """

    def __init__(self, access: Access, forgetting: Forgetting) -> None:
        self._access, self._forgetting = access, forgetting
        self._storage, self._counter, self._embedding = access.storage, access.counter, access.embedding
        self._branches = Branches(access)

    def __repr__(self) -> str:
        return f"Threads({self._storage!r})"

    async def create(
        self,
        thread: str | None = None,
        *,
        resource: str | None = None,
        title: str = "",
        metadata: Mapping[str, Json] | None = None,
    ) -> Thread:
        """Create a thread without messages. The first call that names a thread creates it too, so this is optional.

        Args:
            thread: Its id; a new one by default.
            resource: Its owner. By default it has none, and shares nothing with other threads.
            metadata: Values that ``list`` can filter by; keys with the value None are left out.

        Raises ConflictError if the id is taken; InputError for an id or title that is not text, and for metadata that
        is not JSON.
        """
        check_names(thread=thread, resource=resource)
        name = new_id("thread") if thread is None else thread
        owner = resource if resource is not None else own_resource(name)
        made = Thread(id=name, resource_id=owner, title=title, metadata=checked_metadata(metadata))
        return await self._storage.create_thread(made)

    async def get(self, thread: str, *, resource: str | None = None) -> Thread:
        """Return the thread: its resource, title, metadata, and times of creation and last change.

        Raises NotFoundError, InputError.
        """
        return await self._access.thread(thread, resource)

    async def list(
        self,
        *,
        resource: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = True,
    ) -> Page[Thread]:
        """List threads by time of creation, newest first.

        Args:
            resource: Only threads of this resource; by default of all.
            metadata: Only threads that have all these values, compared as JSON: 1, 1.0 and True differ.
            limit: Threads per page.
            cursor: The cursor of the previous page, in the same order. A thread that exists throughout is listed
                exactly once.
            newest_first: False: oldest first.

        Raises InputError for a limit below 1, a cursor that is invalid or of the other order, or metadata that cannot
        be searched for.
        """
        check_names(resource=resource)
        if metadata is not None:
            metadata = checked_metadata(metadata)
        return await self._storage.list_threads(
            resource_id=resource, metadata=metadata, limit=limit, cursor=cursor, newest_first=newest_first
        )

    async def update(
        self,
        thread: str,
        *,
        resource: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Thread:
        """Change the title, and metadata key by key: other keys stay, and the value None removes a key.

        A model never replaces a title set here, unless it is empty.

        Raises NotFoundError, InputError.
        """
        found = await self._access.thread(thread, resource)
        given = checked_metadata(metadata)
        changes = given if title is None else without_mark(given)
        return await self._storage.update_thread(found.id, title=title, metadata=changes)

    async def clone(
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
        """Copy the active branch of a thread, or some of its messages, into a new thread of the same resource.

        Messages get new ids, and keep everything else. Diary entries are copied if they were made from copied messages
        only. In place of a reflection that was also made from other messages, the entries that it replaced are copied,
        by the same rule. With ``scope="resource"`` the copied messages are raw, and are observed when they are due. The
        thread's own working memory is copied. Memory notes sent with messages are copied if all messages are; otherwise
        only their date is.

        Args:
            new_thread: The id of the copy; a new one by default.
            title: The title of the copy; by default that of the thread.
            metadata: Merged into a copy of the thread's metadata; the value None leaves a key out.
            message_ids: Only these messages.
            since, until: Only messages of this time, as for ``messages.list``.
            limit: Only the newest ``limit`` of the messages that meet the other conditions.

        Returns:
            The new thread; its ``cloned_from`` is the id of the source. If the call fails, nothing of it remains.

        Raises:
            NotFoundError: The thread does not exist, or lacks some of ``message_ids``.
            ConflictError: The id ``new_thread`` is taken; or messages were deleted during the copy.
            InputError: The thread belongs to another resource; a limit below 0; a time without a time zone.
        """
        changes = checked_metadata(metadata)
        check_names(new_thread=new_thread)
        found = await self._access.thread(thread, resource)
        check_limit(limit)
        if message_ids is not None:
            check_ids("message_ids", message_ids)
        ids = None if message_ids is None else frozenset(message_ids)
        wanted = MessageFilter(ids=ids, since=since, until=until)
        name = new_id("thread") if new_thread is None else new_thread
        copy = Thread(
            id=name,
            resource_id=own_resource(name) if is_own_resource(found.resource_id) else found.resource_id,
            title=found.title if title is None else title,
            metadata={
                **(found.metadata if title is None else without_mark(found.metadata)),
                CLONED_FROM: found.id,
                **changes,
            },
        )
        await self._forgetting.finish_deletions(found)
        copy = await clone(self._storage, self._counter, found, copy, wanted, limit)
        self._embedding.start(copy)
        return copy

    async def delete(self, thread: str, *, resource: str | None = None) -> Receipt:
        """Delete an existing thread, as ``memory.forget(thread=...)`` does. Raises NotFoundError, InputError."""
        await self._access.thread(thread, resource)
        return await self._forgetting.forget(thread=thread, resource=resource)

    async def prune(
        self,
        *,
        older_than: timedelta | datetime,
        resource: str | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Receipt:
        """Delete all threads that were last changed before a time, as ``memory.forget(thread=...)`` does.

        A run, ``update`` and ``messages.save`` change a thread. A thread with a live run stays. Data of the resources,
        such as their working memory, stays too; ``memory.forget(resource=...)`` deletes it.

        Args:
            older_than: An age, such as ``timedelta(days=90)``, or a datetime with time zone.
            resource: Only threads of this resource; by default of all.
            metadata: Only threads that have all these values.

        Returns:
            The data that this call deleted, as for ``forget``.

        Raises:
            InputError: ``older_than`` is neither, is negative, or has no time zone; or ``metadata`` is not JSON.
            StorageError: Some threads are deleted, others are not; repeat the call.
        """
        limit = _moment(older_than)
        check_names(resource=resource)
        wanted = None if metadata is None else checked_metadata(metadata)
        receipt = Receipt()
        async for thread in threads_of(self._storage, resource, wanted, hidden=True):
            if thread.updated_at is not None and thread.updated_at < limit:
                receipt += await self._delete_unless_used(thread, limit)
        return receipt + await self._forgetting.purge() if receipt.thread_ids else receipt

    async def _delete_unless_used(self, thread: Thread, limit: datetime) -> Receipt:
        """Delete a thread, unless a run is live or has changed it since."""
        try:
            run = await open_run(self._storage, new_id("run"), thread, wait=0)  # no other run can begin
        except ThreadBusyError:
            return Receipt()
        try:
            found = await self._storage.get_thread(thread.id, hidden=True)
            if found is None or found.updated_at is None or found.updated_at >= limit:
                return Receipt()
            return await self._forgetting.forget(thread=thread.id, purge=False)
        finally:
            with suppress(RunLostError):  # deleted with the thread
                await end_run(self._storage, run, "discarded")

    # -- branches

    async def rewind(self, thread: str, *, to: str, resource: str | None = None) -> Branch | None:
        """Go back to a message: the messages behind it are superseded.

        They are in no prompt, diary, search or recall any more. ``branches`` lists them, and ``switch_branch`` brings
        them back. Diary entries made from them are removed; other messages of such an entry become raw again, and are
        observed when they are due. Working memory does not change.

        Args:
            to: Id of a message on the active branch.

        Returns:
            The branch with the superseded messages; None if there were none.

        Raises:
            NotFoundError: Also if there is no such active message.
            ThreadBusyError: Another run or call of this thread did not end within ``thread_wait``.
        """
        check_ids("to", [to])
        found = await self._access.thread(thread, resource)
        async with self._access.hold(found) as run:
            await self._forgetting.finish_deletions(found)
            rows = await self._forgetting.rows_with(found.id, {to})
            if not rows:
                raise NotFoundError(f"there is no message {to!r} on the active branch of thread {found.id!r}")
            (last,) = await self._storage.list_messages(found.id, limit=1, newest_first=True)
            if not await self._branches.move(run, seq_of(rows[0])):
                return None
            inactive = await self._branches.list(found.id)
            return next(branch for branch in inactive if any(row.seq == last.seq for row in branch.messages))

    async def branches(self, thread: str, *, resource: str | None = None) -> builtins.list[Branch]:
        """Return the branches of a thread that are not active, the newest first.

        Raises NotFoundError; InputError if the thread belongs to another resource.
        """
        found = await self._access.thread(thread, resource)
        return await self._branches.list(found.id)

    async def switch_branch(self, thread: str, branch: str, *, resource: str | None = None) -> None:
        """Make a branch the active one. The messages that were active behind the fork are superseded, as by ``rewind``.

        The messages that come back are complete. They are raw: observed, embedded and found by searches again.

        Args:
            branch: Its id, as ``branches`` lists it.

        Raises:
            NotFoundError: The thread does not exist, or has no such branch that is not active.
            InputError, ThreadBusyError: As for ``rewind``.
        """
        found = await self._access.thread(thread, resource)
        async with self._access.hold(found) as run:
            await self._forgetting.finish_deletions(found)
            for inactive in await self._branches.list(found.id):
                if inactive.id == branch:
                    await self._branches.move(run, seq_of(inactive.messages[-1]))
                    return
            raise NotFoundError(f"thread {found.id!r} has no branch {branch!r} that is not active")

    # -- as JSON lines; ``memory/transfer/format.py`` describes the format

    async def export(self, thread: str, *, resource: str | None = None) -> AsyncGenerator[str, None]:
        """Yield a thread as lines of JSON, with line ends: the messages of the active branch, metadata, all generations
        of the diary, and its own working memory. The last line has the number of superseded messages, as ``left_out``.

        With ``scope="resource"`` the diary belongs to the resource and is not exported: after an import, the messages
        are raw and are observed again. Use ``export_all(resource=...)`` to include it.

        Raises NotFoundError, InputError.
        """
        found = await self._access.thread(thread, resource)
        async for line in lines_of(thread_items(self._storage, found)):
            yield line

    async def export_all(
        self, *, resource: str | None = None, metadata: Mapping[str, Json] | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield all threads as lines of JSON, with the data of their resources: metadata, working memory and the diary.

        Reads page by page, so memory use does not grow with the number of messages. Two exports of the same content are
        identical byte for byte, in any storage.

        Args:
            resource: Only threads of this resource; by default of all.
            metadata: Only threads that have all these values; data of resources is then left out.
        """
        check_names(resource=resource)
        async for line in lines_of(all_items(self._storage, resource, metadata)):
            yield line

    async def import_all(
        self,
        lines: Lines,
        *,
        resource: str | None = None,
        existing: Existing = "refuse",
        on_progress: Callable[[Moved], None] | None = None,
    ) -> Moved:
        """Import the output of ``export`` or ``export_all``, such as an open file.

        Each thread is imported completely or not at all. If the import fails, the threads before the failure stay.

        Args:
            resource: Refuse threads of any other resource: for files that users upload.
            existing: ``"refuse"`` threads that exist already, or ``"skip"`` them, to continue after a failure.
            on_progress: Called with the counts so far, after every 500 messages and every thread.

        Returns:
            The numbers of new threads, messages and resources, and the ids of skipped threads.

        Raises:
            InputError: The file is not an export, is cut off or damaged (names the line), or belongs to another
                resource.
            ConflictError: A thread exists already; or its resource has its own diary or working memory.
            ThreadBusyError: Another process is creating one of the threads, or was killed doing so less than a minute
                ago.
        """
        if existing not in ("refuse", "skip"):
            raise InputError(f"existing is 'refuse' or 'skip', not {existing!r}")
        check_names(resource=resource)
        importer = Importer(
            self._storage,
            self._counter,
            resource=resource,
            existing=existing,
            derive=self._embedding.start,
            on_progress=on_progress or (lambda moved: None),
        )
        return await importer.run(items_of(lines))


def _moment(older_than: timedelta | datetime) -> datetime:
    """Return the moment that an age or a datetime names. Raises InputError."""
    given: Any = older_than
    if isinstance(given, timedelta) and given >= timedelta():
        try:
            return utc_now() - given
        except OverflowError:  # no thread is that old
            return datetime.min.replace(tzinfo=UTC)
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InputError(
            f"older_than must be an age such as timedelta(days=90), or a datetime with a time zone, not {given!r}"
        )
    return given
