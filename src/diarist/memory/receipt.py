"""The result of ``Memory.forget``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of ``forget``: ids and counts of the deleted data, without any text.

    Attributes:
        message_ids: Deleted messages.
        observation_ids: Entries removed from the diary, including earlier generations.
        restored_ids: Entries restored in place of a removed reflection.
        mentioning_ids: Remaining entries, made from other messages, that still contain a name or number from the
            deleted ones, for you to review. ``memory.diary.edit`` and ``delete`` change them.
        note_ids: Other messages with a memory note that was cut down to the date, or a result of ``recall`` that was
            emptied.
        title_ids: Threads with a title that was emptied, since it was made from deleted messages.
        thread_ids: Threads deleted completely, with their diaries and events.
        resource_ids: Resources deleted completely.
        vectors: Number of deleted vectors of semantic recall.
        left_on_disk: Places where the data may still be, each with the reason, such as a file that was not rewritten
            or a thread with a live run. Empty: none.
    """

    message_ids: tuple[str, ...] = ()
    observation_ids: tuple[str, ...] = ()
    restored_ids: tuple[str, ...] = ()
    mentioning_ids: tuple[str, ...] = ()
    note_ids: tuple[str, ...] = ()
    title_ids: tuple[str, ...] = ()
    thread_ids: tuple[str, ...] = ()
    resource_ids: tuple[str, ...] = ()
    vectors: int = 0
    left_on_disk: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return True if anything was deleted."""
        return any(getattr(self, item.name) for item in fields(self) if item.name != "left_on_disk")

    def __repr__(self) -> str:
        """Return the fields that are not empty."""
        shown = [f"{item.name}={value!r}" for item in fields(self) if (value := getattr(self, item.name))]
        return f"Receipt({', '.join(shown)})"

    def __add__(self, other: Receipt) -> Receipt:
        """Return the combined receipt, with each id once."""
        both: dict[str, Any] = {}
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            both[item.name] = mine + theirs if isinstance(mine, int) else tuple(dict.fromkeys(mine + theirs))
        return Receipt(**both)
