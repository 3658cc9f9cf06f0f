"""``diarist observe``: a conversation that exists already becomes a diary."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diarist.cli.formats import FORMAT_NAMES
from diarist.exceptions import ConfigError, DiaristError, InputError

if TYPE_CHECKING:
    from diarist.cli.reporting import Reporter

_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130


class Output(StrEnum):
    """What goes to standard output."""

    TEXT = "text"
    JSON = "json"


def _day(value: str) -> date:
    """A day, or a day and time (a ``datetime`` is a ``date``)."""
    try:
        return date.fromisoformat(value)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is no date such as 2026-03-01 or 2026-03-01T09:30") from None


def _output(value: str) -> Output:
    try:
        return Output(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(Output)}") from None


def observe(
    file: Annotated[
        Path,
        typer.Argument(
            show_default=False,
            help="Messages in OpenAI's form (JSON or JSON lines), a Claude Code session, plain "
            "{role, content, created_at} lines, LoCoMo's JSON, or tau-bench's list of runs.",
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Observer and Reflector, such as openai/gpt-5-mini. 'extractive' calls no model: "
            "fixed rules pick facts out of the text."
        ),
    ] = "extractive",
    base_url: Annotated[str | None, typer.Option(help="Server of the model; with openai/… any compatible one.")] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable that holds the key. Default: the provider's usual one.",
        ),
    ] = None,
    select: Annotated[
        int | None,
        typer.Option(metavar="N", help="Take conversation N of the file, counted from 1. Default: the first."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"The file's format, instead of finding out: {FORMAT_NAMES}."),
    ] = None,
    date: Annotated[
        date | None,
        typer.Option(
            parser=_day,
            metavar="DATE",
            help="When it took place, if its messages have no time stamps: 2026-03-01 or "
            "2026-03-01T09:30. Without it they stay undated.",
        ),
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of the diary, and of times that name none.")] = "UTC",
    message_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of messages that are observed together.")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most that one call of the Observer takes.")
    ] = None,
    observation_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of diary at which it is condensed.")
    ] = None,
    limit_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Take only so many tokens from the conversation's beginning."),
    ] = None,
    storage: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Keep messages and diary in this SQLite database. Observing a file again adds "
            "only what is new in it. Default: nothing is kept.",
        ),
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Thread in the database. Default: made from the path."),
    ] = None,
    output: Annotated[
        Output,
        typer.Option(parser=_output, metavar="[text|json]", help="The diary as text, or all about it as JSON."),
    ] = Output.TEXT,
) -> None:
    """Turn a conversation that exists already into a diary.

    The diary goes to standard output, everything else to standard error. Exit status: 0 done,
    1 the model or the database failed, 2 bad input, 130 interrupted.
    """
    from diarist.cli.observing import Observing, Request
    from diarist.cli.reporting import Reporter, diary_json, diary_text

    reporter = Reporter()
    with _exit_status(reporter):
        observing = Observing(
            Request(
                path=file,
                model=model,
                base_url=base_url,
                api_key=_key(api_key_env),
                select=select,
                format=format,
                date=date,
                timezone=timezone,
                message_tokens=message_tokens,
                batch_tokens=batch_tokens,
                observation_tokens=observation_tokens,
                limit_tokens=limit_tokens,
                storage=storage,
                thread=thread,
            )
        )
        reporter.start(observing)
        try:
            with reporter.progress(observing.message_tokens) as move:
                result = observing.run(move)
        except (KeyboardInterrupt, DiaristError) as error:
            reporter.broken(observing, error)
            raise
        typer.echo(diary_json(observing, result) if output is Output.JSON else diary_text(result))
        reporter.finish(observing, result)


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    if not (key := os.environ.get(name)):
        raise InputError(f"--api-key-env: the environment variable {name} is not set")
    return key


@contextmanager
def _exit_status(reporter: Reporter) -> Generator[None]:
    """Errors become one line and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        reporter.error("interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    except DiaristError as error:
        reporter.error(error)
        bad = isinstance(error, (InputError, ConfigError))
        raise typer.Exit(_BAD_INPUT if bad else _FAILED) from None
