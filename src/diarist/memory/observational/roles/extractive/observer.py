"""The Observer that needs no model: it picks sentences and tool outcomes by fixed rules."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from diarist.byte_cache import cached
from diarist.chunks import Usage
from diarist.memory.observational.prompt.threads import by_thread, thread_label
from diarist.memory.observational.roles.base import Observed
from diarist.memory.observational.roles.extractive.dates import annotate_dates, has_date
from diarist.memory.observational.roles.extractive.reflector import (
    MARKS,
    MODEL,
    Line,
    body,
    fingerprint,
    read_lines,
    write_lines,
)
from diarist.memory.observational.roles.extractive.tools import clip, note_tool, shorten
from diarist.memory.observational.roles.parsing import escape_tags
from diarist.memory.observational.roles.transcript import date_heading, load_zone, local_time, speaker
from diarist.messages import FilePart, Message, TextPart, ToolPart
from diarist.storage.records import Observation

_Group = Literal["people", "assistant", "tools"]

_ROOM: dict[_Group, tuple[float, float, int]] = {
    "people": (0.32, 3, 300),
    "assistant": (1 / 6, 1 / 6, 0),
    "tools": (1 / 15, 1 / 4, 600),
}
"""Size limit of the notes per group: (share of the characters that were read, share for short texts, maximum size under
the second share in characters). The larger of the two results applies."""
_LEAST_WORTH = -10
_NEW_LINE = 26
"""Characters of a line in addition to its text."""

_LONGEST_NOTE, _LONGEST_SENTENCE, _LONGEST_HINT = 260, 500, 300
_FIRST_WORDS, _SHORT = 200, 80

_CODE_OR_ELEMENT = re.compile(
    r"^[ \t]*(?:(?P<fence>```|~~~)|<(?P<name>[a-z]+[-_][a-z_-]+)(?:\s[^<>]*)?>)", re.MULTILINE
)
_LINK = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()\s]{1,500}\)")
_LINE_START = re.compile(r"^[\s>#|]*(?:[-*+•–]\s+|\d{1,3}[.)]\s+)?\s*")
_EMPHASIS = re.compile(r"\*{1,3}|~~|\x1b\[[0-9;?]*[A-Za-z]")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"”’')]?\s+(?=[^a-z\s])|(?<=[。！？])")
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:mr|mrs|ms|dr|prof|st|no|vs|etc|approx|e\.g|i\.e|[a-z])\.$", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_STOPS = (".", "!", "?", "…", ";", ":", ")", "。", "！", "？")
_QUESTION_ENDS = ("?", "？", "؟")

_OWN = re.compile(r"\b(?:I|[Mm]y|[Ww]e|[Oo]ur)\b")
_ABOUT_SELF = re.compile(
    r"\b(?:my (?:[\w’'-]+ ){0,3}(?:is|are|was|has|works?|lives?|named?)|(?:i|we)(?:['’]m|['’]re| am| are|['’]ve| have|"
    r" had| own| live| work| study| use| decided| chose| prefer| like| love| hate| need| want| fly| leave| moved|"
    r" joined| bought| adopted| started)|call me|allergic|vegetarian|vegan|deadline|budget|must|never|always)\b",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"^(?:please|can you|could you|would you|help|find|book|show|send|make|add|fix|write|update|remove|create|check|"
    r"run|search|tell|give|explain|cancel|delete)\b|\bplease\b",
    re.IGNORECASE,
)
_SMALL_TALK = re.compile(
    r"^(?:thank|thanks|ok|okay|great|sure|hello|hi|hey|bye|wow|cool|awesome|nice|perfect|good|you['’]re welcome|"
    r"got it|sounds|that['’]?s|congrat\w*|take care)\b|\b(?:let me know|feel free|happy to help|how can i help)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]{4,}")
_NAME = re.compile(r"(?<=[^\s.!?:\"“(] )[A-Z][a-z]{2,}")
_NUMBER = re.compile(r"\d")


class ExtractiveObserver:
    """Picks lines out of a conversation by fixed rules: offline, free, deterministic.

    It keeps, in the speakers' own words, sentences with dates, numbers, names and much content, what people say of
    themselves, questions and requests, and the outcome of each tool call. Days such as "next Friday" get their date.
    The notes are about a third of what people say and a fifteenth of what tools return.

    A model does better: these rules do not resolve "he" or "there", do not combine messages, and know English words
    only. In other languages they keep long sentences and those with numbers.

    Dates and times are in ``timezone``. ``name_threads`` names the thread even if all messages belong to one;
    ``obscure_threads`` names threads by a hash of their ids.
    """

    def __init__(self, *, timezone: str = "UTC", name_threads: bool = False, obscure_threads: bool = False) -> None:
        self._zone, self._name_threads, self._obscure_threads = load_zone(timezone), name_threads, obscure_threads

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """See ``ObserverRole``. Usage is zero and ``calls`` is 0.

        If everything was noted before, the most important line is noted again, so that the text is not empty.
        """
        visible = [message for message in messages if message.role != "system"]
        known = set[str]()
        for entry in earlier:
            await asyncio.sleep(0)  # let other tasks run
            known |= _fingerprints(entry.text)
        threads = by_thread(visible)
        lines: list[Line] = []
        for id, section in threads.items():
            label = thread_label(id, obscured=self._obscure_threads)
            thread = label if self._name_threads or len(threads) > 1 else None
            notes: list[_Note] = []
            characters: Counter[_Group] = Counter()
            for number, message in section:
                await asyncio.sleep(0)  # let other tasks run: the work per message is limited
                said = local_time(message, self._zone)
                notes += _notes_of(message, number - 1, said, date_heading(said, thread), characters)
            first: dict[str, _Note] = {}
            for note in notes:
                first.setdefault(fingerprint(note.source), note)
            new = [n for mark, n in first.items() if mark and mark not in known and n.worth > _LEAST_WORTH]
            lines += _lines(_choose(new, characters) or _choose(notes, characters)[:1])
        text = escape_tags(write_lines(lines))
        cited = (tuple(visible[place].id for place in line.messages) for line in lines)
        task, response = _hints(visible) if len(threads) == 1 else (None, None)
        return Observed(
            text=text,
            current_task=task,
            suggested_response=response,
            citations=tuple(() if row.startswith("Date:") else next(cited, ()) for row in text.splitlines()),
            usage=Usage(),
            model=MODEL,
            calls=0,
        )


@dataclass(frozen=True, slots=True)
class _Note:
    """A sentence, an attachment or a tool call that could be noted.

    Attributes:
        place: Index of the message, and number of the note within it.
        line: The line of the diary, if no other note shares it.
        head: The beginning of that line, such as ``"User stated:"``; sentences of a message share a line with it.
        text: The rest of the line.
        source: The text before dates were added.
    """

    group: _Group
    place: tuple[int, int]
    line: Line
    head: str
    text: str
    source: str
    worth: float


def _notes_of(
    message: Message, place: int, said: datetime | None, heading: str, characters: Counter[_Group]
) -> list[_Note]:
    """Return everything in a message that could be noted, and count its characters."""
    notes: list[_Note] = []

    def add(group: _Group, mark: str, head: str, text: str, source: str, worth: float) -> None:
        time = f"{said:%H:%M}" if said else ""
        line = Line(date=heading, mark=mark, time=time, text=f"{head} {text}", messages=(place,))
        notes.append(_Note(group, (place, len(notes)), line, head, text, source, worth))

    named = isinstance(message.metadata.get("name"), str)
    person = named or message.role == "user"
    group, who = "people" if person else "assistant", speaker(message)
    for part in message.parts:
        match part:
            case TextPart():
                characters[group] += len(part.text)
                for sentence in split_sentences(part.text):
                    mark, verb, worth = _weigh(sentence, person=person, to_assistant=person and not named)
                    text = annotate_dates(shorten(sentence, _LONGEST_NOTE), said.date() if said else None)
                    add(group, mark, f"{who} {verb}:", text, sentence, worth)
                if text := " ".join(part.text.lstrip()[:_FIRST_WORDS].split()):  # for texts without sentences
                    add(group, "🟢", f"{who} said:", text, text, _LEAST_WORTH)
            case FilePart():
                text = f"attached{f' {part.name!r}' if part.name else ''} ({part.media_type})"
                add(group, "🟡", who, text, text, 3)
            case ToolPart():
                text, mark = note_tool(part)
                characters["tools"] += len(part.result_text) + len(text)
                add("tools", mark, "Assistant called", text, text, 4 if mark == "✅" else 2)
            case _:
                pass
    return notes


def _weigh(sentence: str, *, person: bool, to_assistant: bool) -> tuple[str, str, float]:
    """Return a sentence's mark, the verb of its note, and its worth: 0 or less for small talk.

    The weights were tuned on LoCoMo (see ``benchmarks/extractive.py``).
    """
    content = len(set(map(str.lower, _WORD.findall(sentence))))
    detail = bool(_NUMBER.search(sentence)) + 1.5 * has_date(sentence) + 0.7 * min(2, len(_NAME.findall(sentence)))
    worth = detail + min(content, 8) / 4 + (not sentence.isascii()) - 2.0 * bool(_SMALL_TALK.search(sentence))
    if sentence.rstrip("\"”’') ").endswith(_QUESTION_ENDS):
        return "🟡", "asked", worth / 2 + to_assistant
    if not person:
        return "🟡" if worth >= 2.5 else "🟢", "answered", worth
    if to_assistant and _REQUEST.search(sentence):
        return "🟡", "requested", worth + 1.5
    own = bool(_OWN.search(sentence))
    worth += own
    if own and worth >= 1.5 and _ABOUT_SELF.search(sentence):
        return "🔴", "stated", worth + to_assistant
    return "🟡" if worth >= 2.5 else "🟢", "stated" if worth >= 1 else "said", worth


def _choose(notes: Sequence[_Note], characters: Counter[_Group]) -> list[_Note]:
    """Return the notes with the most worth for their length, in order; at least one unless ``notes`` is empty.

    People come first, then the assistant, then tools; each group may use the room that the one before it left.
    """
    chosen: list[_Note] = []
    lines: set[tuple[int, str]] = set()
    room = 0.0
    for group, (share, share_of_few, most_of_few) in _ROOM.items():
        room += max(share * characters[group], min(share_of_few * characters[group], most_of_few))
        mine = [note for note in notes if note.group == group and note.worth >= 1]
        for note in sorted(mine, key=lambda note: (-note.worth / (len(note.text) + _NEW_LINE) ** 0.5, note.place)):
            line = note.place[0], note.head
            cost = len(note.text) + (1 if line in lines and group != "tools" else _NEW_LINE)
            if cost <= room:
                chosen.append(note)
                lines.add(line)
                room -= cost
    return sorted(chosen, key=lambda note: note.place) or sorted(notes, key=lambda note: -note.worth)[:1]


def _lines(notes: Sequence[_Note]) -> Iterator[Line]:
    """Yield lines of the diary; sentences of a message with the same beginning share a line."""
    lines: dict[object, list[_Note]] = {}
    for note in notes:
        lines.setdefault(note.place if note.group == "tools" else (note.place[0], note.head), []).append(note)
    for parts in lines.values():
        texts = [part.text if part.text.endswith(_STOPS) else f"{part.text};" for part in parts[:-1]]
        mark = min((part.line.mark for part in parts), key=MARKS.index)
        yield replace(parts[0].line, mark=mark, text=" ".join([parts[0].head, *texts, parts[-1].text]))


def _hints(messages: Sequence[Message]) -> tuple[str | None, str | None]:
    """Return the current task and the suggested response; None if nothing shows them, and in conversations of named
    people."""
    users = [message for message in messages if message.role == "user" and message.text.strip()]
    if not users or any(isinstance(message.metadata.get("name"), str) for message in messages):
        return None, None
    sentences = split_sentences(users[-1].text)
    weighed = [(each, *_weigh(each, person=True, to_assistant=True)) for each in sentences]
    said = [(each, verb) for each, _, verb, worth in weighed if worth > 0]
    asked = [each for each, verb in said if verb in ("asked", "requested")]
    wish = shorten(" ".join((asked or [each for each, _ in said])[-2:]), _LONGEST_HINT)
    task = f"The user's last request: {wish}" if wish else None
    if messages[-1] is users[-1]:
        return task, f"Answer the user: {wish}" if wish else None
    questions = [each for each in split_sentences(messages[-1].text)[-3:] if each.endswith(_QUESTION_ENDS)]
    if messages[-1].role == "assistant" and questions:
        return task, f"Wait for the user's answer to: {shorten(questions[-1], _LONGEST_HINT)}"
    return task, None


def split_sentences(text: str) -> list[str]:
    """Split ``text`` into sentences of at most 500 characters; of a long text, return the first 300 and the last 100.

    Fenced code, lines that are mostly signs and digits, and elements named like ``<system-reminder>`` are left out.
    """
    sentences: list[str] = []
    for raw in _prose(clip(text)).splitlines():
        if not any(map(str.isalnum, raw)):
            continue
        line = _SPACE.sub(" ", _EMPHASIS.sub("", _LINK.sub(r"\1", _LINE_START.sub("", raw, count=1)))).strip()
        if len(line) > 40 and sum(map(str.isalpha, line)) + line.count(" ") < 0.6 * len(line):
            continue
        start = len(sentences)
        for piece in _SENTENCE_END.split(line):
            if len(sentences) > start and len(sentences[-1]) < _SHORT and _ABBREVIATION.search(sentences[-1][-12:]):
                sentences[-1] += f" {piece}"
            elif piece:
                sentences.append(piece[:_LONGEST_SENTENCE])
    return sentences if len(sentences) <= 400 else [*sentences[:300], *sentences[-100:]]


def _prose(text: str) -> str:
    """Leave out fenced code and elements with all they contain."""
    kept: list[str] = []
    start = 0
    for opening in _CODE_OR_ELEMENT.finditer(text):
        closing = opening["fence"] or f"</{opening['name']}>"
        end = text.find(closing, opening.end()) if opening.start() >= start else -1
        if end >= 0:
            kept.append(text[start : opening.start()])
            start = end + len(closing)
    return "".join([*kept, text[start:]])


@cached(4_000_000)
def _fingerprints(notes: str) -> frozenset[str]:
    """Return the fingerprints of all lines and sentences of an entry. Cached, since entries rarely change."""
    bodies = ((line.text, body(line.text)) for line in read_lines(notes))
    return frozenset(fingerprint(text) for line, said in bodies for text in (line, said, *split_sentences(said)))
