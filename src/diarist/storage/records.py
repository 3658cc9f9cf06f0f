"""The values that a storage keeps, beside messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from diarist.chunks import Usage
from diarist.messages import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

RunState = Literal["live", "committed", "discarded", "interrupted", "suspended"]
MessageSource = Literal["input", "response"]
Scope = Literal["thread", "resource"]


@dataclass(slots=True, kw_only=True)
class Thread:
    """A conversation. It belongs to one resource (a user, a project) for ever."""

    id: str
    resource_id: str
    title: str = ""
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One request as a transaction: its rows count for others once it is ``committed`` or ``interrupted``.

    Attributes:
        token: Fencing token; every write of the run must carry it.
        guarded: Somebody judges the run's output at its end. If it breaks off before, only its input is kept.
    """

    id: str
    thread_id: str
    resource_id: str
    state: RunState
    token: int
    guarded: bool = False


@dataclass(slots=True, kw_only=True)
class Resource:
    """What is kept for a resource over all its threads. ``version`` is 0 while it is not stored."""

    id: str
    working_memory: str = ""
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A closed range of rows of one thread, with a digest of exactly what was read."""

    thread_id: str
    first_seq: int
    last_seq: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One entry of an observation log.

    Attributes:
        text: As the Observer or Reflector wrote it; rendered unchanged.
        tokens: Tokens of ``text``.
        sources: The rows it was made from.
        message_tokens, message_count: Size of those rows.
        kind: ``observation``, or ``reflection`` for what replaced older entries.
        cycle_id: Hash of key, kind and sources: the same work has the same id everywhere.
        run_id: The run whose own rows it covers, while that run is live; such an entry goes with its run.
        model, usage: What it cost.
    """

    id: str
    text: str
    tokens: int
    sources: tuple[Source, ...]
    message_tokens: int
    message_count: int
    observed_at: datetime
    kind: Literal["observation", "reflection"] = "observation"
    cycle_id: str
    run_id: str | None = None
    current_task: str | None = None
    suggested_response: str | None = None
    model: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Rows that are gone and must not come back by a late result: a range of a thread, or all rows of a run."""

    thread_id: str
    first_seq: int = 0
    last_seq: int = 0
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """The newest known current task and suggested response; a cycle that brings none keeps the old ones."""

    current_task: str | None = None
    suggested_response: str | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failed cycles in a row, and when the last one failed: the key backs off by them."""

    count: int = 0
    last_at: datetime | None = None
    last_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationLog:
    """The diary of one thread or resource: an immutable value, saved whole by compare-and-set.

    Attributes:
        key: ``thread:<id>`` or ``resource:<id>``.
        version: Rises with every save, across generations; 0 while it was never saved.
        generation: Rises with every reflection.
        entries: In the order in which they are shown.
        suppressed: Cycle ids of reflections that did not pay; not tried again until an entry joins.
    """

    key: str
    scope: Scope
    resource_id: str
    version: int = 0
    generation: int = 0
    entries: tuple[Observation, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    hints: Hints = field(default_factory=Hints)
    observer_failures: Failures = field(default_factory=Failures)
    reflector_failures: Failures = field(default_factory=Failures)
    suppressed: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of all entries."""
        return sum(entry.tokens for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A claim on a piece of work, valid until it expires by the database's clock."""

    name: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a key's event log; ``seq`` rises by one per key."""

    key: str
    seq: int
    type: str
    data: dict[str, Json]
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A page of results; ``cursor`` is opaque and None on the last page."""

    items: list[T]
    cursor: str | None = None


@cache
def _log_adapter() -> TypeAdapter[ObservationLog]:
    from pydantic import TypeAdapter

    return TypeAdapter(ObservationLog)


def log_to_json(log: ObservationLog) -> bytes:
    return _log_adapter().dump_json(log)


def log_from_json(data: str | bytes) -> ObservationLog:
    return _log_adapter().validate_json(data)


def log_to_dict(log: ObservationLog) -> dict[str, Any]:
    """Plain JSON values, for exports and pages."""
    return _log_adapter().dump_python(log, mode="json")
