"""The session of a run: keeps the user's items as they are, and tells memory what is added to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agents import OpenAIConversationsSession, RunContextWrapper, Session, SessionSettings, TResponseInputItem

from diarist.exceptions import ConfigError

Wrapper = RunContextWrapper[Any]


class MemorySession:
    """A session of the SDK: the user's own, or a list.

    The SDK passes ``wrapper``, one object per run; calls without it are the user's.

    Args:
        inner: The user's session. None: keep the items of this object in a list; earlier ones are in memory.
        opened: Called when a run reads the items.
        added: Called when a run has added items.
    """

    def __init__(
        self,
        session_id: str,
        inner: Session | None,
        *,
        opened: Callable[[Wrapper], Awaitable[None]],
        added: Callable[[Wrapper, list[TResponseInputItem]], Awaitable[None]],
    ) -> None:
        if isinstance(inner, OpenAIConversationsSession):
            raise ConfigError(
                "OpenAIConversationsSession keeps the conversation on OpenAI's servers, where memory cannot shorten "
                "it; use another session, such as SQLiteSession, or none"
            )
        self.session_id = session_id if inner is None else inner.session_id
        self.session_settings: SessionSettings | None = None if inner is None else inner.session_settings
        self._inner = inner
        self._items: list[TResponseInputItem] = []
        self._opened, self._added = opened, added

    async def get_items(self, limit: int | None = None, *, wrapper: Wrapper | None = None) -> list[TResponseInputItem]:
        """Return the newest ``limit`` items, or all."""
        if wrapper is not None:
            await self._opened(wrapper)
        if self._inner is not None:
            return await self._inner.get_items(limit)
        return self._items[max(0, len(self._items) - limit) :] if limit is not None else list(self._items)

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: Wrapper | None = None) -> None:
        """Add items at the end."""
        if self._inner is not None:
            await self._inner.add_items(items)
        else:
            self._items += items
        if wrapper is not None:
            await self._added(wrapper, items)

    async def pop_item(self, *, wrapper: Wrapper | None = None) -> TResponseInputItem | None:
        """Remove and return the newest item. The thread in memory keeps its message."""
        if self._inner is not None:
            return await self._inner.pop_item()
        return self._items.pop() if self._items else None

    async def clear_session(self, *, wrapper: Wrapper | None = None) -> None:
        """Remove all items. The thread in memory keeps its messages: ``memory.threads.delete`` removes them."""
        if self._inner is not None:
            await self._inner.clear_session()
        self._items.clear()
