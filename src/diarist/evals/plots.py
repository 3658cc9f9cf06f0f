"""Plots as inline SVG."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from diarist.evals.results import Average

_COLOURS = (
    "#2f6db3",
    "#cf7522",
    "#3d9970",
    "#8e5ea2",
    "#c4314b",
    "#7f8c8d",
    "#1596a8",
    "#d0559f",
    "#6b8e23",
    "#a0673c",
)
_LEFT, _WIDTH, _BAR, _NAME = 44, 300, 14, 18
"""Pixels; the plot fits on the screen of a telephone, since smaller letters could not be read there."""


def average_plot(averages: Mapping[str, Sequence[Average]]) -> str:
    """Return a bar for each type and system, with its 95 % interval; empty for no averages."""
    names = list(dict.fromkeys(average.name for found in averages.values() for average in found))
    if not names:
        return ""
    found = {system: {average.name: average for average in each} for system, each in averages.items()}
    step = _NAME + _BAR * len(found) + 8  # a name stands above its bars, so that the plot stays narrow
    height = step * len(names) + 28 + 18 * len(found)
    shapes = [_grid(step * len(names))]
    for row, name in enumerate(names):
        top = row * step + _NAME
        shapes.append(f'<text x="{_LEFT}" y="{top - 4}">{html.escape(name)}</text>')
        for place, (system, each) in enumerate(found.items()):
            if (average := each.get(name)) is None:
                continue
            y, colour = top + place * _BAR, _COLOURS[place % len(_COLOURS)]
            low, high = (_LEFT + _WIDTH * share for share in (average.interval.low, average.interval.high))
            title = f"{system}, {name}: {100 * average.mean:.2f} %"
            shapes.append(
                f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH * average.mean:.1f}" height="{_BAR - 3}" fill="{colour}">'
                f"<title>{html.escape(title)}</title></rect>"
                f'<path d="M{low:.1f} {y + 5.5}H{high:.1f}M{low:.1f} {y + 2.5}v6M{high:.1f} {y + 2.5}v6" '
                'stroke="currentColor" stroke-width="1.5" fill="none"/>'
            )
    shapes += _legend(list(found), step * len(names) + 34)
    return _svg(height + 10, shapes, "Means by type, with 95 % intervals")


def cost_plot(points: Mapping[str, tuple[float, float]]) -> str:
    """Return the systems by the mean size of their contexts and by their micro average; empty for fewer than two."""
    if len(points) < 2:
        return ""
    most = max(tokens for tokens, _ in points.values()) or 1.0
    height = 220
    shapes = [_axes(height, most)]
    for place, (system, (tokens, share)) in enumerate(points.items()):
        x, y = _LEFT + _WIDTH * tokens / most, height - (height - 20) * share
        shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{_COLOURS[place % len(_COLOURS)]}">'
            f"<title>{html.escape(system)}: {tokens:,.0f} tokens, {100 * share:.2f} %</title></circle>"
        )
    shapes += _legend(list(points), height + 44)
    return _svg(height + 50 + 18 * len(points), shapes, "Tokens of a context and micro average")


def _grid(height: float) -> str:
    lines = "".join(
        f'<path class="grid" d="M{_LEFT + _WIDTH * tick / 4} 0V{height}"/>'
        f'<text class="soft" x="{_LEFT + _WIDTH * tick / 4}" y="{height + 14}" text-anchor="middle">'
        f"{25 * tick} %</text>"
        for tick in range(5)
    )
    return f"<g>{lines}</g>"


def _axes(height: float, most: float) -> str:
    across = "".join(
        f'<path class="grid" d="M{_LEFT} {height - (height - 20) * tick / 4}h{_WIDTH}"/>'
        f'<text class="soft" x="{_LEFT - 8}" y="{height - (height - 20) * tick / 4 + 4}" text-anchor="end">'
        f"{25 * tick} %</text>"
        for tick in range(5)
    )
    along = "".join(
        f'<text class="soft" x="{_LEFT + _WIDTH * tick / 4}" y="{height + 18}" text-anchor="middle">'
        f"{most * tick / 4:,.0f}</text>"
        for tick in range(5)
    )
    return f"<g>{across}{along}</g>"


def _legend(systems: Sequence[str], top: float) -> list[str]:
    return [
        f'<rect x="{_LEFT}" y="{top + 18 * place - 9}" width="10" height="10" '
        f'fill="{_COLOURS[place % len(_COLOURS)]}"/>'
        f'<text x="{_LEFT + 16}" y="{top + 18 * place}">{html.escape(system)}</text>'
        for place, system in enumerate(systems)
    ]


def _svg(height: float, shapes: Sequence[str], label: str) -> str:
    width = _LEFT + _WIDTH + 20
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{label}">'
        + "".join(shapes)
        + "</svg>"
    )
