"""The Observer and the Reflector with a user's hooks around them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from diarist.chunks import Usage
from diarist.exceptions import message_of
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.roles.base import Observed, ObserverRole, Reflected, ReflectorRole, RoleError
from diarist.memory.observational.roles.hooks import MaybeAwaitable, MemoryHooks, RoleCall
from diarist.memory.observational.roles.transcript import date_heading, load_zone, local_time
from diarist.messages import Message, copy_message
from diarist.storage.records import Observation

T = TypeVar("T")

logger = logging.getLogger("diarist")


def hooked(
    observer: ObserverRole, reflector: ReflectorRole, config: ObservationalMemoryConfig
) -> tuple[ObserverRole, ReflectorRole]:
    """Both roles with the hooks of a configuration around them; as they are where it has none."""
    if not config.hooks:
        return observer, reflector
    return HookedObserver(observer, config.hooks, timezone=config.timezone), HookedReflector(reflector, config.hooks)


class HookedObserver:
    """An Observer that sees what ``before_observation`` leaves, and says how many messages it does not see.

    Raises:
        ConfigError: The time zone is not known.
    """

    def __init__(self, observer: ObserverRole, hooks: MemoryHooks, *, timezone: str = "UTC") -> None:
        self._observer = observer
        self._hooks = hooks
        self._zone = load_zone(timezone)

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """See ``ObserverRole``. Raises RoleError, too, where a hook raises; the message names the hook."""
        call = RoleCall(role="observer", messages=tuple(map(copy_message, messages)))
        return await _reported(
            call,
            lambda: self._observe(messages, earlier),
            ("on_observation_start", self._hooks.on_observation_start),
            ("on_observation_end", self._hooks.on_observation_end),
        )

    async def _observe(self, messages: Sequence[Message], earlier: Sequence[Observation]) -> Observed:
        shown = list(messages)
        if self._hooks.before_observation is not None:
            copies = [replace(copy_message(message), part_tokens=None) for message in messages]  # a hook may edit them
            shown = list(await _run("before_observation", self._hooks.before_observation, copies))
        if shown:
            observed = await self._observer.observe(shown, earlier=earlier)
        else:
            observed = Observed(text="", current_task=None, suggested_response=None, usage=Usage(), model="", calls=0)
        seen = {message.id for message in shown}
        if withheld := [message for message in messages if message.id not in seen]:
            observed = self._with_note(observed, withheld)
        if self._hooks.after_observation is None:
            return observed
        return _with_fitting_citations(await _run("after_observation", self._hooks.after_observation, observed))

    def _with_note(self, observed: Observed, withheld: Sequence[Message]) -> Observed:
        """The notes with a line more, under the day of the last message that was withheld."""
        note = f"- 🟢 {_count(len(withheld), 'message was', 'messages were')} withheld from these notes"
        heading = date_heading(local_time(withheld[-1], self._zone))
        headings = [line for line in observed.text.splitlines() if line.startswith("Date:")]
        added = [note] if headings and headings[-1] == heading else [heading, note]
        citations = (*observed.citations, *[()] * len(added)) if observed.citations else ()
        return replace(observed, text="\n".join(filter(None, [observed.text, *added])), citations=citations)


class HookedReflector:
    """A Reflector that sees what ``before_reflection`` leaves."""

    def __init__(self, reflector: ReflectorRole, hooks: MemoryHooks) -> None:
        self._reflector = reflector
        self._hooks = hooks

    async def reflect(
        self, entries: Sequence[Observation], *, target_tokens: int, guidance: str | None = None
    ) -> Reflected:
        """See ``ReflectorRole``. Raises RoleError, too, where a hook raises; the message names the hook."""
        return await _reported(
            RoleCall(role="reflector", entries=tuple(entries)),
            lambda: self._reflect(entries, target_tokens, guidance),
            ("on_reflection_start", self._hooks.on_reflection_start),
            ("on_reflection_end", self._hooks.on_reflection_end),
        )

    async def _reflect(self, entries: Sequence[Observation], target_tokens: int, guidance: str | None) -> Reflected:
        shown = list(entries)
        if self._hooks.before_reflection is not None:
            shown = list(await _run("before_reflection", self._hooks.before_reflection, list(entries)))
        if shown:
            reflected = await self._reflector.reflect(shown, target_tokens=target_tokens, guidance=guidance)
        else:
            note = f"- 🟢 {_count(len(entries), 'older note was', 'older notes were')} withheld"
            reflected = Reflected(text=note, usage=Usage(), model="", calls=0)
        if self._hooks.after_reflection is None:
            return reflected
        return await _run("after_reflection", self._hooks.after_reflection, reflected)


_LONGEST_FAREWELL = 0.5
"""Seconds that the end hook of a call may take which was given up: a turn waits for it."""

_Hook = tuple[str, Callable[[RoleCall], MaybeAwaitable[None]] | None]
_Made = TypeVar("_Made", Observed, Reflected)


async def _reported(call: RoleCall, work: Callable[[], Any], start: _Hook, end: _Hook) -> Any:
    """Do the work between its start and its end hook."""
    await _tell(start, call)
    try:
        made: Observed | Reflected = await work()
    except Exception as error:
        await _tell(end, replace(call, error=error))
        raise
    except BaseException as error:  # given up: nothing a hook does may keep the task alive, nor those who wait for it
        try:
            async with asyncio.timeout(_LONGEST_FAREWELL):
                await _tell(end, replace(call, error=error))
        except TimeoutError:
            logger.warning("the hook %s took longer than %g s after the call was given up", end[0], _LONGEST_FAREWELL)
        except RoleError as failure:
            logger.warning("%s", failure)
        raise
    await _tell(end, replace(call, usage=made.usage, model=made.model))
    return made


async def _tell(hook: _Hook, call: RoleCall) -> None:
    name, function = hook
    if function is not None:
        await _run(name, function, call)


async def _run(name: str, hook: Callable[[Any], MaybeAwaitable[T]], value: Any) -> T:
    try:
        result = hook(value)
        return await cast(Awaitable[T], result) if inspect.isawaitable(result) else cast(T, result)
    except Exception as error:
        raise RoleError(f"the hook {name} raised {type(error).__name__}: {message_of(error)}") from error


def _with_fitting_citations(observed: Observed) -> Observed:
    """Without citations where the text has other lines than they belong to."""
    fits = len(observed.citations) == len(observed.text.splitlines())
    return replace(observed, citations=observed.citations if fits else ())


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
