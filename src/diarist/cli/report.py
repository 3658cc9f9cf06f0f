"""Output of ``diarist observe``: the diary as text or JSON, a progress bar, a summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from diarist.cli.observation import ObserveCommand, Result, Work
from diarist.exceptions import DiaristError
from diarist.memory.observational.roles.role_models import EXTRACTIVE
from diarist.messages import Json

_HONEST = (
    "No language model is used: fixed rules pick out the user's statements, numbers, names, dates,\n"
    "decisions and tool outcomes. This is fast and free, but simpler than a diary that a model writes.\n"
    "Use --model provider/name for one."
)


def diary_text(result: Result) -> str:
    """Return the diary's notes, followed by current task and suggested response if it has them."""
    hints = result.log.hints
    notes = [entry.text.strip() for entry in result.log.entries]
    if hints.current_task:
        notes.append(f"Current task: {hints.current_task}")
    if hints.suggested_response:
        notes.append(f"Suggested response: {hints.suggested_response}")
    return "\n\n".join(notes)


def diary_json(observing: ObserveCommand, result: Result) -> str:
    """Return the summary's numbers and all entries with their sizes, as JSON."""
    request, chat, log = observing.request, observing.conversation, result.log
    value: Json = {
        "file": str(request.path),
        "format": chat.format,
        "title": chat.title,
        "conversation": chat.number,
        "conversations_in_file": chat.conversations_in_file,
        "notes": chat.notes,
        "messages": len(observing.messages),
        "new_messages": result.new_messages,
        "tool_calls": _tool_calls(observing),
        "message_tokens": result.message_tokens,
        "unobserved_tokens": result.unobserved_tokens,
        "diary": diary_text(result),
        "diary_tokens": log.tokens,
        "ratio": _ratio(result),
        "current_task": log.hints.current_task,
        "suggested_response": log.hints.suggested_response,
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
        "model": request.model,
        "observer": _work_json(observing.observer),
        "reflector": _work_json(observing.reflector),
        "cost_usd": result.cost,
        "seconds": round(result.seconds, 3),
        "storage": None if request.storage is None else str(request.storage),
        "thread": observing.thread,
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


class Reporter:
    """Writes to standard error; without colours and cursor movements if that is not a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._warnings = _Collector()

    def start(self, observing: ObserveCommand) -> None:
        """Print notes about the file, and say so if no model is used."""
        chat = observing.conversation
        for note in chat.notes:
            self._say(f"Note: {note}")
        if observing.request.model == EXTRACTIVE:
            self._say(_HONEST)

    @contextmanager
    def progress(self, total: int) -> Generator[Callable[[int, int], None]]:
        """Show a progress bar during the block; yields the function that updates it.

        Warnings that the library logs are collected and printed afterwards.
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
                task = bar.add_task("", total=total)
                yield lambda done, whole: bar.update(task, completed=done, total=whole)
        finally:
            logger.removeHandler(self._warnings)

    def finish(self, observing: ObserveCommand, result: Result) -> None:
        """Print the warnings, then the summary."""
        self._warn()
        chat, request, log = observing.conversation, observing.request, result.log
        dated = sum(message.created_at is not None for message in observing.messages)
        new = len(observing.messages) - result.new_messages
        waiting = result.unobserved_tokens
        rows = [
            ("Conversation", f"{chat.title} ({chat.format}, {_which(observing)})"),
            (
                "Messages",
                f"{len(observing.messages):,}, {dated:,} of them dated, "
                + _count(_tool_calls(observing), "tool call", "tool calls")
                + (f"; {new:,} were stored already" if new else ""),
            ),
            ("Tokens in", f"{result.message_tokens:,}" + (f", {waiting:,} of them not observed" if waiting else "")),
            ("Diary tokens", f"{log.tokens:,} in {_count(len(log.entries), 'entry', 'entries')}"),
            ("Ratio", f"{ratio:.1f} to 1" if (ratio := _ratio(result)) else "no diary"),
            ("Observer", _work_text(request.model, observing.observer)),
            ("Reflector", _work_text(request.model, observing.reflector)),
            ("Cost", "unknown price" if result.cost is None else f"${result.cost:.4f}"),
            ("Time", f"{result.seconds:.1f} s"),
            ("Stored in", _place(observing)),
        ]
        for name, text in rows:
            self._say(f"{name:<13} {text}")

    def broken(self, observing: ObserveCommand, error: BaseException) -> None:
        """Print the warnings, except those about ``error``, and report if messages were stored."""
        self._warn(but=str(error))
        if observing.request.storage is None:
            self._say("Nothing is stored; use --storage PATH to store finished work.")
        elif observing.stored:
            messages = _count(len(observing.messages), "message", "messages")
            calls = _count(observing.observer.finished, "finished call", "finished calls")
            self._say(
                f"Stored: {messages} and the notes of {calls}, in {_place(observing)}. "
                "Run the same command again to go on from there."
            )

    def error(self, error: DiaristError | str) -> None:
        self._say(f"Error: {error}")

    def _warn(self, *, but: str = "") -> None:
        for message in self._warnings.messages:
            if not but or but not in message:
                self._say(f"Warning: {message}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)


class _Collector(logging.Handler):
    """Collects warnings, so that they do not break the progress bar."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _which(observing: ObserveCommand) -> str:
    chat = observing.conversation
    if chat.conversations_in_file == 1:
        return observing.request.path.name
    return f"{chat.number} of {chat.conversations_in_file} in {observing.request.path.name}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _tool_calls(observing: ObserveCommand) -> int:
    return sum(len(message.tool_parts) for message in observing.messages)


def _ratio(result: Result) -> float | None:
    return result.observed_tokens / result.log.tokens if result.log.tokens else None


def _work_text(model: str, work: Work) -> str:
    if not work.calls:
        return "not needed"
    if model == EXTRACTIVE:
        return f"{_count(work.calls, 'batch', 'batches')}, no model"
    calls = f"{_count(work.calls, 'call', 'calls')} of {model}"
    usage = work.usage
    cached = f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else ""
    return f"{calls}, {usage.input_tokens:,} tokens in{cached}, {usage.output_tokens:,} out"


def _work_json(work: Work) -> Json:
    return {
        "calls": work.calls,
        "input_tokens": work.usage.input_tokens,
        "cached_tokens": work.usage.cached_tokens,
        "output_tokens": work.usage.output_tokens,
    }


def _place(observing: ObserveCommand) -> str:
    if observing.request.storage is None:
        return "memory only; use --storage PATH to store messages and diary"
    return f"{observing.request.storage}, thread {observing.thread}"
