"""Record what callers know: what was said, what was removed, and what every prompt and saved diary held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from diarist.messages import Message, Prompt
from diarist.run_context import Outcome
from diarist.storage import ObservationLog, Storage

RunOutcome = Literal["open", "committed", "discarded", "interrupted"]


@dataclass
class RunRecord:
    """One run.

    Attributes:
        asked: Ids of the messages of its question, also where they are sent again.
        marks: Marks in its messages.
        answered: The marks that its answers added.
        taken: The marks that it removed before its end.
        outcome: The outcome that the caller heard; ``open`` if it heard none.
        kept: Its messages at its end, in order.
        by_user: Its input has a user message.
        disturbed: Messages of its thread were removed while it was live; it may still show what it had loaded.
    """

    id: str
    thread: str
    asked: list[str] = field(default_factory=list[str])
    marks: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])
    taken: set[str] = field(default_factory=set[str])
    outcome: RunOutcome = "open"
    kept: list[Message] = field(default_factory=list[Message])
    guarded: bool = False
    disturbed: bool = False
    by_user: bool = False

    @property
    def rows(self) -> list[str]:
        return [message.id for message in self.kept]


@dataclass
class Ledger:
    """The facts of one schedule, over all its processes.

    Attributes:
        gone: Marks that must not be found any more, each with the reason.
        removed: Ids of removed messages.
        superseded_calls: Open calls that a later user message closed, in a discarded run too.
        problems: Broken promises. They are collected, since memory swallows exceptions raised inside it.
        trace: One line for each thing that happened.
        first: The first number of marks and ids.
        steps: Storage calls that took effect, by name; ``crashes`` likewise.
    """

    runs: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    gone: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])
    trace: list[str] = field(default_factory=list[str])
    steps: Counter[str] = field(default_factory=Counter[str])
    crashes: Counter[str] = field(default_factory=Counter[str])
    logs: dict[str, ObservationLog] = field(default_factory=dict[str, ObservationLog])
    removed: set[str] = field(default_factory=set[str])
    prompts: int = 0
    tracing: bool = False
    first: int = 0
    superseded_calls: set[str] = field(default_factory=set[str])
    _waiting: dict[str, str] = field(default_factory=dict[str, str])
    _removing: list[str] = field(default_factory=list[str])
    _marks: int = 0
    _ids: int = 0

    def mark(self) -> str:
        """Return a mark that no message has yet."""
        self._marks += 1
        return f"w{self.first + self._marks:08d}"

    def id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}{self.first + self._ids}"

    def log(self, *what: Any) -> None:
        if self.tracing:
            self.trace.append(" ".join(str(item) for item in what))

    def violated(self, *what: Any) -> None:
        self.problems.append(" ".join(str(item) for item in what))
        self.log("!!!", *what)

    def forbid(self, marks: Iterable[str], why: str) -> None:
        for mark in marks:
            self.gone.setdefault(mark, why)

    def begin(self, run: RunRecord) -> None:
        self.runs[run.id] = run
        run.disturbed = run.thread in self._removing
        if run.by_user:
            self.superseded_calls |= {call_id for call_id, thread in self._waiting.items() if thread == run.thread}
        for mark in run.marks:  # a message says a removed mark again
            self.gone.pop(mark, None)

    def waits(self, call_id: str, run: RunRecord) -> None:
        """Note an open client call of this run; a live run with a user message of the thread closes it."""
        self._waiting[call_id] = run.thread
        others = [other for other in self.runs.values() if other.thread == run.thread and other is not run]
        if any(other.by_user and other.outcome == "open" for other in others):
            self.superseded_calls.add(call_id)

    @property
    def known_calls(self) -> set[str]:
        """Client calls that are still open."""
        return self._waiting.keys() - self.superseded_calls

    def answered(self, run: RunRecord, mark: str) -> None:
        """Note a mark that the model or a tool said."""
        run.marks.add(mark)
        run.answered.add(mark)

    def took_out(self, run: RunRecord, marks: set[str]) -> None:
        """Note marks that an output processor removed; they count as gone once the run is committed."""
        run.taken |= marks

    def ended(self, run: RunRecord, outcome: Outcome, kept: list[Message]) -> None:
        """Note the outcome that the caller heard."""
        run.outcome, run.kept = outcome, kept
        if outcome == "committed":
            self.forbid(run.taken, f"{run.id} took it out before its end")
        elif outcome == "discarded":
            self.forbid(self.only(run, run.marks), f"{run.id} was discarded")

    @contextmanager
    def removing(self, threads: list[str]) -> Iterator[None]:
        """Mark runs of these threads that are live during the block as disturbed.

        List the messages in the block: a run that ends after the list was read is removed with its thread, unlisted.
        """
        self._removing += threads
        for run in self.runs.values():
            if run.thread in threads and run.outcome == "open":
                run.disturbed = True
        try:
            yield
        finally:
            for thread in threads:
                self._removing.remove(thread)

    def chose(self, rows: Sequence[Message]) -> set[str]:
        """Note what is about to be removed. Returns the ids of the runs that are over, for ``remove``."""
        return {run.id for run in self.runs.values() if run.outcome != "open"}

    def remove(self, ids: set[str], marks: set[str], over: set[str]) -> None:
        """Note that these messages are removed; marks that another run may have said again are not gone.

        Args:
            over: The runs that were over when the removal began.
        """
        self.removed |= ids
        said_again = {mark for run in self.runs.values() if run.id not in over for mark in run.marks}
        self.forbid(marks - said_again, "it was removed")

    def crashed(self, step: str) -> None:
        """Count a process that died at this step."""
        self.crashes[step] += 1

    async def close(self, storage: Storage) -> None:
        """Derive the marks that must be gone from the outcomes in storage, after the last run."""
        for run in self.runs.values():
            stored = await storage.get_run(run.id)
            state = stored.state if stored is not None else "discarded"
            if run.id.startswith("import"):
                continue
            if state == "discarded":
                self.forbid(self.only(run, run.marks), f"{run.id} was discarded")
            elif state == "interrupted" and run.guarded:
                self.forbid(run.answered, f"{run.id} broke off before it was judged")
            elif state == "committed":
                self.forbid(run.taken, f"{run.id} took it out before its end")
            elif state == "live":
                self.violated(run.id, "never ended")

    def only(self, run: RunRecord, marks: set[str]) -> set[str]:
        """Return the marks that no other run has."""
        return marks - {mark for other in self.runs.values() if other is not run for mark in other.marks}

    def others_gone(self, run: RunRecord | None) -> dict[str, str]:
        """Return the gone marks that this run must not see; it may see its own until its end."""
        own = run.marks if run is not None else set[str]()
        return {mark: why for mark, why in self.gone.items() if mark not in own}


@dataclass(frozen=True, slots=True)
class Shown:
    """A prompt with its sources.

    Attributes:
        log: The log as the run renders it.
        raw: The raw rows that the run's memory holds.
        status: The data of the status part that went before.
    """

    run: RunRecord
    prompt: Prompt
    log: ObservationLog
    raw: list[Message]
    status: dict[str, Any]
