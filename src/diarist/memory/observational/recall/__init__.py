"""The ``recall`` tool: the actor reads original messages by observation, by number, or by search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import Literal, cast

from diarist.exceptions import ConfigError, ToolError
from diarist.memory.observational.config import ObservationalMemoryConfig, RetrievalConfig
from diarist.memory.observational.prompts import load_prompt
from diarist.memory.observational.recall.access import Access, Search
from diarist.memory.observational.recall.browsing import Browsing
from diarist.memory.observational.recall.finding import RECALL, Finding
from diarist.memory.observational.recall.writing import Pages
from diarist.storage.base import SearchStorage, Storage
from diarist.storage.records import ObservationLog
from diarist.tokens import TokenCounter
from diarist.tools import Tool

__all__ = ["RECALL", "Search", "recall_tool", "with_recall"]


def recall_tool(
    storage: Storage,
    read_log: Callable[[], ObservationLog],
    *,
    resource_id: str,
    thread_id: str,
    run_id: str | None,
    counter: TokenCounter,
    config: ObservationalMemoryConfig,
    shown: Callable[[], Collection[str]] = tuple,
    search: Search | None = None,
) -> Tool:
    """Return the tool ``recall`` for one run. It reads messages of ``resource_id`` only, in all its threads.

    Its description depends only on the configuration and the kind of storage, so that prompts stay the same.

    Args:
        read_log: Returns the diary as the run shows it.
        thread_id: The run's thread, which is the default if the model names none.
        run_id: The run; its own rows may be read as well.
        config: ``retrieves`` sets the maximum size of an answer, and enables search.
        shown: Returns the ids of the messages in the prompt, which a search leaves out.
        search: Replaces the storage's full-text search; also finds by meaning, and returns the best matches first.
    """
    settings = config.retrieves or RetrievalConfig()
    by_meaning = search is not None
    if search is None and isinstance(storage, SearchStorage):
        search = storage.search_messages
    access = Access(
        storage, resource_id=resource_id, thread_id=thread_id, run_id=run_id, obscured=config.obscures_threads
    )
    pages = Pages(settings.max_tokens, counter=counter, timezone=config.timezone)
    recall = _Recall(access, Browsing(access, pages, read_log), Finding(access, pages, search, shown))
    if search is None or not settings.search:
        return _without_search().with_function(recall.without_search)
    return _with_search(by_meaning).with_function(recall.with_search)


def with_recall(tools: Mapping[str, Tool], recall: Tool) -> dict[str, Tool]:
    """Add the recall tool to the tools of a step, as the last. Raises ConfigError if its name is taken."""
    if recall.name in tools:
        raise ConfigError(
            f"a tool is named {recall.name!r}, as is that of retrieval: rename it, or set retrieval=False"
        )
    return {**tools, recall.name: recall}


class _Recall:
    """The functions of the tool; their signatures become the schema that the model sees."""

    def __init__(self, access: Access, browsing: Browsing, finding: Finding) -> None:
        self._access = access
        self._browsing = browsing
        self._finding = finding

    async def with_search(
        self,
        mode: Literal["search", "browse", "threads"],
        query: str | None = None,
        observation: str | None = None,
        message: int | None = None,
        thread: str | None = None,
        detail: Literal["low", "high"] = "low",
        part: int = 1,
        offset: int = 0,
        cursor: str | None = None,
    ) -> str:
        if mode != "search":
            return await self.without_search(mode, observation, message, thread, detail, part, offset, cursor)
        if not query:
            raise ToolError("mode search needs query: the words to look for")
        thread_id = await self._access.thread_of(thread) if thread else None
        return await self._finding.messages(query, thread_id, cursor or None)

    async def without_search(
        self,
        mode: Literal["browse", "threads"],
        observation: str | None = None,
        message: int | None = None,
        thread: str | None = None,
        detail: Literal["low", "high"] = "low",
        part: int = 1,
        offset: int = 0,
        cursor: str | None = None,
    ) -> str:
        if mode == "threads":
            return await self._finding.threads(cursor)
        if message is not None and message < 1:
            raise ToolError(f"message must be a number from 1 on, not {message}")
        if detail == "high":
            if message is None:
                raise ToolError('detail "high" gives one part of one message in full: say which, with message')
            return await self._browsing.part(await self._access.thread_of(thread), message, part, offset)
        given = {"observation": observation, "message": message, "cursor": cursor}
        names = [name for name, value in given.items() if value]
        if len(names) > 1:
            raise ToolError(f"give one of {' and '.join(names)}, not {len(names)} of them")
        if observation:
            return await self._browsing.sources(observation)
        if cursor:
            return await self._browsing.go_on(cursor)
        if message is not None:
            return await self._browsing.around(await self._access.thread_of(thread), message)
        if thread:
            return await self._browsing.backward(await self._access.thread_of(thread))
        raise ToolError("say where to begin: give observation, message, thread or cursor")


# Cached: building the JSON schema of a tool takes some milliseconds.


@cache
def _with_search(by_meaning: bool) -> Tool:
    function = partial(_Recall.with_search, cast(_Recall, None))
    description = load_prompt("recall_by_meaning" if by_meaning else "recall")
    return Tool(name=RECALL, function=function, description=description)


@cache
def _without_search() -> Tool:
    function = partial(_Recall.without_search, cast(_Recall, None))
    return Tool(name=RECALL, function=function, description=load_prompt("recall_without_search"))
