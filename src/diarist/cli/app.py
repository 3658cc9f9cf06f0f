"""The Typer application behind the ``diarist`` command."""

from __future__ import annotations

from typing import Annotated

import typer

from diarist.cli.commands import export, import_, migrate, observe, worker
from diarist.cli.demo.command import demo

app = typer.Typer(
    name="diarist",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.command("observe")(observe)
app.command("export")(export)
app.command("import")(import_)
app.command("migrate")(migrate)
app.command("worker")(worker)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import version

    typer.echo(f"diarist {version('diarist')}")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Long memory for agents: a dated diary that stays small, cheap and cacheable."""
