"""Baselines: the full history, its last messages, a plain summary, and semantic recall alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import orjson

from diarist.agent import Agent
from diarist.evals.items import Context, History, Question, Session, session_text
from diarist.evals.records import file_name, write_text
from diarist.exceptions import ThreadBusyError
from diarist.memory import Memory
from diarist.messages import Message
from diarist.models.base import Model, ModelSettings
from diarist.models.embedders import Embedder
from diarist.storage.sqlite import SQLiteStorage
from diarist.tokens import default_counter

Render = Callable[[Sequence[Session]], str]
"""Turns raw sessions into the text that a reader gets: ``Dataset.sessions_text``."""

_SESSION, _DATE = "session", "date"
_WAIT = 120.0

_SUMMARY = """\
You keep a summary of conversations with a user. Rewrite it so that it also covers the new sessions below.

Keep what later questions may ask for: names, dates, numbers, decisions, preferences, events, and what the assistant \
said or recommended. If something has changed, keep the newest state. Write at most {words} words, and only the summary.

<summary>
{summary}
</summary>

<sessions>
{sessions}
</sessions>
"""


class FullHistory:
    """Everything that was said before the question.

    Args:
        context_tokens: Maximum tokens; the oldest sessions are left out. None: no limit.
    """

    def __init__(self, histories: Mapping[str, History], render: Render, *, context_tokens: int | None = None) -> None:
        self._histories, self._render, self._most = histories, render, context_tokens

    async def add(self, history: str, session: Session) -> None:
        """Do nothing: the history is in the data set."""

    async def context(self, history: str, question: Question) -> Context:
        sessions = self._histories[history].sessions[: question.after]
        return Context(text=newest(sessions, self._render, self._most))


class LastMessages:
    """The last messages before the question.

    Args:
        count: Number of messages.
        context_tokens: As for ``FullHistory``.
    """

    def __init__(
        self, histories: Mapping[str, History], render: Render, *, count: int, context_tokens: int | None = None
    ) -> None:
        self._histories, self._render, self._count, self._most = histories, render, count, context_tokens

    async def add(self, history: str, session: Session) -> None:
        """Do nothing: the history is in the data set."""

    async def context(self, history: str, question: Question) -> Context:
        left, kept = self._count, list[Session]()
        for session in reversed(self._histories[history].sessions[: question.after]):
            if left <= 0:
                break
            kept.append(replace(session, messages=session.messages[-left:]))
            left -= len(session.messages)
        return Context(text=newest(kept[::-1], self._render, self._most))


class Summary:
    """A running summary, and the sessions that it does not cover yet.

    Args:
        folder: Keeps the summaries.
        message_tokens: Sessions are summarized when this many tokens are new, as the diary is written.
        size: Returns the tokens that the summary of a history may have.
    """

    def __init__(
        self,
        folder: Path,
        model: Model,
        histories: Mapping[str, History],
        render: Render,
        *,
        message_tokens: int,
        size: Callable[[str], int],
    ) -> None:
        self._folder, self._histories, self._render = folder, histories, render
        self._tokens, self._size = message_tokens, size
        self._agent = Agent(model=model, model_settings=ModelSettings(temperature=0.0))

    async def add(self, history: str, session: Session) -> None:
        summary, covered, waiting = self._read(history)
        if session.id not in (*covered, *waiting):
            waiting.append(session.id)
        sessions = [one for one in self._histories[history].sessions if one.id in waiting]
        if sum(session_tokens(one) for one in sessions) >= self._tokens:
            size = self._size(history)
            prompt = _SUMMARY.format(
                words=max(1, size * 3 // 4),
                summary=summary or "(nothing yet)",
                sessions="\n\n".join(f"[{one.date or one.id}]\n{session_text(one)}" for one in sessions),
            )
            written = (await self._agent.generate(prompt)).text.strip()
            summary, covered, waiting = cut(written, size), [*covered, *waiting], []
        value = {"summary": summary, "covered": covered, "waiting": waiting}
        write_text(self._path(history), orjson.dumps(value).decode())

    async def context(self, history: str, question: Question) -> Context:
        summary, _, waiting = self._read(history)
        raw = self._render([one for one in self._histories[history].sessions if one.id in waiting])
        return Context(text="\n\n".join(text for text in (summary, raw) if text))

    def _read(self, history: str) -> tuple[str, list[str], list[str]]:
        path = self._path(history)
        if not path.exists():
            return "", [], []
        value = orjson.loads(path.read_bytes())
        return value["summary"], value["covered"], value["waiting"]

    def _path(self, history: str) -> Path:
        return self._folder / "summaries" / f"{file_name(history)}.json"


class SemanticRecall:
    """Messages that are similar in meaning to the question or contain its words, with their neighbours.

    Args:
        folder: Keeps the database.
        top_k: Number of messages to find.
    """

    def __init__(self, folder: Path, embedder: str | Embedder, render: Render, *, top_k: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._memory = Memory(storage=SQLiteStorage(folder / "memory.db"), embedder=embedder)
        self._render, self._top_k = render, top_k

    async def add(self, history: str, session: Session) -> None:
        await save(self._memory, history, session)
        await self._memory.settled()

    async def context(self, history: str, question: Question) -> Context:
        page = await self._memory.recall(question.text, resource=history, limit=self._top_k, message_range=1)
        found = {row.id: row for hit in page.items for row in (*hit.before, hit.message, *hit.after)}
        return Context(text=self._render(sessions_of(found.values())))

    async def close(self) -> None:
        await self._memory.close()


def newest(sessions: Sequence[Session], render: Render, most: int | None) -> str:
    """Return the sessions as text; of more than ``most`` tokens only the newest ones."""
    text = render(sessions)
    if most is None or default_counter().count(text) <= most:
        return text
    kept = list(sessions)
    sizes = [default_counter().count(render([session])) for session in kept]
    while len(kept) > 1 and sum(sizes) > most:
        kept.pop(0)
        sizes.pop(0)
    while kept and default_counter().count(text := render(kept)) > most:  # together they may be longer than one by one
        if len(kept) > 1:
            kept.pop(0)
        elif len(kept[0].messages) > 1:
            kept[0] = replace(kept[0], messages=kept[0].messages[1:])
        else:
            break
    return text


async def save(memory: Memory, history: str, session: Session) -> None:
    """Store a session as messages of the thread and resource ``history``; twice has no effect."""
    rows = [
        replace(message, metadata={**message.metadata, _SESSION: session.id, _DATE: session.date})
        for message in session.messages
    ]
    await when_free(lambda: memory.messages.save(rows, thread=history, resource=history))


async def when_free(work: Callable[[], Awaitable[object]]) -> None:
    """Do the work on a thread, as soon as the run or lease of a process that was killed has expired.

    Raises ThreadBusyError after ``_WAIT`` seconds.
    """
    end = time.monotonic() + _WAIT
    while True:
        try:
            await work()
            return
        except ThreadBusyError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(1)


def sessions_of(rows: Iterable[Message]) -> list[Session]:
    """Return stored messages as sessions, in the order in which they were stored."""
    ordered = sorted(rows, key=lambda row: row.seq or 0)
    return [
        Session(id=str(id), date=str(date), messages=tuple(found))
        for (id, date), found in groupby(ordered, key=lambda row: (row.metadata[_SESSION], row.metadata[_DATE]))
    ]


def session_tokens(session: Session) -> int:
    """Return the tokens of the session's texts."""
    return sum(map(default_counter().count, (message.text for message in session.messages)))


def cut(text: str, tokens: int) -> str:
    """Return the beginning of a text: whole lines of at most ``tokens`` tokens, or the start of its first line."""
    lines = text.splitlines(keepends=True)
    while len(lines) > 1 and default_counter().count("".join(lines)) > tokens:
        lines.pop()
    words = "".join(lines).split(" ")
    while len(words) > 1 and default_counter().count(" ".join(words)) > tokens:
        words.pop()
    return " ".join(words).strip()
