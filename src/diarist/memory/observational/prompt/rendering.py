"""Render the log as blocks of text for the agent's model. They change only with the log, never with the clock."""

from __future__ import annotations

import hashlib

from diarist.byte_cache import cached
from diarist.memory.memory_note import quote
from diarist.memory.observational.prompts import load_prompt
from diarist.storage.records import Observation, ObservationLog


def render_log(log: ObservationLog, *, labelled: bool = False, thread: str | None = None) -> list[str]:
    """Return the instructions for the notes, then one ``<observations>`` element per active entry; empty without notes.

    Args:
        labelled: Give each entry an id, with which the tool ``recall`` reads its sources.
        thread: The label of the current thread, if the notes are about several.
    """
    entries: list[str] = []
    for entry in log.active:
        if entry.text.strip():
            entries.append(_in_element(f' id="{label_of(entry)}"' if labelled else "", entry.text))
    if not entries:
        return []
    how = [load_prompt("using_notes")]
    if thread is not None:
        how.append(load_prompt("using_threads").replace("{thread}", thread))
    if labelled:
        how.append(load_prompt("using_recall"))
    return ["\n\n".join(how), *entries]


@cached(2_000_000)
def _in_element(attributes: str, text: str) -> str:
    """Wrap the text of an entry. Cached, since each entry is rendered at every step and rarely changes."""
    return f"<observations{attributes}>\n{quote(text)}\n</observations>"


def label_of(entry: Observation) -> str:
    """Return a short, stable id of an entry: eight hex digits."""
    return hashlib.sha256(entry.id.encode()).hexdigest()[:8]
