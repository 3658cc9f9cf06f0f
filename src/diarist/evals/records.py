"""Records in JSON lines: one line per finished piece of work, so that a stage can be resumed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import cast

import orjson

from diarist.exceptions import InputError
from diarist.messages import Json

Record = dict[str, Json]


class Records:
    """A file of records, by their key fields. A record written later replaces one with the same key.

    A last line that a killed process left unfinished is ignored, and dropped when a record is added.

    Args:
        path: Created with the first record.
        keys: Names of the key fields.
        needs: Types of further fields that every record has.

    Attributes:
        written: All records, also those that were replaced, whose work was paid as well.

    Raises:
        InputError: A line before the last is not a record.
    """

    def __init__(self, path: Path, *keys: str, needs: Mapping[str, type | UnionType] | None = None) -> None:
        self.path, self._keys, self._broken_end = path, keys, 0
        self.written: list[Record] = []
        self._found: dict[tuple[Json, ...], Record] = {}
        if not path.exists():
            return
        data = path.read_bytes()
        self._broken_end = len(data) - (whole := data.rfind(b"\n") + 1)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                self._keep(record := orjson.loads(line))
                for name, kind in (needs or {}).items():
                    if not isinstance(record.get(name, ...), kind):
                        raise TypeError(f"the field {name!r} is missing or has a wrong type")
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise InputError(f"{path}, line {number}: not a record of this version: {error}") from error

    def __iter__(self) -> Iterator[Record]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def get(self, *key: Json) -> Record | None:
        """Return the record with these values of the key fields, or None."""
        return self._found.get(key)

    def add(self, record: Record) -> None:
        """Write a record in one piece."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            if self._broken_end:
                file.truncate(file.tell() - self._broken_end)
                self._broken_end = 0
            file.write(orjson.dumps(record) + b"\n")
        self._keep(record)

    def _keep(self, record: Record) -> None:
        self._found[tuple(record[key] for key in self._keys)] = record
        self.written.append(record)


def questions_in(folder: Path) -> Records:
    """Return the questions of a run's folder. Raises InputError."""
    texts = dict.fromkeys(("history", "type", "part", "text", "answer", "date", "asks"), str)
    return Records(folder / "questions.jsonl", "question", needs={**texts, "evidence": list, "data": dict})


def judgements_in(folder: Path) -> Records:
    """Return the judgements of a run's folder. Raises InputError."""
    needs = {"score": int | float, "correct": bool | None}
    return Records(folder / "judgements.jsonl", "system", "run", "question", needs=needs)


def read_record(path: Path) -> Record:
    """Return the JSON object in a file. Raises InputError."""
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged: it holds no JSON object")
    return cast(Record, found)


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def answer_digest(answer: Record) -> str:
    """Return a hash of what is judged of an answer: its text, or the context alone, or its error."""
    return digest(str(answer.get("error") or answer.get("hypothesis") or answer.get("context_sha256")))


def file_name(id: str) -> str:
    """Return a file name for an id: its own characters where they are safe, and a part of its hash if some are not."""
    safe = re.sub(r"[^\w.-]", "_", id)
    return safe if safe == id and len(id) <= 80 else f"{safe[:80]}-{digest(id)[:8]}"


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(text.encode("utf-8", "replace"))  # as it is: text files translate line ends
    part.replace(path)


def read_text(path: Path) -> str:
    """Return the text that ``write_text`` has written, with its own line ends."""
    return path.read_bytes().decode("utf-8")
