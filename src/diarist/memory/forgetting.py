"""The part of ``Memory`` that removes: messages with all that was made from them, diaries, threads."""

from __future__ import annotations

from collections.abc import Collection

from diarist.exceptions import ConflictError, InputError
from diarist.memory.addressing import Addressing
from diarist.memory.observational.log.coverage import seq_of
from diarist.memory.observational.log.edits import empty, tombstones_of
from diarist.memory.observational.log.log_store import MAX_ATTEMPTS, OTHER_THREADS, LogStore
from diarist.memory.observational.log.removal import (
    WHOLE,
    cut_notes,
    drop_stones,
    finish_removals,
    remove_rows,
    rows_between,
    threads_of,
)
from diarist.memory.receipt import Receipt
from diarist.memory.semantic.removal import lease_of
from diarist.messages import Message
from diarist.storage.codec import check_ids, check_names
from diarist.storage.records import ObservationLog, Resource, RowRef, Scope, Thread, Tombstone, WorkingMemory
from diarist.tokens import TokenCounter


class Forgetting(Addressing):
    """What people can remove from a memory."""

    counter: TokenCounter

    # -- forgetting

    async def forget(
        self,
        *,
        message_ids: Collection[str] | None = None,
        thread: str | None = None,
        resource: str | None = None,
    ) -> Receipt:
        """Remove messages of a thread (``message_ids`` and ``thread``), a whole thread, or all of a resource.

        With a message go all entries of the diary that were made from it, also in earlier generations; entries that
        say a word which of all messages only it says; a title that was made from it; texts of errors; and the memory
        notes sent after it, but for their date. Where a reflection was made from it, the entries that it replaced
        stand again, as far as they were made from other messages. What is raw again by this is observed anew. An entry
        that somebody took words out of is emptied instead, and goes on standing for its other messages.
        With a resource goes its working memory, too.

        Not removed: what other messages say, answers to a forgotten message included; what a run that is live has
        loaded already (its own messages are not found before it has ended); what left this storage.

        Calling it again removes what is left; messages, threads and resources that are not there are no error. What
        a crash cut short is finished by the next call, or when the thread is used next.

        Returns:
            What this call removed.

        Raises:
            InputError: Nothing is named, messages without a thread, or the thread is another resource's.
            StorageError: Some of it may be left; call it again.
        """
        check_names(thread=thread, resource=resource)
        if message_ids is not None and thread is None:
            raise InputError("message ids are unique within a thread: name it with thread=")
        if message_ids is not None:
            check_ids("message_ids", message_ids)
        if thread is not None:
            if await self.storage.get_thread(thread) is None:
                await self._delete_claims(thread, resource)
                receipt = await self._forget_vectors(resource=resource, thread=thread, message_ids=message_ids)
                await self.storage.purge()  # whoever removed it may have been cut short before that
                return receipt
            found = await self._thread(thread, resource)
            vectors = await self._forget_vectors(resource=found.resource_id, thread=thread, message_ids=message_ids)
            if message_ids is not None:
                receipt = await self._forget_messages(found, set(message_ids))
            else:
                receipt = await self._inventory(found) + await self._remove_thread(found)
            # Again: what was embedded in between.
            late = await self._forget_vectors(resource=found.resource_id, thread=thread, message_ids=message_ids)
            receipt += vectors + late
        elif resource is not None:
            vectors = await self._forget_vectors(resource=resource)
            receipt = await self._forget_resource(resource)
            receipt += vectors + await self._forget_vectors(resource=resource)
        else:
            raise InputError("name what to forget: message_ids= and thread=, thread=, or resource=")
        await self.storage.purge()
        return receipt

    async def delete_thread(self, thread: str, *, resource: str | None = None) -> None:
        """Remove a thread with its messages and its diary, and what the diary of its resource has from it.

        Raises NotFoundError, InputError.
        """
        found = await self._thread(thread, resource)
        await self._forget_vectors(resource=found.resource_id, thread=thread)
        await self._remove_thread(found)
        await self._forget_vectors(resource=found.resource_id, thread=thread)
        await self.storage.purge()

    async def _forget_vectors(
        self, *, resource: str | None, thread: str | None = None, message_ids: Collection[str] | None = None
    ) -> Receipt:
        """Remove what some messages of a thread, a thread or a resource are found by, and notes that quote them."""
        return Receipt()

    async def _embed_again(self, row: Message, *, says_else: bool) -> None:
        """Remove what a message that stays is found by, and make it anew in the background.

        ``says_else``: Its words are others now, so that notes which quote it are cut.
        """

    async def clear(self, *, thread: str | None = None, resource: str | None = None) -> None:
        """Remove the diary with its earlier generations, its events, and what memory notes say of it.

        The messages stay, all of them raw: they are observed anew as they become due. Overrides stay, too, and the
        title of the thread, also one that the Observer made; it replaces that when it finds another. With
        ``scope="resource"`` it is the diary of the resource, which may be named alone.

        Raises:
            NotFoundError: There is no such thread, or resource.
            InputError: The thread belongs to another resource, or a thread must be named.
        """
        found = await self._whose(thread, resource)
        log = await self._finished(found)
        if not log.version:
            return
        await self._logs().update(found.id, found.resource_id, empty)
        await self.storage.delete_generations(log.key)
        await self.storage.delete_events(log.key)
        threads = [found] if log.scope == "thread" else [t async for t in threads_of(self.storage, log.resource_id)]
        for other in threads:
            await cut_notes(self.storage, other.id, self.counter)

    async def _finished(self, thread: Thread) -> ObservationLog:
        """The log of a thread, after all removals that it tells of."""
        log = await self._logs().read(thread.id, thread.resource_id)
        return await finish_removals(self.storage, log, self.counter)

    async def _forget_messages(self, thread: Thread, ids: set[str]) -> Receipt:
        logs = await self._logs_with(thread)
        for log in logs:
            await finish_removals(self.storage, log, self.counter)
        receipt = Receipt()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            rows = await self._places(thread.id, ids)
            stones = tombstones_of(thread.id, [row.seq for row in rows])
            try:
                if stones:
                    logs = await self._logs_with(thread)
                    receipt += await remove_rows(self.storage, logs, stones, self.counter, rows=rows)
                break
            except ConflictError:  # somebody else removed some of them meanwhile: look what is left
                if attempt == MAX_ATTEMPTS:
                    raise
        return receipt

    async def _logs_with(self, thread: Thread) -> list[ObservationLog]:
        """The logs that may cover the thread: this memory's own, which need not be stored yet, and another one
        where the scope was changed."""
        mine = self._logs().key(thread.id, thread.resource_id)
        scopes: tuple[Scope, ...] = ("thread", "resource")
        logs = [await LogStore(self.storage, scope).read(thread.id, thread.resource_id) for scope in scopes]
        return [log for log in logs if log.version or log.key == mine]

    async def _places(self, thread_id: str, ids: set[str]) -> list[RowRef]:
        """Where these messages lie; those that are not there are left out."""
        wanted = await self.storage.existing_ids(thread_id, sorted(ids))
        places: list[RowRef] = []
        if wanted:
            async for row in rows_between(self.storage, thread_id):
                if row.id in wanted:
                    places.append(RowRef(thread_id, seq_of(row), row.id))
                if len(places) == len(wanted):
                    break
        return places

    # -- threads and resources

    async def _inventory(self, thread: Thread) -> Receipt:
        """What goes with a thread."""
        logs = [log for log in await self._logs_with(thread) if log.scope == "thread"]
        past = [old for log in logs for old in await self.storage.list_generations(log.key)]
        return Receipt(
            message_ids=tuple([row.id async for row in rows_between(self.storage, thread.id)]),
            observation_ids=tuple(dict.fromkeys(entry.id for log in (*past, *logs) for entry in log.entries)),
        )

    async def _remove_thread(self, thread: Thread) -> Receipt:
        shared = [log for log in await self._logs_with(thread) if log.scope == "resource"]
        stones = (Tombstone(thread_id=thread.id, first_seq=1, last_seq=WHOLE),)
        receipt = await remove_rows(self.storage, shared, stones, self.counter) if shared else Receipt()
        if await self.storage.delete_thread(thread.id):
            receipt += Receipt(thread_ids=(thread.id,))
        for log in shared:
            await drop_stones(self.storage, log, stones)
        await self._delete_claims(thread.id, thread.resource_id)
        return receipt

    async def _delete_claims(self, thread_id: str, resource_id: str | None) -> None:
        """Claims on work at a thread have its id in their names."""
        of_thread, of_resource = LogStore(self.storage, "thread"), LogStore(self.storage, "resource")
        names = [lease_of(thread_id)]
        names += [of_thread.job_name(thread_id, resource_id or "", work) for work in ("observation", "reflection")]
        if resource_id is not None:
            names.append(of_resource.job_name(thread_id, resource_id, "observation"))
        for name in names:
            await self.storage.delete_lease(name)

    async def _forget_resource(self, resource_id: str) -> Receipt:
        receipt = Receipt()
        for thread in [thread async for thread in threads_of(self.storage, resource_id)]:
            receipt += await self._inventory(thread)
            if await self.storage.delete_thread(thread.id):
                receipt += Receipt(thread_ids=(thread.id,))
            await self._delete_claims(thread.id, resource_id)
        logs = LogStore(self.storage, "resource")
        key = logs.key("", resource_id)
        log = await self.storage.get_log(key)
        past = await self.storage.list_generations(key)
        ids = tuple(dict.fromkeys(entry.id for old in (*past, *([log] if log else [])) for entry in old.entries))
        known = await self.storage.delete_log(key)
        await self.storage.delete_events(key)
        await self.storage.delete_lease(logs.job_name("", resource_id, "reflection"))
        await self.storage.delete_lease(logs.job_name(OTHER_THREADS, resource_id, "observation"))
        known |= await self._empty_resource(resource_id) or bool(receipt.thread_ids)
        return receipt + Receipt(observation_ids=ids, resource_ids=(resource_id,) if known else ())

    async def _empty_resource(self, resource_id: str) -> bool:
        """Leave nothing of the resource but its id; False where nothing was kept."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            found = await self.storage.get_resource(resource_id)
            working = await self.storage.get_working_memory(f"resource:{resource_id}")
            blank = Resource(id=resource_id, version=found.version)
            empty_working = WorkingMemory(key=working.key, version=working.version)
            if (found, working) == (blank, empty_working):
                return False
            try:
                await self.storage.save_resource(blank)
                await self.storage.save_working_memory(empty_working)
                return True
            except ConflictError:
                if attempt == MAX_ATTEMPTS:
                    raise
        return False
