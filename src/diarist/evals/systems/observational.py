"""Observational memory under evaluation, with and without the tool ``recall``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diarist.evals.items import Context, Question, Session
from diarist.evals.systems.baselines import Render, save, session_tokens, sessions_of, when_free
from diarist.memory import Memory, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.memory.observational.recall_tool import recall_tool
from diarist.models.base import Model, ModelSettings
from diarist.storage.records import ObservationLog
from diarist.storage.sqlite import SQLiteStorage


class ObservationalMemory:
    """A real ``Memory`` with a diary: one thread and resource per history, with the sessions' own times.

    Once ``message_tokens`` of messages are new, all of them are observed; the rest stays raw, as in production.

    Args:
        folder: Keeps the database.
        observer: The model of Observer and Reflector, or ``"extractive"``.
        message_tokens, observation_tokens: As for ``ObservationConfig`` and ``ReflectionConfig``.
        observer_tokens: Maximum tokens of one answer of Observer or Reflector; None: 100,000.
        each_session: Observe after every session instead.
        recall: Give the reader the tool ``recall``.
    """

    def __init__(
        self,
        folder: Path,
        observer: Model | str,
        render: Render,
        *,
        message_tokens: int,
        observation_tokens: int,
        observer_tokens: int | None = None,
        each_session: bool = False,
        recall: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        limit = ModelSettings(max_output_tokens=observer_tokens)
        self._config = ObservationalMemoryConfig(
            model=observer,
            observation=ObservationConfig(message_tokens=message_tokens, model_settings=limit),
            reflection=ReflectionConfig(observation_tokens=observation_tokens, model_settings=limit),
            retrieval=recall,
        )
        self._memory = Memory(storage=SQLiteStorage(folder / "memory.db"), observational_memory=self._config)
        self._render, self._due, self._recall = render, 1 if each_session else message_tokens, recall
        self._new: dict[str, int] = {}

    async def add(self, history: str, session: Session) -> None:
        if history not in self._new:
            self._new[history] = await self._new_tokens(history, session.id)
        await save(self._memory, history, session)
        self._new[history] += session_tokens(session)
        if self._new[history] >= self._due:
            await when_free(lambda: self._memory.diary.observe(thread=history, resource=history))
            self._new[history] = 0

    async def context(self, history: str, question: Question) -> Context:
        rows = await self._memory.messages.list(thread=history, resource=history)
        if not rows:  # the thread does not exist yet
            return Context(text="")
        found = await self._memory.context(thread=history, resource=history)
        log = await self._memory.diary.get(thread=history, resource=history)
        sources = [source for entry in log.active for source in entry.sources]
        raw = [
            row for row in rows if not any(source.first_seq <= (row.seq or 0) <= source.last_seq for source in sources)
        ]
        text = "\n\n".join([*found.system, self._render(sessions_of(raw))] if raw else found.system)
        if not self._recall:
            return Context(text=text)
        ids = {row.id for row in raw}
        tool = recall_tool(
            self._memory.storage,
            lambda: log,
            resource_id=history,
            thread_id=history,
            run_id=None,
            counter=self._memory.counter,
            config=self._config,
            shown=lambda: ids,
        )
        return Context(text=text, tools=[tool])

    async def notes(self, history: str, session: str) -> list[str]:
        """Return the lines of all entries that were made from messages of the session."""
        rows = await self._memory.messages.list(thread=history, resource=history)
        seqs = [row.seq or 0 for row in rows if row.metadata.get("session") == session]
        if not seqs:
            return []
        logs = [
            *await self._memory.diary.history(thread=history, resource=history),
            await self._memory.diary.get(thread=history, resource=history),
        ]
        return _lines(logs, seqs[0], seqs[-1])

    async def diary_tokens(self, history: str) -> int:
        """Return the tokens of the diary."""
        return (await self._memory.diary.get(thread=history, resource=history)).tokens

    async def close(self) -> None:
        await self._memory.close()

    async def _new_tokens(self, history: str, before: str) -> int:
        """Return the tokens that were new before a session, from the sessions that the database has."""
        new = 0
        for session in sessions_of(await self._memory.messages.list(thread=history, resource=history)):
            if session.id == before:
                break
            new += session_tokens(session)
            new = 0 if new >= self._due else new
        return new


def _lines(logs: Sequence[ObservationLog], first: int, last: int) -> list[str]:
    """Return the lines of observations with a source between two messages; headings are left out."""
    entries = {
        entry.id: entry
        for log in logs
        for entry in log.every_entry
        if entry.kind == "observation"
        and any(source.first_seq <= last and first <= source.last_seq for source in entry.sources)
    }
    lines = [line.strip().lstrip("-*• ").strip() for entry in entries.values() for line in entry.text.splitlines()]
    return [line for line in lines if line and not line.startswith("Date:")]
