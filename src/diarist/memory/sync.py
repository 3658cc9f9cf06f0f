"""``memory.sync``: the methods of memory for synchronous code, such as scripts and notebooks."""

from __future__ import annotations

from diarist.memory.diary import Diary
from diarist.memory.messages import Messages
from diarist.memory.threads import Threads
from diarist.memory.working_memory import Working
from diarist.sync import blocking, iterating


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
        self.overrides = blocking(diary.overrides)
        self.set_overrides = blocking(diary.set_overrides)


class SyncWorking:
    """``memory.working`` for synchronous code."""

    def __init__(self, working: Working) -> None:
        self.get = blocking(working.get)
        self.update = blocking(working.update)
