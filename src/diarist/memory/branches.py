"""The branches of a thread: take in the messages of a client, go back to a message, and switch."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

from diarist.concurrency import inner_cancel_as_error, retry_on_conflict
from diarist.exceptions import InputError, NotFoundError
from diarist.memory.access import Access
from diarist.memory.divergence import (
    EDITED_KEY,
    REWRITTEN_KEY,
    BranchPlace,
    Divergence,
    divergence,
    is_edited,
    is_same,
    key_of,
    last_questions,
    may_lack,
)
from diarist.memory.observational.log.log_store import logs_of
from diarist.memory.observational.log.removal import WHOLE, clean_after_move, without_rows
from diarist.memory.rows import rows_between, seq_of
from diarist.messages import Json, Message, Part, new_id
from diarist.run_context import OnDivergence
from diarist.storage.records import Forgotten, ObservationLog, Run, Superseded, Thread, Tombstone, path_to

_GENERATED_ID = re.compile(r"msg_[0-9a-f]{32}")
_PAGE = 100

logger = logging.getLogger("diarist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Messages of a thread that are not on its active branch.

    Attributes:
        id: For ``switch_branch``.
        after: Id of the active message that the branch continues; None if it has the first message of the thread.
        messages: The messages of the branch behind that one, in order. Branches may share their first ones.
    """

    id: str
    after: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenInput:
    """The messages of a client, as the turn works with them.

    Attributes:
        new: The messages to store, each by the id of the given one whose place it takes; the thread has the others.
        repeated: The stored questions to answer again, if nothing is new.
        hidden_after: For a call without a run, ``seq`` of the last row to show; None for all.
        event: Data of an event that says how the input left the branch; None if it continues it.
    """

    new: dict[str, Message]
    repeated: list[Message] = field(default_factory=list[Message])
    hidden_after: int | None = None
    event: dict[str, Json] | None = None


class _Reading(NamedTuple):
    """A branch of the thread, and where the client leaves it."""

    places: list[BranchPlace]
    found: Divergence
    is_active: bool


