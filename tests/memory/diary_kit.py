"""Models that note what they read, so that it can be seen where a word went; and a look at all that is stored."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Literal

from diarist import Memory, Message, ObservationalMemoryConfig, ObservationConfig, ReflectionConfig
from diarist.models.base import Model, ModelRequest
from diarist.storage import SQLiteStorage, Storage
from diarist.testing import ScriptedModel
from tests.scenarios.kit import WordCounter

_WORD = re.compile(r"\bw\d+w\b")
_TRANSCRIPT = re.compile(r"<transcript>(.*)</transcript>", re.DOTALL)
_EARLIER = re.compile(r"<earlier-notes>(.*)</earlier-notes>", re.DOTALL)


def word(number: int) -> str:
    """A word that only one message says."""
    return f"w{number}w"


def message(number: int, *, size: int = 20) -> Message:
    text = " ".join([word(number), *["talk"] * (size - 1)])
    return Message.user(text, id=f"m{number}") if number % 2 else Message.assistant(text, id=f"m{number}")


def transcript_of(request: ModelRequest) -> str:
    """The messages that the Observer is asked to note, without the earlier notes."""
    return _part(_TRANSCRIPT, request)


def take_notes(request: ModelRequest, *, echoes: bool = False) -> str:
    """Note every such word of the transcript, and name the newest one as task, response and title.

    With ``echoes``, repeat words of the earlier notes too, like a model that tells what was replaced.
    """
    read = _WORD.findall(transcript_of(request)) or ["nothing"]
    earlier = _WORD.findall(_part(_EARLIER, request)) if echoes else []
    noted = " ".join(dict.fromkeys([*read, *earlier[:1], *earlier[-1:]]))
    return (
        f"<diary>\nDate: 2026-03-02\n- 🟡 noted {noted}\n</diary>\n<current-task>\ntask {read[-1]}\n</current-task>"
        f"\n<suggested-response>\nsay {read[-1]}\n</suggested-response>\n<thread-title>\nof {read[-1]}"
        "\n</thread-title>"
    )


def note_taker(*, echoes: bool = False) -> ScriptedModel:
    """An Observer that answers with ``take_notes``."""
    return ScriptedModel(lambda request: take_notes(request, echoes=echoes), name="observer")


def condenser() -> ScriptedModel:
    """A Reflector that keeps every such word, and nothing else."""
    return ScriptedModel(
        lambda request: f"<diary>\n- 🔴 kept {' '.join(dict.fromkeys(_WORD.findall(request.text)))}\n</diary>",
        name="reflector",
    )


def keeping_diary(
    storage: Storage,
    *,
    echoes: bool = False,
    scope: Literal["thread", "resource"] = "thread",
    observer_model: Model | None = None,
    reflector_model: Model | None = None,
    observation_tokens: int = 10_000,
    titles: bool = False,
    thread_wait: float = 30.0,
) -> Memory:
    """A memory that observes two messages at a time, when it is asked to."""
    config = ObservationalMemoryConfig(
        scope=scope,
        observation=ObservationConfig(
            model=observer_model or note_taker(echoes=echoes),
            message_tokens=100,
            buffer_tokens=20,
            observer_batch_tokens=40,
            thread_title=titles,
        ),
        reflection=ReflectionConfig(model=reflector_model or condenser(), observation_tokens=observation_tokens),
    )
    return Memory(storage=storage, observational_memory=config, token_counter=WordCounter(), thread_wait=thread_wait)


async def told(memory: Memory, numbers: Sequence[int], *, thread: str = "t", resource: str = "ada") -> None:
    """Messages of these numbers, observed two by two."""
    await memory.messages.save([message(number) for number in numbers], thread=thread, resource=resource)
    await memory.diary.observe(thread=thread)


async def everything(storage: Storage) -> str:
    """All that a storage keeps, as one text: of an SQLite file every column of every table that holds text."""
    if isinstance(storage, SQLiteStorage):
        return _dump(storage.location)
    return "\n".join([line async for line in _contents(storage)])


def _dump(path: str) -> str:
    connection = sqlite3.connect(path)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for table in tables for row in connection.execute(f'SELECT * FROM "{table}"')]
    finally:
        connection.close()
    return "\n".join(value for row in rows for value in row if isinstance(value, str))


async def _contents(storage: Storage) -> AsyncIterator[str]:
    for thread in (await storage.list_threads()).items:
        yield str(thread)
        for row in await storage.list_messages(thread.id):
            yield str(row.to_dict())
        for key in (f"thread:{thread.id}", f"resource:{thread.resource_id}"):
            logs = [await storage.get_log(key), *await storage.list_generations(key)]
            yield str([asdict(log) for log in logs if log is not None])
            yield str(await storage.list_events(key))


def _part(element: re.Pattern[str], request: ModelRequest) -> str:
    found = element.search(request.text)
    return found.group(1) if found else ""
