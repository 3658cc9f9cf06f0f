"""Parse the answers of Observer and Reflector, also those that only roughly follow the form.

JSON is converted to the tagged form first; then lines are sorted by section. Models write the tags in many ways, such
as ``<current_task>``, ``<diary lang="en">`` or ``&lt;/diary&gt;``, and notes may mention tags. Tags that remain inside
notes are escaped, so that the parsed text can be put between tags again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import Any, Literal, cast

from diarist.memory.memory_note import BLOCKS
from diarist.memory.observational.roles.answer_checks import has_citation
from diarist.memory.observational.roles.prompt_echo import is_form, without_form

Section = Literal["diary", "task", "response", "title", "thinking"]

HINTS: frozenset[Section] = frozenset({"task", "response", "title"})

_DIARY = "diary|observations|reflections|notes"  # the first name is in the prompts; models know the others
_HINT = "current[ _-]?task|suggested[ _-]?response|thread[ _-]?title"
_NAMES = f"{_DIARY}|{_HINT}|think(?:ing)?"
_SECTIONS: dict[str, Section] = {
    **dict.fromkeys(_DIARY.split("|"), "diary"),
    "currenttask": "task",
    "suggestedresponse": "response",
    "threadtitle": "title",
    "think": "thinking",
    "thinking": "thinking",
}
_QUOTING = f"transcript|earlier-notes|old-notes|{BLOCKS}"

_ATTRIBUTES = r"(?:\s+[\w:.-]+\s?=\s?(?:\"[^\"]*\"|'[^']*'|&quot;[^&]*&quot;|[^\s\"'<>&]+))*"
_LEFT, _RIGHT = r"(?:<|\\<|&lt;)\s*", r"\s*(?:/\s*)?(?:\\?>|&gt;)"
_TAG = re.compile(rf"{_LEFT}(?P<slash>/\s*)?(?P<name>{_NAMES}){_ATTRIBUTES}{_RIGHT}", re.IGNORECASE)
_FIRST_TAG = re.compile(rf"\s*{_TAG.pattern}", re.IGNORECASE)
_NEXT_SECTION = re.compile(rf"({_LEFT}/\s*(?:{_NAMES}){_RIGHT})[ \t]*(?={_LEFT}(?:{_NAMES}))", re.IGNORECASE)
_ANY_TAG = re.compile(rf"<(?=\s*(?:/\s*)?(?:{_NAMES}|{_QUOTING})\b)", re.IGNORECASE)


def section_named(name: str) -> Section | None:
    """Return the section with that name, however its words are joined."""
    return _SECTIONS.get(re.sub(r"[\W_]+", "", name).lower())


def escape_tags(text: str) -> str:
    """Return ``text`` with memory's tags escaped: ``<`` before their names becomes ``&lt;``."""
    return _ANY_TAG.sub("&lt;", text)


_JSON_FENCED = re.compile(r"\A[^{\[`]*```\w*\s*(?P<inside>[{\[].*?)\s*(?:```.*)?\Z", re.DOTALL)
_JSON_DAY = re.compile(r"(?:date\s*[:：]\s*)?(\d{4}-\d\d-\d\d.*|unknown)", re.IGNORECASE)
_JSON_TEXT = ("text", "note", "observation", "event", "content", "description", "fact")
_MARKS = ("🔴", "🟡", "🟢", "✅")


def json_as_notes(answer: str) -> str | None:
    """Convert an answer in JSON to the tagged form; None if it is not JSON with notes.

    If the answer was cut off, its complete part is read.
    """
    text = answer.strip()
    if fenced := _JSON_FENCED.match(text):
        text = fenced["inside"]
    if not text.startswith(("{", "[")):
        return None
    from pydantic_core import from_json  # slow to load

    try:
        value: Any = from_json(text, allow_partial=True)
    except ValueError:
        return None
    fields = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    said = [(name, text) for name, text in fields.items() if section_named(name) in HINTS and isinstance(text, str)]
    hints = [f"<{name}>\n{text}\n</{name}>" for name, text in said]
    lines = list(_json_lines(value))
    end = ["</diary>"] if hints or text.endswith(("}", "]")) else []
    return "\n".join(["<diary>", *lines, *end, *hints]) if lines else None


