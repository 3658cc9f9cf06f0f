"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> int:
    """``number`` in ``make test-all``; a quarter of it, but at least five, in ``make test``."""
    thorough = settings.get_profile("thorough").max_examples
    return max(5, number * settings.default.max_examples // thorough)
