"""The interface of a memory system under evaluation."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from diarist.evals.items import Context, Question, Session


class System(Protocol):
    """A memory system: it takes sessions, and returns a context for a question.

    Histories are independent: one must never see another's sessions. Calls for different histories may run at the same
    time. What is stored should survive the process, so that an interrupted run can continue.

    A system may also have ``async def notes(history, session) -> list[str]`` (see ``TakesNotes``) and ``async def
    close()``.
    """

    async def add(self, history: str, session: Session, /) -> None:
        """Store one session.

        Sessions of a history come in order. After an interruption, the last one may come again: storing it twice must
        have no effect.
        """
        ...

    async def context(self, history: str, question: Question, /) -> Context:
        """Return the context for a question. It must not change the memory."""
        ...


@runtime_checkable
class TakesNotes(Protocol):
    """A system that can list the memories it made from one session, which HaluMem judges."""

    async def notes(self, history: str, session: str, /) -> list[str]:
        """Return the memories made from a session, one text each."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A system with something to close."""

    async def close(self) -> None: ...