def _json_lines(value: Any) -> Iterator[str]:
    """Yield lines from texts, lists, objects with a text, and objects with the notes of a day."""
    if isinstance(value, str):
        for line in filter(str.strip, _RARE_BREAK.sub(" ", value).splitlines()):
            yield line if _DATE.match(line) or _LIST_LINE.match(line) else f"- {line}"
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _json_lines(item)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if day := _JSON_DAY.fullmatch(str(fields.get("date") or fields.get("day"))):
            yield f"Date: {day[1]}"
        if text := next((fields[name] for name in _JSON_TEXT if isinstance(fields.get(name), str)), None):
            mark = next((mark for mark in fields.values() if mark in _MARKS), None)
            yield " ".join(filter(None, ["-", mark, str(fields.get("time") or ""), text]))
        for name, item in fields.items():
            if day := _JSON_DAY.fullmatch(name):
                yield f"Date: {day[1]}"
            if day or isinstance(item, dict | list) or section_named(name) == "diary":
                yield from _json_lines(item)


_RARE_BREAK = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # they end a line only for ``splitlines``
_DRAFTS = re.compile(  # reasoning right before the notes; blocks inside it are drafts
    rf"^<\s*/\s*think(?:ing)?\s*>\s*(?:```\w*\s*)?(?=<\s*(?:{_DIARY})\b)",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE = re.compile(r"\s*(?:```|~~~)[\w-]*\s*$")

_MARK = r"(?:🔴|🟡|🟢|✅)"
_BULLET = r"[-*+•–]\s+"
_DATE = re.compile(
    r" ?(?:[#*_>][\s#*_>]*|-\s+(?=\W*date:\W*\d{4}-))?"
    r"(?:\bdate[:：](?P<said>.*)"  # or a day alone, also after the word for "date" in another language
    r"|(?:[^\W\d_]{1,12}[*_]*\s?[:：][\s*_]*)?(?P<day>\d{4}-\d\d-\d\d[\s*_]{0,5}(?:\([^()]*\))?[\s*_]{0,5})$)",
    re.IGNORECASE,
)
_NOTED = re.compile(rf"\W*?(?:\bdate[:：]|{_MARK})", re.IGNORECASE)
_LIST_LINE = re.compile(rf"\s*(?:{_BULLET}|\d{{1,3}}[.)]\s|\d\d:\d\d\b|{_MARK})")

_DAY = r"(?:date[:：][\s*_]*)?(?:\d{4}-\d\d-\d\d|unknown)(?:\s?\([^()\n]{1,80}\))?[*_]{0,4}"
_HEADED = re.compile(  # a heading with a note on its line
    rf"(?P<heading>\s?[#*_>\s]{{0,8}}(?:{_DAY}|date[:：][^🔴🟡🟢✅\n]{{1,60}}?))[\s:：,;–-]{{0,8}}?\s"
    rf"(?=(?:{_BULLET})?{_MARK}|(?:{_BULLET}|\d\d:\d\d\s)\S+\s\S+\s\S)",
    re.IGNORECASE,
)
_LEAD = re.compile(rf"\s*(?:{_BULLET})?(?:{_MARK}\s*)*")
_NEXT_HEADING = rf"[#*_]{{0,4}}\bdate[:：]\s?(?:\d{{4}}-\d\d-\d\d|unknown)[^🔴🟡🟢✅]{{0,60}}?{_MARK}"
_NEXT = re.compile(rf"(?<!\s)\s+(?=(?:{_BULLET})?{_MARK}\s?\d\d:\d\d\b|{_NEXT_HEADING})", re.IGNORECASE)
_NEXT_UNTIMED = re.compile(rf"(?<!\s)\s+(?={_BULLET}{_MARK}|{_NEXT_HEADING})", re.IGNORECASE)
_WITHOUT_BULLET = re.compile(rf"{_MARK}|\d\d:\d\d\b")
_TIMED = re.compile(rf"\W*?{_MARK}\s?\d\d:\d\d\b")

_LABELLED = re.compile(
    rf"(?P<before>[\s#*_>-]*)(?P<label>{_HINT}|{_DIARY})(?P<after>[\s*_]*[:：]?[\s*_]*)(?P<text>.*)$",
    re.IGNORECASE,
)
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_MAX_TITLE = 100
_MAX_HINT = 2_000
_NOTHING = frozenset({"-", "none", "n/a", "na", "nothing"})
_UNKNOWN = frozenset({"", "null", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """A parsed answer.

    Attributes:
        text: Notes under their ``Date:`` headings; empty if the answer has none.
        current_task: At most 2,000 characters; empty if it is "none", None if it is missing.
        suggested_response: Likewise.
        thread_title: One line of at most 100 characters; None if it is missing or "none".
        whole: All notes are there: the answer was not cut off before their end.
    """

    text: str
    current_task: str | None = None
    suggested_response: str | None = None
    thread_title: str | None = None
    whole: bool = True


def parse_notes(output: str, *, cut: bool = False) -> Notes:
    """Parse a model's answer. Never raises.

    Several blocks are joined; a missing closing tag is assumed where the next block begins. Code fences, prose before
    notes or behind a blank line, lines copied from the prompt's form and reasoning before the block are dropped. In an
    answer without a block, only list lines and date headings are read, and only if at least one is a heading or has a
    mark. If the answer was ``cut`` off, an incomplete last line or hint is left out.
    """
    reader = _Reader()
    from_json = json_as_notes(output)
    text = from_json or output
    if text[:1].isspace():
        text = dedent(text)
    if drafts := _DRAFTS.search(text):
        text = text[drafts.end() :]
    for line in _NEXT_SECTION.sub(r"\1\n", _RARE_BREAK.sub(" ", text)).splitlines():
        if not _FENCE.match(line):
            reader.read(line)
    if cut:
        reader.drop_unfinished(mid_line=from_json is None and not output.endswith("\n"))
    title = (read_hint(reader.lines["title"]) or "").replace("\0", "")
    title = " ".join(title.split()).strip(" :\"'“”*_#")
    loose = reader.loose if any(map(_NOTED.match, reader.loose)) else []
    return Notes(
        text=without_form(_tidy(reader.lines["diary"])) or without_form(_tidy(loose)),
        current_task=read_hint(reader.lines["task"]),
        suggested_response=read_hint(reader.lines["response"]),
        thread_title=title[:_MAX_TITLE].rstrip() or None,
        whole=not cut or not reader.in_notes,
    )


class _Reader:
    """Sorts lines by section."""

    def __init__(self) -> None:
        self.lines: dict[Section, list[str]] = {"diary": [], "task": [], "response": [], "title": [], "thinking": []}
        self.loose: list[str] = []
        self._section: Section | None = None
        self._under_heading = False
        self._last: list[str] = self.loose  # the list that got the last line; unused after a closing tag

    def read(self, line: str) -> None:
        """Read a line. A tag at its beginning starts or ends a section; so does a closing tag at its end, unless the
        line also quotes the opening tag. Elsewhere a tag is text. So is a tag that begins an indented line of the
        diary, unless it would leave the diary.
        """
        detail = self._section == "diary" and line[:1].isspace()
        while tag := _FIRST_TAG.match(line):
            section, closes = section_named(tag["name"]), bool(tag["slash"])
            if detail and section not in HINTS and not (closes and section == "diary"):
                self._keep(line)
                return
            self._pass(section, closes=closes)
            line = line[tag.end() :].lstrip()
            if not line:
                return
        tags = list(_TAG.finditer(line))
        if tags and tags[-1]["slash"] and tags[-1].end() == len(line.rstrip()):
            last = tags.pop()
            section = section_named(last["name"])
            opened = {section_named(tag["name"]) for tag in tags if not tag["slash"]}
            if section in HINTS or section not in opened:
                self._keep(line[: last.start()])
                self._pass(section, closes=True)
                return
        self._keep(line)

    @property
    def in_notes(self) -> bool:
        """True if notes could continue after the last line."""
        return self._last is self.lines["diary"] or (self._last is self.loose and not self.lines["diary"])

    def drop_unfinished(self, *, mid_line: bool) -> None:
        """Drop the incomplete hint or line at the end of a cut answer."""
        if self._section in HINTS:
            self.lines[self._section].clear()
        elif mid_line:
            del self._last[-1:]

    def _pass(self, section: Section | None, *, closes: bool) -> None:
        if not closes:
            self._enter(section)
        elif self._section in (section, *HINTS):  # any tag ends a hint; a diary may mention other tags
            self._enter(None)

    def _enter(self, section: Section | None, *, under_heading: bool = False) -> None:
        self._section, self._under_heading = section, under_heading
        self._last = [] if section is None else self.lines[section]

    def _keep(self, line: str) -> None:
        line = escape_tags(line.rstrip())
        if self._section != "thinking" and self._label(line):
            return
        if self._section in HINTS and (_DATE.match(line) or (self._under_heading and not line and self._last)):
            self._section = None  # its closing tag is missing
        if self._section is None:
            found = [part for part in _lines_of(line) if _DATE.match(part) or _LIST_LINE.match(part)]
            self._last = self.loose if found else self._last
            self.loose += found
        else:
            self._last = self.lines[self._section]
            self._last += [line] if self._section in HINTS else _lines_of(line)

    def _label(self, line: str) -> bool:
        """Read a line that names a section, such as ``### Current Task``; return False for other lines."""
        found = _LABELLED.match(line)
        section = section_named(found["label"]) if found else None
        if not found or not section or (self._section == "diary" and (line[:1].isspace() or "-" in found["before"])):
            return False
        text = found["text"]
        heading = any(sign in found["before"] for sign in ("#", "**", "__"))
        if text and section in HINTS and (":" in found["after"] or "：" in found["after"]):
            self._last = self.lines[section]
            self._last.append(text)
            return True
        if text or not (heading or (section in HINTS and found["after"].strip())):
            return False
        self._enter(section, under_heading=True)
        return True


def _lines_of(line: str) -> Iterator[str]:
    """Yield the parts of a line: it may contain a heading and several notes."""
    if not (_HEADED.match(line) or _LIST_LINE.match(line)):
        yield line
        return
    start: int | None = 0
    while start is not None:
        if headed := _HEADED.match(line, start):
            yield headed["heading"].strip(" *_#>")
            start = headed.end()
        following = _NEXT if _TIMED.match(line, start) else _NEXT_UNTIMED
        lead = _LEAD.match(line, start)
        gap = following.search(line, lead.end() if lead else start)
        yield line[start : gap.start() if gap else len(line)]
        start = gap.end() if gap else None


def _tidy(lines: Sequence[str]) -> str:
    """Return notes under plain date headings, without prose, repeated headings and extra blank lines."""
    kept: list[str] = []
    heading, in_note = "", False
    for line in dedent("\n".join(lines)).splitlines():
        if found := _DATE.match(line):
            line = ("Date: " + (found["said"] or found["day"] or "").strip(" *_\t")).rstrip()
            if line == heading:
                continue
            heading, in_note = line, False
        elif not line.strip():
            in_note = False
        elif _LIST_LINE.match(line) or _NOTED.match(line) or has_citation(line):
            line = f"- {line}" if _WITHOUT_BULLET.match(line) else line
            in_note = True
        elif not in_note:
            continue
        if line or (kept and kept[-1]):
            kept.append(line)
    return "\n".join(kept).strip("\n")


def read_hint(lines: Sequence[str]) -> str | None:
    """Return a hint; empty if it says that there is none, None if it says nothing."""
    text = "\n".join(lines).strip()
    bare = text.lower().strip(" .*_()[]")
    if bare in _UNKNOWN or is_form(text):
        return None
    if bare in _NOTHING:
        return ""
    return (text[1:-1] if _IN_BRACKETS.fullmatch(text) else text)[:_MAX_HINT].strip()
