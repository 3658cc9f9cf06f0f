"""Which candidates become lines, within a length that depends on what was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from diarist.memory.observational.roles.extractive.candidates import Candidate, Candidates, Place
from diarist.memory.observational.roles.extractive.lines import MARKS, Line
from diarist.memory.observational.roles.extractive.weighing import Kind, Speaker
from diarist.memory.observational.roles.transcript import date_heading

# How much of what was read may be noted, in characters.
_SHARES = {Speaker.USER: 0.45, Speaker.NAMED: 1 / 3, Speaker.ASSISTANT: 1 / 6, None: 1 / 15}
_MIN_SHARE_OF_PEOPLE = 1 / 3
_MIN_WORTH = 1.0
_MIN_ROOM = 300
_MIN_ROOM_OF_TOOLS = 600

_NEW_LINE = 26
_STOPS = (".", "!", "?", "…", ";", ":", ")", "。", "！", "？")
_STATED, _SAID = f" {Kind.STATED.value}:", f" {Kind.SAID.value}:"


def choose(candidates: Candidates) -> list[Candidate]:
    """Those that are worth most for their length, at least one if there is any, in their order.

    What people say comes first, then the assistant, then tools; room that one leaves is the next one's.
    """
    rooms = _rooms(candidates.characters)
    places = {each.place: each for each in candidates.found}
    chosen: dict[Place, Candidate] = {}
    lines: set[tuple[int, str]] = set()
    left = 0.0
    for groups in ((Speaker.USER, Speaker.NAMED), (Speaker.ASSISTANT,), (None,)):
        left += sum(rooms[group] for group in groups)
        mine = [each for each in candidates.found if each.group in groups]
        for candidate in sorted(mine, key=lambda each: (-_density(each), each.place)):
            needed = [candidate, places[candidate.owner]] if candidate.owner else [candidate]
            needed = [each for each in needed if each.place not in chosen]
            cost = sum(_cost(each, lines) for each in needed)
            if chosen and (cost > left or candidate.worth < _MIN_WORTH):
                continue
            chosen |= {each.place: each for each in needed}
            lines |= {_line_key(each) for each in needed}
            left -= cost
    return [chosen[place] for place in sorted(chosen)]


def compose(chosen: Iterable[Candidate]) -> Iterator[Line]:
    """Lines of the diary; sentences of one message that are of one kind share a line."""
    for _, group in groupby(chosen, key=lambda each: each.place[0] if each.group else each.place):
        members = list(group)
        heads = {each.head for each in members}
        shared: dict[str, list[Candidate]] = {}
        for each in members:
            stated = each.head.replace(_SAID, _STATED)
            shared.setdefault(stated if stated in heads else each.head, []).append(each)
        for head, parts in shared.items():
            words = _join([each.text for each in parts])
            yield Line(
                date=date_heading(parts[0].said),
                mark=min((each.mark for each in parts), key=MARKS.index),
                time=f"{parts[0].said:%H:%M}" if parts[0].said else "",
                text=f"{head} {words}".strip(),
                detail=parts[0].owner is not None,
                messages=tuple(sorted({message for each in parts for message in each.messages})),
            )


def _join(texts: list[str]) -> str:
    """One after the other; what has no full stop of its own ends with a semicolon."""
    stopped = [text if text.endswith(_STOPS) else f"{text};" for text in texts[:-1]]
    return " ".join([*stopped, texts[-1]])


def _rooms(characters: Counter[Speaker | None]) -> dict[Speaker | None, float]:
    """Characters for each group; where tools fill the conversation, people still get their part."""
    rooms = {group: characters[group] * share for group, share in _SHARES.items()}
    rooms[None] = max(rooms[None], min(characters[None] / 4, _MIN_ROOM_OF_TOOLS))
    total = max(_MIN_ROOM, sum(rooms.values()))
    people = rooms[Speaker.USER] + rooms[Speaker.NAMED]
    said = characters[Speaker.USER] + characters[Speaker.NAMED]
    rooms[Speaker.USER] += max(0.0, min(said, total * _MIN_SHARE_OF_PEOPLE) - people)
    rooms[Speaker.USER] += max(0.0, _MIN_ROOM - sum(rooms.values()))
    return rooms


def _density(candidate: Candidate) -> float:
    return candidate.worth / (len(candidate.text) + _NEW_LINE) ** 0.5


def _line_key(candidate: Candidate) -> tuple[int, str]:
    return candidate.place[0], candidate.head


def _cost(candidate: Candidate, lines: set[tuple[int, str]]) -> int:
    shares_line = candidate.group is not None and _line_key(candidate) in lines
    return len(candidate.text) + (1 if shares_line else _NEW_LINE)
