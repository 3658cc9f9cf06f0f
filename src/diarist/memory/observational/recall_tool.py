"""The ``recall`` tool: the agent's model reads original messages by observation, by number, or by search."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, Literal, Protocol, cast

from diarist.exceptions import ConfigError, InputError, ToolError
from diarist.memory.memory_note import quote
from diarist.memory.observational.config import ObservationalMemoryConfig, RetrievalConfig
from diarist.memory.observational.prompt.rendering import label_of
from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.roles.answer_checks import label
from diarist.memory.observational.roles.parsing import escape_tags
from diarist.memory.observational.roles.transcript import load_zone, local_time, render_transcript, speaker
from diarist.memory.rows import seq_of, threads_of
from diarist.messages import FilePart, Message, Part, SourcePart, TextPart, ToolPart, as_text
from diarist.storage.base import SearchStorage, Storage
from diarist.storage.records import Hit, ObservationLog, Page, Thread
from diarist.storage.words import message_terms, query_terms
from diarist.tokens import TokenCounter
from diarist.tools import Tool

RECALL = "recall"
"""The name of the tool."""

_ROWS = 60
_FOOTER_TOKENS = 80
_NAMED_SOURCES = 5
_NAMED_ENTRIES = 20
_HITS = 20
_EMPTY_PAGES = 10
_THREADS = 20
_TITLE_LENGTH = 80
_SHARE = 8
_SPACE = re.compile(r"\s+")
_CURSOR = re.compile(r"(before|after):(\d{1,18})(?:@(\S+))?")


class Search(Protocol):
    """Searches messages of one resource, by words or by meaning. Raises InputError."""

    def __call__(
        self, query: str, *, resource_id: str, thread_id: str | None, limit: int, cursor: str | None
    ) -> Awaitable[Page[Hit]]: ...


def recall_tool(
    storage: Storage,
    read_log: Callable[[], ObservationLog],
    *,
    resource_id: str,
    thread_id: str,
    run_id: str | None,
    counter: TokenCounter,
    config: ObservationalMemoryConfig,
    shown: Callable[[], Collection[str]] = tuple,
    search: Search | None = None,
) -> Tool:
    """Return the tool ``recall`` for one run. It reads messages of ``resource_id`` only, in all its threads.

    The tool's description depends only on the configuration and the kind of storage, so it is the same in every prompt.

    Args:
        read_log: Returns the diary as the run shows it.
        shown: Returns the ids of the messages in the prompt, which a search leaves out.
        search: Replaces the storage's full-text search; it also finds messages by meaning, and returns the best matches
            first.
    """
    settings = config.retrieves or RetrievalConfig()
    tool = unbound_recall(config, storage, by_meaning=search is not None)
    if search is None and isinstance(storage, SearchStorage):
        search = storage.search_messages
    access = Readable(thread_id, storage, resource_id, run_id, config.obscures_threads)
    pages = Pages(settings.max_tokens, counter=counter, timezone=config.timezone)
    recall = _Recall(access, pages, search, read_log, shown)
    searches = search is not None and settings.search
    return tool.with_function(recall.with_search if searches else recall.without_search)


def unbound_recall(config: ObservationalMemoryConfig, storage: Storage, *, by_meaning: bool) -> Tool:
    """Return the tool as every run offers it, without the function of a run."""
    settings = config.retrieves or RetrievalConfig()
    if not settings.search or not (by_meaning or isinstance(storage, SearchStorage)):
        return _tool("recall_without_search", searches=False)
    return _tool("recall_by_meaning" if by_meaning else "recall", searches=True)


def with_recall(tools: Mapping[str, Tool], recall: Tool) -> dict[str, Tool]:
    """Add the recall tool at the end of a step's tools. Raises ConfigError if another tool has its name."""
    if recall.name in tools:
        raise ConfigError(
            f"your tool {recall.name!r} has the name of memory's own tool: rename yours, or set retrieval=False"
        )
    return {**tools, recall.name: recall}


@cache  # building the JSON schema of a tool takes some milliseconds
def _tool(prompt: str, *, searches: bool) -> Tool:
    function = _Recall.with_search if searches else _Recall.without_search
    return Tool(name=RECALL, function=partial(function, cast(_Recall, None)), description=load_prompt(prompt))


