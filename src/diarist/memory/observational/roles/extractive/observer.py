"""The Observer that needs no model: it keeps what has the most information for its size."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from heapq import heapify, heappop, heappush

from diarist.byte_cache import cached
from diarist.chunks import Usage
from diarist.memory.observational.prompt.threads import by_thread, thread_label
from diarist.memory.observational.roles.base import Observed
from diarist.memory.observational.roles.extractive import reflector as diary
from diarist.memory.observational.roles.extractive.dates import annotate_dates, has_date
from diarist.memory.observational.roles.extractive.reflector import fingerprint
from diarist.memory.observational.roles.extractive.tools import note_tool, shorten
from diarist.memory.observational.roles.parsing import escape_tags
from diarist.memory.observational.roles.transcript import date_heading, load_zone, local_time, speaker
from diarist.messages import FilePart, Message, TextPart, ToolPart
from diarist.storage.records import Observation
from diarist.tokens import rarity

_SHARES = {"user": 0.45, "people": 0.33, "assistant": 1 / 15, "tools": 1 / 12}
"""Size of each group's notes, as a share of the characters that were read. ``people`` are speakers with a name."""
_SMALL = 330
"""Characters of notes that each group may have in any case, if its texts have at least a third of that."""
_LONGEST_NOTE, _LINE = 260, 26
"""Maximum characters of a sentence in the notes, and what a line has in addition to it."""

_LEFT_OUT = re.compile(r"\s*(?:(?P<fence>```|~~~)|<(?P<name>[a-z]+[-_][a-z_-]+)(?:\s[^<>]*)?>)")
_CLOSING = re.compile(r"```|~~~|</[a-z_-]+>")
_MARKUP = re.compile(r"^[\s>#|]*(?:[-*+•–]\s+|\d{1,3}[.)]\s+)?|\*{1,3}|~~|\x1b\[[0-9;?]*[A-Za-z]")
_SENTENCE_END = re.compile(r"(?<=[.!?…])(?<!\b[A-Z]\.)(?<!\b[A-Z][a-z]\.)[\"”’')]?\s+(?=[^a-z\s])|(?<=[。！？])")
_QUESTION = re.compile(r"[?？؟][\"”’') ]*$")
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,2}|[^\W_]+")
_OWN = re.compile(
    r"\b(?:i|my|we|our|ich|mein\w*|wir|unser\w*|je|mon|ma|nous|yo|mis?|io|mi[oa]|noi|eu|meu|minha)\b|\bj['’]|[私僕我나]|저는|أنا",
    re.IGNORECASE,
)


