"""The interfaces of Observer and Reflector, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from diarist.chunks import Usage
from diarist.messages import Message
from diarist.storage.records import Observation

if TYPE_CHECKING:
    from diarist.memory.working.observer_updates import ObserverUpdate

EXTRACTIVE = "extractive"
"""The model id of the roles that need no model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAnswer:
    """The result of an Observer or a Reflector.

    Attributes:
        text: Dated lines, in the format of the diary.
        current_task: The user's goal at the end of the messages; empty if nothing is open, None if they do not show
            it, so that the earlier one stays.
        suggested_response: How the assistant should go on; empty and None likewise.
        usage: Tokens of all model calls together, failed attempts included.
        model: Id of the model, or ``"extractive"``; empty if there was nothing to do.
        calls: Number of model calls.
        warnings: Problems that leave the text usable, in plain words.
        shortfall: Description of missing notes, without quotations, for the end event.
    """

    text: str
    current_task: str | None = None
    suggested_response: str | None = None
    usage: Usage
    model: str
    calls: int = 1
    warnings: tuple[str, ...] = ()
    shortfall: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected(RoleAnswer):
    """The result of a Reflector: the text that replaces some entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(RoleAnswer):
    """The result of an Observer: notes of some messages.

    Attributes:
        thread_title: A new title for the thread; None if none was requested, or the title stays.
        citations: For each line of ``text`` the ids of the messages it cites; empty if no line cites any.
        unnoted: Ids of messages that the notes do not cover, because the answer was cut off before them. They stay
            raw, and so do later messages of their thread.
        refused: The class of the error with which the model refused the messages, so that the text only says this;
            empty if they are noted.
        working_memory: The update of working memory, if the Observer keeps it.
    """

    thread_title: str | None = None
    citations: tuple[tuple[str, ...], ...] = ()
    unnoted: tuple[str, ...] = ()
    refused: str = ""
    working_memory: ObserverUpdate | None = None


class ObserverRole(Protocol):
    """Turns messages into dated notes."""

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """Return notes of ``messages`` that do not repeat ``earlier``, the log so far.

        The text is empty if no message has visible content. The newest messages may be left to a later call, as
        ``unnoted`` says; at least the first one is noted.

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
        """Return one text that replaces all of ``entries``, with fewer than ``target_tokens`` if possible.

        ``guidance`` is the user's wish about what to keep or drop.

        Raises:
            RoleError: Nothing usable came back.
            ModelError: The model call failed.
        """
        ...
