"""Threads of conversations that came from files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from diarist.memory.conversations import Conversation


def thread_id_of(path: Path, conversation: Conversation) -> str:
    """The file's name, the conversation's number, and a digest of the whole path.

    Files of one name in different folders must not end up in one thread.
    """
    number = f"-{conversation.number}" if conversation.conversations_in_file > 1 else ""
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{path.stem}{number}-{digest[:8]}"
