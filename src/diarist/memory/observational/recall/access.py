"""Access control of the recall tool: all its reads go through here, and are limited to the run's resource."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from diarist.exceptions import InputError, ToolError
from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.recall.writing import one_line
from diarist.memory.rows import threads_of
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import Hit, Page, Thread


class Search(Protocol):
    """Searches messages of one resource, by words or by meaning. Raises InputError."""

    def __call__(
        self, query: str, *, resource_id: str, thread_id: str | None, limit: int, cursor: str | None
    ) -> Awaitable[Page[Hit]]: ...


class Access:
    """The threads and messages of a resource that a run may read, with the run's own rows."""

    def __init__(
        self, storage: Storage, *, resource_id: str, thread_id: str, run_id: str | None, obscured: bool
    ) -> None:
        self._storage, self._resource_id, self._run_id, self._obscured = storage, resource_id, run_id, obscured
        self.own_id = thread_id

    def label(self, thread_id: str) -> str:
        """Return the name under which the model sees a thread."""
        return thread_label(thread_id, obscured=self._obscured)

    def called(self, thread_id: str) -> str:
        """Return the name of a thread for use in a sentence."""
        return "this conversation" if thread_id == self.own_id else f"thread {self.label(thread_id)}"

    async def thread_of(self, label: str | None) -> str:
        """Return the id of the thread with this label; without a label, the id of the run's own thread.

        Raises the same ToolError for a thread of another resource and for one that does not exist.
        """
        if not label or label == self.own_id:
            return self.own_id
        if not self._obscured and await self.may_read(label):
            return label
        if label == self.label(self.own_id):
            return self.own_id
        async for thread in self.threads():
            if self.label(thread.id) == label:
                return thread.id
        raise ToolError(f'there is no thread {one_line(label)!r}; mode="threads" lists them')

    async def may_read(self, thread_id: str) -> bool:
        """Return True for threads of the resource, and for the run's own even before it is stored."""
        if thread_id == self.own_id:
            return True
        thread = await self._storage.get_thread(thread_id)
        return thread is not None and thread.resource_id == self._resource_id

    def threads(self) -> AsyncIterator[Thread]:
        """Yield the resource's threads, newest first."""
        return threads_of(self._storage, self._resource_id)

    async def rows(
        self,
        thread_id: str,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Message]:
        """Return messages of a thread, as ``Storage.list_messages`` does; empty for a thread of another resource."""
        if not await self.may_read(thread_id):
            return []
        run_id = self._run_id if thread_id == self.own_id else None
        rows = await self._storage.list_messages(
            thread_id, after=after, before=before, limit=limit, newest_first=newest_first, run_id=run_id
        )
        return [row for row in rows if row.resource_id == self._resource_id]

    async def search(
        self, search: Search, query: str, *, thread_id: str | None, limit: int, cursor: str | None
    ) -> Page[Hit]:
        """Return a page of search results. Raises ToolError for an invalid query or cursor."""
        try:
            page = await search(query, resource_id=self._resource_id, thread_id=thread_id, limit=limit, cursor=cursor)
        except InputError as error:
            raise ToolError(str(error)) from error
        return Page(
            items=[hit for hit in page.items if hit.message.resource_id == self._resource_id], cursor=page.cursor
        )
