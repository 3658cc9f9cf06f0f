"""Limit the cost of a run, a thread or a user."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from diarist.checks import check_by_type, function, has_methods, one_of, positive
from diarist.chunks import DataChunk, ModelFinish, Usage
from diarist.messages import utc_now
from diarist.models.providers import cost
from diarist.processors.base import (
    ProcessInputArgs,
    ProcessInputStepArgs,
    ProcessLLMResponseArgs,
    Processor,
    ProcessorArgs,
)
from diarist.storage.base import Storage, checked_storage
from diarist.storage.records import Event

logger = logging.getLogger("diarist")

_PAGE, _FIRST_PAGE = 1000, 100
_KEYS_KNOWN = 1000  # in a process
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class CostLedger(Protocol):
    """Records costs in US dollars by key (``thread:...``, ``resource:...``)."""

    async def spent(self, key: str, *, window: float | None) -> float:
        """Return the sum of the last ``window`` seconds, or of all time."""
        ...

    async def add(self, key: str, amount: float) -> None: ...


class InMemoryLedger:
    """Records costs in this process only. Forgets those older than the longest window that was asked for.

    Args:
        clock: Returns seconds; for tests. Default ``time.monotonic``.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: defaultdict[str, deque[tuple[float, float]]] = defaultdict(deque)
        self._longest = 0.0

    async def spent(self, key: str, *, window: float | None) -> float:
        now, window = self._clock(), math.inf if window is None else window
        self._longest = max(self._longest, window)
        entries = self._entries[key]
        while entries and entries[0][0] <= now - self._longest:
            entries.popleft()
        return sum(amount for when, amount in entries if when > now - window)

    async def add(self, key: str, amount: float) -> None:
        self._entries[key].append((self._clock(), amount))


