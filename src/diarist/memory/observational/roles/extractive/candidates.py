"""Everything in a conversation that could become a note."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from diarist.memory.observational.roles.extractive.dates import annotate_dates
from diarist.memory.observational.roles.extractive.lines import body, fingerprint
from diarist.memory.observational.roles.extractive.sentences import shorten, split_sentences
from diarist.memory.observational.roles.extractive.tools import ToolNote, note_tool
from diarist.memory.observational.roles.extractive.weighing import Kind, Speaker, Weighed, replaced, weigh
from diarist.memory.observational.roles.transcript import speaker
from diarist.messages import FilePart, Message, TextPart, ToolPart

_SENTENCE = 260
_SENTENCES = {Speaker.USER: 6, Speaker.NAMED: 6, Speaker.ASSISTANT: 3}
_SINGLE_TOOLS = 2
_TOOL_NAMES = 8
_MAIN_POINT = 2.0

Place = tuple[int, int, int]
"""Message, part of it, detail of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A sentence, a tool call or a turn's tool calls together.

    Attributes:
        place: Where it is in the conversation.
        head: Who did what, such as ``"User stated:"``; sentences of a message with one head share a line.
        group: Whose room it takes; None is the room of tools.
        owner: Place of the line that it is a detail of.
        found_in: The messages that it was found in, where that is not the one of its place alone.
    """

    place: Place
    said: datetime | None
    mark: str
    head: str
    text: str
    worth: float
    group: Speaker | None
    owner: Place | None = None
    found_in: tuple[int, ...] = ()

    @property
    def messages(self) -> tuple[int, ...]:
        """The messages that it was found in."""
        return self.found_in or (self.place[0],)


class Candidates:
    """Collects candidates, message by message, and counts what they were found in.

    Args:
        noted: The lines of earlier notes; what they say is no candidate.

    Attributes:
        found: The candidates so far, in no particular order.
        characters: Length of what was read, by group.
    """

    def __init__(self, noted: Iterable[str]) -> None:
        self.found: list[Candidate] = []
        self.characters: Counter[Speaker | None] = Counter()
        self._known: set[str] = set()
        self._calls: list[tuple[Place, datetime | None, ToolNote]] = []
        for line in noted:
            said = body(line)
            self._known.update(fingerprint(text) for text in (line, said, *split_sentences(said)))

    def add(self, index: int, message: Message, said: datetime | None) -> None:
        """Read the message that comes ``index``-th; ``said`` is its time in the user's time zone."""
        who = speaker_of(message)
        if who is not Speaker.ASSISTANT and message.text.strip():
            self.close()
        for number, part in enumerate(message.parts):
            place = (index, number, 0)
            match part:
                case TextPart():
                    self._add_text(part.text, message, place, said)
                case FilePart():
                    name = f" {part.name!r}" if part.name else ""
                    text = f"attached{name} ({part.media_type})"
                    self._offer(
                        Candidate(
                            place=place, said=said, mark="🟡", head=speaker(message), text=text, worth=3, group=who
                        )
                    )
                case ToolPart():
                    note = note_tool(part)
                    self.characters[None] += len(part.result_text) + len(note.call)
                    self._calls.append((place, said, note))
                case _:
                    pass

    def close(self) -> None:
        """Note the tool calls since the last message of a person: a few by themselves, more as one
        activity with its details."""
        calls, self._calls = self._calls, []
        counts = Counter(note.text for _, _, note in calls)
        merged = {note.text: (place, said, note) for place, said, note in reversed(calls)}
        owner = self._activity(calls) if len(calls) > _SINGLE_TOOLS else None
        by_place = sorted(merged.items(), key=lambda item: item[1][0])
        for number, (text, (place, said, note)) in enumerate(by_place, start=1):
            times = f" ×{counts[text]}" if counts[text] > 1 else ""
            candidate = Candidate(
                place=place,
                said=said,
                mark=_mark(note),
                head="" if owner else "Assistant called",
                text=text,
                worth=_worth(note),
                group=None,
                owner=owner,
            )
            if owner:
                candidate = replace(candidate, place=(*owner[:2], number), found_in=(place[0],))
            self._offer(candidate, suffix=times)

    def _activity(self, calls: Sequence[tuple[Place, datetime | None, ToolNote]]) -> Place:
        place, said, _ = calls[0]
        counts = Counter(note.name for _, _, note in calls).most_common()
        names = [f"{name} ×{n}" if n > 1 else name for name, n in counts[:_TOOL_NAMES]]
        more = ", …" if len(counts) > _TOOL_NAMES else ""
        text = f"Assistant made {len(calls)} tool calls: {', '.join(names)}{more}"
        messages = tuple(dict.fromkeys(place[0] for place, _, _ in calls))
        self.found.append(
            Candidate(place=place, said=said, mark="🟡", head="", text=text, worth=5, group=None, found_in=messages)
        )
        return place

    def _add_text(self, text: str, message: Message, place: Place, said: datetime | None) -> None:
        who = speaker_of(message)
        self.characters[who] += len(text)
        weighed = [weigh(sentence, who) for sentence in split_sentences(text)]
        best = sorted(weighed, key=lambda each: -each.worth)[: _SENTENCES[who]]
        kept = {id(each) for each in best if each.worth > 0 or each is best[0]}
        name = speaker(message)
        day = said.date() if said else None
        for number, each in enumerate(weighed):
            if id(each) in kept:
                self._offer(
                    Candidate(
                        place=(*place[:2], number),
                        said=said,
                        mark=each.mark,
                        head=f"{name} {each.kind.value}:",
                        text=_words(each, day),
                        worth=each.worth + (_MAIN_POINT if each is best[0] and who is Speaker.USER else 0),
                        group=who,
                    ),
                    known_as=each.text,
                )

    def _offer(self, candidate: Candidate, *, known_as: str | None = None, suffix: str = "") -> None:
        mark = fingerprint(known_as or candidate.text)
        if mark and mark not in self._known:
            self._known.add(mark)
            self.found.append(replace(candidate, text=candidate.text + suffix))


def speaker_of(message: Message) -> Speaker:
    """Who speaks; someone with a name of their own is one of several people."""
    if isinstance(message.metadata.get("name"), str):
        return Speaker.NAMED
    return Speaker.USER if message.role == "user" else Speaker.ASSISTANT


def _words(sentence: Weighed, day: date | None) -> str:
    text = annotate_dates(shorten(sentence.text, _SENTENCE), day)
    if sentence.kind is Kind.CHANGED and (old := replaced(sentence.text)):
        return f"{text} (replaces {old})"
    return text


def _mark(note: ToolNote) -> str:
    if note.changes and note.outcome and not note.failed:
        return "✅"
    return "🟡" if note.outcome else "🟢"


def _worth(note: ToolNote) -> float:
    if note.vague:
        return 1.0
    if note.failed:
        return 4.0
    return 6.0 if note.changes else 2.5
