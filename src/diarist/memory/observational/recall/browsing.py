"""Browsing: read messages in order, around a place, page by page, or one part in full."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from diarist.exceptions import ToolError
from diarist.memory.observational.prompt.rendering import label_of
from diarist.memory.observational.recall.access import Access
from diarist.memory.observational.recall.writing import Pages, full_parts, one_line
from diarist.memory.rows import seq_of
from diarist.messages import Message
from diarist.storage.records import Observation, ObservationLog, Source

_ROWS = 60
_FOOTER_TOKENS = 80
_NAMED_SOURCES = 5
_NAMED_ENTRIES = 20
_CURSOR = re.compile(r"(before|after):(\d{1,18})(?:@(\S+))?")


class Browsing:
    """The answers of mode ``browse``."""

    def __init__(self, access: Access, pages: Pages, read_log: Callable[[], ObservationLog]) -> None:
        self._access = access
        self._pages = pages
        self._read_log = read_log

    async def sources(self, label: str) -> str:
        """Return a page that starts with the first message that an observation was made from."""
        entry = self._entry(label)
        sources = [
            source for source in sorted(entry.sources, key=_place) if await self._access.may_read(source.thread_id)
        ]
        if not sources:
            return f"The messages that observation {label_of(entry)} was made from are gone."
        places = "; ".join(self._range(source) for source in sources[:_NAMED_SOURCES])
        more = f" and {len(sources) - _NAMED_SOURCES} other places" if len(sources) > _NAMED_SOURCES else ""
        title = f"Observation {label_of(entry)} was made from {places}{more}."
        return await self.forward(sources[0].thread_id, sources[0].first_seq - 1, title=title)

    async def around(self, thread_id: str, number: int) -> str:
        """Return a page that starts with the message before message ``number``."""
        if not await self._access.rows(thread_id, after=number - 1, limit=1):
            return await self._nothing(thread_id, f"after {number - 1}")
        before = await self._access.rows(thread_id, before=number, limit=1, newest_first=True)
        return await self.forward(thread_id, seq_of(before[0]) - 1 if before else number - 1)

    async def go_on(self, cursor: str) -> str:
        match = _CURSOR.fullmatch(cursor.strip())
        if match is None:
            raise ToolError(f'not a cursor of mode="browse": {one_line(cursor)!r}; copy it from the answer before')
        thread_id = await self._access.thread_of(match[3])
        if match[1] == "before":
            return await self.backward(thread_id, int(match[2]))
        return await self.forward(thread_id, int(match[2]))

    async def forward(self, thread_id: str, after: int, *, title: str = "") -> str:
        rows = await self._access.rows(thread_id, after=after, limit=_ROWS)
        if not rows:
            return await self._nothing(thread_id, f"after {after}")
        return self._page(thread_id, rows, title=title)

    async def backward(self, thread_id: str, before: int | None = None) -> str:
        """Return a page of the messages before number ``before``, or of the newest messages if it is None."""
        rows = await self._access.rows(thread_id, before=before, limit=_ROWS, newest_first=True)
        if not rows:
            return await self._nothing(thread_id, "yet" if before is None else f"before {before}")
        return self._page(thread_id, rows[::-1], newest=True, is_end=before is None)

    async def part(self, thread_id: str, number: int, part: int, offset: int) -> str:
        """Return one part of one message, starting at the character ``offset``."""
        rows = await self._access.rows(thread_id, after=number - 1, before=number + 1)
        if not rows:
            raise ToolError(await self._nothing(thread_id, f"with the number {number}"))
        parts = full_parts(rows[0])
        if not parts:
            return f"Message {number} holds no text."
        if not 1 <= part <= len(parts):
            raise ToolError(f"part must be from 1 to {len(parts)} for message {number}, not {part}")
        text = parts[part - 1]
        if not 0 <= offset < len(text):
            raise ToolError(f"offset must be from 0 to {len(text) - 1} for part {part}, not {offset}")
        title = f"Message {number} of {self._access.called(thread_id)}, {self._pages.day(rows[0])}, {rows[0].role}:"
        piece = self._pages.slice(text, offset, spare=_FOOTER_TOKENS)
        if piece.end < len(text):
            way = f"[Characters {offset} to {piece.end} of {len(text)}. Go on with offset={piece.end}.]"
        elif part < len(parts):
            way = f"[This was part {part} of {len(parts)}. Go on with part={part + 1}.]"
        else:
            way = f"[End of message {number}.]"
        return "\n".join([title, piece.text, way])

    def _entry(self, label: str) -> Observation:
        wanted = label.strip().strip("<>[]\"'").removeprefix("id=").strip("\"'")
        entries = [entry for entry in self._read_log().active if entry.text.strip()]
        for entry in entries:
            if wanted in (label_of(entry), entry.id):
                return entry
        known = ", ".join(label_of(entry) for entry in entries[-_NAMED_ENTRIES:])
        raise ToolError(f"there is no observation {one_line(label)!r}; the ids are: {known or 'none yet'}")

    def _range(self, source: Source) -> str:
        numbers = f"messages {source.first_seq}–{source.last_seq}"
        own = source.thread_id == self._access.own_id
        return numbers if own else f"{numbers} of thread {self._access.label(source.thread_id)}"

    def _page(
        self, thread_id: str, rows: Sequence[Message], *, title: str = "", newest: bool = False, is_end: bool = False
    ) -> str:
        """Return as many of the rows as fit, with cursors for the earlier and later ones.

        Args:
            newest: Take from the end of ``rows``.
            is_end: With ``newest``: no messages follow.
        """
        spare = _FOOTER_TOKENS
        while True:
            body, taken = self._pages.messages(rows, newest=newest, spare=spare)
            last = is_end if newest else len(taken) == len(rows) < _ROWS
            text = "\n".join(filter(None, [title, self._heading(thread_id), body, self._ways(thread_id, taken, last)]))
            if self._pages.fits(text) or spare >= self._pages.tokens:
                return text
            spare *= 2

    def _heading(self, thread_id: str) -> str:
        return "" if thread_id == self._access.own_id else f"Thread {self._access.label(thread_id)}:"

    def _ways(self, thread_id: str, taken: Sequence[Message], is_end: bool) -> str:
        where = "" if thread_id == self._access.own_id else f"@{self._access.label(thread_id)}"
        first, last = seq_of(taken[0]), seq_of(taken[-1])
        ways = [f'earlier: cursor="before:{first}{where}"'] if first > 1 else []
        ways += [] if is_end else [f'later: cursor="after:{last}{where}"']
        return f"[{'; '.join(ways)}]" if ways else ""

    async def _nothing(self, thread_id: str, where: str) -> str:
        newest = await self._access.rows(thread_id, limit=1, newest_first=True)
        known = f"the newest has the number {seq_of(newest[0])}" if newest else "it is empty"
        return f"there are no messages {where} in {self._access.called(thread_id)}; {known}"


def _place(source: Source) -> tuple[str, int]:
    return source.thread_id, source.first_seq
