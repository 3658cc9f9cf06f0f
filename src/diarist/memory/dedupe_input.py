"""Finds the input messages that a thread already has. Clients that resend the whole conversation with each call often
keep no ids, so messages are compared by content."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterator, Sequence

from diarist.encoding import dumps
from diarist.memory.rows import seq_of
from diarist.messages import FilePart, Message
from diarist.storage.base import Storage
from diarist.storage.records import Forgotten

_GENERATED_ID = re.compile(r"msg_[0-9a-f]{32}")
_PAGE = 100


async def resent(storage: Storage, thread_id: str, given: Sequence[Message], known: Collection[str]) -> set[str]:
    """Return ids of the messages at the start of ``given`` that repeat the end of the stored conversation.

    Messages are compared in order, by role and content:

    - If the caller chose a message's id, or the thread has it (``known``), the message matches only that row.
    - The repeated messages contain an answer and end with the last message of the thread.
    - The last message of ``given`` is always new, even if the user has asked the same question before.
    - Stored rows that clients often do not keep may lie between matches: steps with tool calls, unanswered questions.
    - A stored message that was deleted, changed or stopped matches any message of its role, or is skipped.
    """
    sent = given[:-1]
    unknown = {message.id for message in sent if _GENERATED_ID.fullmatch(message.id)} - set(known)
    answers = [count for count, message in enumerate(sent, 1) if message.role == "assistant"]
    if not unknown or not answers:
        return set()
    forgotten = await storage.list_forgotten(thread_id)
    rows = await _end_of(storage, thread_id, answers=len(answers))
    history, changed = _History(sent, unknown), {message.id for message in forgotten}
    for place in _with_gaps(rows, forgotten):
        if isinstance(place, Forgotten):
            history.take_gap(place)
        else:
            history.take_row(place, changed=place.id in changed or place.is_cut)
    count = (history.open | history.unanswered).bit_length() - 1
    return {message.id for message in sent[:count]} if count >= answers[0] else set()


async def _end_of(storage: Storage, thread_id: str, *, answers: int) -> list[Message]:
    """Return enough of the newest rows, in order, to contain more than this number of answers, or all rows.

    A client keeps every answer that it received, so older rows cannot match its history.
    """
    rows: list[Message] = []
    while answers >= 0:
        limit = max(_PAGE, len(rows))
        before = rows[-1].seq if rows else None
        page = await storage.list_messages(thread_id, before=before, limit=limit, newest_first=True)
        rows += page
        answers -= sum(not _may_lack(row) for row in page)
        if len(page) < limit:
            break
    return rows[::-1]


def _with_gaps(rows: Sequence[Message], forgotten: Sequence[Forgotten]) -> Iterator[Message | Forgotten]:
    """Yield the rows, and deleted messages at their places between them. A changed message is yielded as its row."""
    ids = {row.id for row in rows}
    gaps = deque(gap for gap in forgotten if gap.id not in ids)
    for row in rows:
        while gaps and gaps[0].seq < seq_of(row):
            yield gaps.popleft()
        yield row
    yield from gaps


class _History:
    """Matches the messages of a client with the stored rows, row by row.

    It tracks how many of the client's messages may match the rows read so far. A repetitive history allows several
    numbers, so all of them are tracked at once: a set of numbers, or of message positions, is the bits of an integer.

    Args:
        unknown: Ids of the messages to compare by content.

    Attributes:
        open: Possible numbers of matched messages, after which any message may follow.
        unanswered: Possible numbers if the client does not have the newest question, because it got no answer. After
            these numbers, no answer may follow.
    """

    def __init__(self, messages: Sequence[Message], unknown: Collection[str]) -> None:
        self.open = self.unanswered = 0
        self._by_id = defaultdict[str, int](int)
        self._by_content = defaultdict[Hashable, int](int)
        self._by_role = defaultdict[str, int](int)
        self._by_call = defaultdict[str, defaultdict[frozenset[str], int]](lambda: defaultdict(int))
        for place, message in enumerate(messages):
            bit = 1 << place
            self._by_id[message.id] |= bit
            if message.id in unknown:
                self._by_role[message.role] |= bit
                for key in _keys(message):
                    self._by_content[key] |= bit
            if message.role == "tool" and message.tool_parts:
                told = frozenset(part.call_id for part in message.tool_parts)
                self._by_call[min(told)][told] |= bit

    def take_row(self, row: Message, *, changed: bool) -> None:
        """Continue after a stored row. ``changed``: the client may have other content than the row."""
        self.open |= 1  # the client's history may begin here
        here = self._by_id.get(row.id, 0)
        for key in _keys(row):
            here |= self._by_content.get(key, 0)
        if changed:
            here |= self._by_role.get(row.role, 0)
        if row.role == "user":
            any_end = self.open | self.unanswered
            self.open, self.unanswered = (any_end & here) << 1, any_end
            return
        may_lack, results = _may_lack(row), self._results_of(row)
        open = (self.open if may_lack else 0) | (self.open & here) << 1
        unanswered = self.unanswered if may_lack else 0
        if row.role == "tool":
            unanswered |= (self.unanswered & here) << 1
        self.open, self.unanswered = _and_behind(open, results), _and_behind(unanswered, results)

    def take_gap(self, gap: Forgotten) -> None:
        """Continue after the place of a deleted message."""
        self.open |= 1
        here = self._by_id.get(gap.id, 0) | self._by_role.get(gap.role, 0)
        if gap.role == "user":
            any_end = self.open | self.unanswered
            self.open, self.unanswered = any_end | (any_end & here) << 1, 0
            return
        results = self._by_role.get("tool", 0) if gap.role == "assistant" else 0
        if gap.role == "tool":
            self.unanswered |= (self.unanswered & here) << 1
        self.open = _and_behind(self.open | (self.open & here) << 1, results)
        self.unanswered = _and_behind(self.unanswered, results)

    def _results_of(self, row: Message) -> int:
        """Return the messages that contain only results of this row's calls, such as those of the role tool."""
        if row.role != "assistant" or not self._by_call:
            return 0
        there = {part.call_id for part in row.tool_parts if part.state != "call"}
        found = 0
        for call_id in there:
            if call_id in self._by_call:
                found |= sum(bits for told, bits in self._by_call[call_id].items() if told <= there)
        return found


def _and_behind(ends: int, places: int) -> int:
    """Extend each number in ``ends`` over the messages that follow it, as long as they are at ``places``."""
    while more := (ends & places) << 1 & ~ends:
        ends |= more
    return ends


def _may_lack(row: Message) -> bool:
    """Return True for a row that clients may not keep: an intermediate step before an answer, or a stopped answer."""
    return row.role != "assistant" or bool(row.tool_parts) or row.is_cut or not row.text.strip()


def _keys(message: Message) -> Iterator[Hashable]:
    """Yield keys of a message: two messages match if they share one. Calls match by id, or by name and arguments;
    results match by the id of their call."""
    files = tuple((part.media_type, part.url, part.data) for part in message.parts if isinstance(part, FilePart))
    content = (message.role, message.text.strip(), files)
    yield content, tuple(part.call_id for part in message.tool_parts)
    if message.role == "assistant" and message.tool_parts:
        yield content, tuple((part.name, dumps(part.args, sort_keys=True)) for part in message.tool_parts)
