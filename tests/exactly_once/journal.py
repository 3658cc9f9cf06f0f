"""A ledger that survives its process: each entry is a line of a file, written before the run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diarist.messages import Message, new_id
from diarist.run_context import Outcome
from tests.exactly_once.ledger import Ledger, RunRecord


class Journal(Ledger):
    """A ledger in a file shared by several processes; ``read`` merges their entries."""

    def __init__(self, path: Path, *, first: int = 0) -> None:
        super().__init__(first=first)
        self._removals: dict[int, str] = {}
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _write(self, kind: str, **data: Any) -> None:
        os.write(self._file, json.dumps({"kind": kind, **data}).encode() + b"\n")

    def begin(self, run: RunRecord) -> None:
        super().begin(run)
        told = {"marks": sorted(run.marks), "guarded": run.guarded, "disturbed": run.disturbed}
        self._write("begin", run=run.id, thread=run.thread, **told)

    def waits(self, call_id: str, run: RunRecord) -> None:
        """Do nothing: another process may have closed the call, which is not known here."""

    def answered(self, run: RunRecord, mark: str) -> None:
        super().answered(run, mark)
        self._write("answered", run=run.id, mark=mark)

    def took_out(self, run: RunRecord, marks: set[str]) -> None:
        super().took_out(run, marks)
        self._write("took out", run=run.id, marks=sorted(marks))

    def ended(self, run: RunRecord, outcome: Outcome, kept: list[Message]) -> None:
        super().ended(run, outcome, kept)
        self._write("ended", run=run.id, outcome=outcome, kept=[message.id for message in kept])

    @contextmanager
    def removing(self, threads: list[str]) -> Iterator[None]:
        with super().removing(threads):
            self._write("removing", threads=threads)
            yield

    def chose(self, rows: Sequence[Message]) -> set[str]:
        over = super().chose(rows)
        number = self._removals[id(over)] = new_id("removal")
        self._write("chose", number=number, ids=[row.id for row in rows])
        return over

    def remove(self, ids: set[str], marks: set[str], over: set[str]) -> None:
        super().remove(ids, marks, over)
        self._write("removed", number=self._removals[id(over)], ids=sorted(ids), marks=sorted(marks))

    def violated(self, *what: Any) -> None:
        super().violated(*what)
        self._write("wrong", what=self.problems[-1])

    def crashed(self, step: str) -> None:
        super().crashed(step)
        self._write("crashed", step=step)


def read(path: Path, *, first: int) -> Ledger:
    """Return the ledger of a file; its next mark is ``first``."""
    ledger = Ledger(first=first)
    over: dict[str, set[str]] = {}
    for line in path.read_bytes().splitlines():
        _take(ledger, json.loads(line), over)
    return ledger


def _take(ledger: Ledger, entry: dict[str, Any], over: dict[str, set[str]]) -> None:
    """Apply one entry. ``over``: for each removal, the runs of any process that were over before."""
    run = ledger.runs.get(entry.get("run", ""), RunRecord("", ""))
    match entry["kind"]:
        case "begin":
            record = RunRecord(entry["run"], entry["thread"], marks=set(entry["marks"]), guarded=entry["guarded"])
            ledger.begin(record)
            record.disturbed = entry["disturbed"]
        case "answered":
            ledger.answered(run, entry["mark"])
        case "took out":
            ledger.took_out(run, set(entry["marks"]))
        case "ended":
            ledger.ended(run, entry["outcome"], [Message.user("", id=id) for id in entry["kept"]])
        case "removing":
            for other in ledger.runs.values():
                other.disturbed = other.disturbed or (other.thread in entry["threads"] and other.outcome == "open")
        case "chose":  # the process may have died before it removed them
            ledger.removed |= set(entry["ids"])
            over[entry["number"]] = ledger.chose([])
        case "removed":
            ledger.remove(set(entry["ids"]), set(entry["marks"]), over[entry["number"]])
        case "wrong":
            ledger.problems.append(entry["what"])
        case "crashed":
            ledger.crashed(entry["step"])
        case kind:
            raise AssertionError(f"an entry of no known kind: {kind}")
