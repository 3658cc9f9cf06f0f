"""``diarist worker``: observes and reflects for programs that hand that over."""

from __future__ import annotations

from typing import Annotated

import typer

from diarist.exceptions import ConfigError, DiaristError, InputError

_FAILED, _BAD_INPUT = 1, 2


def worker(
    memory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            show_default=False,
            help="The Memory object of your program, such as app:memory. The working directory is searched, too.",
        ),
    ],
    concurrency: Annotated[int, typer.Option(min=1, help="Jobs at a time.")] = 4,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running jobs get to finish when the worker is told to stop.")
    ] = 20.0,
) -> None:
    """Do the background work of a memory with a queue, until told to stop.

    SIGTERM and Ctrl-C stop it: it takes no more jobs, and puts back what it cannot finish. Start as many as
    you like. What they do goes to standard error. Exit status: 0 stopped, 1 the database failed, 2 bad input.
    """
    from diarist.cli.working import find, serve

    try:
        serve(find(memory), concurrency=concurrency, grace=grace)
    except DiaristError as error:
        typer.echo(f"Error: {error}", err=True)
        bad = isinstance(error, (InputError, ConfigError))
        raise typer.Exit(_BAD_INPUT if bad else _FAILED) from None
