"""``diarist export`` and ``diarist import``: threads between files and databases."""

from __future__ import annotations

import asyncio
import sys
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, TextIO, cast

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from diarist.cli.branches import follow_branch
from diarist.cli.databases import files_of, storage_at
from diarist.cli.inputs import opened_input, thread_of
from diarist.exceptions import InputError, NotFoundError
from diarist.integrations.conversations import Conversation, read_conversations
from diarist.integrations.mastra import is_mastra, mastra_lines
from diarist.memory.memory import Memory
from diarist.memory.transfer.format import Moved
from diarist.storage.codec import from_json

_SHOW_EVERY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Options of ``diarist import`` for files of conversations."""

    thread: str | None = None
    resource: str | None = None
    select: int | None = None
    format: str | None = None
    timezone: str | None = None
    skip_broken_lines: bool = False


def export_file(address: str, file: Path, *, thread: str | None, resource: str | None) -> None:
    """Write threads to a file. The file appears only when it is complete."""
    if file.is_dir():
        raise InputError(f"{file} is a folder; name a file in it, such as {file / 'memory.jsonl'}")
    if not file.parent.is_dir():
        raise InputError(f"the folder {file.parent} does not exist")
    own = files_of(address)
    if file.resolve() in own or any(path.exists() and file.exists() and path.samefile(file) for path in own):
        raise InputError(f"{file} belongs to the database itself; name another file")
    memory = Memory(storage=storage_at(address, new=False))

    async def write(target: TextIO) -> dict[str, int]:
        """Write the lines and return the last one, which contains the counts."""
        if thread is None:
            lines = memory.threads.export_all(resource=resource)
        else:
            lines = memory.threads.export(thread, resource=resource)
        with _progress("Exporting") as show:
            async with memory, aclosing(lines):
                try:
                    first, last = await anext(lines), await anext(lines)
                except NotFoundError as error:
                    raise InputError(str(error)) from error
                if resource is not None and from_json(last)["type"] == "end":
                    raise InputError(f"no thread of resource {resource!r} in {memory.storage.location}")
                target.write(first + last)
                count = 2
                async for last in lines:
                    target.write(last)
                    count += 1
                    if count % _SHOW_EVERY == 0:
                        show(f"{count:,} lines")
        return cast("dict[str, Any]", from_json(last))

    with _target(file) as target:
        moved = asyncio.run(write(target))
    counts = {name: moved[f"{name}s"] for name in ("thread", "message", "resource")}
    typer.echo(f"Exported {_counted(counts)}.", err=True)
    if left_out := moved.get("left_out"):
        typer.echo(
            f"Left out {left_out:,} superseded messages: an export has the active branch of each thread.", err=True
        )


@contextmanager
def _target(file: Path) -> Generator[TextIO]:
    """Open a temporary file next to ``file`` that replaces it when the block ends without an error."""
    if str(file) == "-":
        yield sys.stdout
        return
    if file.exists() and not file.is_file():  # a pipe or a device cannot be replaced
        with file.open("w", encoding="utf-8", newline="\n") as target:
            yield target
        return
    part = file.with_name(f"{file.name}.{token_hex(4)}.part")
    try:
        target = part.open("x", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}") from error
    try:
        with target:
            yield target
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def import_file(file: Path, address: str, how: Conversations, *, skip_existing: bool) -> None:
    """Import a file of any known kind into a database; ``-`` is standard input."""
    with opened_input(file) as path:
        _import_path(path, address, how, skip_existing=skip_existing)


def _import_path(file: Path, address: str, how: Conversations, *, skip_existing: bool) -> None:
    if not file.is_file():
        raise InputError(f"{file} is a folder" if file.is_dir() else f"the file {file} does not exist")
    try:
        of_mastra = is_mastra(file)
        with file.open("rb") as source:
            of_diarist = source.read(32).removeprefix(BOM_UTF8).replace(b" ", b"").startswith(b'{"type":"diarist"')
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    notes: list[str] = []
    if of_mastra or of_diarist:
        kind = "a database of Mastra" if of_mastra else "an export of diarist"
        for name in ("thread", "select", "format", "timezone", "skip_broken_lines"):
            if getattr(how, name) not in (None, False):
                raise InputError(
                    f"--{name.replace('_', '-')} applies to conversations only, and {file} is {kind}: leave it out"
                )
        lines = mastra_lines(file, on_note=notes.append) if of_mastra else _lines(file)
        moved = asyncio.run(_import_threads(lines, address, how.resource, skip_existing=skip_existing))
    elif skip_existing:
        raise InputError(
            f"--skip-existing applies to exports of diarist and databases of Mastra only, and {file} is neither: leave "
            "it out"
        )
    else:
        moved = asyncio.run(_import_conversations(file, address, how))
    for note in notes:
        typer.echo(f"Note: {note}", err=True)
    new = {"message": moved.messages, "thread": moved.threads, "resource": moved.resources}
    text = (
        f"Imported {_counted(new)}."
        if any(new.values())
        else "Nothing was imported: the database already has all of the data."
    )
    typer.echo(text, err=True)
    if moved.skipped:
        typer.echo(f"Skipped, since the database has them: {_counted({'thread': len(moved.skipped)})}", err=True)


async def _lines(file: Path) -> AsyncIterator[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="\n") as lines:
            for line in lines:
                yield line
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8: {error}") from error


async def _import_threads(
    lines: AsyncIterator[str], address: str, resource: str | None, *, skip_existing: bool
) -> Moved:
    with _progress("Importing") as show:
        async with _filling(address) as memory:
            return await memory.threads.import_all(
                lines,
                resource=resource,
                existing="skip" if skip_existing else "refuse",
                on_progress=lambda moved: show(_counted({"message": moved.messages, "thread": moved.threads})),
            )


async def _import_conversations(file: Path, address: str, how: Conversations) -> Moved:
    notes: list[str] = []
    chats = read_conversations(  # before a database file is created
        file,
        select=how.select,
        format=how.format,
        timezone="UTC" if how.timezone is None else how.timezone,
        skip_broken_lines=how.skip_broken_lines,
        on_note=notes.append,
    )
    if how.thread is not None and len(chats) > 1:
        raise InputError(f"--thread: {file} holds {len(chats)} conversations; choose one with --select")
    threads = [thread_of(file, chat, how.thread) for chat in chats]
    moved = Moved()
    with _progress("Importing"):
        async with _filling(address) as memory:
            for note in notes:
                typer.echo(f"Note: {note}", err=True)
            titles: defaultdict[str, list[str]] = defaultdict(list)
            for chat in chats:
                for note in (*chat.notes, *_note_on_instructions(chat)):
                    titles[note].append(chat.title)
            for note, (first, *others) in titles.items():
                typer.echo(f"Note: {first}{f' and {len(others):,} more' if others else ''}: {note}", err=True)
            for chat, thread in zip(chats, threads, strict=True):
                note = await follow_branch(memory, chat, thread, how.resource)
                if note:
                    typer.echo(f"Note: {chat.title}: {note}", err=True)
                new = await memory.messages.save(
                    chat.messages,
                    thread=thread,
                    resource=how.resource,
                    title=chat.title,
                    created_at=chat.begun,
                )
                moved.messages += new
                moved.threads += bool(new)
    return moved


def _note_on_instructions(chat: Conversation) -> list[str]:
    """Return a note on the messages that memory does not store, if there are any."""
    count = sum(message.role == "system" for message in chat.messages)
    return [f"messages of the role 'system', left out: {count}"] if count else []


@asynccontextmanager
async def _filling(address: str) -> AsyncGenerator[Memory]:
    """Open the memory at an address. If the block fails before a thread is stored, remove a file that it created."""
    files = files_of(address)
    is_new = bool(files) and not files[0].exists()
    is_empty = False
    try:
        async with Memory(storage=storage_at(address, new=True)) as memory:
            try:
                yield memory
            except BaseException:
                is_empty = is_new and not (await memory.threads.list(limit=1)).items
                raise
    finally:
        for path in files if is_empty else ():
            path.unlink(missing_ok=True)


def _counted(numbers: dict[str, int]) -> str:
    """Return text such as ``2,000 messages, 1 thread``. Mentions resources only if there are any."""
    return ", ".join(
        f"{number:,} {name if number == 1 else f'{name}s'}"
        for name, number in numbers.items()
        if number or name != "resource"
    )


@contextmanager
def _progress(doing: str) -> Generator[Callable[[str], None]]:
    """Show a progress line during the block, if standard error is a terminal."""
    console = Console(stderr=True, highlight=False)
    columns = (SpinnerColumn(), TextColumn(doing), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda text: bar.update(task, description=text)
