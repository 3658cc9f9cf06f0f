"""The Observer that needs no model: it keeps what has the most information for its size."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date as Date
from functools import lru_cache
from heapq import heapify, heappop, heappush
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
from diarist.tokens import rarity

_Group = Literal["user", "people", "assistant", "tools"]

_ROOM: dict[_Group, tuple[float, float, int]] = {
    "user": (0.45, 3, 300),
    "people": (0.31, 3, 300),
    "assistant": (1 / 15, 1 / 6, 300),
    "tools": (1 / 12, 1 / 4, 600),
}
"""Size limit of the notes per group: (share of the characters that were read, share for short texts, maximum size under
the second share in characters). The larger of the two results applies. ``people`` are speakers with a name."""
_NEW_LINE = 26
"""Characters of a line in addition to its text."""

_LONGEST_NOTE, _LONGEST_SENTENCE, _LONGEST_HINT = 260, 500, 300
_FIRST_WORDS, _SHORT, _LONG_TEXT = 200, 80, 3_000

_LEFT_OUT = re.compile(r"^[ \t]*(?:(?P<fence>```|~~~)|<(?P<name>[a-z]+[-_][a-z_-]+)(?:\s[^<>]*)?>)", re.MULTILINE)
_HEADING = re.compile(r"\s*(?:#{1,6}\s.*|(?:[-*•\d.)]+\s+)?\*\*[^*]{1,120}\*\*:?\s*|[^.!?]{1,80}:\s*)")
_LINK = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()\s]{1,500}\)")
_LINE_START = re.compile(r"^[\s>#|]*(?:[-*+•–]\s+|\d{1,3}[.)]\s+)?\s*")
_EMPHASIS = re.compile(r"\*{1,3}|~~|\x1b\[[0-9;?]*[A-Za-z]")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"”’')]?\s+(?=[^a-z\s])|(?<=[。！？])")
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:mr|mrs|ms|dr|prof|st|no|vs|etc|approx|e\.g|i\.e|[a-z])\.$", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_STOPS = (".", "!", "?", "…", ";", ":", ")", "。", "！", "？")
_QUESTION_ENDS = ("?", "？", "؟")

_WORD = re.compile(
    r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,2}"
    r"|[^\W_]+(?:[@/\\_.:,+-]+[^\W_]+)+|[^\W_]+(?:['’][^\W_]+)*"
)
_EXACT = re.compile(r"[\d@/\\_.:]")
_OWN = re.compile(
    r"\b(?:I|[Mm]y|[Ww]e|[Oo]ur|[Ii]ch|[Mm]ein\w*|[Ww]ir|[Uu]nser\w*|[Jj]e|[Mm]on|[Mm]a|[Mm]es|[Nn]ous|[Yy]o|[Mm]is?|"
    r"[Nn]osotros|[Ii]o|[Mm]io|[Mm]ia|[Nn]oi|[Ee]u|[Mm]eu|[Mm]inha)\b|[Jj]['’]|私|僕|我|저는|나는|أنا"
)


class ExtractiveObserver:
    """Picks lines out of a conversation by their information: offline, free, deterministic.

    It keeps, in the speakers' own words, the sentences with the most rare words, names, numbers and dates for their
    size, each word counting fully only once, and the outcome of each tool call. Days such as "next Friday" get their
    date. The notes are about half of what a user says, a third of what named people say, a twelfth of an assistant's
    answers and a fifteenth of what tools return.

    A model does better: this does not resolve "he" or "there", and does not combine messages. Rarity comes from the
    vocabulary of o200k_base, so it works in many languages; dates are resolved in English only.

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
            sizes: Counter[_Group] = Counter()
            for number, message in section:
                await asyncio.sleep(0)  # let other tasks run: the work per message is limited
                said = local_time(message, self._zone)
                date, time = date_heading(said, thread), f"{said:%H:%M}" if said else ""
                line = Line(date=date, mark="", time=time, text="", messages=(number - 1,))
                notes += _notes_of(message, line, said.date() if said else None, sizes)
            first: dict[str, _Note] = {}
            for note in notes:
                first.setdefault(fingerprint(note.text), note)
            new = [note for mark, note in first.items() if mark and mark not in known and note.worth > 0]
            lines += _lines(_choose(new, sizes) or _choose(notes, sizes)[:1])
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
        line: The line of the diary, with the head of its text, such as ``User stated:``. Sentences of a message with
            the same head share a line.
        place: Index of the message, and number of the note within it.
        day: The message's; for dates relative to it.
        words: Its words with the information of each. An entry for the text itself is information beside its words.
    """

    group: _Group
    line: Line
    place: tuple[int, int]
    text: str
    day: Date | None
    words: dict[str, float]

    @property
    def worth(self) -> float:
        return sum(self.words.values())


def _notes_of(message: Message, line: Line, day: Date | None, sizes: Counter[_Group]) -> list[_Note]:
    """Return everything in a message that could be noted, and add its size to ``sizes``."""
    notes: list[_Note] = []

    def add(group: _Group, mark: str, head: str, text: str, words: dict[str, float]) -> None:
        place = line.messages[0], len(notes)
        notes.append(_Note(group, replace(line, mark=mark, text=head), place, text, day, words))

    named = isinstance(message.metadata.get("name"), str)
    group, who = "people" if named else "user" if message.role == "user" else "assistant", speaker(message)
    for part in message.parts:
        match part:
            case TextPart():
                sizes[group] += min(len(part.text), _LONG_TEXT + len(part.text) // 5)
                for sentence in split_sentences(part.text):
                    mark, verb, words = _weigh(sentence, group)
                    add(group, mark, f"{who} {verb}:", sentence, words)
                if text := " ".join(part.text.lstrip()[:_FIRST_WORDS].split()):  # for texts without sentences
                    add(group, "🟢", f"{who} said:", text, {"": -1.0})
            case FilePart():
                text = f"attached{f' {part.name!r}' if part.name else ''} ({part.media_type})"
                add(group, "🟡", who, text, {text: 5.0})
            case ToolPart():
                text, mark = note_tool(part)
                sizes["tools"] += len(part.result_text) + len(text)
                add("tools", mark, "Assistant called", text, {text: 6.0 if mark == "✅" else 3.0})
            case _:
                pass
    return notes


def _weigh(sentence: str, group: _Group) -> tuple[str, str, dict[str, float]]:
    """Return a sentence's mark, the verb of its note, and its words with their information.

    Names, numbers, addresses and the like are worth up to twice as much as other rare words, words of everyday talk
    nothing. The weights were chosen on LoCoMo and tau-bench (see docs/explanation/how-good-is-it.md).
    """
    words = {sentence: 3.0} if has_date(sentence) else {}
    for found in _WORD.finditer(sentence):
        word = found[0].lower().removesuffix("'s").removesuffix("’s")
        if not word.isalpha() and _EXACT.search(word):
            words[word] = 3.0
        elif worth := _information(word):
            words[word] = worth + (1 if found.start() and found[0][0].isupper() else 0)
    worth = sum(words.values())
    own = _OWN.search(sentence) is not None
    factor = 1.2 if own else 1.0
    if sentence.rstrip("\"”’') ").endswith(_QUESTION_ENDS):
        mark, verb, factor = "🟡", "asked", factor if group == "user" else 0.5
    elif group == "assistant":
        mark, verb = "🟡" if worth >= 2.5 else "🟢", "answered"
    elif own and worth >= 0.3 * len(sentence) ** 0.6:
        mark, verb = "🔴", "stated"
    else:
        mark, verb = "🟡" if worth >= 2.5 else "🟢", "stated" if worth >= 1 else "said"
    return mark, verb, {word: factor * value for word, value in words.items()}


@lru_cache(20_000)
def _information(word: str) -> float:
    return max(0.0, 1 - 2.3 * (1 - rarity(word)))


def _choose(notes: Sequence[_Note], sizes: Counter[_Group]) -> list[_Note]:
    """Return the notes with the most information for their length, in order; at least one unless ``notes`` is empty.

    A word that was chosen before counts little. The user comes first, then the assistant, then tools; each group may
    use the room that the one before it left.
    """
    chosen: list[_Note] = []
    lines: set[tuple[int, str]] = set()
    told = Counter({name.lower(): 2 for note in notes if note.group == "people" for name in note.line.text.split()})
    room = 0.0

    def cost(note: _Note, new_line: int) -> int:
        shares = note.group != "tools" and (note.place[0], note.line.text) in lines
        return min(len(note.text), _LONGEST_NOTE) + (1 if shares else new_line)

    def rank(note: _Note) -> float:
        worth = sum(value * (1, 0.2, 0.04)[min(told[word], 2)] for word, value in note.words.items())
        return -worth / cost(note, _NEW_LINE + 14) ** 0.6

    for group, (share, share_of_few, most_of_few) in _ROOM.items():
        room += max(share * sizes[group], min(share_of_few * sizes[group], most_of_few))
        heap = [(rank(note), note.place, note) for note in notes if note.group == group and note.worth >= 1]
        heapify(heap)
        while heap:
            _, place, note = heappop(heap)
            now = rank(note)
            if heap and now > heap[0][0]:  # notes chosen since then have some of its words
                heappush(heap, (now, place, note))
            elif cost(note, _NEW_LINE) <= room:
                room -= cost(note, _NEW_LINE)
                chosen.append(note)
                lines.add((place[0], note.line.text))
                told.update(note.words.keys())
    return sorted(chosen, key=lambda note: note.place) or sorted(notes, key=lambda note: -note.worth)[:1]


def _lines(notes: Sequence[_Note]) -> Iterator[Line]:
    """Yield lines of the diary; sentences of a message with the same head share a line."""
    lines: dict[object, list[_Note]] = {}
    for note in notes:
        lines.setdefault(note.place if note.group == "tools" else (note.place[0], note.line.text), []).append(note)
    for parts in lines.values():
        texts = [annotate_dates(shorten(part.text, _LONGEST_NOTE), part.day) for part in parts]
        texts = [text if text.endswith(_STOPS) else f"{text};" for text in texts[:-1]] + texts[-1:]
        mark = min((part.line.mark for part in parts), key=MARKS.index)
        yield replace(parts[0].line, mark=mark, text=" ".join([parts[0].line.text, *texts]))


def _hints(messages: Sequence[Message]) -> tuple[str | None, str | None]:
    """Return the current task and the suggested response; None if nothing shows them, and in conversations of named
    people."""
    users = [message for message in messages if message.role == "user" and message.text.strip()]
    if not users or any(isinstance(message.metadata.get("name"), str) for message in messages):
        return None, None
    said = [each for each in split_sentences(users[-1].text) if sum(_weigh(each, "user")[2].values()) >= 0.5]
    asked = [each for each in said if each.endswith(_QUESTION_ENDS)]
    wish = shorten(" ".join(asked[-2:] or said[-1:]), _LONGEST_HINT)
    task = f"The user's last request: {wish}" if wish else None
    if messages[-1] is users[-1]:
        return task, f"Answer the user: {wish}" if wish else None
    questions = [each for each in split_sentences(messages[-1].text)[-3:] if each.endswith(_QUESTION_ENDS)]
    if messages[-1].role == "assistant" and questions:
        return task, f"Wait for the user's answer to: {shorten(questions[-1], _LONGEST_HINT)}"
    return task, None


def split_sentences(text: str) -> list[str]:
    """Split ``text`` into sentences of at most 500 characters; of a long text, return the first 300 and the last 100.

    Headings, fenced code, lines that are mostly signs and digits, and elements named like ``<system-reminder>`` are
    left out.
    """
    sentences: list[str] = []
    for raw in _prose(clip(text)).splitlines():
        if not any(map(str.isalnum, raw)) or _HEADING.fullmatch(raw[:200]):
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
    for opening in _LEFT_OUT.finditer(text):
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
