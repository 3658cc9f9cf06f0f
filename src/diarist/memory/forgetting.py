"""Deletes messages, threads and resources, with all data made from them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from diarist.checks import check_ids, check_names
from diarist.concurrency import retry_on_conflict
from diarist.counting import count_messages
from diarist.exceptions import InputError, NotFoundError, ThreadBusyError
from diarist.memory.access import Access
from diarist.memory.divergence import EDITED_KEY
from diarist.memory.observational.log.edits import tombstones_of
from diarist.memory.observational.log.log_store import OTHER_THREADS, LogStore, logs_of
from diarist.memory.observational.log.removal import WHOLE, drop_stones, finish_removals, remove_rows, remove_traces
from diarist.memory.observational.recall_tool import RecallQuotes
from diarist.memory.receipt import Receipt
from diarist.memory.rows import rows_between, seq_of, threads_of
from diarist.memory.run_lifecycle import RUN_TTL, check_owner
from diarist.memory.semantic.removal import lease_of
from diarist.messages import Message
from diarist.storage.records import (
    Forgotten,
    ObservationLog,
    Resource,
    RowRef,
    Run,
    Thread,
    Tombstone,
    WorkingMemory,
    own_resource,
)

logger = logging.getLogger("diarist")


class Forgetting:
    """Deletes messages, threads and resources, with all data made from them."""

    def __init__(self, access: Access) -> None:
        self._access, self._embedding = access, access.embedding
        self.storage, self.counter = access.storage, access.counter

    async def forget(
        self,
        *,
        message_ids: Collection[str] | None = None,
        thread: str | None = None,
        resource: str | None = None,
        purge: bool = True,
    ) -> Receipt:
        """Delete data; see ``Memory.forget``. ``purge=False``: the caller purges the files afterwards."""
        check_names(thread=thread, resource=resource)
        if message_ids is not None and thread is None:
            raise InputError("message_ids needs thread=, since message ids are unique only within a thread")
        if message_ids is not None:
            check_ids("message_ids", message_ids)
        if thread is None and resource is None:
            raise InputError("pass the data to forget: message_ids= and thread=, only thread=, or resource=")
        found = None if thread is None else await self.storage.get_thread(thread, hidden=True)
        if found is not None and resource is not None:
            check_owner(found, resource)
        owner = resource if found is None else found.resource_id
        if found is not None and (left := await self._reveal(found)):
            return Receipt(left_on_disk=(left,))
        if found is not None and message_ids is not None:
            message_ids = await self._with_edits(found.id, message_ids)
        receipt = await self._embedding.forget(resource=owner, thread=thread, message_ids=message_ids)
        if thread is None:
            receipt += await self._forget_resource(str(resource))
        elif found is None:  # an earlier call may have deleted the thread, but not its leases
            await self._delete_claims(thread, resource)
        elif message_ids is not None:
            receipt += await self._forget_messages(found, message_ids)
        else:
            receipt += await self._forget_thread(found)
        if thread is not None and message_ids is None:  # no other thread can use its implicit resource
            receipt += replace(await self._forget_resource(own_resource(thread)), resource_ids=())
        # Again, for messages embedded since the first removal.
        receipt += await self._embedding.forget(resource=owner, thread=thread, message_ids=message_ids)
        if thread is not None and owner is not None:
            quoted = found or Thread(id=thread, resource_id=owner)
            receipt += await self.empty_recalls(quoted, message_ids, title=thread in receipt.title_ids)
        return receipt + await self.purge() if purge else receipt

    async def purge(self) -> Receipt:
        """Remove deleted data from files too; the receipt lists the files that may still contain some."""
        left = await self.storage.purge()
        return Receipt(left_on_disk=(*left, *await self._embedding.purge()))

    async def finish_deletions(self, thread: Thread) -> ObservationLog:
        """Complete interrupted deletions of a thread, and return its log."""
        log = await self._access.logs.read(thread.id, thread.resource_id)
        return await finish_removals(self.storage, log)

    async def rewrite(
        self, run: Run, thread: Thread, row: Message, new: Message, *, says_else: bool, embedded: bool = True
    ) -> None:
        """Store ``new`` in place of a message, and delete all data made from its old content.

        ``run``: holds the thread. ``says_else``: the content has changed, not only the metadata. ``embedded``: False if
        no embedded text has changed, such as in a tool's result.
        """
        await count_messages([new], self.counter)

        async def forget_old() -> None:
            if says_else:
                await remove_traces(self.storage, await self.logs_with(thread), row)
            if embedded:
                await self._embedding.replace(row, says_else=says_else)

        await self.finish_deletions(thread)
        if says_else:  # a client that still has the old words may send them again
            await self.storage.note_forgotten(thread.id, [Forgotten(seq_of(row), row.id, row.role)])
        await forget_old()  # before the change: after a crash, no data made from the old words is left
        await self.storage.rewrite_messages(run, [new])
        await forget_old()  # again, for data made between the first call and the change

    async def empty_recalls(self, thread: Thread, ids: Collection[str] | None, *, title: bool = False) -> Receipt:
        """Empty the results of ``recall`` that quote any message of a thread or, with ``ids``, these forgotten ones.

        Superseded messages with such a result are deleted. A thread with a live run keeps its results, and is named in
        the receipt. ``title``: also results with the thread's title.
        """
        forgotten = [] if ids is None else await self.storage.list_forgotten(thread.id)
        seqs = None if ids is None else {message.seq for message in forgotten if message.id in ids}
        receipt = Receipt()
        if seqs is not None and not seqs:
            return receipt
        since = thread.created_at
        for other in [other async for other in threads_of(self.storage, thread.resource_id)]:
            if since is not None and other.updated_at is not None and other.updated_at < since:
                continue
            quote = RecallQuotes(thread.id, seqs, own=other.id == thread.id, title=title)
            rows = [row async for row in rows_between(self.storage, other.id) if quote.is_in(row)]
            old = [one.message.id for one in await self.storage.list_superseded(other.id) if quote.is_in(one.message)]
            if rows:
                receipt += await self._empty(other, rows, quote)
            if old:
                receipt += await self._forget_superseded(other.id, old)
        return receipt

    async def _empty(self, thread: Thread, rows: Sequence[Message], quote: RecallQuotes) -> Receipt:
        try:
            async with self._access.hold(thread, adds=False, wait=0) as run:
                now = await self.rows_with(thread.id, [row.id for row in rows])  # others may have changed them since
                rows = [row for row in now if quote.is_in(row)]
                for row in rows:
                    await self.rewrite(run, thread, row, quote.emptied(row), says_else=True, embedded=False)
        except NotFoundError:  # the thread was deleted
            return Receipt()
        except ThreadBusyError:
            left = (
                f"thread {thread.id!r} has a live run, so its results of recall still quote what was forgotten;"
                f" repeat this call when the run has ended, or {RUN_TTL:g} seconds after its process died"
            )
            logger.warning(left)
            return Receipt(left_on_disk=(left,))
        return Receipt(note_ids=tuple([row.id for row in rows]))

    async def _with_edits(self, thread_id: str, ids: Collection[str]) -> set[str]:
        """Return these ids, and those of the messages that were stored when a client edited a message with such an
        id."""
        rows = [row async for row in rows_between(self.storage, thread_id) if EDITED_KEY in row.metadata]
        rows += [one.message for one in await self.storage.list_superseded(thread_id)]
        found = set(ids)
        for row in sorted(rows, key=seq_of):  # an edit may be edited
            if row.metadata.get(EDITED_KEY) in found:
                found.add(row.id)
        return found

    async def _forget_messages(self, thread: Thread, ids: Collection[str]) -> Receipt:
        for log in await self.logs_with(thread):
            await finish_removals(self.storage, log)

        async def remove() -> Receipt:
            rows = await self.rows_with(thread.id, ids)
            if not rows:
                return Receipt()
            # Before the deletion: a client that resends its history now must not restore the messages.
            await self._note_forgotten(thread.id, rows)
            stones = tombstones_of(thread.id, [seq_of(row) for row in rows])
            refs = [RowRef(thread.id, seq_of(row), row.id) for row in rows]
            return await remove_rows(self.storage, await self.logs_with(thread), stones, rows=refs)

        receipt = await retry_on_conflict(remove)  # another call may remove some of the messages in between
        return receipt + await self._forget_superseded(thread.id, ids)

    async def _forget_superseded(self, thread_id: str, ids: Collection[str]) -> Receipt:
        """Delete messages that are not on the active branch. Nothing else was made from them: it is gone since they
        were superseded."""
        rows = [one.message for one in await self.storage.list_superseded(thread_id) if one.message.id in ids]
        if not rows:
            return Receipt()
        await self._note_forgotten(thread_id, rows)
        await self.storage.delete_messages(thread_id, [row.id for row in rows])
        return Receipt(message_ids=tuple([row.id for row in rows]))

    async def _note_forgotten(self, thread_id: str, rows: Sequence[Message]) -> None:
        """Record messages as forgotten, also under the ids that clients have for them."""
        ids = [(row, row.id) for row in rows]
        ids += [(row, row.metadata[EDITED_KEY]) for row in rows if EDITED_KEY in row.metadata]
        await self.storage.note_forgotten(thread_id, [Forgotten(seq_of(row), known, row.role) for row, known in ids])

    async def logs_with(self, thread: Thread) -> list[ObservationLog]:
        """Return the logs that may cover the thread: this memory's own, stored or not, and the one of the other scope
        if that log is stored."""
        mine = self._access.logs.key(thread.id, thread.resource_id)
        return [log for log in await logs_of(self.storage, thread) if log.version or log.key == mine]

    async def rows_with(self, thread_id: str, ids: Collection[str]) -> list[Message]:
        """Return the stored messages with these ids."""
        wanted = await self.storage.existing_ids(thread_id, sorted(ids))
        found: list[Message] = []
        if wanted:
            async for row in rows_between(self.storage, thread_id):
                if row.id in wanted:
                    found.append(row)
                if len(found) == len(wanted):
                    break
        return found

    # -- threads and resources

    async def _forget_thread(self, thread: Thread) -> Receipt:
        """Remove a thread from the diary that it shares with others, if any, and delete it."""
        receipt = Receipt()
        shared = [log for log in await self.logs_with(thread) if log.scope == "resource"]
        stones = (Tombstone(thread_id=thread.id, first_seq=1, last_seq=WHOLE),)
        if shared:
            receipt += await remove_rows(self.storage, shared, stones)
        receipt += await self._delete_thread(thread)
        for log in shared:
            await drop_stones(self.storage, log, stones)
        return receipt

    async def _delete_thread(self, thread: Thread) -> Receipt:
        """Delete a thread with its diaries and leases; the receipt lists all data deleted with it."""
        logs = [log for log in await self.logs_with(thread) if log.scope == "thread"]
        past = [old for log in logs for old in await self.storage.list_generations(log.key)]
        active = [row.id async for row in rows_between(self.storage, thread.id)]
        superseded = [one.message.id for one in await self.storage.list_superseded(thread.id)]
        receipt = Receipt(
            message_ids=tuple(dict.fromkeys(active + superseded)),
            observation_ids=tuple(dict.fromkeys(entry.id for log in (*past, *logs) for entry in log.entries)),
        )
        if await self.storage.delete_thread(thread.id):
            receipt += Receipt(thread_ids=(thread.id,))
        await self._delete_claims(thread.id, thread.resource_id)
        return receipt

    async def _reveal(self, thread: Thread) -> str:
        """End the first run of a hidden thread if its process died, which makes the thread visible. If the run is live,
        return a sentence for the receipt, since its messages are stored when it ends; else return an empty text."""
        if await self.storage.get_thread(thread.id) is not None:
            return ""
        try:
            async with self._access.hold(thread, adds=False, wait=0):
                return ""
        except ThreadBusyError:
            return (
                f"thread {thread.id!r} has a live first run and was left alone; forget it again when the run has ended,"
                f" or {RUN_TTL:g} seconds after its process died"
            )

    async def _delete_claims(self, thread_id: str, resource_id: str | None) -> None:
        """Delete the leases for work on a thread: their names contain the thread's id."""
        of_thread, of_resource = LogStore(self.storage, "thread"), LogStore(self.storage, "resource")
        names = [lease_of(thread_id)]
        names += [of_thread.job_name(thread_id, resource_id or "", work) for work in ("observation", "reflection")]
        if resource_id is not None:
            names.append(of_resource.job_name(thread_id, resource_id, "observation"))
        for name in names:
            await self.storage.delete_lease(name)

    async def _forget_resource(self, resource_id: str) -> Receipt:
        receipt = Receipt()
        for thread in [thread async for thread in threads_of(self.storage, resource_id, hidden=True)]:
            if left := await self._reveal(thread):
                receipt += Receipt(left_on_disk=(left,))
            else:
                receipt += await self._delete_thread(thread)
        logs = LogStore(self.storage, "resource")
        key = logs.key("", resource_id)
        log = await self.storage.get_log(key)
        past = await self.storage.list_generations(key)
        ids = tuple(dict.fromkeys(entry.id for old in (*past, *([log] if log else [])) for entry in old.entries))
        known = await self.storage.delete_log(key)
        await self.storage.delete_events(key)
        await self.storage.delete_lease(logs.job_name("", resource_id, "reflection"))
        await self.storage.delete_lease(logs.job_name(OTHER_THREADS, resource_id, "observation"))

        async def empty() -> bool:
            found = await self.storage.get_resource(resource_id)
            working = await self.storage.get_working_memory(f"resource:{resource_id}")
            blank = Resource(id=resource_id, version=found.version)
            empty_working = WorkingMemory(key=working.key, version=working.version)
            if found != blank:
                await self.storage.save_resource(blank)
            if working != empty_working:
                await self.storage.save_working_memory(empty_working)
            return (found, working) != (blank, empty_working)

        known |= await retry_on_conflict(empty) or bool(receipt.thread_ids)
        return receipt + Receipt(observation_ids=ids, resource_ids=(resource_id,) if known else ())
