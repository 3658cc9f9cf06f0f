"""``memory.diary``: read and change the diary, and observe or reflect on demand."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

from diarist.checks import check_whole
from diarist.chunks import DataChunk
from diarist.exceptions import InputError, NotFoundError
from diarist.memory.access import Access
from diarist.memory.forgetting import Forgetting
from diarist.memory.observational.log.coverage import visible_log
from diarist.memory.observational.log.edits import delete_text, edit_text, empty
from diarist.memory.observational.log.history import DiaryUsage, find_entry, log_as_of, usage_of
from diarist.memory.observational.log.removal import cut_notes
from diarist.memory.rows import seq_of, threads_of
from diarist.messages import Message
from diarist.storage.codec import decode_cursor, encode_cursor
from diarist.storage.records import Event, Observation, ObservationLog, Page
from diarist.storage.words import excerpt_of, query_terms, text_terms

if TYPE_CHECKING:  # loaded when there is something to observe
    from diarist.memory.observational.engine import Engine

_EVENTS_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationHit:
    """A diary entry found by a search.

    Attributes:
        key: The key of the entry's diary, ``thread:<id>`` or ``resource:<id>``.
        excerpt: One line of the entry, around the first match.
    """

    observation: Observation
    key: str
    excerpt: str


class Diary:
    """The diary of a thread or a resource.

    Every method takes a ``thread``, and optionally the ``resource`` that the thread must belong to. With
    ``scope="resource"`` all threads of a resource share one diary, so any of them, or the ``resource`` alone, selects
    it. Every method raises NotFoundError if the thread or resource does not exist, and InputError if the thread belongs
    to another resource, or if no thread is given where one is required.

    Args:
        engine: Returns the engine that observes and reflects. Raises ConfigError if this memory keeps no diary.
    """

    def __init__(self, access: Access, forgetting: Forgetting, engine: Callable[[], Engine]) -> None:
        self._access, self._forgetting, self._engine = access, forgetting, engine
        self._storage, self._counter, self._config = access.storage, access.counter, access.config

    def __repr__(self) -> str:
        return f"Diary({self._storage!r})"

    # -- reading

    async def get(self, *, thread: str | None = None, resource: str | None = None) -> ObservationLog:
        """Return the diary of a thread, without entries of live runs; empty if nothing was observed yet.

        With ``scope="resource"``, the returned ``hints`` are those of ``thread``.

        Raises NotFoundError, InputError.
        """
        found = await self._access.diary_owner(thread, resource)
        return visible_log(await self._access.logs.read(found.id, found.resource_id), None, found.id)

    async def history(self, *, thread: str | None = None, resource: str | None = None) -> list[ObservationLog]:
        """Return the diary at the end of each earlier generation, oldest first. Each reflection starts a new
        generation.

        An entry that was edited later has its text of that time. ``forget`` also deletes from earlier generations.

        Raises NotFoundError, InputError.
        """
        return (await self._generations(thread, resource))[:-1]

    async def usage(self, *, thread: str | None = None, resource: str | None = None) -> DiaryUsage:
        """Return the token usage of the Observer and the Reflector for this diary.

        Leaves out observations and reflections that failed, and entries that ``clear`` or forgetting has removed.

        Raises NotFoundError, InputError.
        """
        return usage_of(await self._generations(thread, resource))

    async def as_of(
        self, date: datetime.date | datetime.datetime, *, thread: str | None = None, resource: str | None = None
    ) -> ObservationLog:
        """Return the diary at a past time, reconstructed from its generations and ``observed_at``.

        The set of entries is exact, and so is the generation if its reflection took effect at once. The rest is
        approximate, since it is not recorded: the ``state`` of an entry is that at the end of the generation; a
        buffered reflection counts from the time it was made; an edited entry may have its later text; entries deleted
        since are missing.

        Args:
            date: An aware datetime; or a date, meaning the end of that day in the configured time zone.

        Raises NotFoundError, InputError.
        """
        if not isinstance(cast(Any, date), datetime.date) or (isinstance(date, datetime.datetime) and not date.tzinfo):
            raise InputError(f"date must be a datetime with a time zone, or a date, not {date!r}")
        if not isinstance(date, datetime.datetime):
            zone = ZoneInfo(self._config.timezone) if self._config is not None else datetime.UTC
            date = datetime.datetime.combine(date, datetime.time.max, zone)
        return visible_log(log_as_of(await self._generations(thread, resource), date), None, thread or "")

    async def sources(
        self,
        observation_id: str,
        *,
        thread: str | None = None,
        resource: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Message]:
        """Return the messages that an entry was made from, in order; for a reflection, those of all entries it
        replaced.

        The entry may be active, buffered, or of an earlier generation. Messages deleted since are left out.

        Args:
            limit: Messages per page.
            cursor: The cursor of the previous page.

        Raises NotFoundError, also if there is no such entry; InputError, also for a limit below 1 or an invalid cursor.
        """
        check_whole("limit", limit, least=1)
        entry = find_entry(await self._generations(thread, resource), observation_id)
        if entry is None:
            whose = f"thread {thread!r}" if thread is not None else f"resource {resource!r}"
            raise NotFoundError(f"the diary of {whose} has no observation {observation_id!r}")
        place = ("", 0) if cursor is None else tuple(decode_cursor(cursor, "sources", str, int))
        rows: list[Message] = []
        for source in sorted(entry.sources, key=lambda source: (source.thread_id, source.first_seq)):
            if (source.thread_id, source.last_seq) > place:
                after = max(source.first_seq - 1, place[1] if source.thread_id == place[0] else 0)
                rows += await self._storage.list_messages(
                    source.thread_id, after=after, before=source.last_seq + 1, limit=limit + 1 - len(rows)
                )
            if len(rows) > limit:
                break
        page = rows[:limit]
        more = encode_cursor(page[-1].thread_id or "", seq_of(page[-1])) if len(rows) > limit else None
        return Page(items=page, cursor=more)

    async def search(
        self, query: str, *, resource: str | None = None, thread: str | None = None, limit: int = 20
    ) -> list[ObservationHit]:
        """Find current diary entries that contain all words of ``query``, newest first. Works with any storage.

        With ``thread``, only entries made from messages of this thread. Raises as ``memory.messages.search`` does.
        """
        terms, most = query_terms(query), check_whole("limit", limit, least=1)
        owner = await self._access.resource_of(thread, resource)
        logs = self._access.logs
        if thread is not None or self._access.shares_diary:
            keys = [logs.key(thread or "", owner)]
        else:
            keys = [logs.key(found.id, owner) async for found in threads_of(self._storage, owner)]
        hits: list[ObservationHit] = []
        for key in keys:
            log = await self._storage.get_log(key)
            for entry in () if log is None else visible_log(log, None).active:
                is_of_thread = thread is None or any(source.thread_id == thread for source in entry.sources)
                if is_of_thread and text_terms(entry.text).issuperset(terms):
                    hits.append(ObservationHit(observation=entry, key=key, excerpt=excerpt_of([entry.text], terms)))
        return sorted(hits, key=lambda hit: hit.observation.observed_at, reverse=True)[:most]

    async def _generations(self, thread: str | None, resource: str | None) -> list[ObservationLog]:
        """Return all generations of the diary, the current one last."""
        found = await self._access.diary_owner(thread, resource)
        head = await self._access.logs.read(found.id, found.resource_id)
        past = await self._storage.list_generations(head.key)
        return [visible_log(log, None, found.id) for log in (*past, head)]

    # -- changing

    async def edit(
        self, observation_id: str, text: str, *, thread: str | None = None, resource: str | None = None
    ) -> ObservationLog:
        """Replace the text of an entry, from the next run on. Its sources stay.

        A buffered reflection made from the old text is dropped. Prompts, events and earlier generations keep the old
        text: to remove words everywhere, ``forget`` their messages.

        Removed words do not come back: if ``forget`` later deletes one of the entry's messages, it empties the entry,
        so that the other messages are not observed again. Changes of case or punctuation remove no words.

        Returns the changed diary. Raises NotFoundError, also if the current diary has no such entry, and InputError,
        also if ``text`` is empty or not a string.
        """
        if not isinstance(cast(Any, text), str):
            raise InputError(f"text must be a string, not {text!r}")
        if not text.strip():
            raise InputError(f"the text is empty; memory.diary.delete({observation_id!r}, thread=...) removes it")
        tokens = self._counter.count(text)
        return await self._change(thread, resource, lambda log: edit_text(log, observation_id, text, tokens))

    async def delete(
        self, observation_id: str, *, thread: str | None = None, resource: str | None = None
    ) -> ObservationLog:
        """Remove the text of an entry, and its current task, suggested response and title.

        The entry stays, empty and hidden, since it still covers its messages: otherwise they would become raw and be
        observed again. Everything else is as for ``edit``.
        """
        return await self._change(thread, resource, lambda log: delete_text(log, observation_id))

    async def _change(
        self, thread: str | None, resource: str | None, change: Callable[[ObservationLog], ObservationLog]
    ) -> ObservationLog:
        found = await self._access.diary_owner(thread, resource)
        logs = self._access.logs
        log = await logs.update(lambda: logs.read(found.id, found.resource_id), change)
        return visible_log(log, None, found.id)

    async def clear(self, *, thread: str | None = None, resource: str | None = None) -> None:
        """Delete the diary with its earlier generations, its events, and the parts of memory notes that mention it.

        The messages stay, all of them raw, and are observed again when they are due. The thread's title
        stays. The Observer replaces its own title when it finds another; until then, ``forget`` empties that title.

        Raises NotFoundError, InputError.
        """
        found = await self._access.diary_owner(thread, resource)
        log = await self._forgetting.finish_deletions(found)
        if not log.version:
            return
        await self._access.logs.update(lambda: self._access.logs.reread(log), empty)
        await self._storage.delete_generations(log.key)
        await self._storage.delete_events(log.key)
        threads = [found] if log.scope == "thread" else [t async for t in threads_of(self._storage, log.resource_id)]
        for other in threads:
            await cut_notes(self._storage, other.id)
        await self._forgetting.purge()

    # -- work

    async def observe(
        self,
        *,
        thread: str | None = None,
        resource: str | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        on_event: Callable[[DataChunk], None] | None = None,
    ) -> ObservationLog:
        """Observe all unobserved messages of a thread now, regardless of the thresholds.

        With ``scope="resource"``, a ``resource`` alone means all its threads: buffered observations are activated, and
        all other messages are observed in chronological order. Each call of the Observer takes messages of several
        threads, up to ``max_tokens_per_batch``. Up to eight calls run at a time.

        Args:
            on_progress: Called with the finished tokens and the total tokens, before each call of the Observer (for a
                resource: each round of calls) and at the end.
            on_event: Called with every ``data-om-*`` event.

        Raises:
            NotFoundError, InputError: As for every method.
            ThreadBusyError: Another process is observing the thread, or threads of the resource.
            ModelError, RoleError: The Observer or the Reflector failed, or the Observer refused three messages in a
                row; results of other calls are kept.
            ConflictError: The same messages changed during each of three calls; other results are kept.
        """
        found = await self._access.diary_owner(thread, resource)
        if thread is not None:
            await self._forgetting.finish_deletions(found)
        from diarist.memory.observational.manual import observe_now

        await observe_now(self._engine(), found.resource_id, thread, progress=on_progress, emit=on_event)
        return await self.get(thread=thread, resource=resource)

    async def reflect(
        self,
        *,
        thread: str | None = None,
        resource: str | None = None,
        guidance: str | None = None,
        on_event: Callable[[DataChunk], None] | None = None,
    ) -> ObservationLog:
        """Condense the whole diary into one entry now, in a new generation. An empty diary stays as it is.

        If another process is reflecting, this waits, then condenses the result.

        Args:
            guidance: Instructions on content, such as ``"keep every part number, drop small talk"``. The result is then
                accepted at any size. Without guidance, the target is 60% of the tokens, and a result of 90% or more is
                rejected.
            on_event: Called with every ``data-om-*`` event.

        Raises:
            ThreadBusyError: Another process is reflecting and did not finish within ``thread_wait``.
            ModelError, RoleError: The Reflector failed, or hardly shortened the diary.
            ConflictError: The diary changed during each of three calls.
        """
        if not isinstance(cast(Any, guidance), str | None):
            raise InputError(f"guidance must be a string or None, not {guidance!r}")
        found = await self._access.diary_owner(thread, resource)
        from diarist.memory.observational.manual import reflect_now

        return await reflect_now(
            self._engine(), found.id, found.resource_id, wait=self._access.thread_wait, guidance=guidance, emit=on_event
        )

    # -- events: every ``data-om-*`` event of any process, without the words of the notes

    async def events(
        self, *, thread: str | None = None, resource: str | None = None, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        """Return events of the diary with ``seq > after``, oldest first, at most ``limit``.

        Raises NotFoundError, and InputError, also for a limit below 1.
        """
        check_whole("limit", limit, least=1)
        found = await self._access.diary_owner(thread, resource)
        key = self._access.logs.key(found.id, found.resource_id)
        return await self._storage.list_events(key, after=after, limit=limit)

    async def watch(
        self, *, thread: str | None = None, resource: str | None = None, after: int = 0, every: float = 0.5
    ) -> AsyncGenerator[Event]:
        """Yield new events of any process in order, each once, until you stop iterating or the thread is deleted.

        Args:
            after: Start after this ``seq``. To continue after an interruption, pass that of the last event you saw; a
                new thread with the id of a deleted one begins at 1 again.
            every: Polling interval in seconds.

        Raises:
            NotFoundError: Also if the thread was deleted during the watch, even if a new one has its id.
            InputError: Also if ``every`` is not positive.
            StorageError: The storage cannot be reached.
        """
        if every <= 0:
            raise InputError(f"every must be positive, not {every!r}")
        owner = await self._access.diary_owner(thread, resource)
        key = self._access.logs.key(owner.id, owner.resource_id)
        while True:
            found = await self._storage.list_events(key, after=after, limit=_EVENTS_AT_ONCE)
            # After that query: these may be events of a new thread, which are numbered from 1 again.
            if (await self._access.diary_owner(thread, resource)).created_at != owner.created_at:
                raise NotFoundError(f"thread {thread!r} was deleted; a new thread has its id")
            for event in found:
                yield event
                after = event.seq
            if not found:
                await asyncio.sleep(every)
