"""A mark in a thread's metadata that distinguishes titles made by a model from titles given by a user."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

from diarist.messages import Json
from diarist.storage.records import Thread

MARK = "generated_title"
"""Metadata key. Its value contains the id of the message that the title was made from, and a digest of the title."""


def mark_of(title: str, message_id: str | None = None) -> dict[str, Json]:
    """Return the metadata that marks a title as made by a model, from a message or a diary."""
    return {MARK: {"message_id": message_id, "digest": _digest(title)}}


def without_mark(metadata: Mapping[str, Json] | None = None) -> dict[str, Json]:
    """Return the metadata changes to store with a title given by a user."""
    return {**(metadata or {}), MARK: None}


def is_generated(thread: Thread) -> bool:
    """Return True if a model made the thread's title and the title was not changed since."""
    return _mark(thread).get("digest") == _digest(thread.title)


def made_from(thread: Thread) -> str | None:
    """Return the id of the message that a model made the thread's title from; None for other titles."""
    return _mark(thread).get("message_id") if is_generated(thread) else None


def _mark(thread: Thread) -> dict[str, Any]:
    mark = thread.metadata.get(MARK)
    return cast("dict[str, Any]", mark) if isinstance(mark, dict) else {}


def _digest(title: str) -> str:
    return hashlib.sha256(title.encode("utf-8", "surrogatepass")).hexdigest()[:16]
