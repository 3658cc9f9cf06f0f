"""Confidence intervals, paired tests and rank correlation. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import NormalDist, fmean

BOOTSTRAP_DRAWS = 2_000
FEWEST_FOR_BOOTSTRAP = 30
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float


def wilson(successes: float, total: int) -> Interval:
    """Return the Wilson score interval of a share (Wilson 1927), 95 %.

    Args:
        successes: Number of successes; it may be fractional, for a mean over several runs.
        total: Number of trials; 0 gives the interval from 0 to 1.
    """
    if total == 0:
        return Interval(0.0, 1.0)
    share, square = successes / total, _Z * _Z
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = _Z / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return Interval(max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def joined(parts: Sequence[tuple[float, Interval]]) -> Interval:
    """Return the interval of the mean of independent means, from the interval of each (MOVER, Zou and Donner 2008)."""
    mean, count = fmean(part for part, _ in parts), len(parts)
    low = math.sqrt(sum((part - interval.low) ** 2 for part, interval in parts)) / count
    high = math.sqrt(sum((interval.high - part) ** 2 for part, interval in parts)) / count
    return Interval(max(0.0, mean - low), min(1.0, mean + high))


def bootstrap(values: Sequence[float], *, seed: int = 1) -> Interval:
    """Return the percentile bootstrap interval of a mean, 95 %, from 2,000 draws; fewer for more than 2,000 values.

    The seed is fixed, so the same values give the same interval. See ``can_bootstrap``.
    """
    chance, draws = random.Random(seed), _draws(len(values))
    found = sorted(fmean(chance.choices(values, k=len(values))) for _ in range(draws))
    return Interval(found[int(0.025 * (draws - 1))], found[math.ceil(0.975 * (draws - 1))])


def _draws(count: int) -> int:
    return max(200, min(BOOTSTRAP_DRAWS, 2_000 * BOOTSTRAP_DRAWS // count))


def can_bootstrap(values: Sequence[float]) -> bool:
    """Return True for enough values that differ.

    A percentile bootstrap of few values is too narrow: of uniform ones, its 95 % interval holds the mean in 53 % of
    the samples of 2, in 87 % for 5, in 91 % for 10, and in 94 % for 30. Of equal values it has no width at all.
    """
    return len(values) >= FEWEST_FOR_BOOTSTRAP and len(set(values)) > 1


def micro(groups: Sequence[Sequence[float]]) -> float:
    """Return the mean of all values."""
    return fmean(value for group in groups for value in group)


def macro(groups: Sequence[Sequence[float]]) -> float:
    """Return the mean of the means of the groups that are not empty."""
    return fmean(fmean(group) for group in groups if group)


@dataclass(frozen=True, slots=True)
class McNemar:
    """A paired test of two lists of right and wrong answers.

    Attributes:
        first_only: Questions that only the first got right.
        second_only: Questions that only the second got right.
        p: Exact two-sided p-value: how often a fair coin gives a split as uneven as this or more so.
    """

    first_only: int
    second_only: int
    p: float


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """Return the exact test of McNemar (1947): a two-sided binomial test on the pairs that differ."""
    one = sum(a and not b for a, b in zip(first, second, strict=True))
    other = sum(b and not a for a, b in zip(first, second, strict=True))
    total = one + other
    tail = sum(math.comb(total, k) for k in range(min(one, other) + 1))
    return McNemar(one, other, min(1.0, 2 * tail / 2**total))


def sign_flip(first: Sequence[float], second: Sequence[float], *, seed: int = 1) -> float:
    """Return the two-sided p-value of the paired randomization test (Fisher 1935, Pitman 1937).

    It is the share of draws of random signs for the differences with a sum at least as far from 0 as the observed
    sum. There are as many draws as for ``bootstrap``, and the observed signs count as one more, so it is never 0.
    """
    units = [round((a - b) * 1e9) for a, b in zip(first, second, strict=True) if a != b]  # sums without rounding errors
    if not units:
        return 1.0
    chance, draws, total = random.Random(seed), _draws(len(units)), sum(units)
    flipped = [total - 2 * sum(compress(units, chance.choices((0, 1), k=len(units)))) for _ in range(draws)]
    return (1 + sum(abs(each) >= abs(total) for each in flipped)) / (1 + draws)


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference of two paired lists of scores, with its 95 % interval.

    Attributes:
        method: How the interval was made: ``Bonett-Price`` or ``bootstrap``.
    """

    mean: float
    interval: Interval
    method: str


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the paired difference ``first - second`` of scores from 0 to 1; there must be at least one pair."""
    pairs = [a - b for a, b in zip(first, second, strict=True)]
    if can_bootstrap(pairs) and any(each not in (-1, 0, 1) for each in pairs):
        return Difference(fmean(pairs), bootstrap(pairs), "bootstrap")
    return Difference(fmean(pairs), bonett_price(pairs), "Bonett-Price")


def bonett_price(pairs: Sequence[float]) -> Interval:
    """Return the adjusted Wald interval of a mean paired difference (Bonett and Price 2012), 95 %.

    Its formula is for differences of right and wrong answers: -1, 0 and 1. Other differences between -1 and 1 vary
    less, so their interval is on the safe side.
    """
    total = len(pairs) + 2
    more = (sum(max(each, 0.0) for each in pairs) + 1) / total
    less = (sum(max(-each, 0.0) for each in pairs) + 1) / total
    half = _Z * math.sqrt((more + less - (more - less) ** 2) / total)
    return Interval(max(-1.0, more - less - half), min(1.0, more - less + half))


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b (Kendall 1945) of two rankings, which takes ties into account; None if it is undefined."""
    agree = ties_first = ties_second = pairs = 0
    for i in range(len(first)):
        for j in range(i):
            a, b = first[i] - first[j], second[i] - second[j]
            pairs += 1
            ties_first += a == 0
            ties_second += b == 0
            agree += (a * b > 0) - (a * b < 0)
    scale = math.sqrt((pairs - ties_first) * (pairs - ties_second))
    return agree / scale if scale else None
