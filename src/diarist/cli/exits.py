"""How commands end: an error is one line on standard error, and an exit status."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import typer

from diarist.exceptions import ConfigError, DiaristError, InputError

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


@contextmanager
def exit_status() -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Error: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except DiaristError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(BAD_INPUT if isinstance(error, (InputError, ConfigError)) else FAILED) from None
