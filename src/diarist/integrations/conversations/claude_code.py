"""Reads session files of Claude Code: one line per event.

An answer of the model spans several lines, one for each part. Each becomes a message of its own, as the file may be
read in the middle of an answer, and stored messages never change.
"""

from __future__ import annotations

import re

from diarist.exceptions import InputError
from diarist.integrations.conversations.building import Builder
from diarist.integrations.conversations.content import ContentReader, has_results
from diarist.integrations.conversations.loading import JsonFile, JsonItem, as_object, fields_of
from diarist.messages import Json, Part, ReasoningPart, TextPart

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands: titles, links
    r"|[ -/]*[0-~])"  # two-character escapes
)
# Text that Claude Code adds to the user's words: its own context, or the echo of its commands.
_ADDED = re.compile(
    r"<(system-reminder|local-command-stdout|local-command-stderr|local-command-caveat"
    r"|command-message|command-contents|ide_selection|ide_opened_file|ide_diagnostics"
    r"|user-prompt-submit-hook|task-notification)\b[^>]*>.*?</\1>",
    re.DOTALL,
)
_COMMAND = re.compile(r"<command-name>(.*?)</command-name>(?:\s*<command-args>(.*?)</command-args>)?", re.DOTALL)
# A command that the user ran, and its output: both are part of the conversation.
_WRAPPER = re.compile(r"</?(?:bash-input|bash-stdout|bash-stderr|user-memory-input)>")
_REFUSED = "The user doesn't want to "


def detect(file: JsonFile) -> bool:
    return any(_is_event(item.value) for item in file.items)  # files start with lines of other kinds


def build(found: list[JsonItem], builder: Builder) -> str:
    """Add all lines; return the session's title from its summary line, or an empty text."""
    content = ContentReader(
        builder, clean=_clean, state=lambda text: "denied" if text.startswith(_REFUSED) else "error"
    )
    titles: dict[str, str] = {}
    seen: set[str] = set()
    thoughts: list[Part] = []
    side_only = all(fields_of(item.value).get("isSidechain") for item in found if _is_event(item.value))
    for item in found:
        with builder.reading(item.where):
            event = as_object(item.value)
            if event is None:
                raise InputError("every line must be a JSON object")
            if event.get("type") == "summary":
                titles[str(event.get("leafUuid"))] = str(event.get("summary") or "")
            if reason := _left_out(event, seen, side_only=side_only):
                builder.note(f"{reason}, left out")
                continue
            message = as_object(event.get("message"))
            if message is None:
                raise InputError(f"a line of type {event['type']} without a message")
            uuid = str(event.get("uuid") or item.where)
            seen.add(uuid)
            parts = content.parts(message.get("content"))
            if event["type"] == "user":
                said = [part for part in map(_own_words, parts) if part is not None]
                if said and thoughts:  # the user stopped the answer
                    builder.note("reasoning without an answer, left out")
                    thoughts = []
                if said:
                    builder.add("user", said, key=uuid, created_at=builder.time_of(event))
                elif not has_results(message.get("content")):
                    builder.note("user lines with nothing but Claude Code's own output, left out")
                continue
            thoughts += parts  # none for thinking that was not recorded
            if not all(isinstance(part, ReasoningPart) for part in parts):
                builder.add("assistant", thoughts, key=uuid, created_at=builder.time_of(event))
                thoughts = []
    if thoughts:
        builder.note("reasoning without an answer, left out")
    # The file may have summaries of other sessions. This session's summary has the ``leafUuid`` of a line of the file.
    return next((title for leaf, title in titles.items() if leaf in seen), "")


def _left_out(event: dict[str, Json], seen: set[str], *, side_only: bool) -> str:
    """Return the reason to leave a line out; empty for a line of the conversation."""
    kind, message = event.get("type"), fields_of(event.get("message"))
    if kind not in ("user", "assistant"):
        return f"lines of type {kind}"
    if event.get("isSidechain") and not side_only:
        return "lines of subagents"
    if event.get("isMeta"):
        return "lines that Claude Code added in the user's role"
    if event.get("isCompactSummary"):
        return "summaries of earlier messages"
    if message.get("model") == "<synthetic>":
        return "lines that Claude Code added in the assistant's role"
    if str(event.get("uuid")) in seen:
        return "repeated lines"
    return ""


def _is_event(value: Json) -> bool:
    event = fields_of(value)
    return event.get("type") in ("user", "assistant") and as_object(event.get("message")) is not None


def _clean(text: str) -> str:
    """Remove terminal codes, reminders at the end, and the tag around an error."""
    text = _ANSI.sub("", text) if "\x1b" in text else text
    # A reminder elsewhere may be a quotation from a file.
    while text.rstrip().endswith("</system-reminder>"):
        before, found, _ = text.rpartition("<system-reminder>")
        if not found or not before.strip():
            break
        text = before.rstrip()
    if text.startswith("<tool_use_error>"):
        text = text.removeprefix("<tool_use_error>").removesuffix("</tool_use_error>")
    return text


def _own_words(part: Part) -> Part | None:
    if not isinstance(part, TextPart) or "<" not in part.text:
        return part
    text = _ADDED.sub("", part.text)
    text = _COMMAND.sub(lambda match: " ".join(filter(None, (match[1], match[2]))), text)
    text = _WRAPPER.sub("", text).strip()
    return TextPart(text=text) if text else None
