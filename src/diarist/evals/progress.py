"""Progress of an evaluation: what is done, the time left, and the money spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Stage(Protocol):
    """One stage that is running."""

    def advance(self, *, before: bool = False) -> None:
        """Count one finished piece of work; ``before``: an earlier process did it, so it took no time."""
        ...


class Progress(Protocol):
    """Shows stages and notes."""

    def stage(self, name: str, total: int, spent: Callable[[], float]) -> AbstractContextManager[Stage]: ...

    def note(self, text: str) -> None: ...


def time_left(done: int, total: int, seconds: float) -> str:
    """Return the time left in words, from the time that the finished pieces took."""
    if not done:
        return "time left unknown"
    left = seconds / done * (total - done)
    minutes, rest = divmod(round(left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"


class Lines:
    """Plain lines: at the start and the end of each stage, and in between at most one in ``every`` seconds.

    Args:
        write: Takes a line.
    """

    def __init__(self, write: Callable[[str], None], *, every: float = 10.0) -> None:
        self._write, self._every = write, every

    @contextmanager
    def stage(self, name: str, total: int, spent: Callable[[], float]) -> Generator[Stage]:
        """Show a stage during the block."""
        stage = _LineStage(self._write, self._every, name, total, spent)
        stage.show()
        yield stage
        stage.show()

    def note(self, text: str) -> None:
        self._write(text)


class _LineStage:
    def __init__(
        self, write: Callable[[str], None], every: float, name: str, total: int, spent: Callable[[], float]
    ) -> None:
        self._write, self._every, self._name, self._total, self._spent = write, every, name, total, spent
        self._done = self._before = 0
        self._began = self._shown = time.monotonic()

    def advance(self, *, before: bool = False) -> None:
        self._done += 1
        self._before += before
        now = time.monotonic()
        if now - self._shown >= self._every and self._done < self._total:
            self._shown = now
            self.show()

    def show(self) -> None:
        left = time_left(self._done - self._before, self._total - self._before, time.monotonic() - self._began)
        rest = f", {left}" if self._done < self._total else ""
        self._write(f"{self._name}: {self._done:,} of {self._total:,}{rest}, ${self._spent():.4f} spent")
