"""``diarist export``, ``diarist import`` and ``diarist migrate``: databases from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diarist.cli.exits import exit_status
from diarist.cli.formats import FORMAT_NAMES

_Database = Annotated[
    str,
    typer.Argument(
        metavar="DATABASE", show_default=False, help="An SQLite file, or postgresql://…, libsql://…, mongodb://…"
    ),
]


def export(
    database: _Database,
    file: Annotated[Path, typer.Argument(show_default=False, help="The file to write; - for standard output.")],
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only this thread.")] = None,
    resource: Annotated[str | None, typer.Option(metavar="ID", help="Only what belongs to this resource.")] = None,
) -> None:
    """Write threads to a file, as JSON lines: messages, metadata, diaries, working memory.

    The file is there, or replaced, when all of it is written. Exit status: 0 done, 1 the database failed, 2 bad input,
    130 interrupted.
    """
    from diarist.cli.moving import export_file

    with exit_status():
        export_file(database, file, thread=thread, resource=resource)


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            show_default=False,
            help="What 'diarist export' wrote; a conversation such as 'diarist observe' takes (OpenAI's form, a "
            "Claude Code session and others); or Mastra's SQLite or libSQL database. - is standard input.",
        ),
    ],
    database: _Database,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave threads as they are that are there already.")
    ] = False,
    thread: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Of a conversation: the thread's id. Default: made from the path."),
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Whose it is. Of a conversation: default, its thread's own. Of others: refuse what is not this one's.",
        ),
    ] = None,
    select: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of a file of conversations: only number N, from 1. Default: all."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"Of a conversation: the file's format, instead of finding out: {FORMAT_NAMES}."
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of a conversation: time zone of times that name none. Default: UTC."),
    ] = None,
) -> None:
    """Bring threads from a file into a database.

    Each thread comes in whole or not at all. Of a conversation that was imported before, only new messages are
    added. Where nothing comes in, no new database is left. Exit status: 0 done, 1 the database failed, or a thread
    is there already, 2 bad input, 130 interrupted.
    """
    from diarist.cli.moving import Conversations, import_file

    with exit_status():
        how = Conversations(thread=thread, resource=resource, select=select, format=format, timezone=timezone)
        import_file(file, database, how, skip_existing=skip_existing)


def migrate(database: _Database) -> None:
    """Bring the tables of a database up to the version of this diarist, and say what was done.

    Every program does so when it opens a database. A database that a newer diarist has made is refused. Exit
    status: 0 done, 1 it failed or was refused, 2 bad input.
    """
    from diarist.cli.migrating import migrate_database

    with exit_status():
        typer.echo(migrate_database(database))
