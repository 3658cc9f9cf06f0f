"""The values that a storage keeps, beside messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import orjson

from diarist.chunks import Usage
from diarist.messages import Json, Message

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
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingMemoryUpdate:
    """A change of a working memory by a run: it counts once that run has ended well.

    Attributes:
        text: The whole new text; or
        patch: what is merged into the JSON object that the text is.
        base: The text that ``text`` was made from; None: it takes the place of any.
    """

    run_id: str
    text: str | None = None
    base: str | None = None
    patch: dict[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingMemory:
    """The working memory of one thread or resource: an immutable value, saved whole by compare-and-set.

    Attributes:
        key: ``thread:<id>`` or ``resource:<id>``.
        text: Markdown, or a JSON object; empty while nothing is known.
        updates: Of runs whose end was not taken in yet, in the order in which they were made.
        version: Rises with every save; 0 while it was never saved.
    """

    key: str
    text: str = ""
    updates: tuple[WorkingMemoryUpdate, ...] = ()
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
        state: ``active`` entries stand in the prompt for their rows; ``buffered`` ones were made ahead of time
            and wait, their rows are still raw.
        text: As the Observer or Reflector wrote it; rendered unchanged.
        tokens: Tokens of ``text``.
        sources: The rows it was made from.
        message_tokens, message_count: Size of those rows.
        kind: ``observation``, or ``reflection`` for what replaced older entries.
        cycle_id: Hash of key, kind and sources: the same work has the same id everywhere.
        run_id: The run whose own rows it covers, while that run is live; such an entry goes with its run.
        thread_title: What the thread could be called, where the Observer was asked for it.
        citations: For each line of ``text`` the ids of the messages it was made from; empty where nobody knows.
        hints: Of a reflection of several threads, what was known last of each of them.
        cut: Whether a person took words out of ``text``, or all of it.
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
    state: Literal["active", "buffered"] = "active"
    cycle_id: str
    run_id: str | None = None
    current_task: str | None = None
    suggested_response: str | None = None
    thread_title: str | None = None
    citations: tuple[tuple[str, ...], ...] = ()
    hints: tuple[Hints, ...] = ()
    cut: bool = False
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
    """The newest known current task, suggested response and title; a cycle that brings none keeps the old ones.

    Attributes:
        thread_id: The thread that they are of, where the log has several; empty: any.
    """

    current_task: str | None = None
    suggested_response: str | None = None
    thread_title: str | None = None
    updated_at: datetime | None = None
    thread_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failed cycles in a row, and when the last one failed: the key backs off by them.

    Attributes:
        refused: What the Observer was asked for and refused for good, oldest first; not yet noted otherwise.
    """

    count: int = 0
    last_at: datetime | None = None
    last_error: str = ""
    refused: tuple[Source, ...] = ()


class Replaced(NamedTuple):
    """An entry that a reflection replaces, as it was read."""

    id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReflection:
    """A finished reflection that waits until the log is large enough to be replaced.

    Attributes:
        tokens: Tokens of the entries that it replaces.
    """

    entry: Observation
    replaces: tuple[Replaced, ...]
    tokens: int


class RowRef(NamedTuple):
    """A stored message: its place and its id."""

    thread_id: str
    seq: int
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationLog:
    """The diary of one thread or resource: an immutable value, saved whole by compare-and-set.

    Attributes:
        key: ``thread:<id>`` or ``resource:<id>``.
        version: Rises with every save, across generations; 0 while it was never saved.
        generation: Rises with every reflection.
        entries: The active ones in the order in which they are shown, then the buffered ones.
        reflection: A finished reflection that waits.
        overrides: Options of this key alone, by their names, over the configuration.
        suppressed: Cycle ids of reflections that did not pay; not tried again until an entry joins.
        actor: The model that saw the log last, where the configuration wants that to be known.
        erasures: Rises when something is forgotten or the diary is cleared: what a model was told before that
            is not to be noted any more.
        born: Made anew with each log that is saved for the first time: where a log was deleted, the next one of the
            same key is another one. Empty while it was never saved, and in logs of early versions.
    """

    key: str
    scope: Scope
    resource_id: str
    version: int = 0
    generation: int = 0
    entries: tuple[Observation, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    hints: Hints = field(default_factory=Hints)
    reflection: PendingReflection | None = None
    overrides: dict[str, Json] = field(default_factory=dict[str, Json])
    observer_failures: Failures = field(default_factory=Failures)
    reflector_failures: Failures = field(default_factory=Failures)
    suppressed: tuple[str, ...] = ()
    actor: str = ""
    erasures: int = 0
    born: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of the active entries."""
        return sum(entry.tokens for entry in self.entries if entry.state == "active")

    @property
    def active(self) -> tuple[Observation, ...]:
        """The entries that stand in the prompt, in the order in which they are shown."""
        return tuple(entry for entry in self.entries if entry.state == "active")

    @property
    def buffered(self) -> tuple[Observation, ...]:
        """The entries that wait, oldest first."""
        return tuple(entry for entry in self.entries if entry.state == "buffered")

    @property
    def every_entry(self) -> tuple[Observation, ...]:
        """The entries, and the one of a reflection that waits."""
        return (*self.entries, *((self.reflection.entry,) if self.reflection is not None else ()))

    @property
    def text(self) -> str:
        """The diary as text: the active entries, one after the other."""
        return "\n".join(entry.text for entry in self.active)

    @property
    def current_task(self) -> str | None:
        """What the user was after when last observed; None where nothing showed it."""
        return self.hints.current_task

    @property
    def suggested_response(self) -> str | None:
        """How the assistant should go on, by the newest entry that says so."""
        return self.hints.suggested_response


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A message that a search found.

    Attributes:
        excerpt: One line of it, around the first word that was looked for.
        before, after: The messages around it, in their order, where they were asked for.
    """

    message: Message
    excerpt: str
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()


@cache
def _log_adapter() -> TypeAdapter[ObservationLog]:
    from pydantic import TypeAdapter

    return TypeAdapter(ObservationLog)


def log_to_json(log: ObservationLog) -> bytes:
    try:
        return orjson.dumps(log, _plain, orjson.OPT_UTC_Z)  # in a third of the time
    except TypeError:  # integers of more than 64 bits; half characters: pydantic's error says where
        return _log_adapter().dump_json(log)


def _plain(value: object) -> object:
    if isinstance(value, Replaced):  # orjson takes tuples for lists, but none of a class of its own
        return [*value]
    raise TypeError


def log_from_json(data: str | bytes) -> ObservationLog:
    return _log_adapter().validate_json(data)


def log_to_dict(log: ObservationLog) -> dict[str, Any]:
    """Plain JSON values, for exports and pages."""
    return _log_adapter().dump_python(log, mode="json")
