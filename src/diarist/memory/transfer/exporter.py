"""Exports threads page by page, so that memory use does not grow with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from diarist.memory.observational.log.removal import finish_removals
from diarist.memory.rows import threads_of
from diarist.memory.transfer.format import Item, WholeResource
from diarist.memory.transfer.numbering import Numbering
from diarist.memory.transfer.thread_reader import ThreadReader, read_diary, read_working_memory
from diarist.messages import Json
from diarist.storage.base import Storage
from diarist.storage.records import Thread
from diarist.tokens import TokenCounter


async def thread_items(
    storage: Storage, counter: TokenCounter, thread: Thread, numberings: dict[str, Numbering] | None = None
) -> AsyncIterator[Item]:
    """Yield a thread and everything in it; add its numbering to ``numberings``."""
    for key in (f"thread:{thread.id}", f"resource:{thread.resource_id}"):
        if (head := await storage.get_log(key)) is not None:
            await finish_removals(storage, head, counter)
    yield thread
    reader = ThreadReader(storage, thread)
    if numberings is not None:
        numberings[thread.id] = reader.numbering
    async for item in reader.content():
        yield item


async def all_items(
    storage: Storage, counter: TokenCounter, resource: str | None, metadata: Mapping[str, Json] | None
) -> AsyncIterator[Item]:
    """Yield all threads, of one resource or of all. With ``metadata`` only matching threads, and no data of
    resources."""
    owners: dict[str, None] = {} if resource is None else {resource: None}
    if resource is None:  # newest thread first, then the resources with data but no threads
        async for thread in threads_of(storage, None, metadata):
            owners[thread.resource_id] = None
        cursor: str | None = None
        while metadata is None:
            page = await storage.list_resources(cursor=cursor)
            owners |= dict.fromkeys(page.items)
            cursor = page.cursor
            if cursor is None:
                break
    for owner in owners:
        numberings: dict[str, Numbering] = {}
        async for thread in threads_of(storage, owner, metadata):
            async for item in thread_items(storage, counter, thread, numberings):
                yield item
        if metadata is not None:
            continue
        key = f"resource:{owner}"
        whole = WholeResource(
            id=owner,
            metadata=(await storage.get_resource(owner)).metadata,
            working_memory=await read_working_memory(storage, key),
            logs=tuple(await read_diary(storage, key, numberings)),
        )
        if whole.metadata or whole.working_memory or whole.logs:
            yield whole