@dataclass(frozen=True, slots=True)
class _Recall:
    """The functions of the tool; the signatures of the first two become the schema that the model sees."""

    _access: Readable
    _pages: Pages
    _search: Search | None
    _read_log: Callable[[], ObservationLog]
    _shown: Callable[[], Collection[str]]

    async def with_search(
        self,
        mode: Literal["search", "browse", "threads"],
        query: str | None = None,
        observation: str | None = None,
        message: int | None = None,
        thread: str | None = None,
        detail: Literal["low", "high"] = "low",
        part: int = 1,
        offset: int = 0,
        cursor: str | None = None,
    ) -> str:
        if mode != "search":
            return await self.without_search(mode, observation, message, thread, detail, part, offset, cursor)
        if not query:
            raise ToolError("mode search needs query: the words to look for")
        thread_id = await self._access.thread_of(thread) if thread else None
        limit = _HITS
        while True:
            text = await self._hits(query, thread_id, limit, cursor or None)
            if self._pages.fits(text):
                return text
            if limit == 1:
                return self._pages.slice(text, 0)[0]
            limit //= 2

    async def without_search(
        self,
        mode: Literal["browse", "threads"],
        observation: str | None = None,
        message: int | None = None,
        thread: str | None = None,
        detail: Literal["low", "high"] = "low",
        part: int = 1,
        offset: int = 0,
        cursor: str | None = None,
    ) -> str:
        if mode == "threads":
            return await self._threads(cursor)
        if message is not None and message < 1:
            raise ToolError(f"message must be a number from 1 on, not {message}")
        if detail == "high":
            if message is None:
                raise ToolError('detail "high" gives one part of one message in full: say which, with message')
            return await self._part(await self._access.thread_of(thread), message, part, offset)
        given = {"observation": observation, "message": message, "cursor": cursor}
        names = [name for name, value in given.items() if value]
        if len(names) > 1:
            raise ToolError(f"give one of {' and '.join(names)}, not {len(names)} of them")
        if observation:
            return await self._sources(observation)
        if cursor:
            match = _CURSOR.fullmatch(cursor.strip())
            if match is None:
                raise ToolError(f'not a cursor of mode="browse": {one_line(cursor)!r}; copy it from the answer before')
            turn = self._backward if match[1] == "before" else self._forward
            return await turn(await self._access.thread_of(match[3]), int(match[2]))
        if message is not None:
            thread_id = await self._access.thread_of(thread)
            if not await self._access.rows(thread_id, after=message - 1, limit=1):
                return await self._nothing(thread_id, f"after {message - 1}")
            before = await self._access.rows(thread_id, before=message, limit=1, newest_first=True)
            return await self._forward(thread_id, seq_of(before[0]) - 1 if before else message - 1)
        if thread:
            return await self._backward(await self._access.thread_of(thread))
        raise ToolError("say where to begin: give observation, message, thread or cursor")

    # -- mode browse

    async def _sources(self, label: str) -> str:
        """Return a page that starts with the first message that an observation was made from."""
        wanted = label.strip().strip("<>[]\"'").removeprefix("id=").strip("\"'")
        entries = [entry for entry in self._read_log().active if entry.text.strip()]
        entry = next((entry for entry in entries if wanted in (label_of(entry), entry.id)), None)
        if entry is None:
            known = ", ".join(label_of(entry) for entry in entries[-_NAMED_ENTRIES:])
            raise ToolError(f"there is no observation {one_line(label)!r}; the ids are: {known or 'none yet'}")
        access = self._access
        found = sorted(entry.sources, key=attrgetter("thread_id", "first_seq"))
        sources = [source for source in found if await access.may_read(source.thread_id)]
        if not sources:
            return f"The messages that observation {label_of(entry)} was made from are gone."
        places = "; ".join(
            f"messages {source.first_seq}–{source.last_seq}"
            + ("" if source.thread_id == access.own_id else f" of thread {access.label(source.thread_id)}")
            for source in sources[:_NAMED_SOURCES]
        )
        more = f" and {len(sources) - _NAMED_SOURCES} other places" if len(sources) > _NAMED_SOURCES else ""
        title = f"Observation {label_of(entry)} was made from {places}{more}."
        return await self._forward(sources[0].thread_id, sources[0].first_seq - 1, title=title)

    async def _forward(self, thread_id: str, after: int, *, title: str = "") -> str:
        rows = await self._access.rows(thread_id, after=after, limit=_ROWS)
        if not rows:
            return await self._nothing(thread_id, f"after {after}")
        return self._page(thread_id, rows, title=title)

    async def _backward(self, thread_id: str, before: int | None = None) -> str:
        """Return a page of the messages before number ``before``, or of the newest messages if it is None."""
        rows = await self._access.rows(thread_id, before=before, limit=_ROWS, newest_first=True)
        if not rows:
            return await self._nothing(thread_id, "yet" if before is None else f"before {before}")
        return self._page(thread_id, rows[::-1], newest=True, is_end=before is None)

    async def _part(self, thread_id: str, number: int, part: int, offset: int) -> str:
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
        piece, end = self._pages.slice(text, offset, spare=_FOOTER_TOKENS)
        if end < len(text):
            way = f"[Characters {offset} to {end} of {len(text)}. Go on with offset={end}.]"
        elif part < len(parts):
            way = f"[This was part {part} of {len(parts)}. Go on with part={part + 1}.]"
        else:
            way = f"[End of message {number}.]"
        return "\n".join([title, piece, way])

    def _page(
        self, thread_id: str, rows: Sequence[Message], *, title: str = "", newest: bool = False, is_end: bool = False
    ) -> str:
        """Return as many of the rows as fit, with cursors for the earlier and later ones.

        Args:
            newest: Take from the end of ``rows``.
            is_end: With ``newest``: no messages follow.
        """
        own, spare = thread_id == self._access.own_id, _FOOTER_TOKENS
        heading = "" if own else f"Thread {self._access.label(thread_id)}:"
        where = "" if own else f"@{self._access.label(thread_id)}"
        while True:
            body, taken = self._pages.messages(rows, newest=newest, spare=spare)
            last = is_end if newest else len(taken) == len(rows) < _ROWS
            first_seq, last_seq = seq_of(taken[0]), seq_of(taken[-1])
            ways = [f'earlier: cursor="before:{first_seq}{where}"'] if first_seq > 1 else []
            ways += [] if last else [f'later: cursor="after:{last_seq}{where}"']
            text = "\n".join(filter(None, [title, heading, body, f"[{'; '.join(ways)}]" if ways else ""]))
            if self._pages.fits(text) or spare >= self._pages.tokens:
                return text
            spare *= 2

    async def _nothing(self, thread_id: str, where: str) -> str:
        newest = await self._access.rows(thread_id, limit=1, newest_first=True)
        known = f"the newest has the number {seq_of(newest[0])}" if newest else "it is empty"
        return f"there are no messages {where} in {self._access.called(thread_id)}; {known}"

    # -- modes search and threads

    async def _hits(self, query: str, thread_id: str | None, limit: int, cursor: str | None) -> str:
        """Return a page of messages that match a query, one line each, in the order of the search."""
        assert self._search is not None
        lines: list[str] = []
        for _ in range(_EMPTY_PAGES):
            page = await self._access.search(self._search, query, thread_id=thread_id, limit=limit, cursor=cursor)
            for hit in page.items:
                if self._is_news(hit, query):
                    found_in = hit.message.thread_id or ""
                    where = None if found_in == self._access.own_id else self._access.called(found_in)
                    lines.append(self._pages.hit(hit, where))
            cursor = page.cursor
            if lines or cursor is None:
                break
        if not lines and cursor is None:
            return "Nothing found. Try fewer or other words."
        ways = ['around one: mode="browse" with its number as message, and its thread']
        ways += [] if cursor is None else [f'older ones: the same search with cursor="{cursor}"']
        return "\n".join([*lines, f"[{'; '.join(ways)}]"])

    def _is_news(self, hit: Hit, query: str) -> bool:
        """Return False for messages that are in the prompt, and for those that match only in results of this tool."""
        row = hit.message
        if row.thread_id == self._access.own_id and row.id in self._shown():
            return False
        others = [part for part in row.parts if not (isinstance(part, ToolPart) and part.name == RECALL)]
        return len(others) == len(row.parts) or message_terms(replace(row, parts=others)).issuperset(query_terms(query))

    async def _threads(self, cursor: str | None) -> str:
        """Return the resource's threads, newest first. ``cursor``: the last one of the previous page."""
        lines: list[str] = []
        ways, skipping = "", bool(cursor)
        async for thread in self._access.threads():
            label = self._access.label(thread.id)
            if skipping:
                skipping = label != cursor
                continue
            begun = f"begun {thread.created_at:%Y-%m-%d}" if thread.created_at is not None else ""
            used = f"last used {thread.updated_at:%Y-%m-%d}" if thread.updated_at is not None else ""
            title = f' "{one_line(thread.title)[:_TITLE_LENGTH]}"' if thread.title else ""
            own = " (this conversation)" if thread.id == self._access.own_id else ""
            line = f"- {label}{title}, {', '.join(filter(None, [begun, used]))}{own}"
            onwards = f'[older ones: cursor="{label}"]'
            if lines and (len(lines) == _THREADS or not self._pages.fits("\n".join([*lines, line, onwards]))):
                return "\n".join([*lines, ways])
            lines.append(line)
            ways = onwards
        if skipping:
            raise ToolError(f'not a cursor of mode="threads": {one_line(cursor or "")!r}; leave it out to begin again')
        return "\n".join(lines) or "There are no other conversations yet."


