"""Message history: show the last messages of the thread to the model, and store the new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import dropwhile
from typing import Any

from diarist.checks import flags, seconds, whole
from diarist.memory.access import Access
from diarist.memory.rows import find_opener, seq_of, stand_in
from diarist.memory.run_recorder import RunRecorder
from diarist.messages import Message
from diarist.processors.base import ProcessInputArgs, ProcessInputStepArgs, Processor
from diarist.storage.base import Storage, checked_storage
from diarist.tokens import TokenCounter, checked_counter

_TURN_ROWS = 200


class HistoryProcessor(Processor[Any]):
    """Message history in a memory; ``last_messages`` and ``read_only`` as for ``MessageHistory``."""

    id = "message-history"
    opens_run = True
    loads_history = True
    edits_in_place = False

    def __init__(self, access: Access, last_messages: int, *, read_only: bool) -> None:
        self._access, self._storage = access, access.storage
        self._last = last_messages
        self._read_only = read_only
        self.stores_run = not read_only

    def create_state(self) -> RunRecorder:
        return RunRecorder(self._access, read_only=self._read_only)

    async def process_input(self, args: ProcessInputArgs[Any]) -> None:
        if args.thread_id is None:
            return
        recorder: RunRecorder = args.state
        await recorder.begin(args.context)
        window = await self.window(args.thread_id, upto=recorder.hidden_after)
        if args.context.answers and not args.context.answers <= {
            part.call_id for row in window for part in row.tool_parts
        }:
            window = await self._with_calls(window, args.context.answers, args.thread_id, upto=recorder.hidden_after)
        args.message_list.remember(window)
        recorder.ask_again(args.message_list, window)

    async def process_input_step(self, args: ProcessInputStepArgs[Any]) -> None:
        if args.thread_id is not None:
            await args.state.sync(args.context)

    async def window(self, thread_id: str, *, upto: int | None = None) -> list[Message]:
        """Return the last messages, starting with a user message; none if ``last_messages`` is 0. ``upto``: only
        messages up to this ``seq``.

        The start moves in jumps of 30% of the limit, so that most prompts begin like the previous one. It depends on
        the thread alone.
        """
        if not self._last:
            return []
        before = None if upto is None else upto + 1
        rows = await self._storage.list_messages(thread_id, before=before, limit=self._last + 1, newest_first=True)
        rows.reverse()
        hop = self._last - self._last * 7 // 10
        window = _newest(rows, self._last, hop)
        if not window or window[0].role == "user":
            return window
        # The rows that the window has had since its start moved. A user message that came later would move it too soon.
        first_rows = window[: self._last - hop + 1] if len(window) < len(rows) else ()
        first = next((index for index, row in enumerate(first_rows) if row.role == "user"), None)
        if first is not None:
            return window[first:]
        opener = await find_opener(self._storage, thread_id, before=window[0])
        newest = window if opener is None else _newest(rows, self._last - 1, hop)
        newest = list(dropwhile(lambda row: row.role == "tool", newest))  # drop results without their calls
        if opener is None and newest:
            opener = stand_in(newest[0])
        return [opener, *newest] if opener is not None else []

    async def _with_calls(
        self, window: list[Message], call_ids: Collection[str], thread_id: str, *, upto: int | None
    ) -> list[Message]:
        """Return the window with the end of the thread's last turn, from the first of these calls on.

        A window without the calls that this run answers is too small.
        """
        before = None if upto is None else upto + 1
        turn: list[Message] = []
        for row in await self._storage.list_messages(thread_id, before=before, limit=_TURN_ROWS, newest_first=True):
            turn.insert(0, row)
            if row.role == "user":
                break
        for place, row in enumerate(turn):
            if any(part.call_id in call_ids for part in row.tool_parts):
                ids = {row.id for row in turn[place:]}
                return [*([row for row in window if row.id not in ids] or turn[: min(place, 1)]), *turn[place:]]
        return window


class MessageHistory(HistoryProcessor):
    """Shows the model the last messages of the thread and stores those of the run step by step, as ``Memory`` does.

    List it among the input processors. In an agent with a ``Memory`` it takes the place of the memory's own history.
    Closing the agent closes the storage, which opens again at its next use.

    Args:
        storage: The storage for the messages.
        last_messages: Maximum number of the thread's messages to show; 0 shows none. A run that answers tool calls also
            shows these calls and what follows. The first message is a user message,
            so the rest of an earlier turn before it is left out. If the last turn is longer than the limit, its user
            message and its newest messages are shown. Tool results are never shown without their calls. When there are
            more messages than the limit, old ones are dropped in groups, down to 70% of the limit, so that the start of
            the prompt stays the same for some turns.
        token_counter: Default: o200k_base.
        thread_wait: Seconds to wait until another call of the same thread has ended.
        read_only: Store nothing, and wait for no other call.

    Raises:
        ConfigError: An option is invalid.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        last_messages: int = 10,
        token_counter: TokenCounter | None = None,
        thread_wait: float = 30.0,
        read_only: bool = False,
    ) -> None:
        whole("MessageHistory", "last_messages", last_messages, least=0)
        seconds("MessageHistory", "thread_wait", thread_wait, zero=True)
        flags("MessageHistory", read_only=read_only)
        counter = checked_counter("MessageHistory", token_counter)
        super().__init__(
            Access(checked_storage(storage), counter, thread_wait=thread_wait), last_messages, read_only=read_only
        )

    async def close(self) -> None:
        await self._storage.close()


def _newest(rows: Sequence[Message], most: int, hop: int) -> list[Message]:
    """Return at most ``most`` newest rows; if there are more, those after a row number that is a multiple of
    ``hop``."""
    if len(rows) <= most:
        return list(rows)
    start = -(-seq_of(rows[-most - 1]) // hop) * hop
    return [row for row in rows if seq_of(row) > start]
