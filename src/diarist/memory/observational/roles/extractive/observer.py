"""The Observer that needs no model: it keeps what has the most information for its size."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from heapq import heapify, heappop, heappush

from diarist.byte_cache import cached
from diarist.chunks import Usage
from diarist.memory.observational.config import ObservationalMemoryConfig
from diarist.memory.observational.prompt.threads import by_thread, thread_label
from diarist.memory.observational.roles.base import EXTRACTIVE, Observed
from diarist.memory.observational.roles.extractive.dates import annotate_dates, has_date
from diarist.memory.observational.roles.extractive.reflector import RANKS, Line, fingerprint, read_lines, write_lines
from diarist.memory.observational.roles.extractive.tools import ERROR_LINE, note_tool, shorten_at_space
from diarist.memory.observational.roles.parsing import escape_tags
from diarist.memory.observational.roles.transcript import date_heading, load_zone, local_time, pair_results, speaker
from diarist.messages import FilePart, Message, TextPart, ToolPart
from diarist.storage.records import Observation
from diarist.tokens import rarity

_ROOM = {
    "user": (0.45, 3, 300),
    "people": (0.315, 3, 300),
    "assistant": (1 / 15, 1 / 6, 300),
    "tools": (1 / 10, 1, 600),
}
"""Size of each group's notes: its share of the characters that were read, or its share of short texts up to a number of
characters; the larger one applies. ``people`` are speakers with a name."""
_SHARED = (("user", "assistant"), ("people",), ("tools",))
"""Groups that share their room."""
_BESIDE_TOOLS = 30
"""Least room of the user's words in characters, for each tool call: beside many calls, all of them are noted."""
_LONG, _LONGEST_NOTE, _LINE = 3_000, 260, 26
"""Characters of a message after which a fifth of the rest counts; of the longest note; of a line without its notes."""

_LEFT_OUT = re.compile(r"^[ \t]*(?:(?P<fence>```|~~~)|<(?P<name>[a-z]+[-_][a-z_-]+)(?:\s[^<>]*)?>)", re.MULTILINE)
_HEADING = re.compile(r"\s*(?:#{1,6}\s.*|(?:[-*•\d.)]+\s+)?\*\*[^*]{1,120}\*\*:?\s*|[^.!?]{1,80}:\s*)")
_LINK = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()\s]{1,500}\)")
_MARKUP = re.compile(r"^[\s>#|]*(?:[-*+•–]\s+|\d{1,3}[.)]\s+)?|\*{1,3}|~~|\x1b\[[0-9;?]*[A-Za-z]")
_INITIAL = r"(?<!^[A-Za-z]\.)(?<![\s(.][A-Za-z]\.)"
_ABBREVIATION = r"(?<!\b(?:Mr|Ms|Dr|St|No|vs)\.)(?<!\b(?:Mrs|etc)\.)(?<!\bProf\.)(?<!\bapprox\.)"
_SENTENCE_END = re.compile(rf"(?<=[.!?…]){_INITIAL}{_ABBREVIATION}[\"”’')]?\s+(?=[^a-z\s])|(?<=[。！？])")
_CLAUSE = re.compile(
    rf".{{1,{_LONGEST_NOTE}}}$|.{{60,{_LONGEST_NOTE - 3}}}(?:[,;]\s|\s[-–—]\s|[，、；])"
    rf"|.{{1,{_LONGEST_NOTE - 1}}}\s|.{{1,{_LONGEST_NOTE}}}"
)
_QUESTION = re.compile(r"[?？؟][\"”’') ]*$")
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,2}|[^\W_]+(?:[@/\\_.:]+[^\W_]+)*")
_CONTRACTION = re.compile(r"\w['’](?!s\b)\w")
_NO_SIGN = re.compile(r"[\w\s]+")
_OWN = re.compile(
    r"\b(?:I|[Mm]y|[Ww]e|[Oo]ur|[Ii]ch|[Mm]ein\w*|[Ww]ir|[Uu]nser\w*|[Jj]e|[Mm]on|[Mm]a|[Mm]es|[Nn]ous|[Yy]o|[Mm]is?|"
    r"[Nn]osotros|[Ii]o|[Mm]i[oa]|[Nn]oi|[Ee]u|[Mm]eu|[Mm]inha)\b|[Jj]['’]|私|僕|我|저는|나는|أنا"
)
_STANDING = re.compile(
    r"\b(?:always|never|prefer\w*|immer|nie(?:mals)?|lieber|toujours|jamais|siempre|nunca|sempre)\b", re.IGNORECASE
)
_rarity = lru_cache(20_000)(rarity)


