"""What an Observer and a Reflector are for the rest of memory: one question in, one answer out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from diarist.chunks import Usage
from diarist.exceptions import DiaristError
from diarist.messages import Message
from diarist.storage.records import Observation

if TYPE_CHECKING:
    from diarist.memory.working.keeping import Keeping


class RoleError(DiaristError):
    """The Observer or the Reflector gave nothing that can be used: an empty answer, only loops; or a hook failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an Observer made of some messages.

    Attributes:
        text: Dated lines, in the format of the diary.
        current_task: What the user is after at the end of the messages; None when nothing shows it.
        suggested_response: How the assistant should go on; None when nothing shows it.
        thread_title: What the thread could be called; None where nobody asked for it.
        citations: For each line of ``text`` the ids of the messages it was made from, where the Observer said so.
            Empty where it never did.
        working_memory: What it made of working memory, where it keeps that, too.
        usage: Tokens of all model calls together, failed attempts included.
        model: Who did it: the id of a model, or ``"extractive"``; empty where there was nothing to do.
        calls: Number of model calls.
        warnings: What the caller should know, in plain words; the text can be used all the same.
    """

    text: str
    current_task: str | None
    suggested_response: str | None
    thread_title: str | None = None
    citations: tuple[tuple[str, ...], ...] = ()
    working_memory: Keeping | None = None
    usage: Usage
    model: str
    calls: int = 1
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected:
    """What a Reflector made of some entries: their whole replacement. Fields as in ``Observed``."""

    text: str
    current_task: str | None = None
    suggested_response: str | None = None
    usage: Usage
    model: str
    calls: int = 1
    warnings: tuple[str, ...] = ()


class ObserverRole(Protocol):
    """Turns messages into dated notes."""

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """Notes of ``messages`` that repeat nothing of ``earlier``, the log so far.

        Messages that say nothing a reader could see (only data parts) give an empty text.

        Raises:
            RoleError: Nothing usable came back.
            ModelError: The model call failed.
        """
        ...


class ReflectorRole(Protocol):
    """Condenses entries of the log."""

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        """One text that replaces all of ``entries``, if possible of fewer than ``target_tokens``.

        ``guidance`` is the user's own wish of what to keep or drop.

        Raises:
            RoleError: Nothing usable came back.
            ModelError: The model call failed.
        """
        ...
