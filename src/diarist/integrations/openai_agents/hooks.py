"""Hooks of the SDK that tell memory how a run ends, and call the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import RunHooks


class RunnerHooks(RunHooks[Any]):
    """Calls memory's functions before the user's hooks.

    Args:
        theirs: The user's hooks.
        tool_starts, handed_off, agent_ends: Memory's functions.
    """

    def __init__(
        self,
        theirs: RunHooks[Any] | None,
        *,
        tool_starts: Callable[[], None],
        handed_off: Callable[[], None],
        agent_ends: Callable[[], None],
    ) -> None:
        own = {"on_tool_start": tool_starts, "on_handoff": handed_off, "on_agent_end": agent_ends}
        after: RunHooks[Any] = theirs or RunHooks[Any]()
        for name in (name for name in dir(RunHooks) if name.startswith("on_")):
            setattr(self, name, _both(own.get(name), getattr(after, name)))


def _both(first: Callable[[], None] | None, then: Callable[..., Any]) -> Callable[..., Any]:
    if first is None:
        return then

    async def call(*args: Any, **named: Any) -> None:
        first()
        await then(*args, **named)

    return call