class ExtractiveObserver:
    """Picks lines out of a conversation by their information: offline, free, deterministic.

    It keeps, in the speakers' own words, the sentences with the most rare words, names, numbers and dates for their
    size, each word counting fully only once, and the outcome of each tool call. Days such as "next Friday" get their
    date. The notes are about half of what a user says (nearly all beside many tool calls), a third of what named people
    say, a tenth of what tools return, and a fifteenth of an assistant's answers. User and assistant share their room.
    Of fenced code, only the line of an error is noted.

    A model does better: this does not resolve "he" or "there", and does not combine messages. Rarity comes from the
    vocabulary of o200k_base, so it works in many languages; dates are resolved in English only.

    Of ``config`` (the defaults if None), it uses the time zone, and the scope and ``obscure_thread_ids`` for the names
    of threads.
    """

    def __init__(self, config: ObservationalMemoryConfig | None = None) -> None:
        self._config = config or ObservationalMemoryConfig()
        self._zone = load_zone(self._config.timezone)

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
        lines: list[tuple[str, Line]] = []  # with the id of the message
        for id, section in threads.items():
            label = thread_label(id, obscured=self._config.obscures_threads)
            thread = label if self._config.scope == "resource" or len(threads) > 1 else None
            notes: list[_Note] = []
            paired = pair_results(message for _, message in section)
            for _, message in section:
                await asyncio.sleep(0)  # let other tasks run: the work per message is limited
                notes += _notes_of(message, paired)
            by_line: dict[tuple[str, str], list[_Note]] = {}
            for note in _choose(notes, set(known)):
                by_line.setdefault(note.line, []).append(note)
            lines += [(each[0].message.id, _write(each, self._zone, thread)) for each in by_line.values()]
        text = escape_tags(write_lines(line for _, line in lines))
        cited = iter([(id,) for id, _ in lines])
        task, response = _hints(visible) if len(threads) == 1 else (None, None)
        return Observed(
            text=text,
            current_task=task,
            suggested_response=response,
            citations=tuple(() if row.startswith("Date:") else next(cited, ()) for row in text.splitlines()),
            usage=Usage(),
            model=EXTRACTIVE,
            calls=0,
        )


@dataclass(frozen=True, slots=True)
class _Note:
    """A sentence, an attachment or a tool call that could be noted.

    Attributes:
        group: A key of ``_ROOM``.
        head: Begins the line, such as ``User stated:``.
        size: Characters that it was made from; fewer in a long message.
        words: Its words with the information of each. An entry for the text itself is information beside its words.
        weight: A factor for its information.
    """

    message: Message
    group: str
    mark: str
    head: str
    text: str
    size: float
    words: dict[str, float]
    weight: float = 1.0

    @property
    def line(self) -> tuple[str, str]:
        """Notes with an equal ``line`` share one line of the diary."""
        return self.message.id, self.text if self.group == "tools" else self.head

    @property
    def form(self) -> str:
        """Equal for the rows of a table or log in a message: the signs of a sentence, if it has more than three."""
        signs = _NO_SIGN.sub("", self.text)
        return f"{self.message.id} {signs if len(signs) > 3 and self.group != 'tools' else self.text}"

    @property
    def worth(self) -> float:
        return sum(self.words.values())


