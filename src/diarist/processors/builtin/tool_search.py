"""Let the model search a large set of tools, instead of sending all of them."""

from __future__ import annotations

import difflib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from diarist.checks import not_negative, positive, whole
from diarist.exceptions import ConfigError, ToolError
from diarist.messages import Json, Message
from diarist.processors.base import InputStepResult, ProcessInputStepArgs, Processor
from diarist.processors.setup import tools_by_name
from diarist.prompting import join_results
from diarist.run_context import RunContext
from diarist.tools import Tool, ToolContext

_SEARCH = (
    "Find tools by words of what they do. Returns names, descriptions and scores, the best first. A tool that was "
    "found must be loaded with load_tool before it can be called."
)
_LOAD = "Load a tool by a name that search_tools returned. It can be called from the next step on."


@dataclass(slots=True)
class _Loaded:
    """The tools that a thread loaded, in order, and the time of their last use."""

    names: list[str] = field(default_factory=list[str])
    used_at: float = 0.0


@dataclass(kw_only=True, eq=False, repr=False)
class ToolSearchProcessor(Processor[Any]):
    """Gives the model two tools, ``search_tools`` and ``load_tool``, with which it finds and loads others.

    A loaded tool can be called from the next step on. It stays loaded for its thread, or if there is none, for the
    run. It is added after the existing tools, so that the beginning of the prompt stays the same.

    This object keeps the list of loaded tools: in another process, or after ``ttl`` seconds without use, the model has
    to load them again. A tool whose call waits, for approval or for the client, counts as loaded.

    Args:
        tools: Functions or ``Tool`` objects. The agent's own tools are always sent.
        top_k: Maximum number of tools per search. Default 5.
        min_score: Lowest score of a hit. Default 0.1; one rare word scores about 1 to 5, the tool's name above 10.
        ttl: Seconds after which a thread's loaded tools are dropped. Default 3600.
        clock: Returns seconds; for tests. Default ``time.monotonic``.

    Example::

        Agent(model="openai/gpt-5-mini", input_processors=[ToolSearchProcessor(github_tools + mail_tools)])
    """

    edits_in_place = False

    tools: Sequence[Tool | Callable[..., Any]] = field(kw_only=False)
    top_k: int = 5
    min_score: float = 0.1
    ttl: float = 3600.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        whole("ToolSearchProcessor", "top_k", self.top_k, least=1)
        not_negative("ToolSearchProcessor", "min_score", self.min_score)
        positive("ToolSearchProcessor", "ttl", self.ttl)
        self._library = tools_by_name(self.tools)
        search = Tool(name="search_tools", function=self._search, description=_SEARCH)
        load = Tool(name="load_tool", function=self._load, description=_LOAD)
        self._own = {search.name: search, load.name: load}
        if not self._library:
            raise ConfigError("ToolSearchProcessor: tools is empty; give at least one tool")
        if taken := self._own.keys() & self._library.keys():
            raise ConfigError(f"ToolSearchProcessor: tools must not have the name {min(taken)!r}")
        self._index = ToolIndex(list(self._library.values()))
        self._threads: dict[str, _Loaded] = {}

    def process_input_step(self, args: ProcessInputStepArgs[Any]) -> InputStepResult:
        """Add the two tools and the thread's loaded tools to the step's tools."""
        if taken := [name for name, own in self._own.items() if args.tools.get(name, own) is not own]:
            raise ConfigError(f"the agent has a tool {taken[0]!r} of its own: give it another name")
        loaded = self._loaded(args.context)
        unloaded = self._library.keys() - loaded.names

        def waiting(messages: Sequence[Message]) -> dict[str, None]:
            calls = [call for message in messages for call in message.tool_parts if call.state == "call"]
            return dict.fromkeys(call.name for call in calls if call.name in unloaded)

        if waiting(args.messages):  # perhaps with a result in a later message
            loaded.names += waiting(join_results(args.messages))
        more = {name: self._library[name] for name in loaded.names if name not in args.tools}
        return {"tools": {**args.tools, **self._own, **more}}

    def loaded(self, thread: str) -> list[str]:
        """Return the names of the tools that a thread has loaded."""
        self._forget()
        return list(self._threads[thread].names) if thread in self._threads else []

    async def _search(self, query: str, context: ToolContext[Any]) -> list[dict[str, Json]]:
        loaded = self._loaded(context.run).names
        hits = self._index.search(query, top_k=self.top_k, min_score=self.min_score)
        return [
            {
                "name": tool.name,
                "description": tool.description,
                "score": round(score, 2),
                "loaded": tool.name in loaded,
            }
            for tool, score in hits
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
        entry.used_at = self.clock()
        return entry

    def _forget(self) -> None:
        too_old = self.clock() - self.ttl
        for key in [key for key, entry in self._threads.items() if entry.used_at <= too_old]:
            del self._threads[key]


_K1, _B = 1.5, 0.75
_EXACT, _PART = 10.0, 2.0
"""Score bonuses: for a query that equals a tool's name; for a query that contains the name or is part of it."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


class ToolIndex:
    """Ranks tools by a query with BM25, over names and descriptions.

    Uses the ranking function of Robertson and Zaragoza ("The Probabilistic Relevance Framework: BM25 and Beyond", 2009)
    with its usual parameters. Ranks a few thousand tools in about a millisecond.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = list(tools)
        # The name is the shortest description, so it counts twice.
        self._words = [Counter([*words(t.name), *words(t.name), *words(t.description)]) for t in self._tools]
        self._lengths = [counted.total() for counted in self._words]
        self._mean = sum(self._lengths) / max(1, len(self._lengths))
        self._containing = Counter(word for counted in self._words for word in counted)

    def search(self, query: str, *, top_k: int, min_score: float) -> list[tuple[Tool, float]]:
        """Return at most ``top_k`` tools with scores from ``min_score`` on, the best first. Tools with equal scores
        keep their order."""
        asked = words(query)
        name = "".join(asked)
        hits: list[tuple[Tool, float]] = []
        for tool, found, length in zip(self._tools, self._words, self._lengths, strict=True):
            score = 0.0
            for term in set(asked) & found.keys():
                having = self._containing[term]
                rarity = math.log(1 + (len(self._tools) - having + 0.5) / (having + 0.5))
                weight = _K1 * (1 - _B + _B * length / (self._mean or 1))
                score += rarity * found[term] * (_K1 + 1) / (found[term] + weight)
            own = "".join(words(tool.name))
            if name and own == name:
                score += _EXACT
            elif len(name) > 2 and (name in own or own in name):
                score += _PART
            if score >= min_score and score > 0:
                hits.append((tool, score))
        return sorted(hits, key=lambda hit: -hit[1])[:top_k]


def words(text: str) -> list[str]:
    """Return the words of a name or sentence, without a plural s; ``camelCase`` and ``snake_case`` are split."""
    found = [word.lower() for word in _WORD.findall(text)]
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]