class Branches:
    """The branches of the threads of a storage."""

    def __init__(self, access: Access) -> None:
        self._storage, self._embedding = access.storage, access.embedding

    # -- the input of a turn

    async def take_in(
        self,
        run: Run | None,
        thread_id: str,
        given: Sequence[Message],
        *,
        made: Collection[str] = (),
        on_divergence: OnDivergence = "branch",
    ) -> TakenInput:
        """Find the messages that the thread does not have, and go back to where the client leaves the active branch.

        Call it after the run has begun, before its thread is read.

        Args:
            run: The live run; None to change nothing.
            made: Ids of messages that were made from a text: they are new.
            on_divergence: ``"append"``: supersede nothing, and store what is new at the end. ``"error"``: raise
                InputError instead of superseding.

        Raises:
            RunLostError: The run is not live.
            InputError: All questions in the input were forgotten; or the input leaves the branch, which
                ``on_divergence`` forbids.
        """
        try:
            return await self._take_in(run, thread_id, given, made, on_divergence)
        except NotFoundError:  # a message was forgotten in between
            return await self._take_in(run, thread_id, given, made, on_divergence)

    async def _take_in(
        self,
        run: Run | None,
        thread_id: str,
        given: Sequence[Message],
        made: Collection[str],
        on_divergence: OnDivergence,
    ) -> TakenInput:
        asked = [message.id for message in given if message.id not in made]
        if not asked:
            return TakenInput(new={message.id: unstored(message) for message in given})
        known = await self._storage.existing_ids(thread_id, asked, forgotten=True)
        if not any(message.role == "assistant" for message in given):
            taken = await self._without_place(thread_id, given, known)
            return await self._before_its_answer(run, thread_id, taken, on_divergence)
        by_id = {message.id for message in given if message.id in known or _is_own(message)}
        forgotten = await self._storage.list_forgotten(thread_id)
        places, found, is_active = await self._read(thread_id, given, by_id, forgotten)
        known |= {row.metadata[EDITED_KEY] for row in places if isinstance(row, Message) and EDITED_KEY in row.metadata}
        old, rest = given[: len(given) - found.new], given[len(given) - found.new :]
        kept, behind = places[: found.keep], places[found.keep :]
        leaves = not is_active or any(isinstance(place, Message) for place in behind)
        skips = not found.is_edit and not known.isdisjoint([message.id for message in rest])
        if leaves and skips:  # the client leaves out messages in between: it did not go back
            kept, leaves = places, False
        if not rest and isinstance(kept[-1], Forgotten) and kept[-1].role == "user":
            raise _forgotten(given[-1].id, thread_id)
        rows = [place for place in kept if isinstance(place, Message)]
        last = rows[-1] if rows else None
        late = _late_results(old, rows)
        if skips:
            taken = await self._without_place(thread_id, rest, known)
            taken = replace(taken, new={**taken.new, **late})
            return await self._before_its_answer(run, thread_id, taken, on_divergence)
        taken = TakenInput(new={})
        if found.is_unknown:
            event = {"action": "append", "after": last.id if last else None, "unknown": len(old)}
            taken = replace(taken, event=event)
        if leaves:
            taken = await self._leave(run, thread_id, taken, last, on_divergence, is_active=is_active)
        changed = {message.id for message in forgotten}
        new = {
            message.id: _under_new_id(message) if message.id in known else unstored(message)
            for message in rest
            if message.id not in changed
        }
        repeated: list[Message] = []
        if not rest:
            newest = rows[len(rows) - len(last_questions(given)) :]
            repeated = [row for row in newest if row.role == "user"]
        return replace(taken, new={**new, **late}, repeated=repeated)

    async def _before_its_answer(
        self, run: Run | None, thread_id: str, taken: TakenInput, on_divergence: OnDivergence
    ) -> TakenInput:
        """If the input repeats the thread's last question, and that has an answer, go back to before the answer.

        Tool calls stay, so that nothing is paid twice if a client repeats a request after a lost reply.
        """
        asked = taken.repeated[-1] if taken.repeated and not taken.new else None
        if asked is None or asked.seq is None:
            return taken
        behind = await self._storage.list_messages(thread_id, after=asked.seq)
        deleted = await self._storage.list_forgotten(thread_id)
        deleted = [gone for gone in deleted if gone.seq >= asked.seq and gone.id != asked.id]
        if any(row.role == "user" for row in (*behind, *deleted)):
            return taken
        steps = [place for place, row in enumerate(behind, 1) if row.tool_parts]
        answered = steps[-1] if steps else 0
        if all(map(may_lack, behind[answered:])):
            return taken
        return await self._leave(run, thread_id, taken, [asked, *behind][answered], on_divergence)

    async def _leave(
        self,
        run: Run | None,
        thread_id: str,
        taken: TakenInput,
        last: Message | None,
        on_divergence: OnDivergence,
        *,
        is_active: bool = True,
    ) -> TakenInput:
        """Go back to ``last``, as ``on_divergence`` says. ``is_active``: False if the client has another branch."""
        if on_divergence == "error":
            raise InputError(
                f"the input leaves thread {thread_id!r} behind message {last.id if last else None!r}, which other "
                "messages follow; pass on_divergence='branch' to go back to it, or 'append'"
            )
        if on_divergence == "append" or last is None:
            return taken
        if run is None:
            return replace(taken, hidden_after=seq_of(last)) if is_active else taken
        gone = await self.move(run, seq_of(last), for_turn=True)
        return replace(taken, event={"action": "branch", "after": last.id, "superseded": list(gone)})

    async def _without_place(self, thread_id: str, given: Sequence[Message], known: Collection[str]) -> TakenInput:
        """Take in messages that no history places: those with known ids are known, unless the last one was edited."""
        new = {message.id: unstored(message) for message in given if message.id not in known}
        question = given[-1]
        if question.role == "assistant" or (question.role == "user" and question.id in new):
            return TakenInput(new=new)
        newest = await self._last_turn(thread_id)
        if question.role == "tool":  # a client may send results again after a failed run
            told = [_results(row) for row in takewhile(lambda row: row.role == "tool", newest)]
            return TakenInput(new={key: message for key, message in new.items() if _results(message) not in told})
        changed = {message.id for message in await self._storage.list_forgotten(thread_id)}
        rows = [row for row in newest if row.id not in changed]
        if question.id not in changed and is_edited(question, rows):
            return TakenInput(new={**new, question.id: _under_new_id(question)})
        if new:
            return TakenInput(new=new)
        repeated = [_stored_as(message, rows) for message in last_questions(given)]
        there = await self._storage.existing_ids(thread_id, [message.id for message in repeated])
        if repeated[-1].id not in there:
            raise _forgotten(question.id, thread_id)
        return TakenInput(new={}, repeated=[message for message in repeated if message.id in there])

    async def _last_turn(self, thread_id: str) -> list[Message]:
        """Return the newest rows, the newest first: at least those from the last question on."""
        page = rows = await self._storage.list_messages(thread_id, limit=_PAGE, newest_first=True)
        while len(page) == _PAGE and all(row.role != "user" for row in page):
            page = await self._storage.list_messages(thread_id, before=page[-1].seq, limit=_PAGE, newest_first=True)
            rows = [*rows, *page]
        return rows

    async def _read(
        self, thread_id: str, given: Sequence[Message], by_id: Collection[str], forgotten: Sequence[Forgotten]
    ) -> _Reading:
        """Return the branch that the client shows: the one with the most of its answers, if in doubt the active one."""
        answers = sum(message.role == "assistant" for message in given)
        changed = {message.id for message in forgotten}

        def read(rows: Sequence[Message], *, is_active: bool = True) -> _Reading:
            places = _with_gaps(rows, forgotten)
            return _Reading(places, divergence(given, places, by_id=by_id, changed=changed), is_active)

        rows = await self._end_of(thread_id, answers)
        best = read(rows)
        if best.found.known < answers or best.found.keep < len(best.places):
            rows = [row async for row in rows_between(self._storage, thread_id)]
            best = read(rows)
        if best.found.known < answers:
            for branch in _paths(await self._storage.list_superseded(thread_id)):
                fork = branch[0].parent
                path = [row for row in rows if seq_of(row) <= fork] + [one.message for one in branch]
                best = max(best, read(path, is_active=False), key=lambda reading: reading.found.known)
        return best

    async def _end_of(self, thread_id: str, answers: int) -> list[Message]:
        """Return enough of the newest rows, in order, to contain more than this number of answers, or all rows.

        A client keeps every answer that it received, so older rows cannot match its history.
        """
        rows: list[Message] = []
        while answers >= 0:
            limit = max(_PAGE, len(rows))
            before = rows[-1].seq if rows else None
            page = await self._storage.list_messages(thread_id, before=before, limit=limit, newest_first=True)
            rows += page
            answers -= sum(not may_lack(row) for row in page)
            if len(page) < limit:
                break
        return rows[::-1]

    # -- going back, and other branches

    async def move(self, run: Run, end: int, *, for_turn: bool = False) -> list[str]:
        """Make a message the last one of the active branch; return the ids of the messages that became superseded.

        Removes what was made from messages behind the fork: entries of diaries, vectors, generated titles. The messages
        in front of it that such an entry covers become raw again, and those that come back are raw.

        Args:
            end: ``seq`` of an active or superseded message.
            for_turn: Go back also if the vector store fails.

        Raises:
            RunLostError: The run is not live.
            NotFoundError: There is no such message.
            ConflictError: The diary was saved by others in each of ten attempts.
            Exception: Any error of the user's vector store; nothing has changed.
        """
        thread = Thread(id=run.thread_id, resource_id=run.resource_id)
        superseded = await self._storage.list_superseded(thread.id)
        fork, path = path_to({seq_of(one.message): one.parent for one in superseded}, end)
        stones = (Tombstone(thread_id=thread.id, first_seq=fork + 1, last_seq=WHOLE),)
        if path:  # before they come back: they are embedded again
            try:
                await inner_cancel_as_error(self._embedding.go_back(thread, fork))
            except Exception as error:  # any error of the user's store
                if not for_turn:
                    raise
                logger.warning("messages that come back in thread %s are not found by meaning: %r", thread.id, error)

        async def save() -> tuple[list[str], list[ObservationLog]]:
            logs = await logs_of(self._storage, thread)
            changed = [(log, await self._without(log, stones)) for log in logs]
            return await self._storage.set_branch(run, end, logs=changed), logs

        gone, logs = await retry_on_conflict(save)
        try:
            await clean_after_move(self._storage, thread.id, logs, stones)
            if path:
                await inner_cancel_as_error(self._embedding.go_back(thread, fork))
                self._embedding.start(thread)
            else:  # if the run is discarded, the messages superseded here come back, and are embedded again
                await inner_cancel_as_error(self._embedding.go_back(thread, fork, wait=False))
            there = await self._storage.existing_ids(thread.id, gone)
            left = [message_id for message_id in gone if message_id not in there]
            await inner_cancel_as_error(
                self._embedding.forget(resource=thread.resource_id, thread=thread.id, message_ids=left)
            )
        except Exception as error:  # any error of the user's store; searches leave out messages that are not active
            logger.warning("copies of superseded messages of thread %s cannot be removed: %r", thread.id, error)
        return gone

    async def _without(self, log: ObservationLog, stones: Sequence[Tombstone]) -> ObservationLog:
        past = await self._storage.list_generations(log.key) if log.entries or log.reflection else []
        return without_rows(log, past, stones)

    async def list(self, thread_id: str) -> list[Branch]:
        """Return the branches that are not active, the newest first."""
        superseded = await self._storage.list_superseded(thread_id)
        found: list[Branch] = []
        for path in _paths(superseded):
            before = await self._storage.list_messages(thread_id, before=path[0].parent + 1, limit=1, newest_first=True)
            rows = tuple([one.message for one in path])
            branch_id = f"branch_{seq_of(rows[-1])}"
            found.append(Branch(id=branch_id, after=before[0].id if before else None, messages=rows))
        return found


