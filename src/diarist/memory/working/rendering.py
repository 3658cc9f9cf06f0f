"""Renders working memory for the model: a copy in the system text, and changes in the memory notes.

Each user message stores, with its memory note, the working memory at that time. If working memory has changed since the
previous user message, the note contains the changes; or the whole text, once the changes since the last whole text have
at least half its length. The copy in the system text is the version stored with the oldest message in the prompt, so it
changes only when the start of the prompt changes anyway. Together with the later notes it is up to date. Only the run
that called the update tool sees that call, so no text is in the prompt twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from diarist.memory.memory_note import note_block, quote
from diarist.memory.working.prompts import load_prompt
from diarist.memory.working.shapes import UPDATE_TOOL, Shape
from diarist.memory.working.store import object_of
from diarist.messages import Message, PromptMessage, PromptPart, ReasoningPart, SentBlock, ToolCallPart, ToolResultPart
from diarist.tokens import TokenCounter

RECORD = "working_memory"
"""The key under which ``SentBlock.made_from`` has the record of working memory."""

_SEE_NOTE = "(in the first memory-note)"


def records(messages: Iterable[Message], key: str) -> list[dict[str, Any]]:
    """Return the records of this working memory, oldest first. Skips records of others, which copied messages may have.

    Keys of a record: ``text``, the working memory at that time; ``whole``, True if the note contained the whole text;
    and ``parts``, the length of the changes in notes since the last whole text.
    """
    found = (message.sent.made_from.get(RECORD) for message in messages if message.sent is not None)
    return [record for record in found if isinstance(record, dict) and record["of"] == key]


def system_text(known: Sequence[dict[str, Any]], text: str, shape: Shape, *, keeps: bool) -> str:
    """Return the instructions for working memory, followed by its text.

    ``known``: the records of the messages in the prompt. ``text``: shown if there are no records. ``keeps``: True if
    the model has the tool that updates working memory.
    """
    copy = str(known[0]["text"]) if known else text
    copy = _SEE_NOTE if known and known[0].get("whole") else copy or (shape.blank if keeps else "")
    how = [load_prompt("shown"), *([shape.how_to_keep] if keeps else [])]
    return "\n\n".join([*how, element(copy)])


def sent_note(key: str, text: str, earlier: Sequence[dict[str, Any]], counter: TokenCounter) -> SentBlock:
    """Return the block for a user message: the record, and the note if there is news. ``earlier``: records, oldest
    first."""
    before = earlier[-1] if earlier else {"text": text}
    lines: list[str] = []
    whole, parts = False, int(before.get("parts", 0))
    if before["text"] != text:
        changes = difference(str(before["text"]), text)
        parts += sum(map(len, changes))
        whole = 2 * parts >= len(text)
        if whole:
            parts = 0
            lines = ["Your working memory has changed since. It is now:", *element(text).splitlines()]
        else:
            lines = ["Your working memory has changed since:", *quote("\n".join(changes)).splitlines()]
    return note_block(RECORD, {"of": key, "text": text, "whole": whole, "parts": parts}, lines, counter)


def without_earlier_updates(messages: Sequence[PromptMessage], own: Collection[str]) -> list[PromptMessage]:
    """Return a prompt without the update calls of earlier runs, and without their results.

    The system text or a note contains their changes. ``own``: ids of the current run's messages.
    """
    kept: list[PromptMessage] = []
    for message in messages:
        if message.message_id in own or not any(map(_is_update, message.parts)):
            kept.append(message)
        elif any(not isinstance(part, ReasoningPart) and not _is_update(part) for part in message.parts):
            kept.append(replace(message, parts=[part for part in message.parts if not _is_update(part)]))
    return kept


def _is_update(part: PromptPart) -> bool:
    return isinstance(part, ToolCallPart | ToolResultPart) and part.name == UPDATE_TOOL


def element(text: str) -> str:
    """Return the text in an element of its own. Escapes the tags of memory's blocks in the text."""
    return f"<working-memory>\n{quote(text) or '(empty)'}\n</working-memory>"


def difference(before: str, after: str) -> list[str]:
    """Return lines that describe a change of a text: fields of a JSON object, or lines under their headings."""
    old, new = object_of(before), object_of(after)
    if old and new:
        patch = {name: new.get(name) for name in [*old, *new] if old.get(name) != new.get(name)}
        return ["Fields that are new or changed (null: removed):", json.dumps(patch, ensure_ascii=False)]
    old_lines, new_lines = before.splitlines(), after.splitlines()
    gone: list[str] = []
    added: list[str] = []
    matcher = SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    for tag, first, last, new_first, new_last in matcher.get_opcodes():
        if tag != "equal":
            gone += _under_heading(old_lines, first, last)
            added += _under_heading(new_lines, new_first, new_last)
    lines = ["Lines that no longer hold:", *gone] if gone else []
    return [*lines, "New lines:", *added] if added else lines


def _under_heading(lines: list[str], first: int, last: int) -> list[str]:
    """Return the nearest heading above a range of lines, followed by the non-empty lines of the range."""
    said = [line for line in lines[first:last] if line.strip()]
    if not said or said[0].startswith("#"):
        return said
    heading = next((line for line in reversed(lines[:first]) if line.startswith("#")), None)
    return [heading, *said] if heading is not None else said