def _notes_of(message: Message, paired: Mapping[int, ToolPart | None]) -> Iterator[_Note]:
    """Yield everything in a message that could be noted."""
    named = isinstance(message.metadata.get("name"), str)
    group, who = "people" if named else "user" if message.role == "user" else "assistant", speaker(message)
    for part in message.parts:
        if isinstance(part, TextPart):
            texts = [clause.strip() for each in split_sentences(part.text) for clause in _CLAUSE.findall(each)]
            size = sum(map(len, texts))
            share = min(size, _LONG + size // 5) / max(size, 1)
            for place, text in enumerate(texts):
                mark, verb, words = _weigh(text, group)
                inside = group == "user" and 0 < place < len(texts) - 1  # of a long message: often pasted
                weight = 0.5 if group == "assistant" else min(1.0, 300 / size) ** 0.5 if inside else 1.0
                yield _Note(message, group, mark, f"{who} {verb}:", text, share * len(text), words, weight)
            if not texts and (text := " ".join(part.text[:200].split())):
                yield _Note(message, group, "🟢", f"{who} said:", text, 0, {})
        elif isinstance(part, FilePart):
            text = f"attached{f' {part.name!r}' if part.name else ''} ({part.media_type})"
            yield _Note(message, group, "🟡", who, text, len(text), {text: 5.0})
        elif isinstance(part, ToolPart) and (call := paired.get(id(part), part)):
            text, mark = note_tool(call)
            denied = call.state == "denied"  # it and results that came later bring room for their line
            size = len(call.result_text) + len(text) + (_LINE if denied or message.role == "tool" else 0)
            size = min(size, _LONG + size // 5)
            worth = 6.0 if denied or mark == "✅" else 3.0
            yield _Note(message, "tools", mark, "Assistant called", text, size, {text: worth})


def _weigh(sentence: str, group: str) -> tuple[str, str, dict[str, float]]:
    """Return a sentence's mark, the verb of its note, and its words with their information.

    Names, numbers and dates are worth up to three times as much as other rare words, words of everyday talk nothing.
    A user's preferences and what always or never holds are worth as much as a number.
    The weights were chosen on LoCoMo and tau-bench (see docs/explanation/how-good-is-it.md).
    """
    standing = group == "user" and _STANDING.search(sentence)
    words = {sentence: 3.0} if standing or has_date(sentence) else {}
    for found in _WORD.finditer(sentence):
        word = found[0].lower()
        if not word.isalpha():
            words[word] = 3.0
        elif (worth := 1 - 2.3 * (1 - _rarity(word))) > 0:
            words[word] = worth + (1.2 if found.start() and found[0][0].isupper() else 0)
    worth = sum(words.values())
    own, question = _OWN.search(sentence) is not None, _QUESTION.search(sentence) is not None
    fact = worth + 0.8 * len(_CONTRACTION.findall(sentence)) >= 0.3 * len(sentence) ** 0.6  # "I'm vegan." is one
    important = own and fact and group != "assistant" and not question
    mark = "🔴" if important else "🟡" if question or worth >= 2.5 else "🟢"
    verb = "asked" if question else "stated" if important or worth >= 1 else "said"
    verb = "answered" if group == "assistant" and not question else verb
    factor = (1.2 if own else 1) * (0.6 if group != "user" and (question or sentence.endswith(":")) else 1)
    return mark, verb, {word: factor * value for word, value in words.items()}


def _choose(notes: Sequence[_Note], known: set[str]) -> list[_Note]:
    """Return the notes with the most information for their length, in order; at least one.

    A word that was chosen before counts little, and so do the names of the speakers and more rows of a table. In a
    user's long message, often pasted, the first and the last sentence count most. Notes in ``known`` are left out;
    chosen ones are added to it. Groups may use the room that those before them left, except that of the first pass.
    """
    chosen: list[int] = []
    lines: set[tuple[str, str]] = set()
    told = Counter({name.lower(): 2 for note in notes for name in note.head.split()})

    def room_of(group: str) -> float:
        share, share_of_few, most_of_few = _ROOM[group]
        size = sum(note.size for note in notes if note.group == group)
        return max(share * size, min(share_of_few * size, most_of_few))

    def cost(note: _Note) -> int:
        return min(len(note.text), _LONGEST_NOTE) + (1 if note.line in lines else _LINE)

    def rank(note: _Note) -> float:
        worth = sum(worth * 0.2 ** told[word] for word, worth in note.words.items())
        return -worth * note.weight * 0.5 ** told[note.form] / (cost(note) + 20) ** 0.7

    beside_tools = _BESIDE_TOOLS * sum(note.group == "tools" for note in notes)
    passes = [(("user",), beside_tools - room_of("user")), *((groups, sum(map(room_of, groups))) for groups in _SHARED)]
    left = 0.0
    for groups, room in passes:
        room += left
        telling = [(place, note) for place, note in enumerate(notes) if note.worth >= 1 or note.mark == "🔴"]
        heap = [(rank(note), place) for place, note in telling if note.group in groups]
        heapify(heap)
        while heap:
            place = heappop(heap)[1]
            note = notes[place]
            now = rank(note)
            if heap and now > heap[0][0]:  # notes chosen since then have some of its words
                heappush(heap, (now, place))
            elif cost(note) <= room and (mark := fingerprint(note.text)) not in known:
                room -= cost(note)
                chosen.append(place)
                lines.add(note.line)
                known.add(mark)
                told.update([*note.words, note.form])
        left = 0.0 if groups == ("user",) else room
    if chosen:
        return [notes[place] for place in sorted(chosen)]
    return sorted(
        notes, key=lambda n: (fingerprint(n.text) in known, n.group == "assistant" and n.worth < 1, -n.worth)
    )[:1]


def _write(notes: Sequence[_Note], zone: tzinfo, thread: str | None) -> Line:
    said = local_time(notes[0].message, zone)
    day = said.date() if said else None
    texts = [annotate_dates(shorten_at_space(note.text, _LONGEST_NOTE), day) for note in notes]
    texts = [f"{text};" if text[-1].isalnum() else text for text in texts[:-1]] + texts[-1:]
    return Line(
        date=date_heading(said, thread),
        mark=max((note.mark for note in notes), key=RANKS.__getitem__),
        time=f"{said:%H:%M}" if said else "",
        text=" ".join([notes[0].head, *texts]),
    )


def _hints(messages: Sequence[Message]) -> tuple[str | None, str | None]:
    """Return the current task and the suggested response; None if nothing shows them, or if people are named. The
    response is empty if the user was answered without a question, or asks for nothing."""
    spoken = [message for message in messages if message.role in ("user", "assistant") and message.text.strip()]
    if not spoken or any(isinstance(message.metadata.get("name"), str) for message in messages):
        return None, None
    asked_last = next((message.text for message in reversed(spoken) if message.role == "user"), "")
    said = [each for each in split_sentences(asked_last) if sum(_weigh(each, "user")[2].values()) >= 0.5]
    wish = shorten_at_space(" ".join([*filter(_QUESTION.search, said)][-2:] or said[-1:]), 300)
    task = f"The user's last request: {wish}" if wish else None
    if spoken[-1].role == "user":
        return task, f"Answer the user: {wish}" if wish else ""
    asked = [*filter(_QUESTION.search, split_sentences(spoken[-1].text)[-3:])]
    return task, f"Wait for the user's answer to: {shorten_at_space(asked[-1], 300)}" if asked else ""


def split_sentences(text: str) -> list[str]:
    """Split ``text`` into sentences of at most 3,000 characters; of a long text, return the first 300 and last 100.

    Headings, fenced code, lines that are mostly signs and digits, what has no letter after a sentence, and elements
    named like ``<system-reminder>`` are left out. Reads 100,000 characters.
    """
    if len(text) > 100_000:
        text = f"{text[:80_000]}\n{text[-20_000:]}"
    sentences: list[str] = []
    for raw in _prose(text).splitlines():
        if not any(map(str.isalnum, raw)) or _HEADING.fullmatch(raw[:200]):
            continue
        line = " ".join(_MARKUP.sub("", _LINK.sub(r"\1", raw)).split())
        letters = sum(map(str.isalpha, line)) + line.count(" ")
        if len(line) <= 40 or letters >= 0.6 * len(line):
            pieces = list(filter(None, _SENTENCE_END.split(line)))
            sentences += [piece[:_LONG] for piece in pieces if piece is pieces[0] or any(map(str.isalpha, piece))]
    return sentences if len(sentences) <= 400 else [*sentences[:300], *sentences[-100:]]


def _prose(text: str) -> str:
    """Leave out elements with all they contain, and fenced code except for the line of an error."""
    kept: list[str] = []
    start = 0
    for opening in _LEFT_OUT.finditer(text):
        closing = opening["fence"] or f"</{opening['name']}>"
        end = text.find(closing, opening.end()) if opening.start() >= start else -1
        if end >= 0:
            code = text[opening.end() : end].splitlines() if opening["fence"] else []
            errors = [line for line in code if ERROR_LINE.match(line[:300])]
            kept += [text[start : opening.start()], *errors[-1:]]
            start = end + len(closing)
    return "\n".join([*kept, text[start:]])


@cached(4_000_000)
def _fingerprints(notes: str) -> frozenset[str]:
    """Return the fingerprints of all lines and sentences of an entry. Cached, since entries rarely change."""
    bodies = (line.body for line in read_lines(notes))
    return frozenset(fingerprint(text) for said in bodies for text in (said, *split_sentences(said)))
