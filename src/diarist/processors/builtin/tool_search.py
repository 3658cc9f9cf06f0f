"""A library of tools that the model searches, instead of being shown all of it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from diarist.exceptions import ConfigError, ToolError
from diarist.messages import Json
from diarist.processors.base import InputStepResult, ProcessInputStepArgs, Processor
from diarist.processors.builtin.options import not_negative, positive
from diarist.processors.builtin.tool_index import ToolIndex
from diarist.processors.setup import tools_by_name
from diarist.run_context import RunContext
from diarist.tools import Tool, ToolContext


@dataclass(slots=True)
class _Loaded:
    """What a thread has loaded, in that order, and when it was last used."""

    names: list[str] = field(default_factory=list[str])
    used_at: float = 0.0


class ToolSearchProcessor(Processor[Any]):
    """Gives the model two tools, ``search_tools`` and ``load_tool``, by which it finds others when it needs them.

    A loaded tool can be called from the next step on and stays loaded for its thread (without a thread: for the
    run). It is added after the tools that are there already, so that the beginning of the prompt stays the same.

    Loaded tools are remembered in this object, in this process: another process, or a thread unused for ``ttl``
    seconds, begins anew, and the model loads again what it needs.

    Args:
        tools: Functions or ``Tool`` objects; they need not be the agent's. The agent's own are shown as ever.
        top_k: Tools per search at most. Default 5.
        min_score: Hits below are left out. Default 0.1; a hit on one rare word scores about 1 to 5, the tool's
            own name above 10.
        ttl: Seconds. Default 3600.
        clock: Seconds since some moment; for tests. Default ``time.monotonic``.

    Raises:
        ConfigError: No tools, two with one name or one named like the two tools above, a bad signature, a
            top_k or ttl that is not positive, a negative min_score.

    Example::

        Agent(model="openai/gpt-5-mini", input_processors=[ToolSearchProcessor(github_tools + mail_tools)])
    """

    edits_in_place = False

    def __init__(
        self,
        tools: Sequence[Tool | Callable[..., Any]],
        *,
        top_k: int = 5,
        min_score: float = 0.1,
        ttl: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        positive("ToolSearchProcessor", "top_k", top_k)
        not_negative("ToolSearchProcessor", "min_score", min_score)
        positive("ToolSearchProcessor", "ttl", ttl)
        self._library = tools_by_name(tools)
        self._own = {
            item.name: item
            for item in (
                Tool(name="search_tools", function=self._search, description=_SEARCH),
                Tool(name="load_tool", function=self._load, description=_LOAD),
            )
        }
        if not self._library:
            raise ConfigError("ToolSearchProcessor: tools is empty, there is nothing to search")
        if taken := self._own.keys() & self._library.keys():
            raise ConfigError(f"ToolSearchProcessor: tools must not have the name {min(taken)!r}")
        self._index = ToolIndex(list(self._library.values()))
        self._top_k, self._min_score, self._ttl, self._clock = top_k, min_score, ttl, clock
        self._threads: dict[str, _Loaded] = {}

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepResult:
        """The step's tools, the two, and what the thread has loaded."""
        loaded = self._loaded(args.context)
        more = {name: self._library[name] for name in loaded.names if name not in args.tools}
        return {"tools": {**args.tools, **self._own, **more}}

    def loaded(self, thread: str) -> list[str]:
        """Names of the tools that a thread has loaded."""
        self._forget()
        return list(self._threads[thread].names) if thread in self._threads else []

    async def _search(self, query: str, context: ToolContext[Any]) -> list[dict[str, Json]]:
        loaded = self._loaded(context.run).names
        hits = self._index.search(query, top_k=self._top_k, min_score=self._min_score)
        return [
            {
                "name": hit.tool.name,
                "description": hit.tool.description,
                "score": round(hit.score, 2),
                "loaded": hit.tool.name in loaded,
            }
            for hit in hits
        ]

    async def _load(self, name: str, context: ToolContext[Any]) -> str:
        if name not in self._library:
            near = difflib.get_close_matches(name, self._library, n=3)
            hint = f"; similar: {', '.join(near)}" if near else ""
            raise ToolError(f"there is no tool {name!r} to load{hint}")
        loaded = self._loaded(context.run)
        if name in loaded.names:
            return f"{name} is loaded already."
        loaded.names.append(name)
        return f"{name} is loaded; it can be called from the next step on."

    def _loaded(self, run: RunContext[Any]) -> _Loaded:
        self._forget()
        entry = self._threads.setdefault(run.thread_id or run.run_id, _Loaded())
        entry.used_at = self._clock()
        return entry

    def _forget(self) -> None:
        too_old = self._clock() - self._ttl
        for key in [key for key, entry in self._threads.items() if entry.used_at <= too_old]:
            del self._threads[key]


_SEARCH = (
    "Find tools by words of what they do. Gives names, descriptions and scores, the best first. A tool that was "
    "found must be loaded with load_tool before it can be called."
)
_LOAD = "Load a tool by the name that search_tools gave. It can be called from the next step on."
