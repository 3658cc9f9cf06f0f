"""The Observer that needs no model: it picks sentences and tool outcomes by fixed rules."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Literal

from diarist.byte_cache import cached
from diarist.chunks import Usage
from diarist.memory.observational.prompt.threads import Section, by_thread, thread_label
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

_SHARES: dict[_Group, float] = {"people": 0.32, "assistant": 1 / 6, "tools": 1 / 15}
"""How long the notes may be, as a share of the characters that were read."""
_LEAST_ROOM, _LEAST_TOOL_ROOM, _LEAST_SHARE_OF_PEOPLE = 300, 600, 1 / 3
_NEW_LINE = 26
"""Characters that a line needs besides its text."""

_LONGEST_NOTE, _LONGEST_SENTENCE, _LONGEST_HINT = 260, 500, 300
_MOST_LINES, _MOST_SENTENCES, _MOST_PROSE = 4_000, 400, 50_000
_FIRST_WORDS, _SHORT = 200, 80

_BLOCK = re.compile(r"\s*<([a-z]{2,30}[-_][a-z_-]{1,40})(?:\s[^<>]{0,200})?>")
_LINK = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()\s]{1,500}\)")
_LINE_START = re.compile(r"^[\s>#|]*(?:[-*+•–]\s+|\d{1,3}[.)]\s+)?\s*")
_EMPHASIS = re.compile(r"\*{1,3}|~~|\x1b\[[0-9;?]*[A-Za-z]")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"”’')]?\s+(?=[^a-z\s])|(?<=[。！？])")
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:mr|mrs|ms|dr|prof|st|no|vs|etc|approx|e\.g|i\.e|[a-z])\.$", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_STOPS = (".", "!", "?", "…", ";", ":", ")", "。", "！", "？")
_SAID, _STATED = " said:", " stated:"
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
    only. Of other languages they keep long sentences and those with numbers.

    Args:
        timezone: IANA name; dates and times of the notes are in it.
        name_threads: Name the thread even if all messages belong to one.
        obscure_threads: Name threads by a hash of their ids.

    Raises:
        ConfigError: The time zone is not known.
    """

    def __init__(self, *, timezone: str = "UTC", name_threads: bool = False, obscure_threads: bool = False) -> None:
        self._zone = load_zone(timezone)
        self._name_threads = name_threads
        self._obscure_threads = obscure_threads

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        """See ``ObserverRole``. Usage is zero and ``calls`` is 0.

        If everything was noted before, the main point is noted again, so that the text is not empty.
        """
        visible = [message for message in messages if message.role != "system"]
        known = set[str]()
        for entry in earlier:
            await asyncio.sleep(0)  # let other tasks run
            known |= _fingerprints(entry.text)
        threads = by_thread(visible)
        lines: list[Line] = []
        for id, section in threads.items():
            found = await self._lines(section, known)
            if self._name_threads or len(threads) > 1:
                label = thread_label(id, obscured=self._obscure_threads)
                found = [replace(line, date=f"{line.date} (thread {label})") for line in found]
            lines += found
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

    async def _lines(self, section: Section, known: Set[str]) -> list[Line]:
        notes: list[_Note] = []
        characters: Counter[_Group] = Counter()
        for number, message in section:
            await asyncio.sleep(0)  # let other tasks run; only so much is read of each message
            for part_number, part in enumerate(message.parts):
                place = (number - 1, part_number, 0)
                notes += _notes_of(part, message, place, local_time(message, self._zone), characters)
        new, seen = list[_Note](), set(known)
        for note in notes:
            mark = fingerprint(note.source)
            if mark and mark not in seen:
                seen.add(mark)
                new.append(note)
        if chosen := _choose(new, characters) or _choose(notes, characters)[:1]:
            return list(_join(chosen))
        for number, message in section:  # nothing but signs or code
            if text := " ".join(message.text.lstrip()[:_FIRST_WORDS].split()):
                said = local_time(message, self._zone)
                time = f"{said:%H:%M}" if said else ""
                text = f"{speaker(message)} said: {text}"
                return [Line(date=date_heading(said), mark="🟢", time=time, text=text, messages=(number - 1,))]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """A sentence, an attachment or a tool call that could be noted.

    Attributes:
        place: Message, part and sentence.
        head: Who did what, such as ``"User stated:"``; sentences of a message with the same head share a line.
        source: The words before dates were added.
    """

    place: tuple[int, int, int]
    said: datetime | None
    mark: str
    head: str
    text: str
    source: str
    worth: float
    group: _Group


def _notes_of(
    part: object, message: Message, place: tuple[int, int, int], said: datetime | None, characters: Counter[_Group]
) -> Iterator[_Note]:
    """Yield everything in a part that could be noted, and count its characters."""
    named = isinstance(message.metadata.get("name"), str)
    person = named or message.role == "user"
    group: _Group = "people" if person else "assistant"
    who = speaker(message)
    match part:
        case TextPart():
            characters[group] += len(part.text)
            for number, sentence in enumerate(split_sentences(part.text)):
                mark, verb, worth = _weigh(sentence, person=person, to_assistant=person and not named)
                yield _Note(
                    place=(*place[:2], number),
                    said=said,
                    mark=mark,
                    head=f"{who} {verb}:",
                    text=annotate_dates(shorten(sentence, _LONGEST_NOTE), said.date() if said else None),
                    source=sentence,
                    worth=worth,
                    group=group,
                )
        case FilePart():
            text = f"attached{f' {part.name!r}' if part.name else ''} ({part.media_type})"
            yield _Note(place=place, said=said, mark="🟡", head=who, text=text, source=text, worth=3, group=group)
        case ToolPart():
            text, mark = note_tool(part)
            characters["tools"] += len(part.result_text) + len(text)
            worth = 2.0 + 2 * (mark == "✅")
            head = "Assistant called"
            yield _Note(
                place=place, said=said, mark=mark, head=head, text=text, source=text, worth=worth, group="tools"
            )
        case _:
            pass


