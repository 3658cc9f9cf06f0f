"""Hooks around the Observer and the Reflector: change or withhold what they read and write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from diarist.checks import function
from diarist.chunks import Usage
from diarist.exceptions import RoleError, message_of
from diarist.memory.observational.roles.base import Observed, ObserverRole, Reflected, ReflectorRole
from diarist.memory.observational.roles.transcript import date_heading, load_zone, local_time
from diarist.messages import Message, copy_message
from diarist.processors.base import MaybeAwaitable, call_sync_or_async
from diarist.storage.records import Observation

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHooks:
    """Functions, plain or async, that are called before and after each call of the Observer and the Reflector.

    A hook that raises fails that call, not the turn: the messages stay in the prompt and are observed later.

    Attributes:
        before_observation: Gets copies of the messages and returns those that the Observer may see; it may edit them.
            The notes say how many were withheld; withheld messages leave the prompt like the others.
        after_observation: Gets the Observer's result, with its usage and model, and returns the one to keep, for
            example ``dataclasses.replace(observed, text=...)``.
        before_reflection: Gets the entries and returns those that the Reflector may see.
        after_reflection: Gets the Reflector's result and returns the one to keep.
    """

    before_observation: Callable[[list[Message]], MaybeAwaitable[Sequence[Message]]] | None = None
    after_observation: Callable[[Observed], MaybeAwaitable[Observed]] | None = None
    before_reflection: Callable[[list[Observation]], MaybeAwaitable[Sequence[Observation]]] | None = None
    after_reflection: Callable[[Reflected], MaybeAwaitable[Reflected]] | None = None

    def __post_init__(self) -> None:
        for hook in fields(self):
            function("MemoryHooks", hook.name, getattr(self, hook.name))


class HookedObserver:
    """An Observer with ``before_observation`` and ``after_observation`` around it."""

    def __init__(self, observer: ObserverRole, hooks: MemoryHooks, *, timezone: str) -> None:
        self._observer, self._hooks, self._zone = observer, hooks, load_zone(timezone)

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """See ``ObserverRole``. Also raises RoleError if a hook raises; the message names the hook."""
        shown = list(messages)
        if self._hooks.before_observation is not None:
            copies = [replace(copy_message(message), part_tokens=None) for message in messages]  # a hook may edit them
            shown = list(await _run("before_observation", self._hooks.before_observation, copies))
        if shown:
            observed = await self._observer.observe(shown, earlier=earlier)
        else:
            observed = Observed(text="", usage=Usage(), model="", calls=0)
        seen = {message.id for message in shown}
        noted = next((n for n, message in enumerate(messages) if message.id in observed.unnoted), len(messages))
        if withheld := [message for message in messages[:noted] if message.id not in seen]:
            observed = self._with_withheld(observed, withheld)
        if self._hooks.after_observation is not None:
            observed = await _run("after_observation", self._hooks.after_observation, observed)
            if len(observed.citations) != len(observed.text.splitlines()):
                observed = replace(observed, citations=())  # the hook added or removed lines
        return observed

    def _with_withheld(self, observed: Observed, withheld: Sequence[Message]) -> Observed:
        """Add a line with the number of withheld messages, under the date of the last one."""
        note = f"- 🟢 {len(withheld)} message{' was' if len(withheld) == 1 else 's were'} withheld from these notes"
        heading = date_heading(local_time(withheld[-1], self._zone))
        headings = [line for line in observed.text.splitlines() if line.startswith("Date:")]
        added = [note] if headings and headings[-1] == heading else [heading, note]
        no_citations = [()] * len(added)
        return replace(
            observed,
            text="\n".join(filter(None, [observed.text, *added])),
            citations=(*observed.citations, *no_citations) if observed.citations else (),
        )


class HookedReflector:
    """A Reflector with ``before_reflection`` and ``after_reflection`` around it."""

    def __init__(self, reflector: ReflectorRole, hooks: MemoryHooks) -> None:
        self._reflector, self._hooks = reflector, hooks

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        """See ``ReflectorRole``. Also raises RoleError if a hook raises; the message names the hook."""
        shown = list(entries)
        if self._hooks.before_reflection is not None:
            shown = list(await _run("before_reflection", self._hooks.before_reflection, list(entries)))
        if shown:
            reflected = await self._reflector.reflect(shown, target_tokens=target_tokens, guidance=guidance)
        else:
            note = f"- 🟢 {len(entries)} older note{' was' if len(entries) == 1 else 's were'} withheld"
            reflected = Reflected(text=note, usage=Usage(), model="", calls=0)
        if self._hooks.after_reflection is not None:
            reflected = await _run("after_reflection", self._hooks.after_reflection, reflected)
        return reflected


async def _run(name: str, hook: Callable[[Any], MaybeAwaitable[T]], value: Any) -> T:
    try:
        result = await call_sync_or_async(hook, value)
    except Exception as error:
        raise RoleError(f"the hook {name} raised {type(error).__name__}: {message_of(error)}") from error
    if result is None:
        raise RoleError(f"the hook {name} returned None, not what is to be kept")
    return result
