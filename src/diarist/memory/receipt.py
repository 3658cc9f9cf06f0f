"""What was forgotten, as a value to keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a call of ``forget`` removed: ids and counts, no words. What was gone before is not in it.

    Attributes:
        message_ids: Messages.
        observation_ids: Entries that were taken out of the diary, of earlier generations as well.
        restored_ids: Entries that stand again in the place of a reflection that was taken out.
        note_ids: Other messages whose memory note was cut down to the date.
        events: Events of failures whose error was emptied.
        title_ids: Threads whose title was emptied, since it was made from what is forgotten.
        thread_ids: Threads that were removed as a whole, with their diaries and events.
        resource_ids: Resources of which nothing is kept any more.
        vectors: What semantic recall found messages by.
    """

    message_ids: tuple[str, ...] = ()
    observation_ids: tuple[str, ...] = ()
    restored_ids: tuple[str, ...] = ()
    note_ids: tuple[str, ...] = ()
    events: int = 0
    title_ids: tuple[str, ...] = ()
    thread_ids: tuple[str, ...] = ()
    resource_ids: tuple[str, ...] = ()
    vectors: int = 0

    def __add__(self, other: Receipt) -> Receipt:
        """Both together; each id once."""
        return Receipt(
            message_ids=_union(self.message_ids, other.message_ids),
            observation_ids=_union(self.observation_ids, other.observation_ids),
            restored_ids=_union(self.restored_ids, other.restored_ids),
            note_ids=_union(self.note_ids, other.note_ids),
            events=self.events + other.events,
            title_ids=_union(self.title_ids, other.title_ids),
            thread_ids=_union(self.thread_ids, other.thread_ids),
            resource_ids=_union(self.resource_ids, other.resource_ids),
            vectors=self.vectors + other.vectors,
        )


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))
