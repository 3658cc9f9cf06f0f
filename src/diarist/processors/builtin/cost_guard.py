"""Limit the cost of a run, a thread or a user."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

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

logger = logging.getLogger("diarist")


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

    A storage keeps only the newest ``events_kept`` events of a key (10,000), so older calls do not count.

    Args:
        storage: Any storage; keys begin with ``cost:``.
        clock: Returns the current time; for tests. Default: the system's.
    """

    def __init__(self, storage: Storage, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._storage, self._clock = checked_storage(storage), clock

    async def spent(self, key: str, *, window: float | None) -> float:
        now, total, after = self._clock(), 0.0, 0
        while events := await self._storage.list_events(f"cost:{key}", after=after):
            for event in events:
                if window is None or (now - event.created_at).total_seconds() < window:
                    total += float(event.data["usd"])
            after = events[-1].seq
        return total

    async def add(self, key: str, amount: float) -> None:
        await self._storage.append_event(f"cost:{key}", "cost", {"usd": amount})


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
