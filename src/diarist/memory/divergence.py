"""Decides where the messages of a client leave a branch of its thread. Pure: no storage, no clock.

Clients that send their history with each call often keep no ids, so messages are compared by id or by content, in
order. A client may lack the beginning of the thread, steps with tool calls, stopped answers, and questions that got no
answer; it keeps every answer that it received.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from diarist.encoding import dumps
from diarist.messages import FilePart, Message
from diarist.storage.records import Forgotten

BranchPlace = Message | Forgotten
"""A message of a branch; or the place of a deleted one, for which the client may have any message of its role."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The meaning of a client's messages for a branch.

    Attributes:
        keep: Number of places of the branch that stay; those behind are superseded.
        new: Number of messages at the end of the client's that the branch does not have.
        known: Number of answers in the client's messages that the branch has. The branch with the most of them is the
            one that the client shows.
        is_unknown: True if the branch does not have the client's first messages.
    """

    keep: int
    new: int
    known: int
    is_unknown: bool = False


def divergence(
    given: Sequence[Message],
    places: Sequence[BranchPlace],
    *,
    by_id: Collection[str] = (),
    changed: Collection[str] = (),
) -> Divergence:
    """Return where ``given`` leaves the branch. Of these readings, the one that explains the most answers counts, and
    of equals the first: in doubt, nothing is superseded.

    1. The client has the branch, or its end, and something new.
    2. The client has the branch from its first message on. What differs is an edit, or a request for another answer.
    3. The client has a part of the branch. It edits, or asks for another answer.
    4. The client lacks the middle, or has replaced the beginning, as by a summary. Its messages before the new question
       are the beginning and the end of the branch; or they have its end, with at least one question and its answer.
       Only the new question is new.

    Without an answer in ``given``, all its messages are new: nothing tells a repeated question from a new one.

    Args:
        places: The branch, in order, with the places of deleted messages.
        by_id: Ids of the messages of ``given`` to compare by id only.
        changed: Ids of rows for which the client may have other content.
    """
    history = _History(given, by_id)
    if not history.answers[len(given)]:
        return Divergence(len(places), len(given), 0)
    found = _read(history, places, ())
    loose = {place.id for place in places if isinstance(place, Forgotten) or place.id in changed or place.is_cut}
    if loose and found.known < history.answers[len(given)]:  # what matches exactly counts first
        return _read(history, places, loose)
    return found


def _read(history: _History, places: Sequence[BranchPlace], loose: Collection[str]) -> Divergence:
    """Return the best reading. ``loose``: ids of the places that any message of their role may match."""
    answers, size = history.answers, len(history.messages)
    part = history.follow(places, loose)
    found: list[tuple[int, int]] = []  # numbers of kept places and of known messages
    end = part.at_end(size, places)
    if answers[end[1]]:
        found.append(end)
    whole = history.follow(places, loose, from_start=True)
    if whole.count:
        found.append((whole.keep(size, places), whole.count))
    if answers[part.count]:
        found.append((part.keep(size, places), part.count))
    keep, count = max(found, key=lambda reading: answers[reading[1]], default=(len(places), 0))
    if answers[count] < answers[size]:
        start, end = history.run_at_end(places, loose)
        roles = [message.role for message in history.messages[start:end]]
        has_exchange = "user" in roles and "assistant" in roles[roles.index("user") :]
        continues = start <= count < end if count else has_exchange
        if continues:
            known = answers[end] if count else answers[end] - answers[start]
            return Divergence(len(places), size - end, known, is_unknown=not count)
    return Divergence(keep, size - count, answers[count], is_unknown=not count and bool(places))


def may_lack(row: Message) -> bool:
    """Return True for a row that clients may not keep: an intermediate step before an answer, or a stopped answer."""
    return row.role != "assistant" or bool(row.tool_parts) or row.is_cut or not row.text.strip()


def chain_id(before: str, message: Message) -> str:
    """Return the id of a message by its content and the id of the message before it: the same in any process.

    White space around the text, reasoning, data of the provider, and ids of calls do not change it.
    """
    calls = [[part.name, part.args, part.state, part.result] for part in message.tool_parts]
    content = dumps([before, *_content(message), calls], sort_keys=True)
    return f"msg_{hashlib.sha256(content).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class _Match:
    """How far a history follows a branch.

    Attributes:
        count: The largest number of messages that were found.
        place: Index of the last place where this many were found; of a repeated question that got no answer, the first.
        ends: Numbers of messages that may be known at the end of the branch, as bits. The client may lack the last
            rows.
    """

    count: int
    place: int
    ends: int

    def at_end(self, size: int, places: Sequence[BranchPlace]) -> tuple[int, int]:
        """Return the numbers of kept places and of known messages, if the client has the end of the branch. All its
        messages are known only if the last one got no answer, but perhaps some steps."""
        behind = places[self.place + 1 :]
        if self.count == size and all(
            place.role != "user" and isinstance(place, Message) and may_lack(place) for place in behind
        ):
            return self.place + 1, size
        return len(places), max(0, (self.ends & (1 << size) - 1).bit_length() - 1)

    def keep(self, size: int, places: Sequence[BranchPlace]) -> int:
        """Return the number of places that stay: before something new, also the last rows if the client may lack
        them."""
        return len(places) if self.count < size and self.ends >> self.count & 1 else self.place + 1


class _History:
    """The messages of a client, to be followed along a branch.

    A repetitive history allows several numbers of known messages, so all of them are tracked at once: a set of numbers,
    or of message positions, is the bits of an integer.

    Attributes:
        messages: The messages, in order.
        answers: For each number of messages from the first on, the number of answers among them.
    """

    def __init__(self, messages: Sequence[Message], by_id: Collection[str]) -> None:
        self.answers = list(accumulate((message.role == "assistant" for message in messages), initial=0))
        self.messages = messages
        self._questions = len(messages)  # index of the first message behind the last answer
        while self._questions and messages[self._questions - 1].role == "user":
            self._questions -= 1
        self._by_id = defaultdict[str, int](int)
        self._by_content = defaultdict[Hashable, int](int)
        self._by_role = defaultdict[str, int](int)
        self._by_call = defaultdict[str, defaultdict[frozenset[str], int]](lambda: defaultdict(int))
        for place, (message, calls) in enumerate(zip(messages, _call_names(messages), strict=True)):
            bit = 1 << place
            self._by_id[message.id] |= bit
            if message.id not in by_id:
                self._by_role[message.role] |= bit
                for key in _keys(message, calls):
                    self._by_content[key] |= bit
            if message.role == "tool" and calls:
                self._by_call[min(calls)][frozenset(calls)] |= bit

    def follow(
        self, places: Sequence[BranchPlace], loose: Collection[str], *, from_start: bool = False, first: int = 0
    ) -> _Match:
        """Follow the branch as far as possible.

        Args:
            loose: Ids of the places that any message of their role may match.
            from_start: The history begins where the branch begins; otherwise it may begin at any place.
            first: Index of the message to begin with.
        """
        begin = 1 << first
        steps = _Steps(begin)
        count, last, is_answered = first, -1, False
        rows = [place for place in places if isinstance(place, Message)]
        calls = _call_names(rows)
        for index, place in enumerate(places):
            if not from_start:
                steps.open |= begin
            here = self._by_id.get(place.id, 0)
            alike: Mapping[str, int] = self._by_role if place.id in loose else {}
            if isinstance(place, Forgotten):
                here |= alike.get(place.role, 0) & (1 << self._questions) - 1  # a new question is not forgotten
                results = alike.get("tool", 0) if place.role == "assistant" else 0
                found = steps.take_gap(place.role, here, results)
            else:
                here |= alike.get(place.role, 0)
                for key in _keys(place, next(calls)):
                    here |= self._by_content.get(key, 0)
                found = steps.take_row(place, here, self._results_of(place))
            is_more = found.bit_length() - 1 > count
            if is_more:
                count = found.bit_length() - 1
            if is_more or (is_answered and found >> count & 1):  # of questions without an answer in between, the first
                last, is_answered = index, False
            is_answered |= isinstance(place, Message) and not may_lack(place)
        return _Match(count - first, last, steps.open | steps.unanswered)

    def run_at_end(self, places: Sequence[BranchPlace], loose: Collection[str]) -> tuple[int, int]:
        """Return the longest range of messages before the last questions that is the end of the branch."""
        end = self._questions
        ends = range(end)  # if a range is the end of the branch, so is each shorter one
        start = bisect_left(ends, True, key=lambda first: bool(self.follow(places, loose, first=first).ends >> end & 1))
        return start, end

    def _results_of(self, row: Message) -> int:
        """Return the messages that contain only results of this row's calls, such as those of the role tool."""
        if row.role != "assistant" or not self._by_call:
            return 0
        there = {
            name
            for number, part in enumerate(row.tool_parts)
            if part.state != "call"
            for name in (_nth(number), part.call_id)
        }
        found = 0
        for name in there:
            if name in self._by_call:
                found |= sum(bits for told, bits in self._by_call[name].items() if told <= there)
        return found


