"""Copies a thread inside a storage, whole or in part, with its diary."""

from __future__ import annotations

from dataclasses import replace

from diarist.exceptions import ConflictError, NotFoundError
from diarist.memory.memory_note import keep_date
from diarist.memory.message_filter import MessageFilter
from diarist.memory.observational.log.transitions import derive_hints
from diarist.memory.rows import seq_of
from diarist.memory.transfer.format import Diary
from diarist.memory.transfer.numbering import map_entries
from diarist.memory.transfer.thread_reader import ThreadReader, read_working_memory
from diarist.memory.transfer.thread_writer import written
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import Failures, Observation, ObservationLog, Thread
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
    is_part = not wanted.takes_all or limit is not None
    reader = ThreadReader(storage, source, wanted, limit)
    numbering = reader.numbering
    async with written(storage, counter, copy) as writer:
        async for item in reader.content():
            match item:
                case Message() if item.sent is not None and is_part:
                    # The note may quote messages that are not copied.
                    await writer.add(replace(item, sent=keep_date(item.sent, counter)))
                case Diary():
                    await writer.add(Diary(tuple(_copied_log(log, copy.id) for log in item.logs)))
                case _:
                    await writer.add(item)
        if source.resource_id != copy.resource_id:
            text = await read_working_memory(storage, f"resource:{source.resource_id}")
            if text:
                await writer.put_working_memory(text, key=f"resource:{copy.resource_id}")
        left = sum([taken and seq_of(row) <= numbering.end async for row, taken in reader.rows()])
        if left != len(numbering.copied):
            raise ConflictError(f"messages of thread {source.id!r} were removed while it was copied; try again")
        return await storage.get_thread(copy.id, hidden=True) or copy


def _copied_log(log: ObservationLog, thread_id: str) -> ObservationLog:
    """Convert a renumbered log to the log of a copied thread."""

    def copied(entry: Observation) -> Observation:
        return replace(entry, sources=tuple(replace(source, thread_id=thread_id) for source in entry.sources))

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
