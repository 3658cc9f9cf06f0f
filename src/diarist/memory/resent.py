"""Which messages of an input a thread has already, where their ids do not tell: clients that send their whole
conversation with each call often keep no ids."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile

from diarist.messages import FilePart, Message
from diarist.storage.base import Storage

_NO_ID_OF_THE_CALLERS = re.compile(r"msg_[0-9a-f]{32}")
_PAGE = 100


async def resent(storage: Storage, thread_id: str, given: Sequence[Message], known: Collection[str]) -> set[str]:
    """Ids of the messages at the beginning of ``given`` that are the end of the stored conversation once more.

    They are compared in their order, by role and content; one with an id of the caller's, or an id that the thread
    has (``known``), is that row alone. There is an answer among them, the last of them is the last that the thread
    has, and the last message of ``given`` is never among them: what a user says again is new. Stored rows may lie
    between them that clients do not keep: steps with tool calls, and questions that got no answer.
    """
    before_last = given[:-1]
    nameless = {message.id for message in before_last if _NO_ID_OF_THE_CALLERS.fullmatch(message.id)}
    if not nameless - set(known) or not any(message.role == "assistant" for message in before_last):
        return set()
    by_content = takewhile(lambda message: message.id in nameless and message.id not in known, reversed(before_last))
    rows, answers = _Backwards(storage, thread_id), _answers(by_content)
    for count in range(len(before_last), 0, -1):
        beginning = before_last[:count]
        # Neither side may lack an answer. Where these differ there is no need to walk: histories may repeat themselves.
        may_be = answers[: len(rows.answers)] == rows.answers[: len(answers)]
        if may_be and any(each.role == "assistant" for each in beginning) and await _ends_with(rows, beginning, known):
            return {message.id for message in beginning}
        answers = answers[len(_answers(beginning[-1:])) :]
    return set()


class _Backwards:
    """The rows of a thread from its end, read as far as they are looked at."""

    def __init__(self, storage: Storage, thread_id: str) -> None:
        self._storage, self._thread_id = storage, thread_id
        self._rows: list[Message] = []
        self._whole = False
        self.answers: list[int | None] = []

    async def at(self, place: int) -> Message | None:
        """The row, counted from 0, the last one; None before the first."""
        while place >= len(self._rows) and not self._whole:
            before = self._rows[-1].seq if self._rows else None
            page = await self._storage.list_messages(self._thread_id, before=before, limit=_PAGE, newest_first=True)
            self._rows += page
            self._whole = len(page) < _PAGE
            self.answers += [*_answers(page), *[None] * self._whole]
        return self._rows[place] if place < len(self._rows) else None


async def _ends_with(rows: _Backwards, messages: Sequence[Message], known: Collection[str]) -> bool:
    """Whether these messages are the last of the thread, but for rows that clients do not keep."""
    left, place, answered = len(messages), 0, False
    while left:
        row, message = await rows.at(place), messages[left - 1]
        if row is None:
            return False
        if _tells_results_of(message, row):
            left -= 1
        elif _is(message, row, known):
            left, place, answered = left - 1, place + 1, row.role == "assistant" or (answered and row.role == "tool")
        elif _may_lack(row, answered=answered):
            place, answered = place + 1, answered and row.role != "user"
        else:
            return False
    return True


def _may_lack(row: Message, *, answered: bool) -> bool:
    """Whether clients may not have this row: a step on the way to an answer, or a question without one."""
    return not answered if row.role == "user" else bool(row.tool_parts) or not row.text.strip()


def _tells_results_of(message: Message, row: Message) -> bool:
    """Whether the message holds only results that the row has with its calls, as messages of the role tool do."""
    there = {part.call_id for part in row.tool_parts if part.state != "call"}
    told = {part.call_id for part in message.tool_parts}
    return message.role == "tool" and row.role == "assistant" and bool(told) and told <= there


def _is(message: Message, row: Message, known: Collection[str]) -> bool:
    if message.id == row.id:
        return True
    if message.id in known or not _NO_ID_OF_THE_CALLERS.fullmatch(message.id):
        return False
    return _content(message) == _content(row) and _same_calls(message, row)


def _answers(messages: Iterable[Message]) -> list[int | None]:
    """Hashes of the answers in words: of those that are equal in content, equal ones."""
    words = [each for each in messages if each.role == "assistant" and not each.tool_parts and each.text.strip()]
    return [hash(_content(message)) for message in words]


def _content(message: Message) -> tuple[object, ...]:
    files = [(part.media_type, part.url, part.data) for part in message.parts if isinstance(part, FilePart)]
    return message.role, message.text.strip(), tuple(files)


def _same_calls(message: Message, row: Message) -> bool:
    """By their ids, or in a call by name and arguments; a result is that of its call's id."""
    ours, theirs = message.tool_parts, row.tool_parts
    if [part.call_id for part in ours] == [part.call_id for part in theirs]:
        return True
    calls = [[(part.name, part.args) for part in parts] for parts in (ours, theirs)]
    return message.role == "assistant" and calls[0] == calls[1]