class StorageLedger:
    """Records costs in a ``Storage``, shared by all processes that use it: one event per model call.

    Without a window the sum is exact. A storage keeps only the newest ``events_kept`` events of a key (10,000), so a
    window counts at most so many calls. To start at zero again, call ``storage.delete_events("cost:resource:ada")``.

    Args:
        storage: Any storage; keys begin with ``cost:``.
        clock: Returns the current time; for tests. Default: the system's.
    """

    # Besides its own amount, an event has a total ``before`` of all events up to the number ``upto``. Writers that did
    # not see each other's events write the same ``upto``: a reader adds every event after it, so no amount is lost.

    def __init__(self, storage: Storage, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._storage, self._clock = checked_storage(storage), clock
        # What was read before: the newest event, and the total or the calls of the window up to it.
        self._totals: dict[str, tuple[Event, float]] = {}
        self._windows: dict[tuple[str, float], tuple[Event, tuple[tuple[datetime, float], ...]]] = {}

    async def spent(self, key: str, *, window: float | None) -> float:
        if window is None:
            return (await self._total(key))[1]
        now = self._clock()
        newest, calls = self._windows.get((key, window), (None, ()))
        events = await self._since(key, newest)
        if events is None:
            newest = await self._last(key, lambda event: (now - event.created_at).total_seconds() >= window)
            calls, events = (), await self._after(key, newest.seq if newest else 0)
        calls = (*calls, *((event.created_at, _usd(event)) for event in events))
        calls = tuple([call for call in calls if (now - call[0]).total_seconds() < window])
        newest = events[-1] if events else newest
        if newest is not None:
            _keep(self._windows, (key, window), (newest, calls))
        return sum(amount for _, amount in calls)

    async def add(self, key: str, amount: float) -> None:
        upto, before = await self._total(key)
        await self._storage.append_event(f"cost:{key}", "cost", {"usd": amount, "before": before, "upto": upto})

    async def _total(self, key: str) -> tuple[int, float]:
        """Return the number of the newest event, and the total up to it."""
        newest, total = self._totals.get(key, (None, 0.0))
        events = await self._since(key, newest)
        if events is None:
            newest = await self._last(key, lambda event: True)
            known: dict[str, Any] = newest.data if newest else {}
            upto, total = known.get("upto", 0), float(known.get("before", 0))  # earlier versions wrote no totals
            events = await self._after(key, upto)
        if events:
            newest, total = events[-1], total + sum(map(_usd, events))
        if newest is None:
            return 0, 0.0
        _keep(self._totals, key, (newest, total))
        return newest.seq, total

    async def _since(self, key: str, newest: Event | None) -> list[Event] | None:
        """Return the events after ``newest``; None if that event is unknown, or no longer stored."""
        events = [] if newest is None else await self._after(key, newest.seq - 1)
        return events[1:] if events and events[0] == newest else None

    async def _after(self, key: str, after: int) -> list[Event]:
        events: list[Event] = []
        while page := await self._storage.list_events(f"cost:{key}", after=after, limit=_PAGE):
            events += page
            after = page[-1].seq
            if len(page) < _PAGE:
                break
        return events

    async def _last(self, key: str, holds: Callable[[Event], bool]) -> Event | None:
        """Find the last event for which ``holds`` is true, where it is true for all events before it."""
        page = await self._storage.list_events(f"cost:{key}", limit=_FIRST_PAGE)
        held = [event for event in page if holds(event)]
        last = held[-1] if held else None
        if last is None or len(held) < _FIRST_PAGE:
            return last
        end = page[0].seq + self._storage.events_kept
        while end - last.seq > 1:
            middle = (last.seq + end) // 2
            found = await self._storage.list_events(f"cost:{key}", after=middle - 1, limit=1)
            if found and holds(found[0]):
                last = found[0]
            else:
                end = middle
        return last


def _usd(event: Event) -> float:
    return float(event.data["usd"])


def _keep(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Add a value, and drop the oldest one if there are too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > _KEYS_KNOWN:
        known.pop(next(iter(known)), None)


@dataclass(slots=True)
class _Run:
    spent: float = 0.0
    counted: int = 0  # of the run's ``processor_calls``
    followed: bool = False  # True if the end of the run counts the rest of them
    warned: set[str] = field(default_factory=set[str])


@dataclass(kw_only=True, eq=False, repr=False)
class CostGuard(Processor[Any, _Run]):
    """Checks the cost so far before each model call, and blocks or warns if it has reached ``max_cost``.

    The cost of the next call is unknown, so each active run may exceed the limit by one call. Costs are computed from
    the reported usage at list prices (``diarist.models.cost``). Rejected attempts and the model calls of processors
    count; cached answers, failed calls without reported usage, and calls of memory do not. List it before processors
    that call models.

    Args:
        max_cost: US dollars.
        scope: ``"run"`` (default), ``"thread"`` or ``"resource"``. A run without a thread is limited as with ``"run"``.
        window: Seconds to look back, for a thread or resource. Default None: no limit.
        strategy: ``"block"`` (default) ends the run with a tripwire that has ``spent``, ``max_cost`` and ``scope`` in
            its metadata. ``"warn"`` logs one line and sends one transient ``data-cost-warning`` chunk per run.
        ledger: ``InMemoryLedger()`` (default), ``StorageLedger(storage)``, or a ``CostLedger`` of your own.
        unknown_price: For a model without a known price, ``"warn"`` (default) logs once per run and counts the call
            as free; ``"block"`` refuses to call it.
        price: Function of model id and ``Usage`` that returns US dollars, or None if unknown. Default
            ``diarist.models.cost``.

    Example::

        Agent(model="openai/gpt-5-mini", input_processors=[CostGuard(5.0, scope="resource", window=86_400)])
    """

    edits_in_place = False

    max_cost: float = field(kw_only=False)
    scope: Literal["run", "thread", "resource"] = "run"
    window: float | None = None
    strategy: Literal["block", "warn"] = "block"
    ledger: CostLedger | None = None
    unknown_price: Literal["warn", "block"] = "warn"
    price: Callable[[str, Usage], float | None] = cost

    def __post_init__(self) -> None:
        positive("CostGuard", "max_cost", self.max_cost)
        check_by_type(self)
        if self.window is not None:
            positive("CostGuard", "window", self.window)
            one_of("CostGuard", "scope (with a window)", self.scope, ("thread", "resource"))
        function("CostGuard", "price", self.price)
        self._ledger: CostLedger = InMemoryLedger() if self.ledger is None else self.ledger
        has_methods("CostGuard", "ledger", self._ledger, "spent", "add")

    def create_state(self) -> _Run:
        return _Run()

    async def process_input(self, args: ProcessInputArgs[Any, _Run]) -> None:
        """Follow the calls of processors, even if one of them blocks the input."""
        self._follow(args)

    async def process_input_step(self, args: ProcessInputStepArgs[Any, _Run]) -> None:
        """Compare the cost so far with the limit."""
        self._follow(args)
        await self._count_processor_calls(args)
        if self.unknown_price == "block" and self.price(args.model.id, Usage(input_tokens=1)) is None:
            args.abort(f"no price is known for {args.model.id}", metadata={"model": args.model.id})
        key = self._key(args)
        spent = args.state.spent if key is None else await self._ledger.spent(key, window=self.window)
        if spent < self.max_cost:
            return
        reason = f"this {self.scope} has cost {spent:.4f} US dollars; the limit is {self.max_cost:g}"
        numbers = {"spent": spent, "max_cost": self.max_cost, "scope": self.scope}
        if self.strategy == "block":
            args.abort(reason, metadata=numbers)
        if self._first_time(args, "limit"):
            logger.warning("cost-guard: run %s continues, although %s", args.run_id, reason)
            args.writer.custom(DataChunk("data-cost-warning", numbers, transient=True))

    async def process_llm_response(self, args: ProcessLLMResponseArgs[Any, _Run]) -> None:
        """Record the cost of the call, even if the run fails later."""
        finish = args.response[-1] if args.response else None
        if args.from_cache or not isinstance(finish, ModelFinish):
            return
        await self._record(args, args.model.id, finish.payload.usage)

    def _follow(self, args: ProcessorArgs[Any, _Run]) -> None:
        """Count the calls of processors up to the end of the run."""
        if not args.state.followed:
            args.state.followed = True
            args.context.on_end(lambda _: self._count_processor_calls(args))

    async def _count_processor_calls(self, args: ProcessorArgs[Any, _Run]) -> None:
        """Record the calls that processors made since the last time."""
        calls, state = args.context.processor_calls, args.state
        new, state.counted = calls[state.counted :], len(calls)
        for model_id, usage in new:
            await self._record(args, model_id, usage)

    async def _record(self, args: ProcessorArgs[Any, _Run], model_id: str, usage: Usage) -> None:
        amount = self.price(model_id, usage)
        if amount is None:
            if self._first_time(args, model_id):
                logger.warning("cost-guard: no price is known for %s; its calls count as free", model_id)
            return
        args.state.spent += amount
        if (key := self._key(args)) is not None:
            await self._ledger.add(key, amount)

    def _key(self, args: ProcessorArgs[Any, _Run]) -> str | None:
        owner = {"run": None, "thread": args.thread_id, "resource": args.resource_id}[self.scope]
        return None if owner is None else f"{self.scope}:{owner}"

    def _first_time(self, args: ProcessorArgs[Any, _Run], warning: str) -> bool:
        known = warning in args.state.warned
        args.state.warned.add(warning)
        return not known
