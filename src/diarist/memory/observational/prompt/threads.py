"""Labels of threads in prompts and notes, in resource scope."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from diarist.messages import Message

_UNSAFE = re.compile(r"[\s()<>\[\]]+")
_NAMED = re.compile(r"^Date:.*\(thread [^\s()]+\)", re.MULTILINE)
_LENGTH = 10


def obscure(thread_id: str) -> str:
    """Return a stable hash of a thread id, in ten hex digits. It does not reveal the id."""
    return hashlib.sha256(thread_id.encode()).hexdigest()[:_LENGTH]


def thread_label(thread_id: str, *, obscured: bool) -> str:
    """Return the name of a thread in transcripts and notes: its id without spaces and brackets, or its hash."""
    return obscure(thread_id) if obscured else _UNSAFE.sub("_", thread_id)


def name_thread(text: str, label: str) -> str:
    """Add the thread to ``Date:`` headings that name none yet."""
    return "\n".join(
        f"{line} (thread {label})" if line.startswith("Date:") and not names_threads(line) else line
        for line in text.splitlines()
    )


def names_threads(text: str) -> bool:
    """Return True if a heading of these notes names a thread."""
    return _NAMED.search(text) is not None


def by_thread(messages: Sequence[Message]) -> dict[str, list[tuple[int, Message]]]:
    """Group messages by thread, in order of each thread's first message. Each gets its number in ``messages``, counted
    from 1."""
    threads: dict[str, list[tuple[int, Message]]] = {}
    for number, message in enumerate(messages, start=1):
        threads.setdefault(message.thread_id or "", []).append((number, message))
    return threads