# --- access: all reads of the tool go through here ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readable:
    """The threads and messages of a resource that a run may read, with the run's own rows."""

    own_id: str
    _storage: Storage
    _resource_id: str
    _run_id: str | None
    _obscured: bool

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

    async def rows(self, thread_id: str, **options: Any) -> list[Message]:
        """Return messages of a thread, as ``Storage.list_messages`` does with these options; empty for a thread of
        another resource."""
        if not await self.may_read(thread_id):
            return []
        run_id = self._run_id if thread_id == self.own_id else None
        rows = await self._storage.list_messages(thread_id, **options, run_id=run_id)
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


# --- writing --------------------------------------------------------------------------------------------------


class Pages:
    """Writes messages as short dated texts of at most ``tokens``, with dates and times in a time zone."""

    def __init__(self, tokens: int, *, counter: TokenCounter, timezone: str) -> None:
        self.tokens, self._counter = tokens, counter
        self._timezone, self._zone = timezone, load_zone(timezone)

    def fits(self, text: str) -> bool:
        return self._counter.count(text) <= self.tokens

    def messages(self, rows: Sequence[Message], *, newest: bool = False, spare: int = 0) -> tuple[str, list[Message]]:
        """Return a transcript of as many of ``rows`` as fit, labelled with their numbers, and the rows in it.

        Long messages are cut to an eighth of the limit. At least one row is taken, cut as far as needed.

        Args:
            newest: Take from the end of ``rows``.
            spare: Tokens to reserve for other text.
        """
        room = max(1, self.tokens - spare)
        # Each page has one row more than the one before, so that the longest that fits is found by bisection.
        pages = [rows[-count:] if newest else rows[:count] for count in range(1, len(rows) + 1)]
        for cut in (max(8, room // _SHARE), max(8, room // (4 * _SHARE)), 8):
            if fitting := bisect_right(pages, room, key=partial(self._size, cut=cut)):
                taken = pages[fitting - 1]
                return self._transcript(taken, cut), list(taken)
        row = rows[-1] if newest else rows[0]
        return self.slice(self._transcript([row], 8), 0, spare=spare)[0], [row]

    def _size(self, rows: Sequence[Message], cut: int) -> int:
        return self._counter.count(self._transcript(rows, cut))

    def _transcript(self, rows: Sequence[Message], cut: int) -> str:
        transcript = render_transcript(
            rows,
            timezone=self._timezone,
            counter=self._counter,
            tool_result_tokens=cut,
            message_tokens=cut,
            numbers=[seq_of(row) for row in rows],
        )
        return quote(transcript)

    def hit(self, hit: Hit, thread: str | None) -> str:
        """Return a search result as one line. ``thread``: the name of its thread, if that is not the current one."""
        row = hit.message
        said = local_time(row, self._zone)
        when = f"{said:%Y-%m-%d %H:%M}" if said else "date unknown"
        where = f" ({thread})" if thread else ""
        return f"- {when}{where} {label(seq_of(row))} {speaker(row)}: {one_line(hit.excerpt)}"

    def day(self, row: Message) -> str:
        said = local_time(row, self._zone)
        return f"{said:%Y-%m-%d}" if said else "unknown"

    def slice(self, text: str, start: int, *, spare: int = 0) -> tuple[str, int]:
        """Return as much of ``text`` from ``start`` on as fits, at least one character, and the index after it."""
        room = max(1, self.tokens - spare)
        piece = quote(text[start : start + 8 * room])
        size = len(text[start : start + 8 * room])
        while size > 1 and (count := self._counter.count(piece)) > room:
            size = max(1, min(size - 1, size * room // count))
            piece = quote(text[start : start + size])
        return piece, start + size


def one_line(text: str) -> str:
    """Return ``text`` on one line, with the tags of memory escaped."""
    return escape_tags(quote(_SPACE.sub(" ", text).strip()))


def full_parts(message: Message) -> list[str]:
    """Return the texts of a message's parts in full, without empty ones."""
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.text.strip())
        elif isinstance(part, ToolPart):
            call = f"Tool call {part.name}({as_text(part.args)})"
            texts.append(call if part.state == "call" else f"{call}\nTool {part.state}: {part.result_text}")
        elif isinstance(part, FilePart):
            texts.append(f"(attachment: {part.name or ''} {part.media_type} {part.url or ''})")
        elif isinstance(part, SourcePart):
            texts.append(f"{part.title} {part.url}".strip())
    return list(filter(None, texts))


# --- finding what was written -------------------------------------------------------------------------------------

_EMPTIED = "(A message that this result quoted has been forgotten.)"


class RecallQuotes:
    """Finds the results of ``recall`` that quote a thread, by the labels that the tool gives to threads and messages.

    Args:
        seqs: Only results with messages of these numbers; None: with any message, or the title.
        own: Look in results stored in the quoted thread itself, which call it "this conversation".
        title: Also results with the thread's title.
    """

    def __init__(self, thread_id: str, seqs: Collection[int] | None, *, own: bool, title: bool = False) -> None:
        number = r"\d+" if seqs is None else f"(?:{'|'.join(map(str, sorted(seqs)))})"
        labels = {thread_label(thread_id, obscured=obscured) for obscured in (True, False)}
        name = f"(?:{'|'.join(map(re.escape, sorted(labels)))})"
        if own:  # search, browse, and one part of a message
            forms = [
                rf"^- \S+ \S+ \[#{number}\]",
                rf"\A(?!(?s:.*)^Thread )(?s:.*)^\[#{number}\]",
                f"^Message {number} of this conversation,",
            ]
        else:
            forms = [
                rf"^- .*?\(thread {name}\) \[#{number}\]",
                rf"\A(?:Observation .*\n)?Thread {name}:(?s:.*)^\[#{number}\]",
                f"^Message {number} of thread {name},",
            ]
        forms += [f"^- {name}[ ,]"] if seqs is None or title else []  # a list of threads
        self._pattern = re.compile("|".join(forms), re.MULTILINE)

    def is_in(self, row: Message) -> bool:
        """Return True if a result in the row quotes the thread."""
        return any(map(self._quotes, row.parts))

    def emptied(self, row: Message) -> Message:
        """Return the row without these results."""
        return replace(
            row,
            parts=[
                replace(part, result=_EMPTIED) if isinstance(part, ToolPart) and self._quotes(part) else part
                for part in row.parts
            ],
        )

    def _quotes(self, part: Part) -> bool:
        return isinstance(part, ToolPart) and part.name == RECALL and bool(self._pattern.search(part.result_text))