def _is_own(message: Message) -> bool:
    """Return True if the client made the id, so that an unknown id means a new message.

    Answers have ids from memory; a client that does not keep them sends a stored answer under another id.
    """
    return message.role != "assistant" and not _GENERATED_ID.fullmatch(message.id)


def unstored(message: Message) -> Message:
    """Return a copy of a caller's message without the values that storage sets. The original may be a row of another
    thread."""
    return replace(
        message,
        parts=list(message.parts),
        metadata={key: value for key, value in message.metadata.items() if key not in (EDITED_KEY, REWRITTEN_KEY)},
        thread_id=None,
        resource_id=None,
        run_id=None,
        seq=None,
        part_tokens=None,
        sent=None,
    )


def _under_new_id(question: Message) -> Message:
    """Return a copy to store beside the message that has its id."""
    copy = unstored(question)
    return replace(copy, id=new_id("msg"), metadata={**copy.metadata, EDITED_KEY: question.id})


def _stored_as(question: Message, rows: Sequence[Message]) -> Message:
    """Return the first row with the id and the content of a client's question, or else the question."""
    return next((row for row in rows if is_same(question, row) and key_of(question) == key_of(row)), question)


def _paths(superseded: Sequence[Superseded]) -> list[list[Superseded]]:
    """Return the branches of a thread, the newest first: for each last message the superseded ones on the way to it."""
    by_seq = {seq_of(one.message): one for one in superseded}
    parents = {seq: one.parent for seq, one in by_seq.items()}
    ends = sorted(by_seq.keys() - set(parents.values()), reverse=True)
    return [[by_seq[seq] for seq in path_to(parents, end)[1]] for end in ends]