class _Steps:
    """The numbers of known messages after the rows so far.

    Attributes:
        open: Possible numbers, after which any message may follow.
        unanswered: Possible numbers if the client does not have the newest question, because it got no answer. After
            these numbers, no answer may follow.
    """

    def __init__(self, open: int) -> None:
        self.open: int = open
        self.unanswered: int = 0

    def take_row(self, row: Message, here: int, results: int) -> int:
        """Continue after a row; return the numbers of known messages of which it is the last.

        Args:
            here: The messages that may be this row.
            results: The messages that may follow it because they are results of its calls.
        """
        if row.role == "user":
            ends = self.open | self.unanswered
            self.open, self.unanswered = (ends & here) << 1, ends
            return self.open
        open, unanswered = (self.open, self.unanswered) if may_lack(row) else (0, 0)
        found = (self.open & here) << 1
        late = (self.unanswered & here) << 1 if row.role == "tool" else 0
        self.open, self.unanswered = _and_behind(open | found, results), _and_behind(unanswered | late, results)
        return (self.open & ~open) | (self.unanswered & ~unanswered) | found | late

    def take_gap(self, role: str, here: int, results: int) -> int:
        """Continue after the place of a deleted message; arguments and result as for ``take_row``."""
        if role == "user":
            ends = self.open | self.unanswered
            found = (ends & here) << 1
            self.open, self.unanswered = ends | found, 0
            return found
        before = self.open | self.unanswered
        found = (self.open & here) << 1
        if role == "tool":
            self.unanswered |= (self.unanswered & here) << 1
        self.open, self.unanswered = _and_behind(self.open | found, results), _and_behind(self.unanswered, results)
        return found | (self.open | self.unanswered) & ~before


