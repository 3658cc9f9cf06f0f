"""How updates change a working memory: pure functions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
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
            text = update.text
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
