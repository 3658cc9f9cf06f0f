"""Conversations with known evidence: questions, and the messages and words that their answers come from."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from diarist.evals.anchors import find_anchors
from diarist.evals.datasets.beam import BEAM, flat
from diarist.evals.datasets.locomo import LoCoMo
from diarist.evals.items import History
from diarist.exceptions import InputError
from diarist.integrations.conversations import read_conversations
from diarist.integrations.conversations.loading import elements_of, fields_of, load
from diarist.messages import Json, Message, TextPart, ToolPart

LOCOMO_KINDS = {
    "single-hop": "one fact",
    "multi-hop": "several facts",
    "temporal": "when",
    "open-domain": "conclusions",
}
"""LoCoMo's categories in words. Adversarial questions ask for things that were never said, without evidence to keep."""

BEAM_KINDS = {
    "information_extraction": "facts",
    "knowledge_update": "updates",
    "multi_session_reasoning": "several sessions",
    "temporal_reasoning": "times",
    "preference_following": "preferences",
    "contradiction_resolution": "contradictions",
    "event_ordering": "orders",
    "summarization": "summaries",
}
"""BEAM's abilities in words. Abstention and instruction following have no evidence to keep."""

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "the a an and or of to in on at for is was were be been are am i he she they it his her their its my your our "
        "with by from as that this did do does has have had not no yes you we me him them who what when where which "
        "how why will would can could about into over after before during then than so but if also just very more most",
    )
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_ENDING = re.compile(r"(?<=\w{3})(?:ing|ed|es|s)$")
_MONTHS: tuple[str, ...] = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ANSWER = re.compile(
    r"(?P<before>.*?)(?<![a-z])(?:(?P<day1>\d{1,2})[^a-z\d]*)?"
    rf"(?P<month>{'|'.join(_MONTHS)})[a-z]*\.?\s*(?:(?P<day2>\d{{1,2}})(?!\d)(?:st|nd|rd|th)?)?[,.\s]*(?P<year>\d{{4}})",
)
_YEAR = re.compile(r"(?:in |since )?(?:the )?(?:summer (?:of )?)?(?P<year>(?:19|20)\d\d)\.?")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WHEN = re.compile(
    r"\b(?:(?:the )?day (?:after tomorrow|before yesterday)|yesterday|today|tomorrow|tonight|last night|this morning|"
    r"(?:last|next|this|this past|past|coming|that|every) (?:week|weekend|month|year|summer|winter|spring|fall|autumn|"
    r"(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?)|"
    r"(?:\w+ )?(?:days?|weeks?|weekends?|months?|years?) (?:ago|before|later|from now)|"
    r"(?:for|in|over|past|last|next) (?:about |the )?(?:\w+ )?(?:\w+ )?(?:days|weeks|months|years)|"
    r"(?:on )?(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:a|one|two|three|\d+) (?:days?|weeks?|months?|years?))\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and its evidence.

    Attributes:
        kind: Its category.
        pieces: What must be kept: for each piece its equivalent forms (stems, or whole phrases in lower case) and the
            ids of the messages that hold it. A piece is kept if one of its forms is.
        between: First and last day of a date that the answer names; None if it names none.
    """

    kind: str
    pieces: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    between: tuple[date, date] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in their order, and questions about them; none if the file has no questions."""

    messages: list[Message]
    questions: list[Question] = field(default_factory=list[Question])


def read_evidence(path: Path) -> list[Conversation]:
    """Read BEAM, or a file of any format that ``diarist observe`` reads.

    Questions of LoCoMo and BEAM keep their evidence. In runs of tau-bench a question is whether the arguments of the
    expected tool calls are kept. Other files have no questions.

    Raises:
        InputError: The file is not a conversation in a known format, or the folder has no chats of BEAM.
    """
    if _is_beam(path):
        return [_beam(history) for history in BEAM(path).histories]
    chats = read_conversations(path)
    match chats[0].format:
        case "locomo":
            return [_locomo(history) for history in LoCoMo(path).histories]
        case "tau-bench":
            runs = load(path).items
            return [_tau_bench(runs[chat.number - 1].value, chat.messages) for chat in chats]
        case _:
            return [Conversation(messages=chat.messages) for chat in chats]


def stems(text: str) -> list[str]:
    """Return the words of a text in lower case, without common ones and without English endings."""
    words = (word.replace("’", "'") for word in _WORD.findall(text.lower()))
    return [_ENDING.sub("", word.removesuffix("'s")) for word in words if word not in _COMMON and len(word) > 1]


def full_text(message: Message) -> str:
    """Return the text of a message with the arguments and results of its tool calls."""
    parts = (
        part.text if isinstance(part, TextPart) else f"{part.name}({part.args}) {part.result_text}"
        for part in message.parts
        if isinstance(part, TextPart | ToolPart)
    )
    return "\n".join(parts)


def dates_between(text: str, low: date, high: date) -> bool:
    """Return whether the text names a date between two days, with its year: a day, month or year."""
    for anchor in find_anchors(text):
        for reading in anchor.readings:
            if anchor.kind == "number" and re.fullmatch(r"(?:19|20)\d\d", reading):
                first, last = date(int(reading), 1, 1), date(int(reading), 12, 31)
            elif anchor.kind == "date" and not reading.startswith("-"):
                year, month, *day = map(int, reading.split("-"))
                try:
                    first = date(year, month, *day or [1])
                except ValueError:  # 31 April
                    continue
                last = first if day else date(year, month, calendar.monthrange(year, month)[1])
            else:
                continue
            if low <= first and last <= high:
                return True
    return False


def _messages(history: History) -> list[Message]:
    return [message for session in history.sessions for message in session.messages]


def _locomo(history: History) -> Conversation:
    messages = _messages(history)
    by_turn = {str(message.metadata.get("dia_id")): message for message in messages}
    made: list[Question] = []
    for question in history.questions:
        kind = LOCOMO_KINDS.get(question.type)
        ids = re.findall(r"D\d+:\d+", " ".join(question.evidence))
        turns = [by_turn[id] for id in dict.fromkeys(ids) if id in by_turn]
        if kind is None or not turns:
            continue
        between = _answer_dates(question.answer) if kind == "when" else None
        if between:
            asked = stems(question.text)
            pieces = [(_time_words(turn) or _common(asked, turn), (turn.id,)) for turn in turns]
            pieces = [(forms, ids) for forms, ids in pieces if forms]
        else:
            pieces = _words(stems(question.answer), turns)
        if pieces:
            made.append(Question(kind=kind, pieces=tuple(pieces), between=between))
    return Conversation(messages=messages, questions=made)


def _is_beam(path: Path) -> bool:
    with suppress(InputError):
        return path.is_dir() or "probing_questions" in fields_of(load(path).first)
    return False


def _beam(history: History) -> Conversation:
    """Return a chat. Orders and summaries retell many messages, so each item of their rubric is a question."""
    messages = _messages(history)
    by_id = {str(message.metadata["chat_id"]): message for message in messages}
    made: list[Question] = []
    for question in history.questions:
        kind, sources = BEAM_KINDS.get(question.type), question.data.get("source_chat_ids")
        if kind == "updates":
            sources = fields_of(sources).get("updated_info")
        turns = [by_id[id] for id in dict.fromkeys(map(str, flat(sources))) if id in by_id]
        if kind is None or not turns:
            continue
        answers = [str(question.data.get("preference_being_tested") or question.answer)]
        if kind in ("orders", "summaries"):
            items = map(str, flat(question.data["rubric"]))
            answers = [item.removeprefix("LLM response should contain:") for item in items]
        for answer in answers:
            if pieces := _words(stems(answer), turns):
                made.append(Question(kind=kind, pieces=tuple(pieces)))
    return Conversation(messages=messages, questions=made)


def _words(words: Sequence[str], turns: Sequence[Message]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    said = {turn.id: set(stems(full_text(turn))) for turn in turns}
    places = {word: tuple(id for id, known in said.items() if word in known) for word in words}
    return [((word,), ids) for word, ids in places.items() if ids]


def _time_words(turn: Message) -> tuple[str, ...]:
    text = full_text(turn)
    dates = [anchor.text.lower() for anchor in find_anchors(text) if anchor.kind == "date"]
    return tuple(dict.fromkeys([*(found[0] for found in _WHEN.finditer(text.lower())), *dates]))


def _common(asked: Sequence[str], turn: Message) -> tuple[str, ...]:
    """Return a word of the question that the turn has: the longest, since a turn without a time has its heading's."""
    known = set(stems(full_text(turn)))
    return tuple(sorted((word for word in asked if word in known), key=len)[-1:])


def _answer_dates(answer: str) -> tuple[date, date] | None:
    """Return the first and last day of an answer such as ``The week before 9 June 2023``."""
    text = answer.lower().strip()
    if year := _YEAR.fullmatch(text):
        return date(int(year["year"]), 1, 1), date(int(year["year"]), 12, 31)
    found = _ANSWER.match(text)
    if found is None:
        return None
    year, month = int(found["year"]), _MONTHS.index(str(found["month"])) + 1
    if not (day := found["day1"] or found["day2"]):
        return date(year, month, 1), date(year, month, calendar.monthrange(year, month)[1])
    try:
        known = date(year, month, int(day))
    except ValueError:
        return None
    before = found["before"]
    weekday = next((number for number, name in enumerate(_WEEKDAYS) if name in before), None)
    if weekday is not None and "before" in before:
        known -= timedelta(days=(known.weekday() - weekday) % 7 or 7)
    elif weekday is not None and "after" in before:
        known += timedelta(days=(weekday - known.weekday()) % 7 or 7)
    elif "before" in before:
        back = 14 if "week " in before else 9 if "weekend" in before or "days" in before else 14
        return known - timedelta(days=back * (2 if "two" in before else 1)), known - timedelta(days=1)
    elif "after" in before or "of" in before or "to" in before or "between" in before:
        return known - timedelta(days=7), known + timedelta(days=9)
    return known, known


def _tau_bench(run: Json, messages: list[Message]) -> Conversation:
    """Return a run. Each expected call is a question: are its arguments kept, as far as the conversation has them?"""
    said = {message.id: full_text(message).lower() for message in messages if message.role != "system"}
    task = fields_of(fields_of(fields_of(run).get("info")).get("task"))
    made: list[Question] = []
    for action in elements_of(task.get("actions")):
        leaves = flat(fields_of(action).get("kwargs"))
        values = {leaf.lower() for leaf in leaves if isinstance(leaf, str) and len(leaf) >= 4}
        places = {value: tuple(id for id, text in said.items() if value in text) for value in sorted(values)}
        if pieces := tuple(((value,), ids) for value, ids in places.items() if ids):
            made.append(Question(kind="arguments of calls", pieces=pieces))
    return Conversation(messages=messages, questions=made)
