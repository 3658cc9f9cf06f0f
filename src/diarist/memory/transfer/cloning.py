"""Copies a thread inside a storage, whole or in part, with its diary."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from diarist.exceptions import ConflictError, NotFoundError
from diarist.memory.generated_titles import MARK, made_from, mark_of
from diarist.memory.memory_note import keep_date
from diarist.memory.message_filter import MessageFilter
from diarist.memory.observational.log.coverage import as_digest, hash_row
from diarist.memory.observational.log.transitions import derive_hints
from diarist.memory.rows import seq_of
from diarist.memory.transfer.format import DiaryLogs, WorkingText
from diarist.memory.transfer.numbering import map_entries
from diarist.memory.transfer.thread_reader import ThreadReader, read_working_memory
from diarist.memory.transfer.thread_writer import written
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import Failures, Forgotten, Observation, ObservationLog, Thread
from diarist.tokens import TokenCounter


async def clone(
    storage: Storage,
    counter: TokenCounter,
    source: Thread,
    copy: Thread,
    wanted: MessageFilter,
    limit: int | None,
) -> Thread:
    """Create ``copy``, a new thread with the ``wanted`` messages of ``source``, or with the newest ``limit`` of them.

    ``copy`` belongs to the same resource as ``source``, or to none if ``source`` belongs to none.
    """
    if wanted.ids is not None:
        known = await storage.existing_ids(source.id, sorted(wanted.ids))
        if missing := sorted(wanted.ids - known):
            raise NotFoundError(f"thread {source.id!r} has no message {missing[0]!r}")
    target = copy
    if MARK in copy.metadata and (origin := made_from(source)) is not None:
        target = replace(copy, metadata={**copy.metadata, **mark_of(copy.title, _copied_id(copy.id, origin))})
    reader = ThreadReader(storage, source, wanted, limit)
    numbering = reader.numbering
    sums = [0]
    async with written(storage, counter, target) as writer:
        async for item in reader.content():
            match item:
                case Message():
                    sent = item.sent
                    if sent is not None and not (wanted.takes_all and limit is None):
                        sent = keep_date(sent)  # it may quote messages that are not copied
                    row = replace(item, id=_copied_id(copy.id, item.id), sent=sent)
                    sums.append(sums[-1] + hash_row(row))
                    await writer.add(row)
                case Forgotten():
                    await writer.add(item._replace(id=_copied_id(copy.id, item.id)))
                case DiaryLogs():
                    await writer.add(DiaryLogs(tuple(_copied_log(log, copy.id, sums) for log in item.logs)))
                case WorkingText():
                    await writer.add(item)
        if source.resource_id != copy.resource_id:
            text = await read_working_memory(storage, f"resource:{source.resource_id}")
            if text:
                await writer.put_working_memory(text, key=f"resource:{copy.resource_id}")
        left = sum([taken and seq_of(row) <= numbering.end async for row, taken in reader.rows()])
        if left != len(numbering.copied):
            raise ConflictError(f"messages of thread {source.id!r} were removed while it was copied; try again")
        return await storage.get_thread(copy.id, hidden=True) or copy


def _copied_id(thread_id: str, message_id: str) -> str:
    """Return the id that a message gets in a copied thread: always the same one."""
    digest = hashlib.sha256(f"{thread_id}\0{message_id}".encode("utf-8", "surrogatepass"))
    return f"msg_{digest.hexdigest()[:32]}"


def _copied_log(log: ObservationLog, thread_id: str, sums: Sequence[int]) -> ObservationLog:
    """Convert a renumbered log to the log of a copied thread.

    Args:
        sums: For each number of copied rows, the sum of their hashes, so that each range has its digest at once.
    """

    def copied(entry: Observation) -> Observation:
        sources = [
            replace(one, thread_id=thread_id, digest=as_digest(sums[one.last_seq] - sums[one.first_seq - 1]))
            for one in entry.sources
        ]
        citations = tuple(tuple(_copied_id(thread_id, cited) for cited in line) for line in entry.citations)
        return replace(entry, sources=tuple(sources), citations=citations)

    changed = map_entries(log, copied)
    return replace(
        changed,
        key=f"thread:{thread_id}",
        version=0,
        hints=derive_hints(changed.entries),
        observer_failures=Failures(),
        reflector_failures=Failures(),
        erasures=0,
    )
