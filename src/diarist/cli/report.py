"""Output of ``diarist observe``: the diary as text or JSON, a progress bar, a summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from diarist.cli.observation import Observing
from diarist.evals.metering import Tally
from diarist.memory.observational.roles.role_models import EXTRACTIVE
from diarist.messages import Json

_HONEST = (
    "No language model is used: fixed rules pick out sentences with rare words, names, numbers and dates,\n"
    "and tool outcomes. This is fast and free, but simpler than a diary that a model writes.\n"
    "Use --model provider/name for one."
)


def diary_text(observing: Observing) -> str:
    """Return the diary's notes, followed by current task and suggested response if it has them."""
    hints = observing.log.hints
    notes = [entry.text.strip() for entry in observing.log.entries]
    if hints.current_task:
        notes.append(f"Current task: {hints.current_task}")
    if hints.suggested_response:
        notes.append(f"Suggested response: {hints.suggested_response}")
    return "\n\n".join(notes)


def diary_json(observing: Observing) -> str:
    """Return the summary's numbers and all entries with their sizes, as JSON."""
    chat, log = observing.conversation, observing.log
    observer, reflector = (
        {
            "calls": work.calls,
            "input_tokens": work.usage.input_tokens,
            "cached_tokens": work.usage.cached_tokens,
            "output_tokens": work.usage.output_tokens,
        }
        for work in (observing.observer, observing.reflector)
    )
    value: Json = {
        "file": str(observing.path),
        "format": chat.format,
        "title": chat.title,
        "conversation": chat.number,
        "conversations_in_file": chat.conversations_in_file,
        "notes": chat.notes,
        "messages": len(observing.messages),
        "new_messages": observing.new_messages,
        "tool_calls": _tool_calls(observing),
        "message_tokens": observing.message_tokens,
        "unobserved_tokens": observing.unobserved_tokens,
        "diary": diary_text(observing),
        "diary_tokens": log.tokens,
        "ratio": observing.observed_tokens / log.tokens if log.tokens else None,
        "current_task": log.current_task,
        "suggested_response": log.suggested_response,
        "entries": [
            {
                "text": entry.text,
                "kind": entry.kind,
                "tokens": entry.tokens,
                "message_tokens": entry.message_tokens,
                "message_count": entry.message_count,
            }
            for entry in log.entries
        ],
        "generation": log.generation,
        "model": observing.model,
        "observer": observer,
        "reflector": reflector,
        "cost_usd": observing.cost,
        "seconds": round(observing.seconds, 3),
        "storage": observing.storage,
        "thread": observing.thread,
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


class Reporter:
    """Writes to standard error; without colours and cursor movements if it is not a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
        self._warnings = _Collector()

    def start(self, observing: Observing) -> None:
        """Print notes about the file, and a note if no model is used."""
        for note in observing.conversation.notes:
            self._console.print(f"Note: {note}")
        if observing.model == EXTRACTIVE:
            self._console.print(_HONEST)

    @contextmanager
    def progress(self, observing: Observing) -> Generator[Callable[[int, int], None]]:
        """Show a progress bar during the block; yields the function that updates it.

        If standard error is not a terminal, print a line before each call of a model instead.

        Collects warnings that the library logs, to print them later.
        """
        columns = (
            TextColumn("Observing"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
            TimeElapsedColumn(),
        )
        quiet = not self._console.is_terminal
        logger = logging.getLogger("diarist")
        logger.addHandler(self._warnings)
        try:
            with Progress(*columns, console=self._console, transient=True, disable=quiet) as bar:
                task = bar.add_task("", total=observing.message_tokens)

                def move(done: int, total: int) -> None:
                    bar.update(task, completed=done, total=total)
                    if quiet and done < total and observing.model != EXTRACTIVE:
                        self._console.print(f"Observing: {done:,} of {total:,} tokens are done")

                yield move
        finally:
            logger.removeHandler(self._warnings)

    def finish(self, observing: Observing) -> None:
        """Print the warnings, then the summary."""
        self._warn()
        chat, log = observing.conversation, observing.log
        source = observing.path.name
        if chat.conversations_in_file > 1:
            source = f"{chat.number} of {chat.conversations_in_file} in {source}"
        dated = sum(message.created_at is not None for message in observing.messages)
        known = len(observing.messages) - observing.new_messages
        waiting = observing.unobserved_tokens
        rows = [
            ("Conversation", f"{chat.title} ({', '.join([chat.format, *([source] if source != chat.title else [])])})"),
            (
                "Messages",
                f"{len(observing.messages):,}, {dated:,} of them dated, "
                + _count(_tool_calls(observing), "tool call", "tool calls")
                + (f"; {known:,} were stored already" if known else ""),
            ),
            ("Tokens in", f"{observing.message_tokens:,}" + (f", {waiting:,} of them not observed" if waiting else "")),
            ("Diary tokens", f"{log.tokens:,} in {_count(len(log.entries), 'entry', 'entries')}"),
            ("Ratio", f"{observing.observed_tokens / log.tokens:.1f} to 1" if log.tokens else "no diary"),
            ("Observer", _work_text(observing.model, observing.observer)),
            ("Reflector", _work_text(observing.model, observing.reflector)),
            ("Cost", "unknown price" if observing.cost is None else f"${observing.cost:.4f}"),
            ("Time", f"{observing.seconds:.1f} s"),
            ("Stored in", _place(observing)),
        ]
        for name, text in rows:
            self._console.print(f"{name:<13} {text}")

    def broken(self, observing: Observing, error: BaseException) -> None:
        """Print the warnings, except those about ``error``, and whether messages were stored."""
        self._warn(but=str(error))
        if observing.storage is None:
            self._console.print("Nothing is stored; use --storage DATABASE to store finished work.")
        elif observing.stored:
            messages = _count(len(observing.messages), "message", "messages")
            calls = _count(observing.finished, "finished call", "finished calls")
            self._console.print(
                f"Stored: {messages} and the notes of {calls}, in {_place(observing)}. "
                "Run the same command again to continue from there."
            )

    def _warn(self, *, but: str = "") -> None:
        for message in self._warnings.messages:
            if not but or but not in message:
                self._console.print(f"Warning: {message}")


class _Collector(logging.Handler):
    """Collects warnings, so that they do not break the progress bar."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _tool_calls(observing: Observing) -> int:
    return sum(len(message.tool_parts) for message in observing.messages)


def _work_text(model: str, work: Tally) -> str:
    if not work.calls:
        return "not needed"
    if model == EXTRACTIVE:
        return f"{_count(work.calls, 'batch', 'batches')}, no model"
    calls = f"{_count(work.calls, 'call', 'calls')} of {model}"
    usage = work.usage
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    return f"{calls}, {usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"


def _place(observing: Observing) -> str:
    if observing.storage is None:
        return "memory only; use --storage DATABASE to store messages and diary"
    return f"{observing.storage}, thread {observing.thread}"
