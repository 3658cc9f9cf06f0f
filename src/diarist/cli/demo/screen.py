"""Output of the demo: a line per turn, then the diary and the totals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diarist.cli.demo.replay import Settings, TurnReport
from diarist.cli.demo.script import ScriptedTurn
from diarist.memory.observational.events import (
    ACTIVATION,
    BUFFERING_END,
    BUFFERING_FAILED,
    OBSERVATION_END,
    OBSERVATION_FAILED,
)
from diarist.storage.records import Event, ObservationLog

_BAR = 20
_DONE = (OBSERVATION_END, BUFFERING_END)
_FAILED = (OBSERVATION_FAILED, BUFFERING_FAILED)
_ROW = "{turn:>4}  {raw:>8}  {sent:>8}  {bar:<20}  {repeated:>8}  "


class Screen:
    """Prints to a terminal, or as plain text to a file."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self._reports: list[TurnReport] = []
        self._day = ""
        self._largest = 1

    def open(self, settings: Settings, turns: Sequence[ScriptedTurn], *, largest: int) -> None:
        """Print an introduction: the steps of the demo, and which of them are real.

        ``largest``: Tokens of the whole conversation, for the scale of the bars.
        """
        self._largest = largest
        replies = [message for turn in turns for message in turn.replies]
        results = sum(len(message.tool_parts) for message in replies)
        say = self.console.print
        say("[bold]A conversation of several weeks, played through a real agent.[/bold]")
        say(
            f"{len(turns) + len(replies) + results} messages: {len(turns)} from Ada, "
            f"{len(replies)} from her assistant, {results} results of tools.\n"
        )
        say("Real:    the agent and its tools' calls, the memory, the SQLite database, every token count.")
        if settings.model is None:
            say("Script:  what Ada, her assistant and the tools say; no model is called. The diary is written by")
            say("         fixed rules ('extractive'), which is simpler than what a model writes.")
            say("         --model openai/gpt-5-mini has a model answer and write the diary.")
        else:
            say(f"         {settings.model.id} answers and writes the diary.")
            say("Script:  what Ada says, and what the tools answer.")
        say(
            f"Limits:  {settings.message_tokens:,} tokens of messages and {settings.observation_tokens:,} of diary "
            "(by default 30,000 and 40,000), so that a short conversation shows everything.\n"
        )
        head = _ROW.format(turn="turn", raw="history", sent="sent", bar="sent of history", repeated="repeated")
        say(f"[dim]{head}what memory did[/dim]")

    def turn(self, report: TurnReport) -> None:
        self._reports.append(report)
        # The bar is scaled to the longest history: dark for tokens sent, light for tokens saved.
        whole = max(1, round(_BAR * report.raw / self._largest))
        part = min(whole, max(1, round(_BAR * report.sent / self._largest)))
        day = f"{report.day:%A, %d %B %Y}"
        if day != self._day:
            self._day = day
            self.console.print(f"\n[bold]{day}[/bold]")
        row = _ROW.format(
            turn=len(self._reports),
            raw=f"{report.raw:,}",
            sent=f"{report.sent:,}",
            bar="█" * part + "░" * (whole - part),
            repeated=f"{report.repeated:.0%}",
        )
        asked = " ".join(report.asked.split())
        asked = asked if len(asked) <= 48 else asked[:47] + "…"
        self.console.print(Text(row), Text(asked, style="dim"), sep="", end="\n")
        for event in report.events:
            if line := _event(event):
                self.console.print(Text(f"      {line}", style="yellow" if "failed" in event.type else "green"))

    def close(self, log: ObservationLog, settings: Settings, *, answers: int) -> None:
        """Print the last ``answers`` answers, the diary and the totals."""
        say, reports = self.console.print, self._reports
        if answers:
            say("\n[bold]The last questions ask for things said weeks before:[/bold]")
            for report in reports[-answers:]:
                say(Text(f"  Ada:       {report.asked}", style="bold"))
                say(Text(f"  Assistant: {report.answer}\n"))
        self.block(
            f"The diary: {log.tokens:,} tokens, {entries(log)}, generation {log.generation}",
            "\n\n".join(entry.text.strip() for entry in log.active) or "(nothing was observed)",
        )
        table = Table(title="In all", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        calls = [call for report in reports for call in report.calls]
        raw = sum(report.raw * len(report.calls) for report in reports)
        sent = sum(call.sent for call in calls)
        repeated = sum(call.repeated for call in calls)
        saved = 1 - sent / max(1, raw)
        events = [event for report in reports for event in report.events]
        done = [event.data["operationType"] for event in events if event.type in _DONE]
        observed = done.count("observation")
        failed = sum(event.type in _FAILED for event in events)
        covered = sum(entry.message_tokens for entry in log.active)
        rows = [
            ("Turns, model calls", f"{len(reports)}, {len(calls)}"),
            ("Tokens with the whole history", f"{raw:,}"),
            ("Tokens sent", f"{sent:,}  ({abs(saved):.0%} {'less' if saved >= 0 else 'more'})"),
            (
                "of them repeating the last prompt",
                f"{repeated:,}  ({repeated / max(1, sent):.0%}, what a cache can reuse)",
            ),
            ("Observed, reflected, failed", f"{observed}, {len(done) - observed}, {failed}"),
            (
                "Observed messages to diary",
                f"{covered:,} tokens to {log.tokens:,}  ({covered / log.tokens:.1f} to 1)"
                if log.tokens
                else "none yet",
            ),
        ]
        for name, value in rows:
            table.add_row(name, value)
        say(table)
        say(f"\nThe database: {settings.path.resolve()}")
        what = "the stored messages"
        if log.active:
            what = "the diary and everything since it" if settings.model is None else "the diary"
        say(f"Run it again: the agent continues from {what}. --fresh starts over.")

    def block(self, title: str, text: str) -> None:
        """Print a long text under a heading. The terminal wraps it, so it can be copied."""
        self.console.print(f"\n[bold]── {title} ──[/bold]\n")
        self.console.print(Text(text))
        self.console.print()


def _event(event: Event) -> str:
    data = event.data
    reflection = data.get("operationType") == "reflection"
    if event.type == ACTIVATION:
        what = "entries of the diary" if reflection else "messages"
        return f"└ taken in: {data['tokensActivated']:,} tokens of {what} left the prompt"
    if event.type in _FAILED:
        return f"└ {'reflection' if reflection else 'observation'} failed, the turn went on: {data['error']}"
    if event.type not in _DONE:
        return ""
    buffered = event.type == BUFFERING_END
    came, went = ("bufferedTokens", "tokensBuffered") if buffered else ("observationTokens", "tokensObserved")
    return (
        f"└ {'reflected' if reflection else 'observed'}{' in the background' if buffered else ''}: "
        f"{'diary of ' if reflection else ''}{data[went]:,} tokens → {data[came]:,} tokens "
        f"{'' if reflection else 'of diary '}in {data['durationMs']:,} ms"
    )


def entries(log: ObservationLog) -> str:
    """Return how many entries the prompt has, such as ``1 entry``."""
    number = len(log.active)
    return f"{number} {'entry' if number == 1 else 'entries'}"
