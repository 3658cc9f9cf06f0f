"""A tool call and its result in one line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import orjson

from diarist.memory.observational.roles.extractive.outline import outline, scalar
from diarist.memory.observational.roles.extractive.sentences import shorten
from diarist.memory.observational.roles.transcript import outline_arguments
from diarist.messages import Json, ToolPart, as_text

_ROOM = 220
_ARGUMENTS = 130
_BRIEF = 100
_MAX_JSON = 4_000_000
_SPACE = re.compile(r"\s+")
_WRITES = re.compile(
    r"(?:^|[_\W])(?:book|create|update|cancel|send|delete|write|edit|pay|add|remove|submit|transfer|schedule|"
    r"reschedule|modify|insert|post|commit|deploy|exchange|return|refund|order|reserve|issue|register|upload|"
    r"publish|merge|move|rename|save)(?:$|[_\W])"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FAILED = re.compile(
    r"\s*(?:<\w+>)?\s*(?:\w*error\b|\w*exception\b|traceback|failed|failure|fatal|permission denied|"
    r"exit code [1-9]|command failed|not found|invalid|cannot|unable to|no such)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolNote:
    """One call.

    Attributes:
        name, call: The tool's name; name and those arguments that are short.
        outcome: What came out, on one line; empty while nothing did.
        failed: The result is an error or a denial, by its state or by how it begins.
        changes: The tool's name says that it changes something (``book_…``, ``Edit``).
        vague: It has arguments, but none that is short enough to tell what it was about.
    """

    name: str
    call: str
    outcome: str
    failed: bool
    changes: bool
    vague: bool

    @property
    def text(self) -> str:
        return f"{self.call} → {self.outcome}" if self.outcome else f"{self.call} (no result yet)"


def note_tool(part: ToolPart) -> ToolNote:
    """Read a tool part; a result that is JSON gives its telling fields, another one its telling lines."""
    name = _SPACE.sub(" ", part.name)
    brief = {key: value for key, value in part.args.items() if _is_brief(value)}
    arguments = shorten(outline_arguments(brief), _ARGUMENTS)
    if len(brief) < len(part.args):
        arguments = f"{arguments}, …" if arguments else "…"
    value = _value(part.result) if part.state != "call" else None
    failed = part.state in ("error", "denied") or _has_failed(value)
    return ToolNote(
        name=name,
        call=f"{name}({arguments})",
        outcome=_outcome(part, value, failed),
        failed=failed,
        changes=_writes(part.name),
        vague=bool(part.args) and not brief and not failed,
    )


def _writes(name: str) -> bool:
    return _WRITES.search(_CAMEL.sub("_", name).lower()) is not None


def _is_brief(value: Json) -> bool:
    if isinstance(value, str):
        return len(value) <= _BRIEF and "\n" not in value
    return not isinstance(value, list | dict) or len(as_text(value)) <= _BRIEF


def _repeats_arguments(text: str, args: dict[str, Json]) -> bool:
    """A result such as "The file a.py has been updated" says no more than the call did."""
    head = text[:300]
    return any(isinstance(value, str) and len(value) > 5 and value in head for value in args.values())


def _outcome(part: ToolPart, value: Json, failed: bool) -> str:
    """What the result says, without the values that the call has named already."""
    if part.state == "call":
        return ""
    if part.state == "denied":
        return shorten(f"denied: {outline(value, _ROOM // 2)}", _ROOM // 2)
    said = outline(value, _ROOM, _echoes(part.args)) or "(empty)"
    said_before = isinstance(value, str) and _repeats_arguments(value, part.args)
    if said_before and not failed and _writes(part.name):
        return "done"
    if failed and not said.lower().startswith(("error", "failed")):
        said = f"error: {said}"
    return shorten(said, _ROOM)


def _value(result: Json) -> Json:
    """The result as data where it is JSON, also inside the text parts of a list of content parts."""
    if isinstance(result, str):
        if len(result) < _MAX_JSON and result.lstrip()[:1] in ("{", "["):
            try:
                return _value(orjson.loads(result))
            except orjson.JSONDecodeError:
                return result
        return result
    if isinstance(result, list):
        parts = cast("list[Any]", result)
        texts = [_text_of(part) for part in parts]
        if parts and None not in texts:
            return _value("\n".join(text for text in texts if text))
        return cast(Json, parts)
    return result


def _text_of(part: Json) -> str | None:
    if not isinstance(part, dict):
        return None
    fields = cast("dict[str, Any]", part)
    text = fields.get("text")
    return text if fields.get("type") == "text" and isinstance(text, str) else None


def _has_failed(value: Json) -> bool:
    if isinstance(value, str):
        return _FAILED.match(value[:300]) is not None
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        status = fields.get("status")
        return bool(fields.get("error")) or (
            isinstance(status, str) and status.lower() in ("error", "failed", "failure")
        )
    return False


def _echoes(args: dict[str, Json]) -> frozenset[str]:
    return frozenset(text for text in map(scalar, args.values()) if len(text) > 2)
