"""The log as the actor sees it: blocks of text that change only where the log changes, never with the clock."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from diarist.memory.observational.prompts import load_prompt
from diarist.storage.records import Observation, ObservationLog

_TAGS = re.compile(r"<(?=\s*/?\s*(?:observations|memory-note)\b)", re.IGNORECASE)


def render_log(log: ObservationLog, *, labelled: bool = False, thread: str | None = None) -> list[str]:
    """How to use the notes, then one closed ``<observations>`` element per active entry; nothing for an empty log.

    Args:
        labelled: The model has the tool to read the sources of an entry, and needs a name for it.
        thread: How the present thread is called, where the notes are about several.
    """
    entries = [render_entry(entry, labelled=labelled) for entry in log.active if entry.text.strip()]
    if not entries:
        return []
    how = [load_prompt("using_notes")]
    if thread is not None:
        how.append(load_prompt("using_threads").replace("{thread}", thread))
    if labelled:
        how.append(load_prompt("using_recall"))
    return ["\n\n".join(how), *entries]


def render_entry(entry: Observation, *, labelled: bool = False) -> str:
    """The entry's text as it is stored, in its own element; ``labelled`` with ``label_of`` as the element's id."""
    return _in_element(f' id="{label_of(entry)}"' if labelled else "", entry.text)


@lru_cache(maxsize=1024)
def _in_element(attributes: str, text: str) -> str:
    """An entry is shown at every step, and stays as it is."""
    return f"<observations{attributes}>\n{quote(text)}\n</observations>"


def label_of(entry: Observation) -> str:
    """Eight letters and digits that name an entry as long as it exists."""
    return hashlib.sha256(entry.id.encode()).hexdigest()[:8]


def quote(text: str) -> str:
    """``text`` in which nothing opens or closes an element of ours: notes quote what strangers wrote."""
    return _TAGS.sub("&lt;", text)
