"""Progress of an evaluation: what is done, the time left, and the money spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

_NARROW = 80
"""Columns of a terminal below which there is no bar, since it would push the count away."""


class Progress:
    """Shows each stage: on a terminal as a bar, else as lines at its start and end, and in between now and then.

    Args:
        every: Least number of seconds between two lines.
    """

    def __init__(self, console: Console, *, every: float = 10.0) -> None:
        self.console, self.every = console, every

    @contextmanager
    def stage(self, name: str, total: int, spent: Callable[[], float]) -> Generator[Stage]:
        """Show a stage during the block. ``spent``: returns the US dollars so far."""
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        columns += (TextColumn("{task.description}"),)
        if self.console.width < _NARROW:
            columns = (TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + name + ": {task.description}"),)
        with Bars(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bars:
            stage = Stage(self, bars, name, total, spent)
            stage.show()
            yield stage
            stage.show()


class Stage:
    """One stage that is running."""

    def __init__(self, progress: Progress, bars: Bars, name: str, total: int, spent: Callable[[], float]) -> None:
        self._progress, self._bars = progress, bars
        self._name, self._total, self._spent = name, total, spent
        self._task = bars.add_task("", total=total)
        self._done = self._before = 0
        self._began = self._shown = time.monotonic()

    def advance(self, *, before: bool = False) -> None:
        """Count one finished piece of work; ``before``: an earlier process did it, so it took no time."""
        self._done += 1
        self._before += before
        is_due = time.monotonic() - self._shown >= self._progress.every and self._done < self._total
        if is_due or not self._bars.disable:
            self.show()

    def show(self) -> None:
        """Update the bar, or print a line."""
        self._shown = time.monotonic()
        left = time_left(self._done - self._before, self._total - self._before, self._shown - self._began)
        text = f"{left}, ${self._spent():.4f} spent" if self._done < self._total else f"${self._spent():.4f} spent"
        self._bars.update(self._task, completed=self._done, description=text)
        if self._bars.disable:
            self._progress.console.print(f"{self._name}: {self._done:,} of {self._total:,}, {text}")


def time_left(done: int, total: int, seconds: float) -> str:
    """Return the time left in words, from the time that the finished pieces took."""
    if not done:
        return "time left unknown"
    left = seconds / done * (total - done)
    minutes, rest = divmod(round(left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"
