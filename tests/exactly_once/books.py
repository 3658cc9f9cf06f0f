"""What the world outside knows: what was said, what was taken back, and what every prompt and every saved log held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from diarist.messages import Message, Prompt
from diarist.run_context import Outcome
from diarist.storage import ObservationLog, Storage

Fate = Literal["open", "committed", "discarded", "interrupted"]


@dataclass
class RunFacts:
    """One run.

    Attributes:
        asked: Ids of its question: what it was given, or what it was given once more.
        marks: Words that its messages say.
        answered: Those of them that its answers say, not what it was given.
        taken: Those of them that it took out again before its end.
        fate: How it ended for its caller; ``open`` where it never heard.
        kept: Its messages as it ended, in order.
        by_user: The user speaks in what it was given.
        disturbed: While it was live somebody removed something; what it had loaded already it may still show.
    """

    id: str
    thread: str
    asked: list[str] = field(default_factory=list[str])
    marks: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])
    taken: set[str] = field(default_factory=set[str])
    fate: Fate = "open"
    kept: list[Message] = field(default_factory=list[Message])
    guarded: bool = False
    disturbed: bool = False
    by_user: bool = False

    @property
    def rows(self) -> list[str]:
        return [message.id for message in self.kept]


@dataclass
class Books:
    """Kept over all processes of one schedule.

    Attributes:
        gone: Words that nobody may find any more, and why.
        removed: Ids of messages that somebody removed.
        talked_past: Calls after which the user has spoken instead of the client: in a run that was discarded, too.
        problems: Promises that were broken. They are collected, since memory rightly swallows what is raised in it.
        story: What happened, a line each.
        first: Words and ids are numbered from here.
        steps: Calls of storage that took effect, and crashes, by name.
    """

    runs: dict[str, RunFacts] = field(default_factory=dict[str, RunFacts])
    gone: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])
    story: list[str] = field(default_factory=list[str])
    steps: Counter[str] = field(default_factory=Counter[str])
    crashes: Counter[str] = field(default_factory=Counter[str])
    logs: dict[str, ObservationLog] = field(default_factory=dict[str, ObservationLog])
    removed: set[str] = field(default_factory=set[str])
    prompts: int = 0
    telling: bool = False
    first: int = 0
    talked_past: set[str] = field(default_factory=set[str])
    _waiting: dict[str, str] = field(default_factory=dict[str, str])
    _removing: list[str] = field(default_factory=list[str])
    _marks: int = 0
    _ids: int = 0

    def mark(self) -> str:
        """A word that nobody has said yet."""
        self._marks += 1
        return f"w{self.first + self._marks:07d}"

    def id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}{self.first + self._ids}"

    def tell(self, *what: Any) -> None:
        if self.telling:
            self.story.append(" ".join(str(item) for item in what))

    def wrong(self, *what: Any) -> None:
        self.problems.append(" ".join(str(item) for item in what))
        self.tell("!!!", *what)

    def forbid(self, marks: Iterable[str], why: str) -> None:
        for mark in marks:
            self.gone.setdefault(mark, why)

    def begin(self, run: RunFacts) -> None:
        self.runs[run.id] = run
        run.disturbed = run.thread in self._removing
        if run.by_user:
            self.talked_past |= {call_id for call_id, thread in self._waiting.items() if thread == run.thread}
        for mark in run.marks:  # what was gone is said again
            self.gone.pop(mark, None)

    def waits(self, call_id: str, run: RunFacts) -> None:
        """A call of this run waits for the client; a user who is just speaking beside the run talks past it."""
        self._waiting[call_id] = run.thread
        others = [other for other in self.runs.values() if other.thread == run.thread and other is not run]
        if any(other.by_user and other.fate == "open" for other in others):
            self.talked_past.add(call_id)

    @property
    def known_calls(self) -> set[str]:
        """Calls that were made here and that nobody talked past."""
        return self._waiting.keys() - self.talked_past

    def answered(self, run: RunFacts, mark: str) -> None:
        """The model or a tool has said something."""
        run.marks.add(mark)
        run.answered.add(mark)

    def took_out(self, run: RunFacts, marks: set[str]) -> None:
        """An output processor has taken out what the run said; that counts once the run is committed."""
        run.taken |= marks

    def ended(self, run: RunFacts, outcome: Outcome, kept: list[Message]) -> None:
        """The caller has heard how the run ended."""
        run.fate, run.kept = outcome, kept
        if outcome == "committed":
            self.forbid(run.taken, f"{run.id} took it out before its end")
        elif outcome == "discarded":
            self.forbid(self.only(run, run.marks), f"{run.id} was discarded")

    @contextmanager
    def removing(self, threads: list[str], rows: Sequence[Message]) -> Iterator[set[str]]:
        """While the block runs, somebody removes these rows of these threads; it is given the runs before that."""
        self._removing += threads
        for run in self.runs.values():
            if run.thread in threads and run.fate == "open":
                run.disturbed = True
        try:
            yield set(self.runs)
        finally:
            for thread in threads:
                self._removing.remove(thread)

    def remove(self, ids: set[str], marks: set[str], before: set[str]) -> None:
        """These messages are removed, and what they said with them; but for what somebody is just saying again.

        Args:
            before: The runs that had begun when the removal began.
        """
        self.removed |= ids
        again = [run for run in self.runs.values() if run.fate == "open" or run.id not in before]
        said_again = {mark for run in again for mark in run.marks}
        self.forbid(marks - said_again, "somebody has removed it")

    def crashed(self, step: str) -> None:
        """A process died at this step."""
        self.crashes[step] += 1

    async def close(self, storage: Storage) -> None:
        """All runs are over: what must be gone follows from how storage says that they ended."""
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
                self.wrong(run.id, "is live for ever")

    def only(self, run: RunFacts, marks: set[str]) -> set[str]:
        """Without what another run was sent as well."""
        return marks - {mark for other in self.runs.values() if other is not run for mark in other.marks}

    def others_gone(self, run: RunFacts | None) -> dict[str, str]:
        """Words that a run may not see: its own it may, until it is over."""
        own = run.marks if run is not None else set[str]()
        return {mark: why for mark, why in self.gone.items() if mark not in own}


@dataclass(frozen=True, slots=True)
class Shown:
    """A prompt with what it was made from.

    Attributes:
        log: The log as the run renders it.
        raw: The raw rows that the run's memory holds.
        status: The data of the status part that went before.
    """

    run: RunFacts
    prompt: Prompt
    log: ObservationLog
    raw: list[Message]
    status: dict[str, Any]
