"""Copies a thread inside a storage, whole or in part, with its diary."""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from diarist.concurrency import being_cancelled, shield_until_done
from diarist.exceptions import ConflictError, NotFoundError, StorageError
from diarist.memory.generated_titles import MARK, made_from, mark_of
from diarist.memory.memory_note import keep_date
from diarist.memory.observational.log.coverage import as_digest, hash_row
from diarist.memory.observational.log.transitions import derive_hints
from diarist.memory.rows import seq_of
from diarist.memory.transfer.numbering import map_entries
from diarist.memory.transfer.thread_reader import Selection, ThreadReader, read_working_memory
from diarist.memory.transfer.thread_writer import PAGE, written
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import Failures, Forgotten, Observation, ObservationLog, Thread
from diarist.tokens import TokenCounter

logger = logging.getLogger("diarist")


async def clone(
    storage: Storage,
    counter: TokenCounter,
    source: Thread,
    copy: Thread,
    selection: Selection,
    *,
    withdraw: Callable[[Thread], Awaitable[None]],
) -> Thread:
    """Create ``copy``, a new thread with the selected messages of ``source``.

    ``copy`` belongs to the same resource as ``source``, or to none if ``source`` belongs to none.

    Args:
        withdraw: Called after a failed copy was removed, to remove data derived from it, such as vectors.
    """
    if selection.ids is not None:
        known = await storage.existing_ids(source.id, sorted(selection.ids))
        if missing := sorted(selection.ids - known):
            raise NotFoundError(f"thread {source.id!r} has no message {missing[0]!r}")
    renaming = _Renaming(copy.id)
    target = copy
    if MARK in copy.metadata and (origin := made_from(source)) is not None:
        target = replace(copy, metadata={**copy.metadata, **mark_of(copy.title, renaming.message_id(origin))})
    reader = ThreadReader(storage, source, selection)
    numbering = reader.numbering
    async with written(storage, counter, target) as writer:
        async for item in reader.content():
            match item:
                case Message():
                    sent = item.sent
                    if sent is not None and not selection.takes_all:
                        sent = keep_date(sent, counter)  # it may quote messages that are not copied
                    await writer.add(replace(item, id=renaming.message_id(item.id), sent=sent))
                case Forgotten():
                    await writer.add(item._replace(id=renaming.message_id(item.id)))
                case _:
                    await writer.add(item)
        await writer.flush()
        if writer.logs:  # the copied rows have new ids, so the sources of the entries need new digests
            sums = _Sums()
            while rows := await storage.list_messages(copy.id, after=sums.end, limit=PAGE, run_id=writer.run.id):
                sums.add(rows)
            writer.logs = [renaming.log(log, sums) for log in writer.logs]
        if source.resource_id != copy.resource_id:
            text = await read_working_memory(storage, f"resource:{source.resource_id}")
            if text:
                await writer.put_working_memory(text, key=f"resource:{copy.resource_id}")

    try:
        left = sum([taken and seq_of(row) <= numbering.end async for row, taken in reader.rows()])
        if left != numbering.count:
            raise ConflictError(f"messages of thread {source.id!r} were removed while it was copied; try again")
        found = await storage.get_thread(copy.id)
        if found is None:
            raise NotFoundError(f"thread {copy.id!r} was deleted right after it was created")
        return found
    except BaseException:
        await shield_until_done(_give_up(storage, copy, withdraw), hurried=being_cancelled())
        raise


async def _give_up(storage: Storage, copy: Thread, withdraw: Callable[[Thread], Awaitable[None]]) -> None:
    """Remove a copy that is already visible. The caller then raises the error that made it fail.

    Vectors are removed last. If a process is still embedding the copy, it finds that the thread is gone and removes the
    vectors that it wrote.
    """
    try:
        await storage.delete_thread(copy.id)
    except StorageError as error:
        logger.warning("the copy %s failed, and cannot be removed: %s", copy.id, error)
        return
    await withdraw(copy)


class _Sums:
    """The sums of the hashes of the first rows of a thread, in order, so that each range has its digest at once."""

    def __init__(self) -> None:
        self._seqs, self._sums = [0], [0]

    @property
    def end(self) -> int:
        return self._seqs[-1]

    def add(self, rows: Sequence[Message]) -> None:
        for row in rows:
            self._seqs.append(seq_of(row))
            self._sums.append(self._sums[-1] + hash_row(row))

    def digest(self, first: int, last: int) -> str:
        return as_digest(self._until(last) - self._until(first - 1))

    def _until(self, seq: int) -> int:
        return self._sums[bisect_right(self._seqs, seq) - 1]


class _Renaming:
    """Maps ids to those of a copied thread. The same id of the same copy always gets the same new id."""

    def __init__(self, target: str) -> None:
        self._target = target

    def message_id(self, old: str) -> str:
        return f"msg_{_hash(self._target, old)[:32]}"

    def log(self, log: ObservationLog, sums: _Sums) -> ObservationLog:
        """Convert a renumbered log to the log of the copy. ``sums``: of the copied rows."""

        def entry(old: Observation) -> Observation:
            sources = [
                replace(source, thread_id=self._target, digest=sums.digest(source.first_seq, source.last_seq))
                for source in old.sources
            ]
            return replace(
                old,
                id=self._entry_id(old.id),
                cycle_id=self._cycle(old.cycle_id),
                sources=tuple(sources),
                citations=tuple(tuple(self.message_id(cited) for cited in line) for line in old.citations),
            )

        renamed = map_entries(log, entry)
        pending = renamed.reflection
        if pending is not None:
            replaces = tuple(old._replace(id=self._entry_id(old.id)) for old in pending.replaces)
            pending = replace(pending, replaces=replaces)
        return replace(
            renamed,
            key=f"thread:{self._target}",
            version=0,
            hints=derive_hints(renamed.entries),
            reflection=pending,
            suppressed=tuple(self._cycle(cycle) for cycle in log.suppressed),
            observer_failures=Failures(),
            reflector_failures=Failures(),
            erasures=0,
        )

    def _entry_id(self, old: str) -> str:
        prefix, _, cycle = old.partition("_")
        return f"{prefix}_{self._cycle(cycle)}"

    def _cycle(self, old: str) -> str:
        return _hash(f"thread:{self._target}", old)[:24]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
