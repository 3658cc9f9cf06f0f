"""``diarist eval``: run an evaluation with models and systems by name, and print its averages."""

from __future__ import annotations

import asyncio
from inspect import isclass
from pathlib import Path
from typing import Any

from rich.console import Console

from diarist.cli.objects import model_at, object_at
from diarist.evals.pipeline import Evaluation
from diarist.evals.progress import Progress
from diarist.evals.report import money, write_report
from diarist.evals.results import Results
from diarist.evals.settings import Settings
from diarist.evals.systems.base import System
from diarist.evals.work import Unavailable
from diarist.exceptions import InputError, described
from diarist.models.base import Model


def run_evaluation(settings: Settings, *, api_key_env: str | None) -> bool:
    """Run an evaluation, write its report, and print the averages. Progress goes to standard error.

    Args:
        api_key_env: Environment variable that holds the API key. Default: the provider's usual variable.

    Returns:
        False if the budget stopped the run.

    Raises:
        DiaristError: See ``Evaluation``.
        KeyboardInterrupt: After Ctrl-C; what is finished is recorded.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def resolve(role: str, name: str) -> tuple[Model, bool]:
        if ":" not in name or "/" in name:
            url = settings.urls.get(role)
            return model_at(name, url, api_key_env=api_key_env), url is None
        found = object_at(name, "model")
        if not isinstance(found, Model):
            raise InputError(f"{name} must be a Model, not {type(found).__name__}")
        return found, True

    evaluation = Evaluation(settings, resolve=resolve, make_system=system_at, progress=Progress(console))
    try:
        outcome = asyncio.run(evaluation.run())
    except KeyboardInterrupt:
        console.print(
            f"Interrupted. What is finished stays in {settings.out}; repeat the command to continue. "
            f"diarist eval report {settings.out} reports what is there."
        )
        raise
    except Unavailable:
        write_report(settings.out)
        console.print(f"Stopped by an error. Repeat the command to continue. Report: {settings.out / 'report.html'}")
        raise
    results = write_report(settings.out)
    print_results(results)
    unpriced = "".join(f"; unknown price: {model}" for model in sorted(outcome.unpriced))
    console.print(f"Spent ${outcome.spent:.4f}{unpriced}")
    if outcome.failed:
        console.print(f"Items with errors, which count as wrong: {len(outcome.failed):,}; the report lists them.")
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


def system_at(place: str, folder: Path) -> System:
    """Return the system at ``module:object``: a ``System``, or a callable that takes a folder and returns one.

    Raises InputError.
    """
    found: Any = object_at(place, "system")
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
