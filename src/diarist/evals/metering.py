"""Counts tokens, money and time of model calls, and stops them at a budget."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import isfinite

from diarist.chunks import Chunk, ModelFinish, TextDelta, Usage
from diarist.exceptions import DiaristError, InputError
from diarist.messages import Json
from diarist.models import cost
from diarist.models.base import Model, ModelRequest, open_stream
from diarist.tokens import default_counter


class BudgetReached(DiaristError):
    """The budget of the run is spent."""


@dataclass(slots=True)
class Tally:
    """Model calls of one piece of work, or of one model.

    Attributes:
        cost: US dollars; None if a call's price is unknown.
    """

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = 0.0

    def add(self, usage: Usage, price: float | None) -> None:
        self.usage += usage
        self.cost = None if self.cost is None or price is None else self.cost + price

    def fields(self) -> dict[str, Json]:
        """Return the fields of a record."""
        usage = self.usage
        return {
            "calls": self.calls,
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "cost": self.cost,
        }


_current: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextmanager
def tally() -> Generator[Tally]:
    """Count the model calls made in the block, also those of tasks that it starts."""
    found = Tally()
    token = _current.set(found)
    try:
        yield found
    finally:
        _current.reset(token)


class Meter:
    """The money of a run.

    Args:
        budget: US dollars; None for no limit.
        prices: US dollars per million input and output tokens, by model id; they replace list prices.
        spent: US dollars spent by earlier processes of the same run.

    Attributes:
        reached: True once a call was refused because the budget is spent.
        unpriced: Models without a known price that were called.
    """

    def __init__(
        self, budget: float | None = None, prices: Mapping[str, tuple[float, float]] | None = None, spent: float = 0.0
    ) -> None:
        self.budget, self.spent = budget, spent
        self.reached = False
        self.unpriced: set[str] = set()
        self._prices = prices or {}

    def price(self, model_id: str, usage: Usage, *, listed: bool) -> float | None:
        """Return the cost of a call in US dollars; None if no price is known.

        ``listed``: False for a model at an address of the user's own, which the list does not know.
        """
        if model_id in self._prices:
            each = self._prices[model_id]
            return (usage.input_tokens * each[0] + usage.output_tokens * each[1]) / 1_000_000
        return cost(model_id, usage) if listed else None

    def check(self) -> None:
        """Raise BudgetReached if the budget is spent."""
        if self.budget is not None and self.spent >= self.budget:
            self.reached = True
            raise BudgetReached(f"${self.spent:.4f} of the budget of ${self.budget:g} are spent")


class MeteredModel(Model):
    """A model that counts its calls in ``total`` and in the current ``tally``, and makes none beyond the budget.

    Failed calls count, too. Calls that are running when the budget is reached still finish.

    Args:
        listed: False if list prices do not apply, since the model is at an address of the user's own.
    """

    def __init__(self, model: Model, meter: Meter, *, listed: bool) -> None:
        self.provider = model.provider
        self.name = model.name
        self.cache_breakpoints = model.cache_breakpoints
        self.default_retries = model.default_retries
        self._model, self._meter, self._listed = model, meter, listed
        self.total = Tally()

    @property
    def price_known(self) -> bool:
        """Return True if the price of a call is known."""
        return self._meter.price(self.id, Usage(input_tokens=1), listed=self._listed) is not None

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self._meter.check()
        tallies = [self.total] if (mine := _current.get()) is None else [self.total, mine]
        for each in tallies:
            each.calls += 1
        said, usage = "", None
        try:
            async with open_stream(self._model, request) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, ModelFinish):
                        usage = chunk.payload.usage
                    elif isinstance(chunk, TextDelta):
                        said += chunk.payload.text
                    yield chunk
        finally:
            if usage is None and said:  # the stream was cut off, so the provider reported no usage
                count = default_counter().count
                usage = Usage(input_tokens=count(request.text), output_tokens=count(said))
            if usage is not None:
                price = self._meter.price(self.id, usage, listed=self._listed)
                if price is None:
                    self._meter.unpriced.add(self.id)
                self._meter.spent += price or 0.0
                for each in tallies:
                    each.add(usage, price)

    async def close(self) -> None:
        await self._model.close()


def parse_price(text: str) -> tuple[str, tuple[float, float]]:
    """Parse ``openai/my-model=0.25/2``: US dollars per million input and output tokens. Raises InputError."""
    model, equals, prices = text.rpartition("=")
    read, slash, written = prices.partition("/")
    try:
        if not (model and equals and slash):
            raise ValueError
        found = float(read), float(written)
        if not all(isfinite(each) and each >= 0 for each in found):
            raise ValueError
    except ValueError:
        raise InputError(
            f"a price is MODEL=INPUT/OUTPUT in US dollars per million tokens, such as openai/my-model=0.25/2, "
            f"not {text!r}"
        ) from None
    return model, found
