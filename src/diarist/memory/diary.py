"""The part of ``Memory`` with which people read the diary and change it."""

from __future__ import annotations

from abc import abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from typing import Any, cast
from zoneinfo import ZoneInfo

import orjson

from diarist.chunks import DataChunk
from diarist.exceptions import ConfigError, InputError, NotFoundError
from diarist.memory.events import Events
from diarist.memory.forgetting import Forgetting
from diarist.memory.observational.engine import Engine
from diarist.memory.observational.log.coverage import seq_of, visible_log
from diarist.memory.observational.log.edits import delete_text, edit_text
from diarist.memory.observational.log.past import find_entry, log_as_of
from diarist.memory.observational.log.spending import DiaryUsage, usage_of
from diarist.memory.observational.overrides import apply_overrides
from diarist.memory.observational.work import manual
from diarist.messages import Json, Message
from diarist.models.base import Model
from diarist.storage.codec import check_limit, check_whole
from diarist.storage.records import Observation, ObservationLog, Page, Source


class Diary(Forgetting, Events):
    """What people can do with the diary.

    Every method names a ``thread``, and takes a ``resource`` that the thread must belong to: NotFoundError where
    there is no such thread, InputError where it is another resource's. With ``scope="resource"`` the diary is the
    one of the thread's resource, whichever of its threads is named; the ``resource`` alone will do as well.
    """

    _thread_wait: float

    @abstractmethod
    def _engine(self, model: Model | None) -> Engine:
        """What observes and reflects. Raises ConfigError where this memory keeps no diary."""

    # -- reading

    async def observations(self, *, thread: str | None = None, resource: str | None = None) -> ObservationLog:
        """The diary of a thread, without what belongs to a run that is live; empty where nothing was observed.

        Args:
            thread: With ``scope="resource"`` the hints are this thread's.
            resource: Alone, with ``scope="resource"``: the diary of this resource.

        Raises:
            NotFoundError: There is no such thread, or resource.
            InputError: The thread belongs to another resource, or a thread must be named.
        """
        found = await self._whose(thread, resource)
        return visible_log(await self._logs().read(found.id, found.resource_id), None, found.id)

    async def history(self, *, thread: str | None = None, resource: str | None = None) -> list[ObservationLog]:
        """The diary as it was at the end of each earlier generation, oldest first; the present one is not among
        them. A reflection begins a new generation.

        Entries that were edited meanwhile are as they were then; what was forgotten is gone here as well.

        Raises NotFoundError, InputError.
        """
        found = await self._whose(thread, resource)
        key = self._logs().key(found.id, found.resource_id)
        return [visible_log(log, None, found.id) for log in await self.storage.list_generations(key)]

    async def usage(self, *, thread: str | None = None, resource: str | None = None) -> DiaryUsage:
        """What the Observer and the Reflector have cost for this diary; calls that failed are not in it.

        Raises NotFoundError, InputError.
        """
        return usage_of(await self._generations(thread, resource))

    async def as_of(
        self, date: date | datetime, *, thread: str | None = None, resource: str | None = None
    ) -> ObservationLog:
        """The diary as it stood at a moment, put together from its generations and ``observed_at``.

        Exact is which entries had been made by then, and the generation of reflections that took their place at
        once. Not kept, and so not exact: when an entry that was made ahead began to stand in the prompt (its
        ``state`` is that of the end of its generation; a reflection made ahead counts from when it was made),
        the words of an entry before it was edited, and what was taken out or forgotten since.

        Args:
            date: An aware datetime; or a date, which means the end of that day in the configured time zone.

        Raises NotFoundError, InputError.
        """
        moment = self._moment(date)
        return visible_log(log_as_of(await self._generations(thread, resource), moment), None, thread or "")

    async def sources(
        self,
        observation_id: str,
        *,
        thread: str | None = None,
        resource: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Message]:
        """The messages that an entry was made from, in order: of a reflection, those of all that it replaced.

        The entry may be active, waiting, or of an earlier generation. Messages that were deleted since are left out.

        Args:
            limit: Messages of a page.
            cursor: Of the page before.

        Raises:
            NotFoundError: There is no such thread, or it has no such entry.
            InputError: The thread belongs to another resource; a limit below 1, a foreign cursor.
        """
        check_limit(limit, least=1)
        entry = await self._entry(observation_id, thread, resource)
        place = ("", 0) if cursor is None else _decode(cursor)
        rows: list[Message] = []
        for source in sorted(entry.sources, key=_place):
            if (source.thread_id, source.last_seq) > place:
                after = max(source.first_seq - 1, place[1] if source.thread_id == place[0] else 0)
                rows += await self.storage.list_messages(
                    source.thread_id, after=after, before=source.last_seq + 1, limit=limit + 1 - len(rows)
                )
            if len(rows) > limit:
                break
        page = rows[:limit]
        return Page(items=page, cursor=_encode(page[-1]) if len(rows) > limit else None)

    async def _entry(self, observation_id: str, thread: str | None, resource: str | None) -> Observation:
        entry = find_entry(await self._generations(thread, resource), observation_id)
        if entry is None:
            whose = f"thread {thread!r}" if thread is not None else f"resource {resource!r}"
            raise NotFoundError(f"the diary of {whose} has no observation {observation_id!r}")
        return entry

    async def _generations(self, thread: str | None, resource: str | None) -> list[ObservationLog]:
        """All values of the diary, the present one last."""
        head = await self.observations(thread=thread, resource=resource)
        return [*await self.history(thread=thread, resource=resource), head]

    # -- changing

    async def edit_observation(
        self, observation_id: str, text: str, *, thread: str | None = None, resource: str | None = None
    ) -> ObservationLog:
        """Let an entry say something else from the next run on; its sources stay what they are.

        A reflection that was made ahead from the old text is dropped. What was sent, told in events, and kept of
        earlier generations with the old text stays as it was: to have words gone, ``forget`` their messages.

        Words that the entry loses stay out: once one of its messages is forgotten, ``forget`` empties it, and it goes
        on standing for the others. Another case or punctuation alone loses none.

        Returns:
            The diary with the change.

        Raises:
            NotFoundError: There is no such thread, or its present diary has no such entry.
            InputError: The thread belongs to another resource, or the text is empty or none.
        """
        if not isinstance(cast(Any, text), str):
            raise InputError(f"text must be a text, not {text!r}")
        if not text.strip():
            raise InputError(f"the text is empty; delete_observation({observation_id!r}, thread=...) removes it")
        tokens = self.counter.count(text)
        found = await self._whose(thread, resource)
        log = await self._logs().update(
            found.id, found.resource_id, lambda log: edit_text(log, observation_id, text, tokens)
        )
        return visible_log(log, None, found.id)

    async def delete_observation(
        self, observation_id: str, *, thread: str | None = None, resource: str | None = None
    ) -> ObservationLog:
        """Remove the words of an entry, with its current task, suggested response and title.

        The entry stays, empty and not shown, since it still covers its messages: without it they would be raw again
        and be observed anew. Otherwise as ``edit_observation``.
        """
        found = await self._whose(thread, resource)
        log = await self._logs().update(found.id, found.resource_id, lambda log: delete_text(log, observation_id))
        return visible_log(log, None, found.id)

    # -- work

    async def observe(
        self,
        *,
        thread: str | None = None,
        resource: str | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        on_event: Callable[[DataChunk], None] | None = None,
    ) -> ObservationLog:
        """Observe now everything of a thread that is not observed yet, whatever the thresholds say.

        With ``scope="resource"``, a ``resource`` alone means all its threads: what is noted already and waits is
        activated, and the rest observed in the order in which it was said, several threads to a call of
        ``max_tokens_per_batch`` and up to eight calls at a time.

        Args:
            on_progress: Called with the tokens done and the tokens in all, before each call of the Observer (of a
                resource: each round of calls) and at the end.
            on_event: Called with every ``data-om-*`` event.

        Raises:
            NotFoundError: There is no such thread, or resource.
            InputError: The thread belongs to another resource, or a thread must be named.
            ThreadBusyError: Somebody else is observing it.
            ModelError, RoleError: The Observer failed; what was observed before that, or beside it, is kept.
            ConflictError: The same messages were changed while each of three calls was at them; the rest is kept.
        """
        found = await self._whose(thread, resource)
        engine = self._engine(None)
        if thread is None:
            await engine.observe_resource(found.resource_id, progress=on_progress, emit=on_event)
        else:
            await self._finished(found)
            await engine.observe_all(thread, found.resource_id, progress=on_progress, emit=on_event)
        return await self.observations(thread=thread, resource=resource)

    async def reflect(
        self,
        *,
        thread: str | None = None,
        resource: str | None = None,
        guidance: str | None = None,
        on_event: Callable[[DataChunk], None] | None = None,
    ) -> ObservationLog:
        """Rewrite the whole diary now as one entry, in a new generation. An empty diary stays as it is.

        While somebody else is reflecting, it waits, and then condenses what that has made.

        Args:
            guidance: What to keep or drop, such as ``"keep every part number, drop small talk"``. It is then not
                condensed beyond that, and kept whatever its size. Without guidance, 60% of the tokens are aimed at,
                and what is not below 90% changes nothing.
            on_event: Called with every ``data-om-*`` event.

        Raises:
            ThreadBusyError: Somebody else is reflecting, and was not done within ``thread_wait``.
            ModelError, RoleError: The Reflector failed, or made hardly less of it.
            ConflictError: The diary was changed while each of three calls was at it.
        """
        if not isinstance(cast(Any, guidance), str | None):
            raise InputError(f"guidance must be a text, or None, not {guidance!r}")
        found = await self._whose(thread, resource)
        cycles = await self._engine(None).reflecting(found.id, found.resource_id, emit=on_event)
        return await manual.reflect(cycles, found.id, found.resource_id, wait=self._thread_wait, guidance=guidance)

    async def compact(
        self,
        target_tokens: int,
        *,
        thread: str | None = None,
        resource: str | None = None,
        on_event: Callable[[DataChunk], None] | None = None,
    ) -> ObservationLog:
        """Reflect until the diary has at most ``target_tokens``, or nothing more is gained. Waits as ``reflect`` does.

        Returns:
            The diary as it is then. Its ``tokens`` tell whether the target was reached; if not, a warning is logged.

        Raises:
            InputError: A target that is no whole number from 1 on.
            ThreadBusyError: Somebody else is reflecting, and was not done within ``thread_wait``.
            ModelError, RoleError: The Reflector failed; what was done before is kept.
            ConflictError: As for ``reflect``.
        """
        check_whole("target_tokens", target_tokens, least=1)
        found = await self._whose(thread, resource)
        cycles = await self._engine(None).reflecting(found.id, found.resource_id, emit=on_event)
        return await manual.compact(cycles, found.id, found.resource_id, target_tokens, wait=self._thread_wait)

    # -- options

    async def overrides(self, *, thread: str | None = None, resource: str | None = None) -> dict[str, Json]:
        """The options that this diary has of its own. Raises NotFoundError, InputError."""
        return dict((await self.observations(thread=thread, resource=resource)).overrides)

    async def set_overrides(
        self, *, thread: str | None = None, resource: str | None = None, **options: Json
    ) -> dict[str, Json]:
        """Set options for this diary alone, over those of the configuration, from the next run on.

        Args:
            options: ``message_tokens``, ``buffer_tokens``, ``buffer_activation``, ``block_after``,
                ``observation_tokens``, ``reflection_buffer_activation``, ``reflection_block_after``. None takes an
                option back; others that were set before stay.

        Returns:
            All options that the diary has of its own now.

        Raises:
            ConfigError: This memory keeps no diary, or an option is unknown or contradicts the rest.
            NotFoundError, InputError: As everywhere.
        """
        config = self.config
        if config is None:
            raise ConfigError("this memory has no observational memory; pass observational_memory=True")
        found = await self._whose(thread, resource)

        def change(log: ObservationLog) -> ObservationLog:
            overrides = {name: value for name, value in {**log.overrides, **options}.items() if value is not None}
            apply_overrides(config, overrides)
            return log if overrides == log.overrides else replace(log, overrides=overrides)

        return dict((await self._logs().update(found.id, found.resource_id, change)).overrides)

    def _moment(self, value: date | datetime) -> datetime:
        if not isinstance(cast(Any, value), date) or (isinstance(value, datetime) and value.tzinfo is None):
            raise InputError(f"date must be a datetime with a time zone, or a date, not {value!r}")
        if not isinstance(value, datetime):
            return datetime.combine(value, time.max, ZoneInfo(self.config.timezone) if self.config is not None else UTC)
        return value


def _place(source: Source) -> tuple[str, int]:
    return source.thread_id, source.first_seq


def _encode(row: Message) -> str:
    return urlsafe_b64encode(orjson.dumps([row.thread_id, seq_of(row)])).decode().rstrip("=")


def _decode(cursor: str) -> tuple[str, int]:
    """The place of the last message of a page. Raises InputError."""
    try:
        thread_id, seq = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return str(thread_id), int(seq)
    except (ValueError, TypeError) as error:
        raise InputError(f"not a cursor of sources: {cursor!r}") from error
