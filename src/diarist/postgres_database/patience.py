"""How long a transaction waits for a server that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine, ExceptionContext


class NoAnswerError(TimeoutError):
    """The server did not answer in time."""


class Patience:
    """A limit on the time between two answers of the server, in one transaction.

    Not on the whole transaction, which may have much to do; and not by the server, which cannot end what it has
    stopped doing. Past the limit the transaction is cancelled, and its connection thrown away.

    Args:
        seconds: Without an answer.

    Attributes:
        seconds: As given; None once the limit was lifted.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds: float | None = seconds
        self._timeout = asyncio.timeout(None)

    @property
    def over(self) -> bool:
        """Whether the limit was passed."""
        return self._timeout.expired()

    @asynccontextmanager
    async def limiting(self) -> AsyncGenerator[None]:
        """Hold for the block, once. Raises NoAnswerError."""
        token = _current.set(self)
        try:
            async with self._timeout:
                self.restart()
                yield
        except TimeoutError as error:
            if self.over:
                raise NoAnswerError(f"no answer to a statement within {self.seconds:g} seconds") from error
            raise
        finally:
            _current.reset(token)

    def restart(self) -> None:
        """The server is asked something new."""
        if self.seconds is not None and not self.over:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self.seconds)

    def lift(self) -> None:
        self.seconds = None
        if not self.over:
            self._timeout.reschedule(None)


_current: ContextVar[Patience | None] = ContextVar("diarist_patience", default=None)


def take_your_time() -> None:
    """For work that may rightly take long, such as building an index: no limit on the rest of its transaction."""
    if (patience := _current.get()) is not None:
        patience.lift()


def watch(engine: Engine) -> None:
    """Let each statement have its time. What was silent once may be so on every connection: all are replaced."""

    def asked(*_: Any) -> None:
        if (patience := _current.get()) is not None:
            patience.restart()

    def failed(context: ExceptionContext) -> None:
        if (patience := _current.get()) is not None and patience.over:
            context.invalidate_pool_on_disconnect = True

    event.listen(engine, "before_cursor_execute", asked)
    event.listen(engine, "handle_error", failed)
