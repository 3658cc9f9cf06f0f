"""Reads a diary of Mastra: its records, one per generation, and the messages that each record covers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from diarist.memory.observational.log.coverage import RowsDigest
from diarist.memory.observational.log.transitions import cycle_id, derive_hints
from diarist.memory.transfer.jsonb import read_json
from diarist.messages import Message, parse_time
from diarist.storage.records import Hints, Observation, ObservationLog, Source
from diarist.tokens import default_counter

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class _Record:
    """The observations of a generation, up to a time."""

    text: str
    until: datetime | None
    tokens: int
    name: str
    generation: int
    is_reflection: bool


class Covered:
    """Collects the ranges of a thread's messages that each record (slot) of a diary covers."""

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._count = 0
        self._slot: int | None = None
        self._first, self._digest = 0, RowsDigest()
        self._found: dict[int, list[Source]] = {}

    def add(self, message: Message, slot: int | None) -> None:
        """Add the next message. ``slot``: the slot that covers it; None for a raw message."""
        if slot != self._slot:
            self._close()
            self._slot, self._first, self._digest = slot, self._count + 1, RowsDigest()
        if slot is not None:
            self._digest.add(message)
        self._count += 1

    def _close(self) -> None:
        if self._slot is not None:
            source = Source(
                thread_id=self._thread_id, first_seq=self._first, last_seq=self._count, digest=str(self._digest)
            )
            self._found.setdefault(self._slot, []).append(source)

    def sources(self) -> dict[int, list[Source]]:
        """Return the sources by slot, after the last message."""
        self._close()
        self._slot = None
        return self._found


class MastraDiary:
    """The diary of a thread or a resource.

    A *slot* is the number of a record in it, counted from 0 at the oldest generation. Messages that only buffered
    observations cover stay raw.

    Args:
        key: ``thread:<id>`` or ``resource:<id>``.
        rows: Rows of this key, ordered by generation.
        note: Called for content that is left out.
    """

    def __init__(self, key: str, rows: Sequence[sqlite3.Row], note: Callable[[str], None]) -> None:
        self.key = key
        records: dict[int, _Record] = {}
        newest: dict[str, Any] = {}
        for newest in map(dict[str, Any], rows):
            generation = int(newest["generationCount"])
            if not newest["activeObservations"]:
                continue
            if generation in records:
                note("diaries of the same generation as another one, left out")
            records[generation] = _Record(
                text=str(newest["activeObservations"]),
                until=parse_time(newest.get("lastObservedAt"), UTC),
                tokens=int(newest.get("totalTokensObserved") or 0),
                name=str(newest.get("id")),
                generation=generation,
                is_reflection=newest.get("originType") == "reflection",
            )
        self._records = list(records.values())
        self._observed = frozenset(map(str, _list(newest, "observedMessageIds", note)))
        if _list(newest, "bufferedObservationChunks", note):
            note("buffered observations, left out")
        if newest.get("bufferedReflection"):
            note("buffered reflections, left out")

    def slot(self, message: Message, observed: bool | None, until: datetime | None) -> int | None:
        """Return the slot that covers a message; None for a raw message.

        Args:
            observed: The mark of observation in the message: True, False, or None without one.
            until: Time up to which the message's thread was observed, if known.
        """
        newest = len(self._records) - 1
        if newest < 0 or observed is False:
            return None
        said = message.created_at
        if message.id in self._observed:
            return newest
        if said is not None and (until is None or said <= until):
            for slot, record in enumerate(self._records):
                moment = until if slot == newest and until is not None else record.until
                if moment is not None and said <= moment:
                    return slot
        return newest if observed else None

    def logs(
        self, resource_id: str, sources: Mapping[int, Sequence[Source]], hints: Sequence[Hints]
    ) -> list[ObservationLog]:
        """Return the generations, oldest first.

        Args:
            sources: Sources of each slot.
            hints: Current tasks and titles of threads, for the newest record.
        """
        logs: list[ObservationLog] = []
        covered: list[Source] = []
        for slot, record in enumerate(self._records):
            covered += sources.get(slot, ())
            known = hints if record is self._records[-1] else ()
            kind = "reflection" if record.is_reflection else "observation"
            cycle = cycle_id(self.key, kind, covered, [record.name])
            threads = {source.thread_id for source in covered}
            own = known[0] if len(threads) == 1 and len(known) == 1 else Hints()
            entry = Observation(
                id=f"{'ref' if record.is_reflection else 'obs'}_{cycle}",
                text=record.text,
                tokens=default_counter().count(record.text),
                sources=tuple(covered),
                message_tokens=record.tokens,
                message_count=sum(source.last_seq - source.first_seq + 1 for source in covered),
                observed_at=record.until or _EPOCH,
                kind=kind,
                state="active",
                cycle_id=cycle,
                current_task=own.current_task,
                suggested_response=own.suggested_response,
                thread_title=own.thread_title,
                hints=tuple(known) if len(threads) > 1 else (),
            )
            log = ObservationLog(
                key=self.key,
                scope="thread" if self.key.startswith("thread:") else "resource",
                resource_id=resource_id,
                generation=record.generation,
                entries=(entry,),
                hints=derive_hints([entry]),
            )
            logs.append(log)
        return logs


def _list(row: Mapping[str, Any], name: str, note: Callable[[str], None]) -> list[Any]:
    try:
        value: Any = read_json(row.get(name) or "[]")
    except ValueError:
        note(f"{name} of diaries that are not JSON, left out")
        return []
    return cast("list[Any]", value) if isinstance(value, list) else []
