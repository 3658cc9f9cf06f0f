"""Branches of conversations that were edited after an earlier import."""

from __future__ import annotations

from itertools import takewhile

from diarist.exceptions import NotFoundError
from diarist.integrations.conversations import Conversation
from diarist.memory.memory import Memory


async def follow_branch(memory: Memory, chat: Conversation, thread: str, resource: str | None) -> str:
    """Take a stored thread to the branch that the file shows now, before its new messages are saved.

    The thread stays on its branch if this has messages behind the fork that are not in the file, or if the first
    message was edited. Returns a note if the thread was on another branch.
    """
    if not chat.other_branches:
        return ""
    try:
        stored = await memory.threads.branches(thread, resource=resource)
    except NotFoundError:
        return ""
    superseded = {row.id for branch in stored for row in branch.messages}
    shown = {message.id for message in [*chat.messages, *chat.waiting]}
    rows = [row.id for row in await memory.messages.list(thread=thread, resource=resource)]
    if chat.other_branches.isdisjoint(rows) and shown.isdisjoint(superseded):
        return ""
    kept = list(takewhile(shown.__contains__, rows))
    if not kept or not chat.other_branches.issuperset(rows[len(kept) :]):
        return "edited since an earlier import; the thread cannot go back, so new messages are added at its end"
    paths = [(list(takewhile(shown.__contains__, (row.id for row in branch.messages))), branch.id) for branch in stored]
    path, known = max(paths, key=lambda found: len(found[0]), default=(list[str](), ""))
    if path:  # an earlier import had the file's branch
        await memory.threads.switch_branch(thread, known, resource=resource)
        kept = path
    await memory.threads.rewind(thread, to=kept[-1], resource=resource)
    return "edited since an earlier import; the earlier branch is superseded"