def _with_gaps(rows: Sequence[Message], forgotten: Sequence[Forgotten]) -> list[BranchPlace]:
    """Return the rows, and deleted messages at their places between them. A changed message is there as its row."""
    if not forgotten:
        return list(rows)
    ids = {row.id for row in rows}
    gaps = [gap for gap in forgotten if gap.id not in ids]
    return sorted([*rows, *gaps], key=lambda place: (place.seq or 0, isinstance(place, Forgotten)))


def _results(message: Message) -> list[tuple[str, str, Json]]:
    return [(part.call_id, part.state, part.result) for part in message.tool_parts]


def _late_results(known: Sequence[Message], rows: Sequence[Message]) -> dict[str, Message]:
    """Return a message with the results in known messages of the last turn whose calls are stored without one, since a
    client ran them after the turn; by the id of the last of these messages. Without such results, return an empty
    dictionary."""
    waiting: set[str] = set()
    for row in rows:
        if row.role == "user":
            waiting.clear()
        for part in row.tool_parts:
            (waiting.add if part.state == "call" else waiting.discard)(part.call_id)
    turn = list(takewhile(lambda message: message.role != "user", reversed(known)))
    found = [
        (message, replace(part, args={}))
        for message in reversed(turn)
        for part in message.tool_parts
        if part.state != "call" and part.call_id in waiting
    ]
    if not found:
        return {}
    last, parts = found[-1][0], list[Part](part for _, part in found)
    results = replace(unstored(last), parts=parts) if last.role == "tool" else Message(role="tool", parts=parts)
    return {last.id: results}


def _forgotten(message_id: str, thread_id: str) -> InputError:
    return InputError(
        f"message {message_id!r} of thread {thread_id!r} was forgotten, and the input has nothing else to answer: give "
        "the message a new id to send it again"
    )