def _weigh(sentence: str, *, person: bool, to_assistant: bool) -> tuple[str, str, float]:
    """Return a sentence's mark, the verb of its note and its worth; 0 and less is small talk.

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
    return "🟡" if worth >= 2.5 else "🟢", "said", worth


def _choose(notes: Sequence[_Note], characters: Counter[_Group]) -> list[_Note]:
    """Return the notes with the most worth for their length, in order: at least one if there is any.

    People come first, then the assistant, then tools; each group may use the room that the one before it left.
    """
    rooms = {group: characters[group] * share for group, share in _SHARES.items()}
    rooms["tools"] = max(rooms["tools"], min(characters["tools"] / 4, _LEAST_TOOL_ROOM))
    total = max(_LEAST_ROOM, sum(rooms.values()))
    rooms["people"] = max(rooms["people"], min(characters["people"], total * _LEAST_SHARE_OF_PEOPLE))
    rooms["people"] += max(0.0, _LEAST_ROOM - sum(rooms.values()))
    chosen: list[_Note] = []
    lines: set[tuple[int, str]] = set()
    left = 0.0
    for group, room in rooms.items():
        left += room
        mine = [note for note in notes if note.group == group]
        for note in sorted(mine, key=lambda note: (-note.worth / (len(note.text) + _NEW_LINE) ** 0.5, note.place)):
            line = note.place[0], note.head.replace(_SAID, _STATED)
            cost = len(note.text) + (1 if line in lines and group != "tools" else _NEW_LINE)
            if not chosen or (cost <= left and note.worth >= 1):
                chosen.append(note)
                lines.add(line)
                left -= cost
    return sorted(chosen, key=lambda note: note.place)


def _join(notes: Sequence[_Note]) -> Iterator[Line]:
    """Yield lines of the diary; sentences of a message with the same head share a line."""
    for _, group in groupby(notes, key=lambda note: note.place if note.group == "tools" else note.place[0]):
        heads: dict[str, list[_Note]] = {}
        members = list(group)
        stated = any(_STATED in note.head for note in members)
        for note in members:
            heads.setdefault(note.head.replace(_SAID, _STATED) if stated else note.head, []).append(note)
        for head, parts in heads.items():
            said = parts[0].said
            texts = [part.text if part.text.endswith(_STOPS) else f"{part.text};" for part in parts[:-1]]
            yield Line(
                date=date_heading(said),
                mark=min((part.mark for part in parts), key=MARKS.index),
                time=f"{said:%H:%M}" if said else "",
                text=" ".join([head, *texts, parts[-1].text]),
                messages=(parts[0].place[0],),
            )


def _hints(messages: Sequence[Message]) -> tuple[str | None, str | None]:
    """Return the current task and the suggested response; None where nothing shows them, and among named people."""
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
    """Split ``text`` into sentences of at most 500 characters, at most 400 of them and 50,000 characters together.

    Of a longer text the beginning and the end are read. Fenced code, lines that are mostly signs and digits, and
    elements named like ``<system-reminder>`` are left out.
    """
    lines, sizes = list(_prose_lines(clip(text))), 0
    if len(lines) > _MOST_SENTENCES:
        lines = [*lines[: -_MOST_SENTENCES // 4][: _MOST_SENTENCES * 3 // 4], *lines[-_MOST_SENTENCES // 4 :]]
    sentences: list[str] = []
    for line in lines:
        start = len(sentences)
        for piece in _SENTENCE_END.split(line):
            if len(sentences) > start and len(sentences[-1]) < _SHORT and _ABBREVIATION.search(sentences[-1][-12:]):
                sentences[-1] += f" {piece}"
            elif piece:
                sentences.append(piece[:_LONGEST_SENTENCE])
                sizes += len(sentences[-1])
            if sizes > _MOST_PROSE or len(sentences) >= _MOST_SENTENCES:
                return sentences
    return sentences


def _prose_lines(text: str) -> Iterator[str]:
    fenced = False
    block = ""
    lines = text.splitlines()
    for line in lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES // 2], *lines[-_MOST_LINES // 2 :]]:
        if block:
            _, closed, line = line.partition(f"</{block}>")
            block = "" if closed else block
        if not block and (opening := _BLOCK.match(line)) and f"</{opening[1]}>" in text:
            _, closed, line = line.partition(f"</{opening[1]}>")
            block = "" if closed else opening[1]
        if block:
            continue
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        elif not fenced and line and not line.isspace():
            line = _EMPHASIS.sub("", _LINK.sub(r"\1", _LINE_START.sub("", line, count=1)))
            letters = sum(char.isalpha() or char == " " for char in line)
            if any(map(str.isalnum, line)) and (len(line) <= 40 or letters >= 0.6 * len(line)):
                yield _SPACE.sub(" ", line).strip()


@cached(4_000_000)
def _fingerprints(notes: str) -> frozenset[str]:
    """Return the fingerprints of all lines and sentences of an entry, which does not change between calls."""
    bodies = ((line.text, body(line.text)) for line in read_lines(notes))
    return frozenset(fingerprint(text) for line, said in bodies for text in (line, said, *split_sentences(said)))
