"""The result of ``Memory.forget``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of ``forget``: ids and counts of the deleted data, without any text.

    Attributes:
        message_ids: Deleted messages.
        observation_ids: Entries removed from the diary, including earlier generations.
        restored_ids: Entries restored in place of a removed reflection.
        mentioning_ids: Remaining entries, made from other messages, that still contain a name or number from the
            deleted ones, for you to review. ``memory.diary.edit`` and ``delete`` change them.
        note_ids: Other messages with a memory note that was cut down to the date.
        title_ids: Threads with a title that was emptied, since it was made from deleted messages.
        thread_ids: Threads deleted completely, with their diaries and events.
        resource_ids: Resources deleted completely.
        vectors: Number of deleted vectors of semantic recall.
        left_on_disk: Places where files may still contain the deleted data, each with the reason. Empty: none.
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

    def __add__(self, other: Receipt) -> Receipt:
        """Return the combined receipt, with each id once."""
        return Receipt(
            message_ids=_union(self.message_ids, other.message_ids),
            observation_ids=_union(self.observation_ids, other.observation_ids),
            restored_ids=_union(self.restored_ids, other.restored_ids),
            mentioning_ids=_union(self.mentioning_ids, other.mentioning_ids),
            note_ids=_union(self.note_ids, other.note_ids),
            title_ids=_union(self.title_ids, other.title_ids),
            thread_ids=_union(self.thread_ids, other.thread_ids),
            resource_ids=_union(self.resource_ids, other.resource_ids),
            vectors=self.vectors + other.vectors,
            left_on_disk=_union(self.left_on_disk, other.left_on_disk),
        )


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))