class ExtractiveObserver:
    """Picks lines out of a conversation by their information: offline, free, deterministic.

    It keeps, in the speakers' own words, the sentences with the most rare words, names, numbers and dates for their
    size, each word counting fully only once, and the outcome of each tool call. Days such as "next Friday" get their
    date. The notes are about half of what a user says, a third of what named people say, a twelfth of what tools
    return and a fifteenth of an assistant's answers.

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
        lines: list[diary.Line] = []
        cited: list[tuple[str, ...]] = []
        for id, section in threads.items():
            label = thread_label(id, obscured=self._obscure_threads)
            thread = label if self._name_threads or len(threads) > 1 else None
            notes: list[_Note] = []
            for _, message in section:
                await asyncio.sleep(0)  # let other tasks run: the work per message is limited
                notes += _notes_of(message)
            for line in _lines(_choose(notes, set(known)) or sorted(notes, key=lambda note: -note.worth)[:1]):
                lines.append(_write(line, self._zone, thread))
                cited.append((line[0].message.id,))
        text = escape_tags(diary.write_lines(lines))
        ids = iter(cited)
        task, response = _hints(visible) if len(threads) == 1 else (None, None)
        return Observed(
            text=text,
            current_task=task,
            suggested_response=response,
            citations=tuple(() if row.startswith("Date:") else next(ids, ()) for row in text.splitlines()),
            usage=Usage(),
            model=diary.MODEL,
            calls=0,
        )


@dataclass(frozen=True, slots=True)
class _Note:
    """A sentence, an attachment or a tool call that could be noted.

    Attributes:
        head: Begins the line, such as ``User stated:``.
        size: Characters that it was made from.
        words: Its words with the information of each. An entry for the text itself is information beside its words.
    """

    message: Message
    group: str
    mark: str
    head: str
    text: str
    size: int
    words: dict[str, float]

    @property
    def worth(self) -> float:
        return sum(self.words.values())


def _notes_of(message: Message) -> Iterator[_Note]:
    """Yield everything in a message that could be noted."""
    named = isinstance(message.metadata.get("name"), str)
    group, who = "people" if named else "user" if message.role == "user" else "assistant", speaker(message)
    for part in message.parts:
        match part:
            case TextPart():
                sentences = split_sentences(part.text)
                for text in sentences:
                    mark, verb, words = _weigh(text, group)
                    yield _Note(message, group, mark, f"{who} {verb}:", text, len(text), words)
                if not sentences and (text := " ".join(part.text[:200].split())):
                    yield _Note(message, group, "🟢", f"{who} said:", text, 0, {})
            case FilePart():
                text = f"attached{f' {part.name!r}' if part.name else ''} ({part.media_type})"
                yield _Note(message, group, "🟡", who, text, len(text), {text: 5.0})
            case ToolPart():
                text, mark = note_tool(part)
                yield _Note(
                    message, "tools", mark, "Assistant called", text, len(part.result_text) + len(text), {text: 3.0}
                )
            case _:
                pass


def _weigh(sentence: str, group: str) -> tuple[str, str, dict[str, float]]:
    """Return a sentence's mark, the verb of its note, and its words with their information.

    Names and numbers are worth two or three times as much as other rare words, words of everyday talk nothing. The
    weights were chosen on LoCoMo and tau-bench (see docs/explanation/how-good-is-it.md).
    """
    words = {sentence: 2.0} if has_date(sentence) else {}
    for found in _WORD.finditer(sentence):
        word = found[0].lower()
        if not word.isalpha():
            words[word] = 3.0
        elif worth := _information(word):
            words[word] = worth + (1 if found.start() and found[0][0].isupper() else 0)
    own, question = _OWN.search(sentence) is not None, _QUESTION.search(sentence) is not None
    if own:
        words = {word: 1.3 * worth for word, worth in words.items()}
    mark = "🟢" if sum(words.values()) < 1.5 else "🔴" if own and group != "assistant" and not question else "🟡"
    verb = "asked" if question else "answered" if group == "assistant" else "said" if mark == "🟢" else "stated"
    return mark, verb, words


@lru_cache(20_000)
def _information(word: str) -> float:
    return max(0.0, 1 - 2.3 * (1 - rarity(word)))


def _choose(notes: Sequence[_Note], known: set[str]) -> list[_Note]:
    """Return the notes with the most information for their length, in order.

    A word that was chosen before counts little, and so do the names of the speakers. Notes in ``known`` are left out;
    chosen ones are added to it. Each group may use the room that the one before it left.
    """
    chosen: list[int] = []
    told = Counter({name.lower(): 2 for note in notes for name in note.head.split()})
    room = 0.0

    def rank(note: _Note) -> float:
        return -sum(worth * 0.2 ** told[word] for word, worth in note.words.items()) / (len(note.text) + 40) ** 0.65

    for group, share in _SHARES.items():
        size = sum(note.size for note in notes if note.group == group)
        room += max(share * size, min(3 * size, _SMALL))
        heap = [(rank(note), place) for place, note in enumerate(notes) if note.group == group and note.worth >= 1]
        heapify(heap)
        while heap:
            place = heappop(heap)[1]
            note = notes[place]
            now, mark, cost = rank(note), fingerprint(note.text), min(len(note.text), _LONGEST_NOTE) + _LINE
            if heap and now > heap[0][0]:  # notes chosen since then have some of its words
                heappush(heap, (now, place))
            elif cost <= room and mark not in known:
                room -= cost
                chosen.append(place)
                known.add(mark)
                told.update(note.words.keys())
    return [notes[place] for place in sorted(chosen)]


def _lines(notes: Sequence[_Note]) -> list[list[_Note]]:
    """Group notes into lines: sentences of a message with the same head share one."""
    lines: dict[object, list[_Note]] = {}
    for note in notes:
        lines.setdefault((note.message.id, note.text if note.group == "tools" else note.head), []).append(note)
    return list(lines.values())


def _write(notes: Sequence[_Note], zone: tzinfo, thread: str | None) -> diary.Line:
    said = local_time(notes[0].message, zone)
    texts = [annotate_dates(shorten(note.text, _LONGEST_NOTE), said.date() if said else None) for note in notes]
    texts = [f"{text};" if text[-1].isalnum() else text for text in texts[:-1]] + texts[-1:]
    return diary.Line(
        date=date_heading(said, thread),
        mark=max((note.mark for note in notes), key=diary.RANKS.__getitem__),
        time=f"{said:%H:%M}" if said else "",
        text=" ".join([notes[0].head, *texts]),
    )


def _hints(messages: Sequence[Message]) -> tuple[str | None, str | None]:
    """Return the current task and the suggested response; None if nothing shows them, or if people are named."""
    users = [message for message in messages if message.role == "user" and message.text.strip()]
    if not users or any(isinstance(message.metadata.get("name"), str) for message in messages):
        return None, None
    said = [each for each in split_sentences(users[-1].text) if sum(_weigh(each, "user")[2].values()) >= 0.5]
    wish = shorten(" ".join([*filter(_QUESTION.search, said)][-2:] or said[-1:]), 300)
    task, response = f"The user's last request: {wish}", f"Answer the user: {wish}"
    if messages[-1] is not users[-1]:
        asked = [*filter(_QUESTION.search, split_sentences(messages[-1].text)[-3:])]
        response = f"Wait for the user's answer to: {shorten(asked[-1], 300)}" if asked else None
    return (task, response) if wish else (None, None)


def split_sentences(text: str) -> list[str]:
    """Split ``text`` into sentences of at most 500 characters; of a long text, return the first 300 and the last 100.

    Fenced code and elements named like ``<system-reminder>`` are left out. Reads 100,000 characters.
    """
    if len(text) > 100_000:
        text = f"{text[:80_000]}\n{text[-20_000:]}"
    closings, closing = set(_CLOSING.findall(text)), ""
    sentences: list[str] = []
    for raw in text.splitlines():
        line = raw
        if not closing and (opening := _LEFT_OUT.match(line)):
            closing, line = opening["fence"] or f"</{opening['name']}>", line[opening.end() :]
        if closing in closings:
            _, found, line = line.partition(closing)
            closing = "" if found else closing
        else:
            closing = ""
        line = " ".join(_MARKUP.sub("", line).split())
        if any(map(str.isalnum, line)):
            sentences += [piece[:500] for piece in _SENTENCE_END.split(line) if piece]
    return sentences if len(sentences) <= 400 else [*sentences[:300], *sentences[-100:]]


@cached(4_000_000)
def _fingerprints(notes: str) -> frozenset[str]:
    """Return the fingerprints of all lines and sentences of an entry. Cached, since entries rarely change."""
    bodies = (diary.body(line.text) for line in diary.read_lines(notes))
    return frozenset(fingerprint(text) for said in bodies for text in (said, *split_sentences(said)))
