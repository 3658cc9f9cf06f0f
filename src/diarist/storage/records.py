"""The records of a storage, except messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, cast

import orjson

from diarist.checks import OWN_RESOURCE, checked_metadata, refuse_empty, refuse_own_resource
from diarist.chunks import Usage
from diarist.exceptions import ConfigError
from diarist.messages import Json, Message, Role
from diarist.notebook import table
from diarist.run_context import Outcome, ThreadRef

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

RunState = Literal["live"] | Outcome
COUNTS = ("committed", "interrupted")
"""States of a run in which its messages are visible to other readers."""
MessageSource = Literal["input", "response"]
Scope = Literal["thread", "resource"]


def own_resource(thread_id: str) -> str:
    """Return the resource id of a thread that was begun without one. No other thread belongs to it."""
    return f"{OWN_RESOURCE}{thread_id}"


def is_own_resource(resource_id: str) -> bool:
    """Return True for ids that ``own_resource`` returns. Callers cannot pass such an id as ``resource=``."""
    return resource_id.startswith(OWN_RESOURCE)


CLONED_FROM = "cloned_from"
"""Metadata key of a copied thread: the id of its source."""


@dataclass(slots=True, kw_only=True)
class Thread:
    """A conversation. It never changes its resource: a user, a project, or by default ``own_resource`` of its id."""

    id: str
    resource_id: str
    title: str = ""
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def cloned_from(self) -> str | None:
        """Return the id of the thread that this one was copied from, as its metadata has it; None if it is no copy."""
        source = self.metadata.get(CLONED_FROM)
        return source if isinstance(source, str) else None


def thread_and_resource(thread: Any, resource: Any) -> tuple[ThreadRef | None, str | None]:
    """Return the thread and the resource that a call names, each None if not given.

    Args:
        thread: An id, a ``ThreadRef`` or a ``Thread``, which includes its resource.
        resource: The owner. Default: the thread belongs to no resource (``own_resource``).

    Raises:
        ConfigError: An argument has another type, or a thread's id is empty.
        InputError: The resource is empty or reserved; or metadata of the thread is not JSON.
    """
    if thread is None and resource is None:
        return None, None
    owner: Any = resource or getattr(thread, "resource_id", None)
    if owner is not None and not isinstance(owner, str):
        raise ConfigError(f"resource must be the id of a resource, not {owner!r}")
    refuse_empty(resource=resource)
    if not isinstance(thread, Thread) or resource or owner != own_resource(thread.id):
        refuse_own_resource(owner)
    if thread is None:
        return None, owner
    if isawaitable(thread):
        if iscoroutine(thread):
            thread.close()
        raise ConfigError("thread is awaitable and was not awaited: thread=await memory.threads.create(...)")
    if isinstance(thread, Thread):
        thread = ThreadRef(id=thread.id, title=thread.title, metadata=thread.metadata)
    ref: Any = ThreadRef(id=thread) if isinstance(thread, str) else thread
    if not isinstance(ref, ThreadRef) or not isinstance(cast(Any, ref.id), str):
        raise ConfigError(f"thread must be an id, a ThreadRef or a Thread, not {thread!r}")
    if not ref.id:
        raise ConfigError("thread: the id is empty")
    if not isinstance(cast(Any, ref.title), str):
        raise ConfigError(f"thread: the title must be a text, not {ref.title!r}")
    checked_metadata(ref.metadata)
    return ref, owner or own_resource(ref.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One request as a transaction. Its messages become visible once it is ``committed`` or ``interrupted``.

    Attributes:
        token: Fencing token; every write of the run must carry it.
        guarded: True if the run's output is checked at its end. If such a run is interrupted, only its input is kept.
    """

    id: str
    thread_id: str
    resource_id: str
    state: RunState
    token: int
    guarded: bool = False