def _and_behind(ends: int, places: int) -> int:
    """Extend each number in ``ends`` over the messages that follow it, as long as they are at ``places``."""
    while more := (ends & places) << 1 & ~ends:
        ends |= more
    return ends


def _content(message: Message) -> tuple[str, str, tuple[tuple[str, str | None, str | None], ...]]:
    """Return role, text and files of a message, without white space around the text."""
    files = tuple(
        (part.media_type, part.url, None if part.data is None else hashlib.sha256(part.data).hexdigest())
        for part in message.parts
        if isinstance(part, FilePart)
    )
    return message.role, message.text.strip().replace("\r\n", "\n"), files


def _keys(message: Message, calls: tuple[str, ...]) -> Iterator[Hashable]:
    """Yield keys of a message: two messages match if they share one. Calls match by id, or by name and arguments;
    results by the names of their calls."""
    content = _content(message)
    if message.role == "tool":
        yield content, calls
    yield content, tuple(part.call_id for part in message.tool_parts)
    if message.role == "assistant" and message.tool_parts:
        yield content, tuple((part.name, dumps(part.args, sort_keys=True)) for part in message.tool_parts)


def _call_names(messages: Sequence[Message]) -> Iterator[tuple[str, ...]]:
    """Yield for each message the names of the calls that it answers: the place of the call in its own message, since
    some clients make up new ids of calls each time; the id for a call that is not there."""
    known: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            known |= {part.call_id: _nth(number) for number, part in enumerate(message.tool_parts)}
        answers = message.tool_parts if message.role == "tool" else ()
        yield tuple(known.get(part.call_id, part.call_id) for part in answers)


def _nth(number: int) -> str:
    return f"#{number}"
