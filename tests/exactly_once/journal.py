"""Books that survive the process: each entry is a line of a file, written before what it tells of goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diarist.messages import Message, new_id
from diarist.run_context import Outcome
from tests.exactly_once.books import Books, RunFacts


class Journal(Books):
    """Several processes write to one file; ``read`` makes the books of all of it."""

    def __init__(self, path: Path, *, first: int = 0) -> None:
        super().__init__(first=first)
        self._removals: dict[int, str] = {}
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _write(self, kind: str, **data: Any) -> None:
        os.write(self._file, json.dumps({"kind": kind, **data}).encode() + b"\n")

    def begin(self, run: RunFacts) -> None:
        super().begin(run)
        told = {"marks": sorted(run.marks), "guarded": run.guarded, "disturbed": run.disturbed}
        self._write("begin", run=run.id, thread=run.thread, **told)

    def waits(self, call_id: str, run: RunFacts) -> None:
        """Whether a user talks past it in another process is not known here."""

    def answered(self, run: RunFacts, mark: str) -> None:
        super().answered(run, mark)
        self._write("answered", run=run.id, mark=mark)

    def took_out(self, run: RunFacts, marks: set[str]) -> None:
        super().took_out(run, marks)
        self._write("took out", run=run.id, marks=sorted(marks))

    def ended(self, run: RunFacts, outcome: Outcome, kept: list[Message]) -> None:
        super().ended(run, outcome, kept)
        self._write("ended", run=run.id, outcome=outcome, kept=[message.id for message in kept])

    @contextmanager
    def removing(self, threads: list[str], rows: Sequence[Message]) -> Iterator[set[str]]:
        with super().removing(threads, rows) as before:
            number = self._removals[id(before)] = new_id("removal")
            self._write("removing", number=number, threads=threads, ids=[row.id for row in rows])
            yield before

    def remove(self, ids: set[str], marks: set[str], before: set[str]) -> None:
        super().remove(ids, marks, before)
        self._write("removed", number=self._removals[id(before)], ids=sorted(ids), marks=sorted(marks))

    def wrong(self, *what: Any) -> None:
        super().wrong(*what)
        self._write("wrong", what=self.problems[-1])

    def crashed(self, step: str) -> None:
        super().crashed(step)
        self._write("crashed", step=step)


def read(path: Path, *, first: int) -> Books:
    """The books of all that was written, to be continued with words from ``first`` on."""
    books = Books(first=first)
    before: dict[str, set[str]] = {}
    for line in path.read_bytes().splitlines():
        _take(books, json.loads(line), before)
    return books


def _take(books: Books, entry: dict[str, Any], before: dict[str, set[str]]) -> None:
    """``before``: by removal, the runs that had begun in any process."""
    run = books.runs.get(entry.get("run", ""), RunFacts("", ""))
    match entry["kind"]:
        case "begin":
            facts = RunFacts(entry["run"], entry["thread"], marks=set(entry["marks"]), guarded=entry["guarded"])
            books.begin(facts)
            facts.disturbed = entry["disturbed"]
        case "answered":
            books.answered(run, entry["mark"])
        case "took out":
            books.took_out(run, set(entry["marks"]))
        case "ended":
            books.ended(run, entry["outcome"], [Message.user("", id=id) for id in entry["kept"]])
        case "removing":  # nobody knows whether it came to that
            before[entry["number"]] = set(books.runs)
            books.removed |= set(entry["ids"])
            for other in books.runs.values():
                other.disturbed = other.disturbed or (other.thread in entry["threads"] and other.fate == "open")
        case "removed":
            books.remove(set(entry["ids"]), set(entry["marks"]), before[entry["number"]])
        case "wrong":
            books.problems.append(entry["what"])
        case "crashed":
            books.crashed(entry["step"])
        case kind:
            raise AssertionError(f"an entry of no known kind: {kind}")
