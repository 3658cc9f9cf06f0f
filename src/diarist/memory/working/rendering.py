"""Working memory as the model sees it: a copy in the system text, and what is newer in the memory notes.

Every user's message records, in what memory sent along with it, what the working memory was when it was sent; where
that was news, the note says so. The copy in the system text is the record of the oldest message in the prompt: it
changes only where the prompt's beginning changes anyway, and with the notes behind it, it gives the newest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from diarist.memory.observational.prompt.sent_block import note_block
from diarist.memory.working.prompts import load_prompt
from diarist.memory.working.shapes import Shape
from diarist.messages import Message, SentBlock
from diarist.tokens import TokenCounter

RECORD = "working_memory"
"""What the working memory is called in ``made_from`` of a sent block."""

_TAGS = re.compile(r"<(?=\s*/?\s*working-memory\b)", re.IGNORECASE)


def records(messages: Iterable[Message], key: str) -> list[str]:
    """What this working memory was when each of these messages was sent, as far as they say it: copied messages may
    tell of another one."""
    found = (message.sent.made_from.get(RECORD) for message in messages if message.sent is not None)
    return [str(record["text"]) for record in found if record is not None and record["of"] == key]


def system_text(text: str, shape: Shape, *, keeps: bool) -> str:
    """What the model is told of working memory, and the copy of it. ``keeps``: it has the tool."""
    how = [load_prompt("shown"), *([shape.how_to_keep] if keeps else [])]
    return "\n\n".join([*how, element(text or (shape.blank if keeps else ""))])


def sent_note(key: str, text: str, earlier: Sequence[str], counter: TokenCounter) -> SentBlock:
    """The record for a user's message. ``earlier``: those of the messages before it, oldest first."""
    lines: list[str] = []
    if earlier and earlier[-1] != text:
        lines = ["Your working memory has changed since. It is now:", *element(text).splitlines()]
    return note_block(RECORD, {"of": key, "text": text}, lines, counter)


def element(text: str) -> str:
    """The text in an element of its own, in which nothing opens or closes it."""
    return f"<working-memory>\n{_TAGS.sub('&lt;', text) or '(empty)'}\n</working-memory>"
