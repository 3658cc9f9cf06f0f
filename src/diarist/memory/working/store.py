"""Stores working memories: compare-and-set with retries, and updates that stay pending until their run ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from diarist.concurrency import retry_on_conflict
from diarist.messages import Json
from diarist.storage.base import Storage
from diarist.storage.records import Scope, WorkingMemory, WorkingMemoryUpdate

_LABEL = re.compile(r"[-*] [^:]+:")


class WorkingMemoryStore:
    """The working memories of a storage: one per resource, or one per thread.

    An update by a run stays pending inside the stored value, invisible to readers, until the run has ended. The state
    of the run in storage then decides if the update takes effect. If the run's process died, the next reader applies or
    drops the update.
    """

    def __init__(self, storage: Storage, scope: Scope) -> None:
        self._storage = storage
        self._scope: Scope = scope

    def key(self, thread_id: str, resource_id: str) -> str:
        return f"thread:{thread_id}" if self._scope == "thread" else f"resource:{resource_id}"

    async def read(self, key: str) -> WorkingMemory:
        """Return the working memory with the updates of all committed runs; updates of live runs stay pending.

        Raises StorageError.
        """
        return await self.update(key, lambda memory: memory)

    async def peek(self, key: str) -> WorkingMemory:
        """Return what ``read`` returns, without saving updates of ended runs into the text. Raises StorageError."""
        return await self._with_ended_runs(await self._storage.get_working_memory(key))

    async def update(self, key: str, change: Callable[[WorkingMemory], WorkingMemory]) -> WorkingMemory:
        """Read, change and save the working memory; repeat if another writer saved in between. Returns it as stored.

        Raises ConflictError after ten attempts, and any error of ``change``.
        """

        async def save() -> WorkingMemory:
            stored = await self._storage.get_working_memory(key)
            changed = change(await self._with_ended_runs(stored))
            return stored if changed == stored else await self._storage.save_working_memory(changed)

        return await retry_on_conflict(save)

    async def _with_ended_runs(self, memory: WorkingMemory) -> WorkingMemory:
        """Apply or drop the updates of runs that have ended."""
        for run_id in dict.fromkeys(update.run_id for update in memory.updates):
            run = await self._storage.get_run(run_id)
            if run is not None and run.state == "live":
                continue
            # Updates of discarded runs, interrupted guarded runs and deleted threads take no effect.
            if run is not None and (run.state == "committed" or (run.state == "interrupted" and not run.guarded)):
                text = apply(memory.text, [update for update in memory.updates if update.run_id == run_id])
                memory = replace(memory, text=text)
            memory = drop(memory, run_id)
        return memory


# --- changes, as pure functions ------------------------------------------------------------------------------------


def apply(text: str, updates: Iterable[WorkingMemoryUpdate]) -> str:
    """Return the text after these updates, in their order."""
    for update in updates:
        if update.patch is not None:
            text = text_of(merge(object_of(text), update.patch))
        elif update.text is not None:
            is_newest = update.base is None or update.base == text or not text
            text = update.text if is_newest else replace_sections(text, update.base or "", update.text)
    return text


def replace_sections(text: str, base: str, new: str) -> str:
    """Return ``text`` with the sections that ``new`` has changed in comparison to ``base``: the last writer wins.

    A section is a line with a label, such as ``- Name: Ada``, and the lines below it; or a Markdown heading with the
    lines below it that have no label.
    """
    sections, before, after = _sections(text), _sections(base), _sections(new)
    for heading in {**before, **after}:
        was, now, mine = before.get(heading, {}), after.get(heading, {}), sections.get(heading, {})
        merged = {label: lines for label, lines in mine.items() if label in now or label not in was}
        merged |= {label: lines for label, lines in now.items() if lines != was.get(label)}
        sections[heading] = {"": heading, **merged} if heading and merged else merged
    return "\n".join(lines for labels in sections.values() for lines in labels.values()).strip("\n")


def _sections(text: str) -> dict[str, dict[str, str]]:
    """Return the sections of a text by heading and label. The label of a heading's own lines is empty."""
    found: dict[str, dict[str, str]] = {}
    heading = label = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading, label = line, ""
        elif labelled := _LABEL.match(line):
            label = labelled[0]
        labels = found.setdefault(heading, {})
        labels[label] = f"{labels[label]}\n{line}" if label in labels else line
    return found


def merge(value: Json, patch: Json) -> Json:
    """Merge ``patch`` into ``value`` by RFC 7396: objects merge deeply, null removes, all else replaces."""
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
    """Parse the JSON object; return an empty one for other texts, as after a change from a template to a schema."""
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def text_of(value: Mapping[str, Any]) -> str:
    """Return a JSON object as it is stored and shown; an empty text for an empty object."""
    return json.dumps(value, indent=2, ensure_ascii=False) if value else ""


def stage(memory: WorkingMemory, run_id: str, updates: Iterable[WorkingMemoryUpdate]) -> WorkingMemory:
    """Replace the pending updates of a run by these."""
    return replace(memory, updates=(*drop(memory, run_id).updates, *updates))


def drop(memory: WorkingMemory, run_id: str) -> WorkingMemory:
    """Remove the pending updates of a run."""
    return replace(memory, updates=tuple(update for update in memory.updates if update.run_id != run_id))
