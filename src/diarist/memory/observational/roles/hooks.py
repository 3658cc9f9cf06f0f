"""Hooks around the Observer and the Reflector: see, change or withhold what they read and write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeVar

from diarist.chunks import Usage
from diarist.memory.observational.roles.base import Observed, Reflected
from diarist.messages import Message
from diarist.storage.records import Observation

T = TypeVar("T")
MaybeAwaitable = T | Awaitable[T]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCall:
    """One piece of work of a role, as start and end hooks see it.

    Attributes:
        role: ``observer`` or ``reflector``.
        messages: What the Observer was given; a copy, before any hook changed it. Empty for the Reflector.
        entries: What the Reflector was given. Empty for the Observer.
        usage: Tokens of all model calls together; None at the start and where the work failed.
        model: Who did it; empty at the start and where the work failed.
        error: Why it failed; None at the start and where it went well.
    """

    role: Literal["observer", "reflector"]
    messages: tuple[Message, ...] = ()
    entries: tuple[Observation, ...] = ()
    usage: Usage | None = None
    model: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHooks:
    """Functions, plain or async, that are called around the Observer and the Reflector.

    One that raises makes that piece of work fail, never the turn: the messages stay in the prompt, and it is tried
    again later.

    Attributes:
        before_observation: Gets copies of the messages and returns those that the Observer may see, changed if you
            like. The notes say how many were withheld; all of them leave the prompt.
        after_observation: Gets what the Observer made and returns what is kept, for instance
            ``dataclasses.replace(observed, text=...)``.
        before_reflection: Gets the entries and returns what the Reflector may see of them.
        after_reflection: Gets what the Reflector made and returns what is kept.
        on_observation_start, on_observation_end: Called before and after each piece of work of the Observer; the
            end has its usage or its error.
        on_reflection_start, on_reflection_end: Likewise for the Reflector.
    """

    before_observation: Callable[[list[Message]], MaybeAwaitable[Sequence[Message]]] | None = None
    after_observation: Callable[[Observed], MaybeAwaitable[Observed]] | None = None
    before_reflection: Callable[[list[Observation]], MaybeAwaitable[Sequence[Observation]]] | None = None
    after_reflection: Callable[[Reflected], MaybeAwaitable[Reflected]] | None = None
    on_observation_start: Callable[[RoleCall], MaybeAwaitable[None]] | None = None
    on_observation_end: Callable[[RoleCall], MaybeAwaitable[None]] | None = None
    on_reflection_start: Callable[[RoleCall], MaybeAwaitable[None]] | None = None
    on_reflection_end: Callable[[RoleCall], MaybeAwaitable[None]] | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(getattr(self, field.name) is not None for field in fields(self))
