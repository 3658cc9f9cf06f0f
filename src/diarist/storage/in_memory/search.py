"""Full-text search in memory, which reads every message of the resource."""

from __future__ import annotations

from diarist.checks import check_limit
from diarist.messages import Message
from diarist.storage.base import SearchStorage
from diarist.storage.codec import decode_message
from diarist.storage.in_memory.conversations import InMemoryConversations
from diarist.storage.records import Hit, Page
from diarist.storage.search_cursors import Place, decode_place, encode_place
from diarist.storage.words import make_hit, message_terms, query_terms


class InMemorySearch(InMemoryConversations, SearchStorage):
    async def search_messages(
        self,
        query: str,
        *,
        resource_id: str,
        thread_id: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Hit]:
        terms, limit, after = query_terms(query), check_limit(limit, least=1), decode_place(cursor)
        with self._lock:
            rows = [
                (position, thread.messages[seq], thread.row.id)
                for thread in self._threads.values()
                if thread.row.resource_id == resource_id and thread_id in (None, thread.row.id)
                for seq, position in thread.positions.items()
                if position < after.position
            ]
        found: list[tuple[int, Message]] = []
        for position, row, thread in sorted(rows, reverse=True):
            message = decode_message(row, thread_id=thread, resource_id=resource_id)
            if message_terms(message).issuperset(terms):
                found.append((position, message))
                if len(found) > limit:
                    break
        more = len(found) > limit
        return Page(
            items=[make_hit(message, terms) for _, message in found[:limit]],
            cursor=encode_place(Place(found[limit - 1][0], 0)) if more else None,
        )
