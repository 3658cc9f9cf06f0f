"""Decides where the messages of a client leave a branch of its thread. Pure: no storage, no clock.

Clients that send their history with each call often keep no ids, so messages are compared by id or by content, in
order. A client may lack the beginning of the thread, steps with tool calls, stopped answers, and questions that got no
answer; it keeps every answer that it received. It may have only the texts of a turn with tool calls: each as a message
of its own, or all in one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import TypeVar, cast

from diarist.encoding import dumps
from diarist.messages import FilePart, Message, ToolPart
from diarist.storage.records import Forgotten

EDITED_KEY = "diarist_edited"
"""Metadata key of a question that a client edited under its id: this id, which another message of the thread has."""

REWRITTEN_KEY = "diarist_rewritten"
"""Metadata key of an input message that a processor changed: True. A client has other content, which is not stored."""

BranchPlace = Message | Forgotten
"""A message of a branch; or the place of a deleted one, for which the client may have any message of its role."""

AnyPlace = TypeVar("AnyPlace", Message, Message | Forgotten)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The meaning of a client's messages for a branch.

    Attributes:
        keep: Number of places of the branch that stay; those behind are superseded.
        new: Number of messages at the end of the client's history that are not on the branch.
        known: Number of answers in the client's messages that the branch has. The branch with the most of them is the
            one that the client shows.
        is_unknown: True if the branch does not have the client's first messages.
        is_edit: True if the first new message is a question that the client edited under its id.
    """

    keep: int
    new: int
    known: int
    is_unknown: bool = False
    is_edit: bool = False


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

    Without an answer in ``given``, all its messages are new: nothing tells a repeated question from a new one. Of its
    last questions, one that has the id of a message of the branch, but another text, is an edit.

    Args:
        places: The branch, in order, with the places of deleted messages.
        by_id: Ids of the messages of ``given`` to compare by id only.
        changed: Ids of rows for which the client may have other content.
    """
    branch, kept_until = _folded(places)
    if not any(message.role == "assistant" for message in given):
        return Divergence(len(places), len(given), 0)
    calls = _calls_of_first(given, branch)
    messages, new_from = _folded([*calls, *given])
    history = _History(messages, by_id)
    found = _read(history, branch, ())
    loose = {
        place.id
        for place in branch
        if isinstance(place, Forgotten)
        or place.id in changed
        or place.is_cut
        or place.metadata.get(REWRITTEN_KEY) is True
    }
    if loose and found.known < history.answers[-1]:  # what matches exactly counts first
        found = _read(history, branch, loose)
    new = min(len(calls) + len(given) - new_from[len(messages) - found.new], len(given))
    found = Divergence(kept_until[found.keep], new, found.known - len(calls), found.is_unknown)
    for index in range(len(given) - len(last_questions(given)), len(given) - new):
        question = given[index]
        if question.id in changed:
            continue
        same = {
            place: row
            for place, row in enumerate(places[: found.keep])
            if isinstance(row, Message) and row.id not in changed and is_same(question, row)
        }
        if is_edited(question, same.values()):
            return replace(found, keep=max(same), new=len(given) - index, is_edit=True)
    return found


def fold_results(messages: Sequence[AnyPlace]) -> tuple[list[AnyPlace], list[int]]:
    """Put results of tools into the messages with their calls, as an agent stores them.

    Returns these messages, and the place among them of each given one. A result without its call stays a message of
    its own.
    """
    out: list[AnyPlace] = []
    places: list[int] = []
    calls: dict[str, int] = {}
    for message in messages:
        parts = [] if isinstance(message, Forgotten) else message.tool_parts
        results = {part.call_id: part for part in parts} if message.role == "tool" else {}
        if results and results.keys() <= calls.keys():
            places.append(min(calls[call_id] for call_id in results))
            for call_id, result in results.items():
                place = calls[call_id]
                asked = cast(Message, out[place])
                parts = [
                    replace(part, state=result.state, result=result.result)
                    if isinstance(part, ToolPart) and part.call_id == call_id
                    else part
                    for part in asked.parts
                ]
                out[place] = cast(AnyPlace, replace(asked, parts=parts))
            continue
        if message.role == "user":
            calls.clear()
        calls |= {part.call_id: len(out) for part in parts}
        places.append(len(out))
        out.append(message)
    return out, places


def _calls_of_first(given: Sequence[Message], branch: Sequence[BranchPlace]) -> list[Message]:
    """Return the message of the branch with the calls of the results that a shortened history begins with, if any."""
    results = {part.call_id for part in given[0].tool_parts} if given[0].role == "tool" else set[str]()
    for place in reversed(branch) if results else ():
        if isinstance(place, Message) and results <= {part.call_id for part in place.tool_parts}:
            return [place]
    return []


def _folded(places: Sequence[AnyPlace]) -> tuple[list[AnyPlace], list[int]]:
    """Return the messages with their results, and for each number of them the number of given ones that they are.

    Results without their calls say nothing about the place of a message. They belong to the message before them.
    """
    folded, at = fold_results(places)
    first = {place: index for index, place in reversed(list(enumerate(at)))}
    compared = [place for place, message in enumerate(folded) if message.role != "tool"]
    sizes = [0, *(first[place] for place in compared[1:]), len(places)] if compared else [len(places)]
    return [folded[place] for place in compared], sizes


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


@dataclass(frozen=True, slots=True)
class _Match:
    """How far a history follows a branch.

    Attributes:
        count: The largest number of messages that were found.
        place: Index of the last matching place. If a question was repeated without an answer, the first repetition
            counts.
        newest: Index of the last place where this many were found.
        ends: Numbers of messages that may be known at the end of the branch, as bits. The client may lack the last
            rows.
    """

    count: int
    place: int
    newest: int
    ends: int

    def at_end(self, size: int, places: Sequence[BranchPlace]) -> tuple[int, int]:
        """Return the numbers of kept places and of known messages, if the client has the end of the branch. All its
        messages are known only if the last one got no answer, but perhaps some steps."""
        behind = places[self.newest + 1 :]
        if self.count == size and all(
            place.role != "user" and isinstance(place, Message) and may_lack(place) for place in behind
        ):
            return self.newest + 1, size
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
        self._by_words = defaultdict[str, int](int)  # of the assistant's messages without calls ...
        self._lengths = set[int]()  # ... and the lengths of these words
        for place, message in enumerate(messages):
            bit = 1 << place
            self._by_id[message.id] |= bit
            if message.id not in by_id:
                self._by_role[message.role] |= bit
                if message.role == "assistant" and not message.tool_parts:
                    words = _squeezed(message)
                    self._by_words[words] |= bit
                    self._lengths.add(len(words))
                for key in _keys(message):
                    self._by_content[key] |= bit

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
        open = begin  # possible numbers of known messages, after which any message may follow
        unanswered = 0  # possible ones without the newest question, which got no answer: no answer may follow
        count, last, newest, is_answered = first, -1, -1, False
        said = ""  # by the assistant since the last question
        for index, place in enumerate(places):
            if not from_start:
                open |= begin
            is_gap = isinstance(place, Forgotten)
            is_answer = not isinstance(place, Forgotten) and not may_lack(place)
            here = self._alike(place, is_loose=place.id in loose)
            if place.role == "user":
                said = ""
            elif isinstance(place, Message) and (words := _squeezed(place)):
                said += words
                if place.tool_parts:
                    here |= self._by_words.get(words, 0)
                if len(said) > len(words) and len(said) in self._lengths:  # a hash of each would take long
                    here |= self._by_words.get(said, 0)
            if place.role == "user":
                ends = open | unanswered
                found = (ends & here) << 1
                open, unanswered = (ends | found, 0) if is_gap else (found, ends)
            else:
                found = (open & here) << 1
                if is_answer:
                    open = unanswered = 0
                open |= found
            is_more = found.bit_length() - 1 > count
            if is_more:
                count = found.bit_length() - 1
            if found >> count & 1:
                newest = index
                if is_more or is_answered:  # of questions without an answer in between, the first
                    last, is_answered = index, False
            is_answered |= is_answer
        return _Match(count - first, last, newest, open | unanswered)

    def _alike(self, place: BranchPlace, *, is_loose: bool) -> int:
        """Return the messages that may be the one at a place."""
        here = self._by_id.get(place.id, 0)
        if isinstance(place, Message) and EDITED_KEY in place.metadata:
            here |= self._by_id.get(place.metadata[EDITED_KEY], 0)
        if is_loose:
            here |= self._by_role.get(place.role, 0) & (1 << self._questions) - 1  # a new question is never known
        if isinstance(place, Message):
            for key in _keys(place):
                here |= self._by_content.get(key, 0)
        return here

    def run_at_end(self, places: Sequence[BranchPlace], loose: Collection[str]) -> tuple[int, int]:
        """Return the longest range of messages before the last questions that is the end of the branch."""
        end = self._questions
        ends = range(end)  # if a range is the end of the branch, so is each shorter one
        start = bisect_left(ends, True, key=lambda first: bool(self.follow(places, loose, first=first).ends >> end & 1))
        return start, end


def last_questions(messages: Sequence[Message]) -> list[Message]:
    """Return the user messages at the end."""
    return list(takewhile(lambda message: message.role == "user", reversed(messages)))[::-1]


def is_same(question: Message, row: Message) -> bool:
    """Return True if a row has the id of a client's question, or has taken its place."""
    return question.id in (row.id, row.metadata.get(EDITED_KEY))


def is_edited(question: Message, rows: Collection[Message]) -> bool:
    """Return True if rows have the id of a client's question, and none of them has its content."""
    same = [row for row in rows if is_same(question, row)]
    return bool(same) and key_of(question) not in map(key_of, same)


def key_of(message: Message) -> Hashable:
    """Return a value by which messages match: role, text without white space around it, files, and ids of calls."""
    return _content_of(message), tuple(part.call_id for part in message.tool_parts)


def _content_of(message: Message) -> Hashable:
    files = tuple([(part.media_type, part.url, part.data) for part in message.parts if isinstance(part, FilePart)])
    return message.role, message.text.strip().replace("\r\n", "\n"), files


def _squeezed(message: Message) -> str:
    return "".join(message.text.split())


def _keys(message: Message) -> Iterator[Hashable]:
    """Yield keys of a message: two messages match if they share one. Calls match by id, or by name and arguments."""
    yield key_of(message)
    if message.role == "assistant" and message.tool_parts:
        yield _content_of(message), tuple((part.name, dumps(part.args, sort_keys=True)) for part in message.tool_parts)
