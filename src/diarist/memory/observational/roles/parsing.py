"""Reading what an Observer or Reflector wrote, however clumsily it kept to the format.

Tags count only where a line begins or ends, so that notes may speak about tags. What remains of
our tags inside the notes is escaped: a text that was parsed can be put between tags again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import dedent
from typing import Literal

from diarist.memory.observational.roles.echoes import is_form, without_form

_Section = Literal["diary", "task", "response", "title", "thinking"]

# The first name of each section is the one that our prompts ask for; models know the others.
_SECTIONS: dict[str, _Section] = {
    "diary": "diary",
    "observations": "diary",
    "reflections": "diary",
    "notes": "diary",
    "current-task": "task",
    "suggested-response": "response",
    "thread-title": "title",
    "think": "thinking",
    "thinking": "thinking",
}
_QUOTING = ("transcript", "earlier-notes", "old-notes", "working-memory")

_NAMES = "|".join(_SECTIONS)
_TAG = re.compile(rf"<\s*(?:(/)\s*)?({_NAMES})\s*>", re.IGNORECASE)
_ANY_TAG = re.compile(rf"<(?=\s*(?:/\s*)?(?:{_NAMES}|{'|'.join(_QUOTING)})\b)", re.IGNORECASE)
_TAG_AT_END = re.compile(rf"{_TAG.pattern}\s*$", re.IGNORECASE)
_DRAFTS = re.compile(
    r"\A(?P<drafts>.*?)<\s*/\s*think(?:ing)?\s*>(?=\s*(?:```\w*\s*)?<\s*(?:diary|observations)\s*>)",
    re.IGNORECASE | re.DOTALL,
)
_BLOCK = re.compile(r"<\s*(/?)\s*(?:diary|observations|reflections|notes)\s*>", re.IGNORECASE)
_LEAVES_DIARY = re.compile(
    r"(?!\s*<\s*\w).*<\s*/\s*(?:diary|observations|reflections|notes)\s*>\s*$"
    r"|\s*<\s*(?:current-task|suggested-response|thread-title)\s*>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\s*(?:```|~~~)[\w-]*\s*$")
_DATE = re.compile(
    r" ?(?:[#*_>][\s#*_>]*|-\s+(?=\W*date:\W*\d{4}-))?"
    r"(?:\bdate[:：](?P<said>.*)"  # or a day alone, also after another language's word for it
    r"|(?:[^\W\d_]{1,12}[*_]*\s?[:：][\s*_]*)?(?P<day>\d{4}-\d\d-\d\d[\s*_]{0,5}(?:\([^()]*\))?[\s*_]{0,5})$)",
    re.IGNORECASE,
)
_NOTED = re.compile(r"\W*?(?:\bdate[:：]|🔴|🟡|🟢|✅)", re.IGNORECASE)
_LIST_LINE = re.compile(r"\s*(?:[-*+•–]\s|\d{1,3}[.)]\s|🔴|🟡|🟢|✅)")
_LABELLED = re.compile(
    r"[\s#*_-]*(?P<label>current task|suggested response|thread title)[\s*_]*:[\s*_]*(?P<text>.*)$",
    re.IGNORECASE,
)
_LABELS: dict[str, _Section] = {"current task": "task", "suggested response": "response", "thread title": "title"}
_MAX_TAGS_PER_LINE = 20
_MAX_TITLE = 100
_NOTHING = frozenset({"", "-", "none", "n/a", "na", "null", "nothing", "unknown", "..."})


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """A parsed answer.

    Attributes:
        text: Notes under their ``Date:`` headings; empty when the answer holds none.
        current_task: None when there is none, or the model wrote "none".
        suggested_response: Likewise.
        thread_title: Likewise; one line of at most 100 characters.
    """

    text: str
    current_task: str | None = None
    suggested_response: str | None = None
    thread_title: str | None = None


def parse_notes(output: str) -> Notes:
    """Read a model's answer. Never raises.

    Several blocks are joined; a missing closing tag ends where the next block begins; code fences
    are dropped, and so are lines of the form in our prompts that a small model copied, and what a model thought
    before the block. An answer without a block of notes gives its list lines and date headings only, if one of
    them has a mark or is a heading: else it is a list of something else.
    """
    reader = _Reader()
    for line in _without_drafts(output).splitlines():
        if not _FENCE.match(line):
            reader.read(line)
    loose = reader.loose if any(map(_NOTED.match, reader.loose)) else []
    return Notes(
        text=without_form(_tidy(reader.lines["diary"])) or without_form(_tidy(loose)),
        current_task=_hint(reader.lines["task"]),
        suggested_response=_hint(reader.lines["response"]),
        thread_title=_title(reader.lines["title"]),
    )


def escape_tags(text: str) -> str:
    """``text`` in which none of our tags can open or close anything: ``<`` before a name is ``&lt;``."""
    return _ANY_TAG.sub("&lt;", text)


def _without_drafts(output: str) -> str:
    """The answer without thoughts that end right before the notes: a block in them is a draft. Where a block is
    still open there, the notes speak of such tags."""
    thoughts = _DRAFTS.match(output)
    if thoughts is None:
        return output
    drafts = [tag[1] for tag in _BLOCK.finditer(thoughts["drafts"])]
    return output[thoughts.end() :] if drafts.count("") == drafts.count("/") else output


class _Reader:
    """Sorts lines by the section that they stand in."""

    def __init__(self) -> None:
        self.lines: dict[_Section, list[str]] = {
            "diary": [],
            "task": [],
            "response": [],
            "title": [],
            "thinking": [],
        }
        self.loose: list[str] = []
        self._section: _Section | None = None

    def read(self, line: str) -> None:
        if self._section == "diary" and line[:1].isspace() and not _LEAVES_DIARY.match(line):
            self._keep(line)  # a detail of a note, which may quote tags
            return
        rest = line
        for _ in range(_MAX_TAGS_PER_LINE):
            tag = _TAG.match(rest, len(rest) - len(rest.lstrip()))
            if tag is None:
                break
            rest = self._enter(None if tag[1] else _SECTIONS[tag[2].lower()], rest[tag.end() :])
            if not rest.strip():
                return
        end = _TAG_AT_END.search(rest)
        if end and not end[1] and self._section == "diary" and _SECTIONS[end[2].lower()] in ("diary", "thinking"):
            end = None  # the note speaks of it
        self._keep(rest[: end.start()] if end else rest)
        if end:
            self._section = None if end[1] else _SECTIONS[end[2].lower()]

    def _enter(self, section: _Section | None, rest: str) -> str:
        """Begin a section; if it also ends on this line, keep its text and return what follows."""
        self._section = section
        for tag in _TAG.finditer(rest) if section else ():
            if tag[1] and _SECTIONS[tag[2].lower()] == section:
                self._keep(rest[: tag.start()])
                self._section = None
                return rest[tag.end() :]
        return rest

    def _keep(self, line: str) -> None:
        line = escape_tags(line.rstrip())
        if self._section in ("task", "response", "title") and _DATE.match(line):
            self._section = None  # its closing tag is missing, and the notes go on
        if self._section is not None:
            self.lines[self._section].append(line)
        elif labelled := _LABELLED.match(line):
            self.lines[_LABELS[labelled["label"].lower()]].append(labelled["text"])
        elif _DATE.match(line) or _LIST_LINE.match(line):
            self.loose.append(line)


def _tidy(lines: list[str]) -> str:
    """Plain date headings, no blank lines in a row, none at the ends."""
    kept: list[str] = []
    for line in dedent("\n".join(lines)).splitlines():
        if heading := _DATE.match(line):
            line = ("Date: " + (heading["said"] or heading["day"] or "").strip(" *_\t")).rstrip()
        if line or (kept and kept[-1]):
            kept.append(line)
    return "\n".join(kept).strip("\n")


def _hint(lines: list[str]) -> str | None:
    text = "\n".join(lines).strip()
    return None if text.lower().strip(" .*_()[]") in _NOTHING or is_form(text) else text


def _title(lines: list[str]) -> str | None:
    text = " ".join((_hint(lines) or "").split()).strip(" :\"'“”*_#")
    return text[:_MAX_TITLE].rstrip() or None
