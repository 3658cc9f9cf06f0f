"""``memory.sync``: the methods of memory for synchronous code, such as scripts and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Self

from diarist.memory.diary import Diary
from diarist.memory.messages import Messages
from diarist.memory.threads import Threads
from diarist.memory.turn import Turn
from diarist.memory.working_memory import Working
from diarist.prompt_cache import MemoryReport
from diarist.sync import blocking, iterating, run_sync

P = ParamSpec("P")


class SyncThreads:
    """``memory.threads`` for synchronous code."""

    def __init__(self, threads: Threads) -> None:
        self.create = blocking(threads.create)
        self.get = blocking(threads.get)
        self.list = blocking(threads.list)
        self.update = blocking(threads.update)
        self.clone = blocking(threads.clone)
        self.delete = blocking(threads.delete)
        self.prune = blocking(threads.prune)
        self.rewind = blocking(threads.rewind)
        self.branches = blocking(threads.branches)
        self.switch_branch = blocking(threads.switch_branch)
        self.export = iterating(threads.export)
        self.export_all = iterating(threads.export_all)
        self.import_all = blocking(threads.import_all)


class SyncMessages:
    """``memory.messages`` for synchronous code."""

    def __init__(self, messages: Messages) -> None:
        self.list = blocking(messages.list)
        self.save = blocking(messages.save)
        self.update = blocking(messages.update)
        self.search = blocking(messages.search)
        self.embed = blocking(messages.embed)


class SyncDiary:
    """``memory.diary`` for synchronous code."""

    def __init__(self, diary: Diary) -> None:
        self.get = blocking(diary.get)
        self.history = blocking(diary.history)
        self.usage = blocking(diary.usage)
        self.as_of = blocking(diary.as_of)
        self.sources = blocking(diary.sources)
        self.search = blocking(diary.search)
        self.edit = blocking(diary.edit)
        self.delete = blocking(diary.delete)
        self.clear = blocking(diary.clear)
        self.observe = blocking(diary.observe)
        self.reflect = blocking(diary.reflect)
        self.events = blocking(diary.events)
        self.watch = iterating(diary.watch)


class SyncWorking:
    """``memory.working`` for synchronous code."""

    def __init__(self, working: Working) -> None:
        self.get = blocking(working.get)
        self.update = blocking(working.update)


class SyncTurn:
    """A ``Turn`` for synchronous code: ``with memory.sync.turn(...) as turn``."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.prompt = blocking(turn.prompt)
        self.commit = blocking(turn.commit)
        self.discard = blocking(turn.discard)
        self.overflowed = blocking(turn.overflowed)
        self.call = blocking(turn.call)

    @property
    def run_id(self) -> str:
        """The id of the stored run."""
        return self._turn.run_id

    @property
    def report(self) -> MemoryReport:
        """Memory's report on the turn, as in ``AgentResult.memory``."""
        return self._turn.report

    @property
    def degraded(self) -> str:
        """Why memory does not take part; empty if it does."""
        return self._turn.degraded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_sync(self._turn.__aexit__(kind, error, trace))


def sync_turn(method: Callable[P, Turn]) -> Callable[P, SyncTurn]:
    """Return ``memory.turn`` for synchronous code, with the same arguments."""

    @wraps(method)
    def turn(*args: P.args, **kwargs: P.kwargs) -> SyncTurn:
        return SyncTurn(method(*args, **kwargs))

    return turn
