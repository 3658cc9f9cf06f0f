"""Working memory that the Observer updates: a section of its answer, stored together with its notes."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from diarist.exceptions import InputError, StorageError
from diarist.memory.working.config import WorkingMemoryConfig
from diarist.memory.working.prompts import load_prompt
from diarist.memory.working.shapes import Shape, TextShape, kin, shape_of
from diarist.memory.working.store import WorkingMemoryStore, apply
from diarist.messages import Message
from diarist.storage.base import Storage
from diarist.storage.records import WorkingMemory

logger = logging.getLogger("diarist")

_SECTION = re.compile(
    r"(?:^|(?<=>))[ \t]*<working[_-]?memory(?:\s[^<>\n]*)?>(.*?)(?:</working[_-]?memory>[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_FENCE = re.compile(r"\A\s*(?:```|~~~)[\w-]*\n(.*?)\n(?:```|~~~)\s*\Z", re.DOTALL)
_NOTHING = frozenset({"", "-", "none", "null", "n/a", "empty", "unchanged", "no change", "no changes", "same"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverUpdate:
    """A working memory that an Observer was shown, and the Observer's update of it.

    Attributes:
        text: The text that the Observer was shown.
        section: The new text or fields in the Observer's answer; None if it changes nothing.
    """

    key: str
    text: str
    shape: Shape
    section: str | None = None

    @property
    def request(self) -> str:
        """Reminder for the Observer, placed after the transcript."""
        return load_prompt("observer_request")


class ObserverUpdates:
    """Lets an Observer update working memory together with its notes.

    Attributes:
        instructions: Part of the Observer's instructions.
    """

    def __init__(self, storage: Storage, config: WorkingMemoryConfig) -> None:
        self._store = WorkingMemoryStore(storage, config.scope)
        self._shape = shape_of(config)
        form = self._shape.blank
        if not self._shape.replaces:
            schema = self._shape.parameters()
            definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
            form = orjson.dumps({**schema["properties"]["memory"], **definitions}).decode()
        name = "observer_text" if self._shape.replaces else "observer_json"
        self.instructions = f"{load_prompt(name)}\n\n{form}"

    async def open(self, messages: Sequence[Message]) -> ObserverUpdate | None:
        """Return the working memory that these messages belong to, with the updates of their live runs.

        None if they belong to several working memories, or if it cannot be read.
        """
        keys = {self._store.key(row.thread_id or "", row.resource_id or "") for row in messages}
        if len(keys) != 1:
            return None
        (key,) = keys
        runs = {row.run_id for row in messages}
        try:
            memory = await self._store.read(key)
        except StorageError as error:
            logger.warning("cannot read the working memory of %s for the Observer: %s", key, error)
            return None
        return ObserverUpdate(key=key, text=_as_seen(memory, runs), shape=self._shape)


async def store_update(storage: Storage, update: ObserverUpdate | None, run_id: str | None) -> None:
    """Store the Observer's update of working memory. Never raises: failures and invalid updates are logged.

    Args:
        run_id: The live run that the observed messages belong to; the update commits with that run.
    """
    if update is None or update.section is None:
        return
    store = WorkingMemoryStore(storage, "resource")  # any scope: the key is known

    def change(memory: WorkingMemory) -> WorkingMemory:
        seen = _as_seen(memory, {run_id})
        if isinstance(update.shape, TextShape):
            if seen != update.text:
                raise InputError("another writer has changed it since the Observer read it")
            if not kin(update.section or "") & (kin(seen) | kin(update.shape.blank)):
                raise InputError("it has no line in common with the old text or the template")
        made = update.shape.update(update.section, seen, run_id or "")
        if made is None:
            return memory
        if run_id is None:
            return replace(memory, text=apply(memory.text, [made]))
        return replace(memory, updates=(*memory.updates, made))

    try:
        await store.update(update.key, change)
        if run_id is not None:
            await store.read(update.key)  # applies the update if the run has ended since
    except InputError as error:
        logger.warning("the Observer's update of %s was rejected: %s", update.key, error)
    except StorageError as error:
        logger.warning("the Observer's update of %s cannot be stored: %s", update.key, error)


def take_section(answer: str) -> tuple[str, str | None]:
    """Split an Observer's answer into the rest and the section about working memory; None without an update."""
    found = _SECTION.search(answer)
    if found is None:
        return answer, None
    section = found[1].strip()
    if fenced := _FENCE.match(section):
        section = fenced[1].strip()
    rest = answer[: found.start()] + answer[found.end() :]
    return rest, None if section.lower().strip(" .*_()[]") in _NOTHING else section


def _as_seen(memory: WorkingMemory, run_ids: set[str | None]) -> str:
    return apply(memory.text, [update for update in memory.updates if update.run_id in run_ids])
