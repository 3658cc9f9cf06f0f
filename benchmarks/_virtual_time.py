"""An event loop whose clock jumps to the next timer as soon as there is nothing else to do.

Sleeps take no real time, and the CPU time of the library counts as none. Nothing in the loop may wait for threads or
sockets, so the storage is the one in memory.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine


class _Jumping(selectors.DefaultSelector):
    """Advances ``now`` instead of waiting for the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        self.now += 0 if ready else timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_in_virtual_time(work: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        runner.run(work)
