"""Exit statuses of the commands, and the errors that lead to them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import typer

from diarist.exceptions import ConfigError, DiaristError, InputError, ModelError

FAILED, BAD_INPUT, STOPPED_AT_BUDGET, INTERRUPTED = 1, 2, 3, 130


@contextmanager
def exit_status() -> Generator[None]:
    """Turn errors of diarist, of files and missing packages into one line on standard error and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Error: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader of the output has ended, such as ``head``
        raise
    except (DiaristError, ImportError, OSError) as error:
        text = str(error)
        if isinstance(error, ModelError):  # its advice is for Python
            text = text.replace("base_url=", "--base-url ")
        typer.echo(f"Error: {text}", err=True)
        raise typer.Exit(BAD_INPUT if isinstance(error, (InputError, ConfigError, ImportError)) else FAILED) from None
