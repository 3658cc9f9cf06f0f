"""The log as the actor sees it: blocks of text that change only where the log changes, never with the clock."""

from __future__ import annotations

import re

from diarist.memory.observational.prompts import load_prompt
from diarist.storage.records import Observation, ObservationLog

_TAGS = re.compile(r"<(?=\s*/?\s*(?:observations|memory-note)\b)", re.IGNORECASE)


def render_log(log: ObservationLog) -> list[str]:
    """How to use the notes, then one closed ``<observations>`` element per entry; nothing for an empty log."""
    entries = [render_entry(entry) for entry in log.entries if entry.text.strip()]
    return [load_prompt("using_notes"), *entries] if entries else []


def render_entry(entry: Observation) -> str:
    """The entry's text as it is stored, in its own element."""
    return f"<observations>\n{quote(entry.text)}\n</observations>"


def quote(text: str) -> str:
    """``text`` in which nothing opens or closes an element of ours: notes quote what strangers wrote."""
    return _TAGS.sub("&lt;", text)
