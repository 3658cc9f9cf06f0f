"""Threads as a model sees them, where notes are about more than one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from diarist.messages import Message

Section = Sequence[tuple[int, Message]]
"""Messages with their numbers, from 1, in the whole that they are a part of."""

_UNSAFE = re.compile(r"[\s()<>\[\]]+")
_NAMED = re.compile(r"^Date:.*\(thread [^\s()]+\)", re.MULTILINE)
_LENGTH = 10


def obscure(thread_id: str) -> str:
    """Ten letters and digits that stand for a thread: always the same, and telling nothing of its id."""
    return hashlib.sha256(thread_id.encode()).hexdigest()[:_LENGTH]


def thread_label(thread_id: str, *, obscured: bool) -> str:
    """How a thread is called in transcripts and notes: its id as one word, or what ``obscure`` makes of it."""
    return obscure(thread_id) if obscured else _UNSAFE.sub("_", thread_id)


def name_thread(text: str, label: str) -> str:
    """Notes whose ``Date:`` headings name the thread, where they name none yet."""
    return "\n".join(
        f"{line} (thread {label})" if line.startswith("Date:") and not names_threads(line) else line
        for line in text.splitlines()
    )


def names_threads(text: str) -> bool:
    """Whether a heading of these notes names its thread."""
    return _NAMED.search(text) is not None


def by_thread(messages: Sequence[Message]) -> dict[str, Section]:
    """Numbered messages by thread, threads in the order in which they first speak."""
    threads: dict[str, list[tuple[int, Message]]] = {}
    for number, message in enumerate(messages, start=1):
        threads.setdefault(message.thread_id or "", []).append((number, message))
    return dict(threads)
