"""Sync functions beside the event loop, in threads that nobody ever has to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any


async def in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a thread of its own, with the caller's context variables.

    No pool: functions that wait for each other, as agents do whose tools call agents, would make it run dry.
    A cancelled call goes on unheard, since nobody can stop a thread; being a daemon it keeps no process alive.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            # A future refuses StopIteration, which would end whoever awaits it, and GeneratorExit would close him.
            ending = isinstance(error, StopIteration | GeneratorExit)
            outcome.set_exception(RuntimeError(repr(error)) if ending else error)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(function)
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: the call was abandoned
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="diarist-tool", daemon=True).start()
    return await outcome
