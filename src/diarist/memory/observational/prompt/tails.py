"""Tails: what was said last in other threads of the resource, as far as the shared diary does not cover it yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from diarist.memory.observational.log.coverage import Coverage
from diarist.memory.observational.prompt.threads import thread_label
from diarist.memory.observational.roles.transcript import shorten
from diarist.memory.rows import seq_of
from diarist.storage.base import Storage
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter

TAIL_THREADS = 3
"""Number of threads to show: the most recently used of the newest hundred."""
TAIL_ROWS = 4
"""Number of newest messages of each thread to show."""
TAIL_SHARE = 0.05
"""Size of all tails together, as a share of ``message_tokens``."""
_LINE = 240
"""Characters of a message to show."""
_NEWEST_THREADS = 100
_BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest messages of another thread that the diary does not cover yet. ``label`` names the thread."""

    label: str
    lines: list[str]

    @property
    def heading(self) -> str:
        return f"Said in another conversation with the same user ({self.label}), which is not this one:"


async def read_tails(
    storage: Storage,
    log: ObservationLog,
    thread_id: str,
    *,
    message_tokens: int,
    counter: TokenCounter,
    obscured: bool,
) -> list[Tail]:
    """Return the tails of the threads that share the log, without the current one.

    The newest lines of each thread have priority. Raises StorageError if a thread cannot be read.

    Args:
        thread_id: The current thread.
        obscured: Name the threads by a hash of their ids.
    """
    tails, room = list[Tail](), TAIL_SHARE * message_tokens
    page = await storage.list_threads(resource_id=log.resource_id, limit=_NEWEST_THREADS)
    others = [thread for thread in page.items if thread.id != thread_id]
    others.sort(key=lambda thread: thread.updated_at or thread.created_at or _BEGINNING, reverse=True)
    for thread in others[:TAIL_THREADS]:
        coverage = Coverage(log.active, thread.id)
        tail = Tail(thread_label(thread.id, obscured=obscured), [])
        left = room - counter.count(tail.heading)
        for row in await storage.list_messages(thread.id, limit=TAIL_ROWS, newest_first=True):
            if seq_of(row) in coverage or not row.text.strip():
                continue
            speaker = {"user": "User", "assistant": "Assistant"}.get(row.role, "Tool")
            line = f"{speaker}: {shorten(' '.join(row.text.split()), _LINE)}"
            left -= counter.count(line)
            if left < 0:
                break
            tail.lines.insert(0, line)
            room = left
        if tail.lines:
            tails.append(tail)
    return tails
