"""Which messages of an input a thread has already, where their ids do not tell: clients that send their whole
conversation with each call often keep no ids."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import takewhile

from diarist.messages import FilePart, Message
from diarist.storage.base import Storage

_NO_ID_OF_THE_CALLERS = re.compile(r"msg_[0-9a-f]{32}")
_PAGE = 100
_WHOLE_THREAD = 1 << 62
_PATIENCE = 4
"""How often all messages may be looked at before it is worth while to read the whole thread."""
_BETWEEN = object()


async def resent(storage: Storage, thread_id: str, given: Sequence[Message], known: Collection[str]) -> set[str]:
    """Ids of the messages at the beginning of ``given`` that are the end of the stored conversation once more.

    They are compared in their order, by role and content; one with an id of the caller's, or an id that the thread
    has (``known``), is that row alone. There is an answer among them, the last of them is the last that the thread
    has, and the last message of ``given`` is never among them: what a user says again is new. Stored rows may lie
    between them that clients do not keep: steps with tool calls, and questions that got no answer.
    """
    sent = given[:-1]
    unknown = {message.id for message in sent if _NO_ID_OF_THE_CALLERS.fullmatch(message.id)} - set(known)
    least = next((count for count, message in enumerate(sent, 1) if message.role == "assistant"), None)
    if not unknown or least is None:
        return set()
    rows, ours, newer, most = _Backwards(storage, thread_id), _Exchanges(), 0, len(sent)
    for message in takewhile(lambda message: message.id in unknown and message.role != "system", reversed(sent)):
        ours.add(message)
    for count in range(len(sent), least - 1, -1):
        if count <= most and rows.agree(ours, newer):
            if await _ends_with(rows, sent[:count], known):
                return {message.id for message in sent[:count]}
            if most == len(sent) and rows.looked > _PATIENCE * len(sent):
                most = await rows.count_there(sent)
        newer += _is_answer(sent[count - 1])
    return set()


class _Exchanges:
    """Hashes of the answers in words from a conversation's end, each with what it answers. Neither side may lack one,
    so where they differ there is no need to walk: histories may repeat themselves."""

    def __init__(self) -> None:
        self.hashes: list[int | None] = []
        self._answer: object = None

    def add(self, message: Message) -> None:
        """The message before the last one that was added."""
        if self._answer and (message.role == "user" or _is_answer(message)):
            self.hashes.append(hash((self._answer, _content(message))))
            self._answer = None
        if _is_answer(message):
            self._answer = _content(message)


class _Backwards:
    """The rows of a thread from its end, read as far as they are looked at.

    Attributes:
        looked: How often.
    """

    def __init__(self, storage: Storage, thread_id: str) -> None:
        self._storage, self._thread_id = storage, thread_id
        self._rows: list[Message] = []
        self._whole = False
        self._exchanges = _Exchanges()
        self._shared: tuple[int, list[int]] = (-1, [])
        self.looked = 0

    async def at(self, place: int) -> Message | None:
        """The row, counted from 0, the last one; None before the first."""
        self.looked += 1
        while place >= len(self._rows) and not self._whole:
            before, limit = self._rows[-1].seq if self._rows else None, max(_PAGE, len(self._rows))
            page = await self._storage.list_messages(self._thread_id, before=before, limit=limit, newest_first=True)
            self._rows += page
            self._whole = len(page) < limit
            for row in page:
                self._exchanges.add(row)
            self._exchanges.hashes += [None] * self._whole  # there is none before
        return self._rows[place] if place < len(self._rows) else None

    def agree(self, ours: _Exchanges, newer: int) -> bool:
        """Whether the exchanges are the same as far as both are known, without as many newer ones of the others."""
        mine, left = self._exchanges.hashes, len(ours.hashes) - newer
        if self._shared[0] != len(mine):
            self._shared = len(mine), _shared_with(mine, ours.hashes)
        return left <= 0 or self._shared[1][newer] >= min(left, len(mine))

    async def count_there(self, messages: Sequence[Message]) -> int:
        """How many of the messages there are before the first that no row of the thread can be."""
        await self.at(_WHOLE_THREAD)
        ids = {row.id for row in self._rows}
        contents = {_content(row) for row in self._rows}
        results = {part.call_id for row in self._rows for part in row.tool_parts}
        for count, message in enumerate(messages):
            told = {part.call_id for part in message.tool_parts}
            if message.id not in ids and _content(message) not in contents and not (told and told <= results):
                return count
        return len(messages)


def _shared_with(start: Sequence[object], sequence: Sequence[object]) -> list[int]:
    """For each place in ``sequence`` how much from there on is as ``start`` begins (its Z function)."""
    whole = [*start, _BETWEEN, *sequence]
    lengths = [0] * len(whole)
    left = right = 0
    for place in range(1, len(whole)):
        length = min(right - place, lengths[place - left]) if place < right else 0
        while place + length < len(whole) and whole[length] == whole[place + length]:
            length += 1
        lengths[place] = length
        if place + length > right:
            left, right = place, place + length
    return lengths[len(start) + 1 :]


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


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_parts and bool(message.text.strip())


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
