"""Measure notes without a model as judge: what they keep, invent, credit to the wrong person, and cost.

``measure`` gives conversations to an Observer in batches, as memory would, and compares its notes with selections of
the same size made without judgement (``baselines``). See docs/explanation/how-good-is-it.md.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from diarist.chunks import Usage
from diarist.evals.anchors import AnchorKind, Sources, find_anchors
from diarist.evals.baselines import BY_BATCH, WHOLE, fill, messages_of, sentences_of, split_sentences
from diarist.evals.evidence import Conversation, Question, dates_between, full_text, stems
from diarist.evals.work import STOPS
from diarist.exceptions import ModelError, RoleError
from diarist.memory.observational.roles.base import ObserverRole
from diarist.memory.observational.roles.extractive.dates import annotate_dates
from diarist.memory.observational.roles.extractive.reflector import read_lines
from diarist.memory.observational.roles.transcript import speaker
from diarist.messages import Message, ToolPart
from diarist.storage.records import Observation
from diarist.tokens import TokenCounter, default_counter

_PAUSE = timedelta(hours=1)
_COUNTED = re.compile(r"\b\d+ (?:lines?|items?)\b")
"""Sizes of tool results, which an Observer counts."""


@dataclass(slots=True)
class Kept:
    """Results of the notes or of one baseline.

    Attributes:
        tokens: Size, in tokens.
        questions: For each kind, the number of questions with all their evidence.
        dates: Number of questions after a date with that date, and its year, in the text itself.
        anchors: For each speaker (``user``, ``assistant``, ``tool``) and kind, the number of anchors that are kept.
    """

    tokens: int = 0
    questions: Counter[str] = field(default_factory=Counter[str])
    dates: int = 0
    anchors: Counter[tuple[str, AnchorKind]] = field(default_factory=Counter[tuple[str, AnchorKind]])


@dataclass(slots=True)
class Retention:
    """The results of ``measure``.

    Attributes:
        conversations, messages, tokens: Size of what was read, in tokens without labels.
        asked: Number of questions of each kind.
        asked_dates: Number of questions whose answer is a date.
        anchors: Number of anchors in the messages, by speaker and kind.
        kept: Results of ``notes`` and of each baseline, by name.
        lines: Lines of notes.
        invented: Lines with an anchor that no message of their batch has, with those anchors.
        credited: Lines of conversations between named people that name one of them.
        miscredited: Those that name the wrong one first.
        failed: The error of each batch that the Observer failed at.
        usage, calls, seconds: The Observer's.
    """

    conversations: int = 0
    messages: int = 0
    tokens: int = 0
    asked: Counter[str] = field(default_factory=Counter[str])
    asked_dates: int = 0
    anchors: Counter[tuple[str, AnchorKind]] = field(default_factory=Counter[tuple[str, AnchorKind]])
    kept: dict[str, Kept] = field(default_factory=dict[str, Kept])
    lines: int = 0
    invented: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    credited: int = 0
    miscredited: list[str] = field(default_factory=list[str])
    failed: list[str] = field(default_factory=list[str])
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    seconds: float = 0.0

    def share(self, name: str, kind: str | None = None) -> float:
        """Return the share of questions, of one kind or of all, that ``name`` keeps; 0.0 without such questions."""
        asked = self.asked.total() if kind is None else self.asked[kind]
        kept = self.kept[name].questions
        return (kept.total() if kind is None else kept[kind]) / asked if asked else 0.0


async def measure(
    conversations: Sequence[Conversation],
    observer: ObserverRole,
    *,
    batch_tokens: int = 6_000,
    window_tokens: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Retention:
    """Return what the notes of ``observer`` keep, beside baselines of the same size.

    A batch ends at a pause of an hour, or at ``batch_tokens``. A question is kept if each piece of its evidence is in
    the notes of that batch.

    Args:
        window_tokens: The newest messages of each conversation, up to this size, stay raw beside the notes; the
            baselines get the same room.
        progress: Called with a line of text when a batch begins.

    Raises:
        ModelError: No further batch would have notes: the key is wrong, or the provider refuses or cannot be reached.
    """
    counter = default_counter()
    result = Retention(kept={name: Kept() for name in ("notes", *WHOLE, *BY_BATCH)})
    for conversation in conversations:
        messages = [message for message in conversation.messages if message.role != "system"]
        sizes = {message.id: counter.count(full_text(message)) for message in messages}
        batches = _batches(messages, sizes, batch_tokens)
        window: set[str] = set()
        left = window_tokens
        for message in reversed(messages):
            left -= sizes[message.id]
            if left < 0:
                break
            window.add(message.id)
        result.conversations += 1
        result.messages += len(messages)
        result.tokens += sum(sizes.values())
        notes: list[str] = []
        earlier: list[Observation] = []
        for number, batch in enumerate(batches, 1):
            if progress:
                place = f"conversation {result.conversations} of {len(conversations)}"
                progress(f"{place}: batch {number} of {len(batches)}, {len(batch)} messages")
            old = [message for message in batch if message.id not in window]
            text = await _observe(old, observer, earlier, counter, result)
            raw = (f"{speaker(m)}: {full_text(m)}" for m in batch if m.id in window)
            notes.append("\n".join([text, *raw]))
        texts = _baselines(batches, notes, counter)
        _count_kept(conversation.questions, batches, {"notes": notes, **texts}, counter, result)
    return result


async def _observe(
    messages: Sequence[Message],
    observer: ObserverRole,
    earlier: list[Observation],
    counter: TokenCounter,
    result: Retention,
) -> str:
    """Return the notes of a batch, and add them to ``earlier``. A batch that the Observer fails at has no notes."""
    texts: list[str] = []
    left: Sequence[Message] = messages
    while left:
        started = time.perf_counter()
        try:
            observed = await observer.observe(left, earlier=earlier)
        except STOPS:
            raise
        except (RoleError, ModelError) as error:
            result.failed.append(str(error))
            break
        finally:
            result.seconds += time.perf_counter() - started
        result.usage += observed.usage
        result.calls += observed.calls
        texts.append(observed.text)
        earlier.append(as_entry(observed.text, len(earlier), counter))
        _judge(observed.text, left, result)
        left = [message for message in messages if message.id in observed.unnoted]
    return "\n".join(texts)


def _batches(messages: Sequence[Message], sizes: dict[str, int], limit: int) -> list[list[Message]]:
    batches: list[list[Message]] = []
    size = 0
    before: datetime | None = None
    for message in messages:
        pause = bool(before and message.created_at and message.created_at - before >= _PAUSE)
        if not batches or pause or size + sizes[message.id] > limit:
            batches.append([])
            size = 0
        batches[-1].append(message)
        size += sizes[message.id]
        before = message.created_at or before
    return batches


def as_entry(text: str, number: int, counter: TokenCounter) -> Observation:
    """Return notes as an entry of the log, to be the earlier notes of a later call."""
    return Observation(
        id=f"entry-{number}",
        text=text,
        tokens=counter.count(text),
        sources=(),
        message_tokens=0,
        message_count=0,
        observed_at=datetime(2000, 1, 1, tzinfo=UTC),
        cycle_id=f"entry-{number}",
    )


def _baselines(
    batches: Sequence[Sequence[Message]], notes: Sequence[str], counter: TokenCounter
) -> dict[str, list[str]]:
    room = [counter.count(text) for text in notes]
    made: dict[str, list[str]] = {}
    whole, sentences = messages_of(batches, counter), sentences_of(batches, counter)
    for name, order in WHOLE.items():
        made[name] = [""] * len(batches)
        for piece in fill(order(whole), sum(room)):
            made[name][piece.batch] += piece.line
    for name, order in BY_BATCH.items():
        made[name] = []
        for number, messages in enumerate(batches):
            said = messages[0].created_at
            heading = f"Date: {said:%Y-%m-%d}\n" if said else ""
            mine = [piece for piece in sentences if piece.batch == number]
            chosen = fill(order(mine), room[number] - counter.count(heading))
            made[name].append(heading + "".join(piece.line for piece in chosen))
    return made


class _Text:
    """Notes of a batch, prepared for look-ups."""

    def __init__(self, text: str) -> None:
        self.lines = "\n".join(line for line in text.splitlines() if not line.startswith("Date:"))
        self.lower = " ".join(self.lines.lower().replace("’", "'").split())
        self.stems = set(stems(self.lines))

    def has(self, forms: Sequence[str]) -> bool:
        return any(form in self.stems or (not form.isalpha() and form in self.lower) for form in forms)


def _count_kept(
    questions: Sequence[Question],
    batches: Sequence[Sequence[Message]],
    texts: dict[str, list[str]],
    counter: TokenCounter,
    result: Retention,
) -> None:
    batch_of = {message.id: number for number, batch in enumerate(batches) for message in batch}
    found = [[(_role(message), find_anchors(full_text(message))) for message in batch] for batch in batches]
    for batch in found:
        for who, anchors in batch:
            result.anchors.update((who, anchor.kind) for anchor in anchors)
    for question in questions:
        result.asked[question.kind] += 1
        result.asked_dates += question.between is not None
    for name, by_batch in texts.items():
        kept = result.kept[name]
        kept.tokens += counter.count("\n".join(by_batch))
        prepared = [_Text(text) for text in by_batch]
        for question in questions:
            places = {batch_of[id] for _, ids in question.pieces for id in ids}
            dated = question.between and any(
                dates_between(prepared[place].lines, *question.between) for place in places
            )
            kept.dates += bool(dated)
            whole = all(any(prepared[batch_of[id]].has(forms) for id in ids) for forms, ids in question.pieces)
            kept.questions[question.kind] += bool(dated or whole)
        for batch, text in zip(found, by_batch, strict=True):
            known = Sources([text])
            for who, anchors in batch:
                kept.anchors.update((who, anchor.kind) for anchor in anchors if anchor in known)


def _role(message: Message) -> str:
    return "tool" if any(isinstance(part, ToolPart) for part in message.parts) else message.role


def _judge(text: str, messages: Sequence[Message], result: Retention) -> None:
    """Look for lines with anchors that no message has, and lines that name the wrong speaker first."""
    texts = [full_text(message) for message in messages]
    said = [message.created_at.date() if message.created_at else None for message in messages]
    computed = [
        "\n".join([text, *(annotate_dates(sentence[:500], day) for sentence in split_sentences(text[:20_000]))])
        for text, day in zip(texts, said, strict=True)
    ]
    known = Sources([*computed, *(f"{day:%Y-%m-%d}" for day in set(said) if day), *{speaker(m) for m in messages}])
    names = {speaker(message).lower() for message in messages if isinstance(message.metadata.get("name"), str)}
    words = [set(stems(text)) for text in texts]
    for line in read_lines(text):
        result.lines += 1
        anchors = find_anchors(_COUNTED.sub("", line.text))
        missing = [anchor.text for anchor in anchors if anchor not in known]
        if missing:
            result.invented.append((line.text, missing))
        if names:
            low = line.text.lower()
            first = min((name for name in names if name in low), key=low.find, default=None)
            mine = set(stems(line.body)) - {word for name in names for word in stems(name)}
            shared = [len(mine & each) for each in words]
            if first is None or not shared or max(shared) < 2:
                continue
            sources = {speaker(m).lower() for m, n in zip(messages, shared, strict=True) if n == max(shared)}
            result.credited += 1
            if first not in sources:
                result.miscredited.append(line.text)
