"""Runs an evaluation for the command line: models and systems by name, progress, report."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import reduce
from inspect import isclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from diarist.evals.pipeline import Evaluation
from diarist.evals.progress import Lines, Stage, time_left
from diarist.evals.report import money, write_report
from diarist.evals.results import Results
from diarist.evals.settings import Settings
from diarist.evals.systems.base import System
from diarist.exceptions import InputError, described
from diarist.models.base import Model

ModelAt = Callable[[str, str | None], Model]
"""Takes a model's id and its server's URL, if it is the user's own."""


def run_evaluation(settings: Settings, model_at: ModelAt) -> bool:
    """Run an evaluation, write its report, and print the averages. Progress goes to standard error.

    Returns:
        False if the budget stopped the run.

    Raises:
        DiaristError: See ``Evaluation``.
        KeyboardInterrupt: After Ctrl-C; what is finished is recorded.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
    progress = Bars(console) if console.is_terminal else Lines(lambda line: console.print(line))

    def model_of(role: str, name: str) -> tuple[Model, bool]:
        return _model_of(settings, role, name, model_at)

    evaluation = Evaluation(settings, resolve=model_of, make_system=system_at, progress=progress)
    try:
        outcome = asyncio.run(evaluation.run())
    except KeyboardInterrupt:
        console.print(f"Interrupted. What is finished stays in {settings.out}; repeat the command to continue.")
        raise
    results = write_report(settings.out)
    print_results(results)
    unpriced = "".join(f"; unknown price: {model}" for model in sorted(outcome.unpriced))
    console.print(f"Spent ${outcome.spent:.4f}{unpriced}")
    if outcome.failed:
        console.print(f"Items that failed and count as wrong: {len(outcome.failed):,}; the report lists them.")
        console.print(f"The first failed with: {outcome.failed[0]}")
    if not outcome.finished:
        console.print("Stopped at the budget. Repeat the command with a larger --budget to continue.")
    console.print(f"Report: {settings.out / 'report.html'}")
    return outcome.finished


def print_results(results: Results) -> None:
    """Print micro and macro averages of each system to standard output."""
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    for part in results.parts:
        for metric in results.metrics(part):
            console.print(f"{part + ': ' if part else ''}{metric.name}")
            for system in results.systems:
                for average in results.averages(system, metric, part)[-2:]:
                    low, high = 100 * average.interval.low, 100 * average.interval.high
                    console.print(
                        f"  {system:<10} {average.name}  {100 * average.mean:6.2f} %  ({low:.2f} to {high:.2f}), "
                        f"{average.questions:,} questions, {len(average.runs)} "
                        + ("run" if len(average.runs) == 1 else "runs")
                    )
    for system in results.systems:
        costs = results.costs(system)
        text = ", ".join(f"{cost.stage} {money(cost.cost, cost.unpriced)}" for cost in costs)
        console.print(f"Cost of {system}: {text}")


class Bars:
    """Progress bars on a terminal, with the time left and the money spent."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, name: str, total: int, spent: Callable[[], float]) -> Generator[Stage]:
        """Show a bar during the block."""
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        columns += (TextColumn("{task.description}"),)
        with Progress(*columns, console=self._console, transient=True) as bars:
            yield _Bar(bars, total, spent)

    def note(self, text: str) -> None:
        self._console.print(text)


class _Bar:
    def __init__(self, bars: Progress, total: int, spent: Callable[[], float]) -> None:
        self._bars, self._total, self._spent = bars, total, spent
        self._done = self._before = 0
        self._task = bars.add_task("", total=total)

    def advance(self, *, before: bool = False) -> None:
        self._done += 1
        self._before += before
        seconds = self._bars.tasks[self._task].elapsed or 0.0
        left = time_left(self._done - self._before, self._total - self._before, seconds)
        text = f"{left}, ${self._spent():.4f} spent"
        self._bars.update(self._task, advance=1, description=text)


def _model_of(settings: Settings, role: str, name: str, model_at: ModelAt) -> tuple[Model, bool]:
    if ":" in name and "/" not in name:
        found = _object_at(name)
        if not isinstance(found, Model):
            raise InputError(f"{name} must be a Model, not {type(found).__name__}")
        return found, True
    url = settings.urls.get(role)
    return model_at(name, url), url is None


def system_at(place: str, folder: Path) -> System:
    """Return the system at ``module:object``: a ``System``, or a callable that takes a folder and returns one.

    Raises InputError.
    """
    found: Any = _object_at(place)
    if isclass(found) or not hasattr(found, "context"):
        if not callable(found):
            raise InputError(f"{place} is neither a system nor a function that returns one")
        folder.mkdir(parents=True, exist_ok=True)
        make: Any = found
        try:
            found = make(folder)
        except Exception as error:  # the user's own code runs
            raise InputError(f"{place} cannot be made with a folder: {described(error)}") from error
    if missing := [name for name in ("add", "context") if not callable(getattr(found, name, None))]:
        raise InputError(f"{place} is no system: it has no method {missing[0]!r}; see diarist.evals.System")
    made: System = found
    return made


def _object_at(place: str) -> Any:
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"write MODULE:OBJECT, such as app:memory, not {place!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module_name))
    except AttributeError as error:
        raise InputError(f"the module {module_name!r} has no {name!r}") from error
    except Exception as error:  # the user's own code runs
        raise InputError(f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}") from error
