"""Message history: the last messages of the thread before the model, the new ones into storage after it."""

from __future__ import annotations

from typing import Any

from diarist.memory.observational.log.coverage import seq_of
from diarist.memory.observational.window import stand_in
from diarist.memory.recording import RunRecorder
from diarist.messages import Message
from diarist.processors.base import (
    ProcessInputArgs,
    ProcessInputStepArgs,
    Processor,
)
from diarist.storage.base import Storage
from diarist.tokens import TokenCounter

_LONGEST_TURN = 200


class MessageHistory(Processor[Any]):
    """Loads the last messages of the thread and stores the run's own, step by step.

    Args:
        last_messages: The most messages to load; 0 loads none. So that the prompt's beginning stays the same for
            some turns, the oldest leave in hops: beyond the limit as many as leave 70% of it. They begin with a
            user's message: the rest of a turn at their front is left out. Where that turn is too long, the message
            that began it comes in front of them.
        thread_wait: Seconds to wait for another run of the same thread.
    """

    id = "message-history"
    opens_run = True
    stores_run = True
    edits_in_place = False

    def __init__(
        self, storage: Storage, *, counter: TokenCounter, last_messages: int = 10, thread_wait: float = 30.0
    ) -> None:
        self._storage = storage
        self._counter = counter
        self._last = last_messages
        self._thread_wait = thread_wait

    def create_state(self) -> RunRecorder:
        return RunRecorder(self._storage, self._counter, thread_wait=self._thread_wait)

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        if args.thread_id is None:
            return
        recorder: RunRecorder = args.state
        await recorder.begin(args.context)
        window = await self._window(args.thread_id) if self._last else []
        args.message_list.remember(window)
        recorder.ask_again(args.message_list, window)

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        if args.thread_id is not None:
            await args.state.sync(args.context)

    async def _window(self, thread_id: str) -> list[Message]:
        """The last messages, beginning with a user's.

        Where they begin follows from the thread alone, and moves in hops: at a row number that is a multiple of
        30% of their number. The user's message is looked for among the rows that every such window has, so that
        rows which come later do not move the beginning.
        """
        rows = await self._storage.list_messages(thread_id, limit=self._last + 1, newest_first=True)
        rows.reverse()
        hop = self._last - self._last * 7 // 10
        if cut := len(rows) > self._last:
            start = -(-seq_of(rows[0]) // hop) * hop
            rows = [row for row in rows if seq_of(row) > start]
        if not rows or rows[0].role == "user":
            return rows
        always = rows[: self._last - hop + 1] if cut else ()
        first = next((index for index, row in enumerate(always) if row.role == "user"), None)
        if first is not None:
            return rows[first:]
        return [await self._opener(thread_id, rows[0]) or stand_in(rows[0]), *rows]

    async def _opener(self, thread_id: str, row: Message) -> Message | None:
        """The user's message that began the turn of ``row``, in a turn of up to 200 messages."""
        before = await self._storage.list_messages(thread_id, before=row.seq, limit=_LONGEST_TURN, newest_first=True)
        return next((message for message in before if message.role == "user"), None)
