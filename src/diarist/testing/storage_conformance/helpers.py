"""Short words for the conformance tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diarist.messages import Message, new_id
from diarist.storage import ObservationLog, Run, Storage, Thread


def thread(id: str = "trip", resource_id: str = "ada", **more: Any) -> Thread:
    return Thread(id=id, resource_id=resource_id, **more)


def user(text: str, **more: Any) -> Message:
    return Message.user(text, **more)


async def begin(storage: Storage, run_id: str = "", *, of: Thread | None = None, **more: Any) -> Run:
    return await storage.begin_run(run_id or new_id("run"), of or thread(), **more)


async def committed(storage: Storage, *texts: str, of: Thread | None = None) -> list[Message]:
    """One whole run with these messages; returns them as stored."""
    run = await begin(storage, of=of)
    numbers = await storage.append_messages(run, [user(text) for text in texts])
    await storage.finish_run(run, "committed")
    stored = await storage.list_messages(run.thread_id)
    return [message for message in stored if message.seq in numbers]


async def texts(storage: Storage, thread_id: str = "trip", **window: Any) -> list[str]:
    return [message.text for message in await storage.list_messages(thread_id, **window)]


def numbers(messages: Sequence[Message]) -> list[int | None]:
    return [message.seq for message in messages]


def log(key: str = "thread:trip", **more: Any) -> ObservationLog:
    return ObservationLog(key=key, scope="thread", resource_id="ada", **more)
