"""Memory notes with recalled messages, and removal of notes that quote deleted messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from diarist.memory.memory_note import keep_date, note_block, quote
from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.roles.transcript import local_time, shorten, speaker
from diarist.memory.rows import rows_of_all_branches, threads_of
from diarist.memory.semantic.index import MessageKey, message_key
from diarist.messages import Message, SentBlock
from diarist.storage.base import Storage
from diarist.tokens import TokenCounter

NAME = "recalled"
_NEIGHBOUR_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Recalled:
    """A message found by the search, and its neighbours in order. ``excerpt``: the part to show."""

    found: Message
    rows: Sequence[Message]
    excerpt: str


def told(messages: Iterable[Message]) -> set[MessageKey]:
    """Return the keys of these messages and of the messages that their notes quote."""
    found: set[MessageKey] = set()
    for message in messages:
        found.add(message_key(message))
        found |= _quoted(message.sent)
    return found


def recall_note(
    recalled: Sequence[Recalled], *, own: str, timezone: str, obscured: bool, max_tokens: int, counter: TokenCounter
) -> SentBlock | None:
    """Return a note with as many of the nearest messages as fit, dated and grouped by thread; None without any."""
    for count in range(len(recalled), 0, -1):
        block = _note(recalled[:count], own, ZoneInfo(timezone), obscured, counter)
        if block.tokens <= max_tokens:
            return block
        if count == 1:  # shorten each message
            lines = block.text.splitlines()
            room = max(20, max_tokens * 2 // (len(lines) - 2))  # a token has two characters or more
            text = "\n".join([shorten(line, room) if line.startswith("- ") else line for line in lines])
            return SentBlock(text=text, tokens=counter.count(text), made_from=block.made_from)
    return None


def _note(recalled: Sequence[Recalled], own: str, zone: ZoneInfo, obscured: bool, counter: TokenCounter) -> SentBlock:
    rows = {message_key(row): row for one in recalled for row in one.rows}
    excerpts = {message_key(one.found): one.excerpt for one in recalled}
    lines: list[str] = []
    for thread_id in dict.fromkeys(thread for thread, _ in rows):
        label = thread_label(thread_id, obscured=obscured)
        other = f"in another conversation with the same user ({label})"
        where = "earlier in this conversation" if thread_id == own else other
        lines.append(f"Said {where}, and perhaps of use now:")
        of_thread = sorted((row for row in rows.values() if row.thread_id == thread_id), key=lambda row: row.seq or 0)
        for row in of_thread:
            excerpt = excerpts.get(message_key(row))
            text = " ".join((row.text if excerpt is None else excerpt).split())
            text = shorten(text, _NEIGHBOUR_LENGTH) if excerpt is None else text
            said = local_time(row, zone)
            lines.append(f"- {f'{said:%Y-%m-%d %H:%M}' if said else 'date unknown'} {speaker(row)}: {quote(text)}")
    return note_block(NAME, [list(key) for key in rows], lines, counter)


def _quoted(block: SentBlock | None) -> set[MessageKey]:
    return {(key[0], key[1]) for key in block.made_from.get(NAME, ())} if block is not None else set()


async def quotes_what_is_gone(storage: Storage, block: SentBlock) -> bool:
    """Return True if a note quotes a message that is no longer stored."""
    quoted = _quoted(block)
    for thread_id in {thread for thread, _ in quoted}:
        ids = [message_id for thread, message_id in quoted if thread == thread_id]
        if len(await storage.existing_ids(thread_id, ids)) < len(ids):
            return True
    return False


async def cut_quotes(
    storage: Storage,
    resource_id: str,
    thread_id: str,
    message_ids: Collection[str] | None = None,
) -> list[str]:
    """Find the notes of a resource that quote this thread (or only these messages of it), and reduce them to the date.

    Returns the ids of the messages that the notes were sent with.
    """
    cut: list[str] = []
    async for thread in threads_of(storage, resource_id):
        blocks: dict[str, SentBlock | None] = {}
        async for row in rows_of_all_branches(storage, thread.id):
            quoted = {id for where, id in _quoted(row.sent) if where == thread_id}
            if row.id in blocks or (quoted if message_ids is None else not quoted.isdisjoint(message_ids)):
                blocks[row.id] = None if row.sent is None else keep_date(row.sent)
        if blocks:
            await storage.rewrite_sent(thread.id, blocks)
            cut += blocks
    return cut
