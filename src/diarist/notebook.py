"""HTML for notebooks. All texts are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from diarist.encoding import writable

_CELL = "text-align: left; vertical-align: top; white-space: pre-wrap"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table. Caption, head and cells are texts, not HTML."""
    lines = [_row("td", row) for row in rows]
    return f"<table><caption>{_text(caption)}</caption>{_row('th', head)}{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[object]) -> str:
    return "<tr>" + "".join([f'<{tag} style="{_CELL}">{_text(cell)}</{tag}>' for cell in cells]) + "</tr>"


def _text(value: object) -> str:
    return escape(writable(str(value)))
