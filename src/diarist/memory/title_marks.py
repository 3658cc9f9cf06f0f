"""How a title that a model made up is told from one that somebody gave: a mark in the thread's metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

from diarist.messages import Json
from diarist.storage.records import Thread

MARK = "generated_title"
"""The key. Its value names the message that the title was made from, and has a digest of the title."""


def mark_of(title: str, message_id: str | None = None) -> dict[str, Json]:
    """What metadata keeps of a title that a model made, of a message or of a diary."""
    return {MARK: {"message_id": message_id, "digest": _digest(title)}}


def without_mark(metadata: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """Changes of metadata beside a title that somebody gives himself."""
    return {**(metadata or {}), MARK: None}


def is_generated(thread: Thread) -> bool:
    """Whether a model made the thread's title; one that was changed since is somebody's own."""
    return _mark(thread).get("digest") == _digest(thread.title)


def made_from(thread: Thread) -> str | None:
    """The message that the thread's title was made from, if it was."""
    return _mark(thread).get("message_id") if is_generated(thread) else None


def _mark(thread: Thread) -> dict[str, Any]:
    mark = thread.metadata.get(MARK)
    return cast("dict[str, Any]", mark) if isinstance(mark, dict) else {}


def _digest(title: str) -> str:
    return hashlib.sha256(title.encode("utf-8", "surrogatepass")).hexdigest()[:16]
