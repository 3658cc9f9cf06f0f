"""Output of the demo: a line per turn, then the diary and the totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diarist.cli.demo.replay import Settings, TurnReport
from diarist.storage.records import Event, ObservationLog

_BAR = 20
_DONE = ("data-om-observation-end", "data-om-buffering-end")
_FAILED = ("data-om-observation-failed", "data-om-buffering-failed")
_ROW = "{turn:>4}  {raw:>8}  {sent:>8}  {bar:<20}  {repeated:>8}  "


@dataclass
class Totals:
    """Sums over all turns, per model call."""

    turns: int = 0
    calls: int = 0
    raw: int = 0
    sent: int = 0
    repeated: int = 0
    observed: int = 0
    reflected: int = 0
    failed: int = 0
    reports: list[TurnReport] = field(default_factory=list[TurnReport])

    def add(self, report: TurnReport) -> None:
        self.turns += 1
        self.calls += len(report.calls)
        self.raw += report.raw * len(report.calls)
        self.sent += sum(call.sent for call in report.calls)
        self.repeated += sum(call.repeated for call in report.calls)
        for event in report.events:
            if event.type in _FAILED:
                self.failed += 1
            elif event.type in _DONE and event.data["operationType"] == "observation":
                self.observed += 1
            elif event.type in _DONE:
                self.reflected += 1


class Screen:
    """Prints to a terminal, or as plain text to a file."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.totals = Totals()
        self._day = ""
        self._largest = 1

    def open(self, settings: Settings, *, content: str, largest: int) -> None:
        """Print an introduction: the steps of the demo, and which of them are real."""
        self._largest = largest
        say = self.console.print
        say("[bold]A conversation of several weeks, played through a real agent.[/bold]")
        say(f"{content}\n")
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

    def turn(self, number: int, report: TurnReport) -> None:
        self.totals.add(report)
        day = f"{report.day:%A, %d %B %Y}"
        if day != self._day:
            self._day = day
            self.console.print(f"\n[bold]{day}[/bold]")
        row = _ROW.format(
            turn=number,
            raw=f"{report.raw:,}",
            sent=f"{report.sent:,}",
            bar=self._bar(report),
            repeated=f"{report.repeated:.0%}",
        )
        self.console.print(Text(row), Text(_said(report.asked), style="dim"), sep="", end="\n")
        for event in report.events:
            if line := _event(event):
                self.console.print(Text(f"      {line}", style="yellow" if "failed" in event.type else "green"))

    def _bar(self, report: TurnReport) -> str:
        """Return a turn's bar, scaled to the longest history: dark for tokens sent, light for tokens saved."""
        whole = max(1, round(_BAR * report.raw / self._largest))
        part = min(whole, max(1, round(_BAR * report.sent / self._largest)))
        return "█" * part + "░" * (whole - part)

    def close(self, log: ObservationLog, path: Path, *, scripted: bool, answers: Sequence[TurnReport]) -> None:
        """Print the last answers, the diary and the totals."""
        self._answers(answers)
        self.block(
            f"The diary: {log.tokens:,} tokens, {len(log.active)} entries, generation {log.generation}",
            "\n\n".join(entry.text.strip() for entry in log.active) or "(nothing was observed)",
        )
        self.console.print(self._table(log))
        self.console.print(f"\nThe database: {path.resolve()}")
        what = "the diary and everything since it" if scripted else "the diary"
        self.console.print(f"Run it again: the agent goes on from {what}. --fresh starts over.")

    def block(self, title: str, text: str) -> None:
        """Print a long text under a heading. The terminal wraps it, so it can be copied."""
        self.console.print(f"\n[bold]── {title} ──[/bold]\n")
        self.console.print(Text(text))
        self.console.print()

    def _answers(self, answers: Sequence[TurnReport]) -> None:
        if not answers:
            return
        self.console.print("\n[bold]The last questions ask for things said weeks before:[/bold]")
        for report in answers:
            self.console.print(Text(f"  Ada:       {report.asked}", style="bold"))
            self.console.print(Text(f"  Assistant: {report.answer}\n"))

    def _table(self, log: ObservationLog) -> Table:
        totals = self.totals
        table = Table(title="In all", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        saved = 1 - totals.sent / totals.raw if totals.raw else 0.0
        repeated = totals.repeated / totals.sent if totals.sent else 0.0
        rows = [
            ("Turns, model calls", f"{totals.turns}, {totals.calls}"),
            ("Tokens with the whole history", f"{totals.raw:,}"),
            ("Tokens sent", f"{totals.sent:,}  ({saved:.0%} less)"),
            ("of them repeating the last prompt", f"{totals.repeated:,}  ({repeated:.0%}, what a cache can reuse)"),
            ("Observed, reflected, failed", f"{totals.observed}, {totals.reflected}, {totals.failed}"),
            ("Observed messages to diary", _compression(log)),
        ]
        for name, value in rows:
            table.add_row(name, value)
        return table


def _compression(log: ObservationLog) -> str:
    tokens = sum(entry.message_tokens for entry in log.active)
    return f"{tokens:,} tokens to {log.tokens:,}  ({tokens / log.tokens:.1f} to 1)" if log.tokens else "none yet"


def _said(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 48 else line[:47] + "…"


def _event(event: Event) -> str:
    data = event.data
    reflection = data.get("operationType") == "reflection"
    if event.type == "data-om-activation":
        what = "entries of the diary" if reflection else "messages"
        return f"└ taken in: {data['tokensActivated']:,} tokens of {what} left the prompt"
    if event.type in _FAILED:
        return f"└ {'reflection' if reflection else 'observation'} failed, the turn went on: {data['error']}"
    if event.type not in _DONE:
        return ""
    buffered = event.type == "data-om-buffering-end"
    came, went = ("bufferedTokens", "tokensBuffered") if buffered else ("observationTokens", "tokensObserved")
    return (
        f"└ {'reflected: diary of' if reflection else 'observed:'} {data[went]:,} tokens → {data[came]:,} tokens "
        f"{'' if reflection else 'of diary '}{'beside the turn ' if buffered else ''}in {data['durationMs']:,} ms"
    )
