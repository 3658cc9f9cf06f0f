"""``diarist eval retention``: the options of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diarist.cli.exit_status import exit_status


def retention(
    data: Annotated[
        Path,
        typer.Option(
            show_default=False,
            help="Conversations in a format of 'diarist observe', or chats of BEAM. LoCoMo, BEAM and tau-bench's runs "
            "have questions; other files show which numbers, dates, names, paths … are kept.",
        ),
    ],
    observer: Annotated[
        str, typer.Option(help="Model of the Observer, such as openai/gpt-5-mini. 'extractive' calls no model.")
    ] = "extractive",
    base_url: Annotated[
        str | None, typer.Option(help="URL of the model's server; for openai/… any compatible one.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds the API key.")
    ] = None,
    conversations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Read only the first N conversations of the file.")
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of messages in one batch; a pause of an hour ends it, too.")
    ] = 6_000,
    window_tokens: Annotated[
        int, typer.Option(min=0, help="The newest messages, up to this size, stay raw beside the notes.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Measure the notes of an Observer without a model as judge.

    How much of the evidence the notes keep, beside selections of the same size; lines with numbers, dates or names that
    no message has; the right speaker; the newest value; tokens. Exit status: 0 done, 1 the model failed, 2 bad
    input, 130 interrupted.
    """
    import asyncio

    from rich.console import Console
    from rich.text import Text

    from diarist.cli.objects import observer_at
    from diarist.evals.keyless import evaluate_retention

    with exit_status():
        model = observer_at(observer, base_url, api_key_env=api_key_env, option="--observer")
        console = Console(stderr=True)
        in_place = console.is_terminal or isinstance(model, str)  # a log has a line for each call of a model
        with console.status("Reading") as status:
            report = asyncio.run(
                evaluate_retention(
                    data,
                    observer=model,
                    conversations=conversations,
                    batch_tokens=batch_tokens,
                    window_tokens=window_tokens,
                    progress=lambda text: status.update(Text(f"Observing {text}")) if in_place else _tell(text),
                )
            )
        typer.echo(report.json() if json else report.text())


def _tell(text: str) -> None:
    typer.echo(f"Observing {text}", err=True)
