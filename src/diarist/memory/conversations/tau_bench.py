"""Reads tau-bench's list of runs: a customer, an agent with tools, a policy as the system message."""

from __future__ import annotations

from diarist.exceptions import InputError
from diarist.memory.conversations.building import Builder
from diarist.memory.conversations.loading import Item, Source, as_list, as_object
from diarist.memory.conversations.openai import numbered, read_messages


def detect(source: Source) -> bool:
    return "traj" in (as_object(source.first) or {})


def split(source: Source) -> list[Item]:
    return source.items


def build(found: Item, builder: Builder) -> str:
    run = as_object(found.value) or {}
    messages = as_list(run.get("traj"))
    if messages is None:
        raise InputError(f"{found.where or 'the run'}: a run must have its messages under traj")
    read_messages(numbered(messages, found.where), builder)
    known = [f"{key.removesuffix('_id')} {run[key]}" for key in ("task_id", "trial") if key in run]
    return ", ".join(known)
