"""The ``diarist`` command: options and help. Each command imports its code when it runs, so help is fast."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from diarist.cli.evaluation import eval_app
from diarist.cli.exit_status import exit_status
from diarist.exceptions import DiaristError

FORMAT_NAMES = (
    "claude-code, codex, gemini-cli, chatgpt, claude-ai, pydantic-ai, langchain, locomo, tau-bench, responses, plain "
    "or openai"
)
"""Names of the conversation formats. Reading ``FORMATS`` instead would import every reader."""

app = typer.Typer(
    name="diarist",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(eval_app)


def _print_version(wanted: bool) -> None:
    if wanted:
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


_BaseUrl = Annotated[str | None, typer.Option(help="URL of the model's server; for openai/… any compatible one.")]
_ApiKeyEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Environment variable that holds the API key. Default: the provider's usual variable."
    ),
]


@app.command(short_help="Watch an agent keep its diary, without a key.")
def demo(
    model: Annotated[
        str | None,
        typer.Option(help="A model for the agent and its diary, such as openai/gpt-5-mini. Default: a script."),
    ] = None,
    base_url: _BaseUrl = None,
    api_key_env: _ApiKeyEnv = None,
    storage: Annotated[Path, typer.Option(help="The SQLite file.")] = Path("diarist-demo.db"),
    message_tokens: Annotated[int, typer.Option(min=100, help="Observe messages at this many tokens.")] = 8_000,
    observation_tokens: Annotated[int, typer.Option(min=100, help="Condense the diary at this many tokens.")] = 6_000,
    turns: Annotated[int | None, typer.Option(min=1, help="Play only this many turns.")] = None,
    pace: Annotated[float | None, typer.Option(help="Seconds between turns; 0.1 on a terminal, else 0.")] = None,
    fresh: Annotated[bool, typer.Option(help="Delete the data of earlier runs from the database first.")] = False,
) -> None:
    """Watch an agent keep its diary: offline and without a key, unless you name a model."""
    import asyncio

    from diarist.cli.demo.play import play
    from diarist.cli.demo.replay import Settings
    from diarist.cli.objects import model_at

    for name, value in (("--base-url", base_url), ("--api-key-env", api_key_env)):
        if value and not model:
            raise typer.BadParameter("it has no effect without --model; add --model", param_hint=name)
    with exit_status():
        settings = Settings(
            path=storage,
            message_tokens=message_tokens,
            observation_tokens=observation_tokens,
            model=model_at(model, base_url=base_url, api_key_env=api_key_env) if model else None,
        )
        asyncio.run(play(settings, limit=turns, pace=pace, fresh=fresh))


def _day(value: str) -> date:
    """Parse a day, or a day and time (a ``datetime`` is a ``date``)."""
    for parse in (date.fromisoformat, datetime.fromisoformat):
        with suppress(ValueError):
            return parse(value)
    raise typer.BadParameter(f"{value!r} is not a date such as 2026-03-01 or 2026-03-01T09:30")


def _output(value: str) -> str:
    if value not in ("text", "json"):
        raise typer.BadParameter(f"{value!r} is not one of text, json")
    return value


_SkipBrokenLines = Annotated[
    bool,
    typer.Option("--skip-broken-lines", help="Leave out lines and messages that cannot be read, and count them."),
]


@app.command()
def observe(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="An export of ChatGPT or Claude.ai; a session of Claude Code, Codex or Gemini CLI; messages of "
            "OpenAI, LangChain or Pydantic AI (JSON or JSON lines); plain {role, content, created_at} lines; LoCoMo's "
            "JSON; or tau-bench's list of runs. - for standard input.",
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Model of Observer and Reflector, such as openai/gpt-5-mini. 'extractive' calls no model: "
            "fixed rules pick facts out of the text."
        ),
    ] = "extractive",
    base_url: _BaseUrl = None,
    api_key_env: _ApiKeyEnv = None,
    select: Annotated[
        int | None,
        typer.Option(metavar="N", help="Read conversation N of the file, counted from 1. Default: the first."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Format of the file: {FORMAT_NAMES}. Default: detected."),
    ] = None,
    date: Annotated[
        date | None,
        typer.Option(
            parser=_day,
            metavar="DATE",
            help="Date of the conversation, if its messages have no time stamps: 2026-03-01T09:30, or 2026-03-01, "
            "which means 00:00. Without it they stay undated.",
        ),
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of the diary, and of time stamps without a zone.")] = "UTC",
    skip_broken_lines: _SkipBrokenLines = False,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of messages in one call of the Observer. Default: 24,000.")
    ] = None,
    observation_tokens: Annotated[
        int | None, typer.Option(min=1, help="Condense the diary at this many tokens. Default: 40,000.")
    ] = None,
    limit_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Read only this many tokens from the start of the conversation."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="DATABASE",
            help="Store messages and diary in this database: an SQLite file, or postgresql://…, libsql://…, "
            "mongodb://…. Observing a file again adds only its new messages. Default: nothing is stored.",
        ),
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Thread id in the database. Default: the conversation's own, or one from the path.",
        ),
    ] = None,
    resource: Annotated[
        str | None, typer.Option(metavar="ID", help="The thread's resource in the database. Default: none.")
    ] = None,
    output: Annotated[
        str,
        typer.Option(parser=_output, metavar="[text|json]", help="The diary as text, or everything about it as JSON."),
    ] = "text",
) -> None:
    """Turn an existing conversation into a diary.

    The diary goes to standard output, everything else to standard error. Exit status: 0 done,
    1 the model or the database failed, 2 bad input, 130 interrupted.
    """
    import asyncio

    from diarist.cli.inputs import opened_input
    from diarist.cli.observation import Observing
    from diarist.cli.report import Reporter, diary_json, diary_text
    from diarist.integrations.conversations import read_conversation

    with exit_status(), opened_input(file) as path:
        observing = Observing(
            path,
            read_conversation(
                path,
                select=select,
                date=date,
                timezone=timezone,
                format=format,
                skip_broken_lines=skip_broken_lines,
            ),
            model=model,
            base_url=base_url,
            api_key_env=api_key_env,
            timezone=timezone,
            batch_tokens=batch_tokens,
            observation_tokens=observation_tokens,
            limit_tokens=limit_tokens,
            storage=storage,
            thread=thread,
            resource=resource,
        )
        reporter = Reporter()
        reporter.start(observing)
        try:
            with reporter.progress(observing) as move:
                asyncio.run(observing.run(move))
        except (KeyboardInterrupt, DiaristError) as error:
            reporter.broken(observing, error)
            raise
        typer.echo(diary_json(observing) if output == "json" else diary_text(observing))
        reporter.finish(observing)


_Database = Annotated[
    str,
    typer.Argument(
        metavar="DATABASE", show_default=False, help="An SQLite file, or postgresql://…, libsql://…, mongodb://…"
    ),
]


@app.command(short_help="Write threads to a file, as JSON lines.")
def export(
    database: _Database,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", show_default=False, help="The file to write; - for standard output.")
    ],
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only this thread.")] = None,
    resource: Annotated[str | None, typer.Option(metavar="ID", help="Only threads and data of this resource.")] = None,
) -> None:
    """Write threads to a file, as JSON lines: messages, metadata, diaries, working memory.

    The file appears, or is replaced, only when it is complete. Exit status: 0 done, 1 the database failed, 2 bad input,
    130 interrupted.
    """
    from diarist.cli.transfer import export_file

    with exit_status():
        export_file(database, file, thread=thread, resource=resource)


@app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="A file from 'diarist export'; conversations in a format of 'diarist observe' (exports of ChatGPT and "
            "Claude.ai, sessions, messages of other libraries); or Mastra's SQLite or libSQL database. - for standard "
            "input.",
        ),
    ],
    database: _Database,
    skip_existing: Annotated[
        bool,
        typer.Option(
            "--skip-existing",
            help="Skip threads that the database has already, instead of failing. Not for conversations.",
        ),
    ] = False,
    thread: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="For a conversation: its thread id. Default: its own id, or one from the path."
        ),
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="For a conversation: its resource. Default: none. For other files: refuse all other resources.",
        ),
    ] = None,
    select: Annotated[
        int | None,
        typer.Option(metavar="N", help="For a file of conversations: only number N, counted from 1. Default: all."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"For a conversation: its format: {FORMAT_NAMES}. Default: detected."),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For a conversation: time zone of time stamps without a zone. Default: UTC."),
    ] = None,
    skip_broken_lines: _SkipBrokenLines = False,
) -> None:
    """Import threads from a file into a database.

    Each thread is imported completely or not at all. A conversation that was imported before gets only its new
    messages. If nothing is imported, no new database file is left behind. Exit status: 0 done, 1 the database failed
    or has one of the threads already, 2 bad input, 130 interrupted.
    """
    from diarist.cli.transfer import Conversations, import_file

    with exit_status():
        how = Conversations(
            thread=thread,
            resource=resource,
            select=select,
            format=format,
            timezone=timezone,
            skip_broken_lines=skip_broken_lines,
        )
        import_file(file, database, how, skip_existing=skip_existing)


@app.command(short_help="Migrate the tables of a database to this version.")
def migrate(database: _Database) -> None:
    """Migrate the tables of a database to this version of diarist, and print the result.

    Every program does this when it opens a database. A database of a newer version of diarist is refused. Exit
    status: 0 done, 1 the migration failed or was refused, 2 bad input.
    """
    from diarist.cli.migration import migrate_database

    with exit_status():
        typer.echo(migrate_database(database))


@app.command()
def worker(
    memory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            show_default=False,
            help="The Memory object of your program, such as app:memory. Modules in the working directory are found.",
        ),
    ],
    concurrency: Annotated[int, typer.Option(min=1, help="Number of jobs that run at the same time.")] = 4,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running jobs get to finish after a stop signal.")
    ] = 20.0,
) -> None:
    """Run the background work of a memory that has a queue.

    SIGTERM and Ctrl-C stop a running worker: it takes no more jobs, and returns unfinished jobs to the queue. You can
    run any number of workers. They log to standard error. Exit status: 0 stopped, 1 the database failed, 2 bad input.
    """
    from diarist.cli.worker import find, serve

    with exit_status():
        serve(find(memory), concurrency=concurrency, grace=grace)