@dataclass(slots=True, kw_only=True)
class Resource:
    """Data that all threads of a resource share. ``version`` is 0 before the first save."""

    id: str
    metadata: dict[str, Json] = field(default_factory=dict[str, Json])
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingMemoryUpdate:
    """A run's change to a working memory. It takes effect once the run is committed, or interrupted and not guarded.

    Attributes:
        text: The whole new text, unless ``patch`` is given.
        patch: Keys to merge into the text, which is a JSON object.
        base: The text that ``text`` was made from; None if it replaces any text.
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
        text: Markdown, or a JSON object; empty if nothing is known.
        updates: Updates of runs that are not merged into ``text`` yet, oldest first.
        version: Rises with every save; 0 before the first one.
    """

    key: str
    text: str = ""
    updates: tuple[WorkingMemoryUpdate, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A closed range of messages of one thread, with a digest of their content when it was read."""

    thread_id: str
    first_seq: int
    last_seq: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One entry of an observation log.

    Attributes:
        state: ``active`` entries replace their messages in the prompt; ``buffered`` ones were made ahead of time, and
            the prompt still contains their messages.
        text: Text of the Observer or Reflector; rendered unchanged.
        tokens: Tokens of ``text``.
        sources: Messages that the entry was made from.
        message_tokens, message_count: Size of those messages.
        kind: ``observation``, or ``reflection`` if the entry replaced older ones.
        cycle_id: Hash of key, kind and sources: the same work has the same id in every process.
        run_id: The live run that wrote the covered messages; discarding the run removes the entry.
        current_task, suggested_response: As in ``Observed``: empty if nothing is open, None if unknown.
        thread_title: Title suggested for the thread, if the Observer was asked for one.
        citations: For each line of ``text``, the ids of the messages it was made from; empty if unknown.
        hints: For a reflection of several threads, the last known hints of each thread.
        cut: True if a user removed words from ``text``, or all of it.
        model, usage: The model that wrote the entry, and its token usage.
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
    """Deleted messages: a range of a thread, or all of a run. A late result must not restore observations of them."""

    thread_id: str
    first_seq: int = 0
    last_seq: int = 0
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """The newest known current task, suggested response and title. A cycle keeps those that it does not mention. Task
    and response are empty if nothing is open, and None if unknown.

    Attributes:
        thread_id: The thread of the hints, if the log covers several; empty for any thread.
    """

    current_task: str | None = None
    suggested_response: str | None = None
    thread_title: str | None = None
    updated_at: datetime | None = None
    thread_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Number of failed cycles in a row and time of the last one, for the key's backoff."""

    count: int = 0
    last_at: datetime | None = None
    last_error: str = ""


class Replaced(NamedTuple):
    """An entry that a reflection replaces, with the digest of its content when it was read."""

    id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReflection:
    """A finished reflection, to be used once the log is large enough.

    Attributes:
        tokens: Tokens of the entries that it replaces.
    """

    entry: Observation
    replaces: tuple[Replaced, ...]
    tokens: int


class RowRef(NamedTuple):
    """Reference to a stored message: its position and its id."""

    thread_id: str
    seq: int
    id: str


class Forgotten(NamedTuple):
    """Record of a forgotten or redacted message: its position, without its content.

    Attributes:
        seq: Its position; in an imported or cloned thread, the position of the message before it.
        rank: Order among records with the same ``seq``.
    """

    seq: int
    id: str
    role: Role
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """A stored message that is not on its thread's active branch.

    Attributes:
        parent: ``seq`` of the message before it on its branch, active or superseded; 0 for the first of a thread.
    """

    message: Message
    parent: int


def path_to(parents: Mapping[int, int], end: int) -> tuple[int, list[int]]:
    """Return the way from the active branch to a message: the ``seq`` of the last active message on it, and those of
    the superseded messages behind that, in order.

    Args:
        parents: The parent of each superseded message of the thread, by ``seq``.
        end: ``seq`` of a superseded message; or of an active one, which needs no others.
    """
    path: list[int] = []
    while end in parents:
        path.append(end)
        end = parents[end]
    return end, path[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationLog:
    """The diary of one thread or resource: an immutable value, saved whole by compare-and-set.

    Attributes:
        key: ``thread:<id>`` or ``resource:<id>``.
        version: Rises with every save, across generations; 0 before the first save.
        generation: Rises with every reflection.
        entries: The active entries in display order, then the buffered ones.
        reflection: A finished reflection that is not in use yet.
        suppressed: Cycle ids of reflections that saved too little; not tried again until an entry is added.
        actor: The last model that received the log, if the configuration records it.
        erasures: Rises when messages are forgotten or the diary is cleared. Then the results of model calls that
            began before are dropped.
        born: Unique id created at the first save; a log that replaces a deleted one has another id. Empty before the
            first save, and in logs of early versions.
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
        """The entries in the prompt, in display order."""
        return tuple(entry for entry in self.entries if entry.state == "active")

    @property
    def buffered(self) -> tuple[Observation, ...]:
        """The entries that are not in the prompt yet, oldest first."""
        return tuple(entry for entry in self.entries if entry.state == "buffered")

    @property
    def every_entry(self) -> tuple[Observation, ...]:
        """All entries, including the entry of a pending reflection."""
        return (*self.entries, *((self.reflection.entry,) if self.reflection is not None else ()))

    @property
    def text(self) -> str:
        """Text of the diary: the active entries, joined by newlines."""
        return "\n".join(entry.text for entry in self.active)

    @property
    def current_task(self) -> str | None:
        """The user's current task, as last observed; None if it is unknown or nothing is open."""
        return self.hints.current_task or None

    @property
    def suggested_response(self) -> str | None:
        """The newest suggestion for the assistant's next response; None if there is none."""
        return self.hints.suggested_response or None

    def __repr__(self) -> str:
        shown = f"generation={self.generation}, entries={len(self.entries)}, tokens={self.tokens}"
        return f"ObservationLog({self.key!r}, {shown})"

    def _repr_html_(self) -> str:
        """Return the diary as a table, for notebooks."""
        caption = f"Diary of {self.key}: {self.tokens:,} tokens, generation {self.generation}"
        rows = [
            (f"{entry.observed_at:%Y-%m-%d %H:%M}", entry.kind, entry.state, f"{entry.tokens:,}", entry.text)
            for entry in self.entries
        ]
        return table(caption, ("observed", "kind", "state", "tokens", "text"), rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A claim on a piece of work that expires by the database's clock."""

    name: str
    owner: str
    token: int


class NewEvent(NamedTuple):
    """An event to append to a key's event log."""

    key: str
    type: str
    data: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event in a key's event log. ``seq`` rises by one per event of the key."""

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
    """A search result.

    Attributes:
        excerpt: One line of the message, around its first match.
        before, after: The surrounding messages, in thread order, if requested.
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
        return orjson.dumps(log, _plain, orjson.OPT_UTC_Z)  # three times as fast as pydantic
    except TypeError:  # integers over 64 bits; lone surrogates: pydantic's error names the place
        return _log_adapter().dump_json(log)


def _plain(value: object) -> object:
    if isinstance(value, Replaced):  # orjson serializes plain tuples only
        return [*value]
    raise TypeError


def log_from_json(data: str | bytes) -> ObservationLog:
    return _log_adapter().validate_json(data)


def log_to_dict(log: ObservationLog) -> dict[str, Any]:
    """Return the log as plain JSON values, for exports and web pages."""
    return _log_adapter().dump_python(log, mode="json")
