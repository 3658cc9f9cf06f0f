"""How updates change a working memory: pure functions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, cast

from diarist.messages import Json
from diarist.storage.records import WorkingMemory, WorkingMemoryUpdate


def merge(value: Json, patch: Json) -> Json:
    """``patch`` merged into ``value`` by the rules of RFC 7396: objects deeply, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(cast(dict[str, Json], value)) if isinstance(value, dict) else {}
    for name, item in cast(dict[str, Json], patch).items():
        if item is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), item)
    return merged


def merge_texts(base: str, theirs: str, mine: str) -> str:
    """A text with the changes of two that were made from ``base``, line by line.

    A line that both have changed is as in ``mine``; of lines that one has changed and the other removed, the change
    stays. What both have added is there once.
    """
    old = base.splitlines()
    (their_lines, their_added), (my_lines, my_added) = _changes(old, theirs), _changes(old, mine)
    merged: list[str] = []
    for place in range(len(old) + 1):
        merged += their_added[place]
        merged += [line for line in my_added[place] if line not in their_added[place]]
        if place < len(old):
            line = my_lines[place] if my_lines[place] not in (old[place], None) else their_lines[place]
            gone = my_lines[place] is None and their_lines[place] == old[place]
            merged += [] if line is None or gone else [line]
    return "\n".join(merged)


def _changes(old: list[str], text: str) -> tuple[list[str | None], list[list[str]]]:
    """What a text has in the place of each old line (None: it is gone), and what it has added before each and at the
    end."""
    new = text.splitlines()
    lines: list[str | None] = list(old)
    added: list[list[str]] = [[] for _ in range(len(old) + 1)]
    for _, first, last, new_first, new_last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        pairs = min(last - first, new_last - new_first)
        lines[first:last] = [*new[new_first : new_first + pairs], *[None] * (last - first - pairs)]
        added[last] += new[new_first + pairs : new_last]
    return lines, added


def object_of(text: str) -> dict[str, Any]:
    """The JSON object that a text is; an empty one where it is none, as after a change from a template to a schema."""
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def text_of(value: Mapping[str, Any]) -> str:
    """A JSON object as it is kept and shown; empty for an empty one."""
    return json.dumps(value, indent=2, ensure_ascii=False) if value else ""


def apply(text: str, updates: Iterable[WorkingMemoryUpdate]) -> str:
    """The text after these updates, in their order."""
    for update in updates:
        if update.text is not None:
            text = update.text if update.base is None else merge_texts(update.base, text or update.base, update.text)
        elif update.patch is not None:
            text = text_of(merge(object_of(text), update.patch))
    return text


def stage(memory: WorkingMemory, run_id: str, updates: Iterable[WorkingMemoryUpdate]) -> WorkingMemory:
    """Let these be the updates of a run, in place of those that it had."""
    return replace(memory, updates=(*drop(memory, {run_id}).updates, *updates))


def drop(memory: WorkingMemory, run_ids: Collection[str]) -> WorkingMemory:
    """Without the updates of these runs."""
    return replace(memory, updates=tuple(update for update in memory.updates if update.run_id not in run_ids))


def take_in(memory: WorkingMemory, run_ids: Collection[str]) -> WorkingMemory:
    """Let the updates of these runs count."""
    text = apply(memory.text, [update for update in memory.updates if update.run_id in run_ids])
    return replace(drop(memory, run_ids), text=text)
