"""Search for messages, and the list of threads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from diarist.exceptions import ToolError
from diarist.memory.observational.recall.access import Access, Search
from diarist.memory.observational.recall.writing import Pages, one_line
from diarist.messages import ToolPart
from diarist.storage.records import Hit, Thread
from diarist.storage.words import message_terms, query_terms

RECALL = "recall"
"""The name of the tool."""

_HITS = 20
_EMPTY_PAGES = 10
_THREADS = 20
_TITLE_LENGTH = 80


class Finding:
    """The answers of the modes ``search`` and ``threads``.

    Args:
        shown: Returns the ids of the messages in the prompt.
    """

    def __init__(
        self, access: Access, pages: Pages, search: Search | None, shown: Callable[[], Collection[str]]
    ) -> None:
        self._access = access
        self._pages = pages
        self._search = search
        self._shown = shown

    async def messages(self, query: str, thread_id: str | None, cursor: str | None) -> str:
        """Return the messages that match a query, one line each, in the order of the search."""
        limit = _HITS
        while True:
            text = await self._page(query, thread_id, limit, cursor)
            if self._pages.fits(text):
                return text
            if limit == 1:
                return self._pages.slice(text, 0).text
            limit //= 2

    async def _page(self, query: str, thread_id: str | None, limit: int, cursor: str | None) -> str:
        if self._search is None:
            raise ToolError('this memory cannot search; use mode="browse" or mode="threads"')
        lines: list[str] = []
        for _ in range(_EMPTY_PAGES):
            page = await self._access.search(self._search, query, thread_id=thread_id, limit=limit, cursor=cursor)
            lines = [self._line(hit) for hit in page.items if self._is_news(hit, query)]
            cursor = page.cursor
            if lines or cursor is None:
                break
        if not lines and cursor is None:
            return "Nothing found. Try fewer or other words."
        ways = ['around one: mode="browse" with its number as message, and its thread']
        ways += [] if cursor is None else [f'older ones: the same search with cursor="{cursor}"']
        return "\n".join([*lines, f"[{'; '.join(ways)}]"])

    def _is_news(self, hit: Hit, query: str) -> bool:
        """Return False for messages that are in the prompt, and for those that match only in an answer of this tool."""
        row = hit.message
        if row.id in self._shown():
            return False
        others = [part for part in row.parts if not (isinstance(part, ToolPart) and part.name == RECALL)]
        return len(others) == len(row.parts) or message_terms(replace(row, parts=others)).issuperset(query_terms(query))

    def _line(self, hit: Hit) -> str:
        thread_id = hit.message.thread_id or ""
        return self._pages.hit(hit, None if thread_id == self._access.own_id else self._access.called(thread_id))

    async def threads(self, cursor: str | None) -> str:
        """Return the resource's threads, newest first. ``cursor``: the last one of the previous page."""
        lines: list[str] = []
        last = ""
        skipping = bool(cursor)
        async for thread in self._access.threads():
            label = self._access.label(thread.id)
            if skipping:
                skipping = label != cursor
                continue
            if lines and (len(lines) == _THREADS or not self._fits([*lines, self._thread(thread)], label)):
                return _with_cursor(lines, last)
            lines.append(self._thread(thread))
            last = label
        if skipping:
            raise ToolError(f'not a cursor of mode="threads": {one_line(cursor or "")!r}; leave it out to begin anew')
        return "\n".join(lines) or "There are no other conversations yet."

    def _fits(self, lines: list[str], cursor: str) -> bool:
        return self._pages.fits(_with_cursor(lines, cursor))

    def _thread(self, thread: Thread) -> str:
        days = ", ".join(
            f"{name} {moment:%Y-%m-%d}"
            for name, moment in (("begun", thread.created_at), ("last used", thread.updated_at))
            if moment is not None
        )
        title = f' "{one_line(thread.title)[:_TITLE_LENGTH]}"' if thread.title else ""
        own = " (this conversation)" if thread.id == self._access.own_id else ""
        return f"- {self._access.label(thread.id)}{title}, {days}{own}"


def _with_cursor(lines: list[str], cursor: str) -> str:
    return "\n".join([*lines, f'[older ones: cursor="{cursor}"]'])
