"""HaluMem (Chen et al., 2025, arXiv:2511.03506): formats and metrics of the published code.

Sources: ``README.md``, ``eval/evaluation.py`` and ``eval/eval_memos.py`` of the repository MemTensor/HaluMem, and a
copy of its ``eval/eval_tools.py`` for the scales of the judge. The license is CC BY-NC-ND 4.0, so the prompts here use
our own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, cast

from diarist.evals.datasets.base import (
    Ask,
    Dataset,
    Figure,
    Grade,
    Judged,
    field_of,
    json_reply,
    judged_mean,
    load_items,
    message,
    moment_or_none,
    objects,
    required,
)
from diarist.evals.items import History, Question, Session
from diarist.exceptions import ModelResponseError
from diarist.messages import Json

EXTRACTION, ACCURACY, UPDATE, ANSWERS = "extraction", "accuracy", "update", "answers"
INTERFERENCE = "interference"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(r"([A-Z][a-z]{2}) (\d{1,2}), (\d{4}), (\d{2}):(\d{2}):(\d{2})")


class HaluMem(Dataset):
    """20 users with about 70 sessions each (Medium), judged in parts: extraction, accuracy, update and answers.

    - ``extraction``: for each reference memory of a session, do the memories made from that session cover it? 2, 1 or 0
      points; only 2 is right. A false memory (``interference``) is right if it was not taken over.
    - ``accuracy``: for each session, how many of its memories does the dialogue support? 2, 1 or 0 points each.
    - ``update``: for each changed memory, does the context after the session hold the new state?
    - ``answers``: the reader's answers to the questions of a session, asked after it.
    """

    name = "halumem"
    title = "HaluMem"
    paper = "Chen et al. 2025, HaluMem: Evaluating Hallucinations in Memory Systems of Agents"
    source = "the dataset IAAR-Shanghai/HaluMem that the README of MemTensor/HaluMem links (HaluMem-Medium.jsonl)"
    metric = "share judged right (accuracy: mean points)"
    interleaved = True
    each_session = True

    def read(self) -> Iterator[History]:
        for number, user in enumerate(load_items(self.path), 1):
            yield _history(user, f"{self.path}, user {number}")

    def reader_prompt(self, question: Question, context: str) -> str:
        return self.fill("reader", context=context, question=question.text)

    async def grade(self, question: Question, response: str, ask: Ask | None) -> Grade:
        ask = required(ask)
        match question.part:
            case "extraction":
                return await self._extraction(question, response, ask)
            case "accuracy":
                return await self._accuracy(question, response, ask)
            case "update":
                prompt = self.fill(
                    "judge-update",
                    memories=response,
                    memory=question.answer,
                    original="\n".join(map(str, question.data["original"])),
                )
                known = ("Correct", "Hallucination", "Omission", "Other")
            case _:
                prompt = self.fill(
                    "judge-answer",
                    question=question.text,
                    answer=question.answer,
                    evidence="\n".join(question.evidence),
                    response=response,
                )
                known = ("Correct", "Hallucination", "Omission")
        label = await ask(prompt, lambda reply: _label(reply, known))
        return Grade(score=float(label == "Correct"), correct=label == "Correct", label=label or "")

    async def _extraction(self, question: Question, response: str, ask: Ask) -> Grade:
        points = 0
        if response.strip():  # as published: without any memory there is nothing to judge
            prompt = self.fill("judge-extraction", memories=response, memory=question.answer)
            points = await ask(prompt, _points)
        right = points == (0 if question.type == INTERFERENCE else 2)
        label = "" if points is None else f"{points} of 2"
        return Grade(score=float(right), correct=right, label=label, details={"points": points})

    async def _accuracy(self, question: Question, response: str, ask: Ask) -> Grade:
        found: list[dict[str, Json]] = []
        for note in filter(None, map(str.strip, response.splitlines())):
            prompt = self.fill(
                "judge-accuracy", dialogue=str(question.data["dialogue"]), golden=question.answer, memory=note
            )
            # as published: a memory whose judgement failed has no points, and is none of the target memories
            found.append(await ask(prompt, _note, about=note) or {"points": 0, "target": False})
        mean = judged_mean([one["points"] / 2 for one in found])
        return Grade(score=mean or 0.0, label=f"{len(found)} memories", details={"notes": cast(Json, found)})

    @classmethod
    def summary(cls, judged: Sequence[Judged]) -> list[Figure]:
        by_part = {
            part: [one for one in judged if one.question["part"] == part]
            for part in (EXTRACTION, ACCURACY, UPDATE, ANSWERS)
        }
        real = [one for one in by_part[EXTRACTION] if one.type != INTERFERENCE]
        false = [one for one in by_part[EXTRACTION] if one.type == INTERFERENCE]
        notes: list[Any] = []
        for one in by_part[ACCURACY]:
            notes += one.detail("notes") or []
        recall = judged_mean([one.score for one in real])
        weight = sum(float(one.question["data"]["importance"]) for one in real)
        weighted = sum((one.detail("points") or 0) / 2 * float(one.question["data"]["importance"]) for one in real)
        precision = judged_mean([note["points"] / 2 for note in notes if note["target"]])
        figures = [
            Figure("Extraction: recall", recall),
            Figure("Extraction: weighted recall", weighted / weight if weight else None),
            Figure("Extraction: target precision", precision),
            Figure("Extraction: F1 of recall and target precision", _harmonic(recall, precision)),
            Figure("Extraction: accuracy of all memories", judged_mean([note["points"] / 2 for note in notes])),
            Figure("Extraction: memories judged", float(len(notes)), share=False),
            Figure("Extraction: false memories resisted", judged_mean([one.score for one in false])),
        ]
        for part in (UPDATE, ANSWERS):
            for label in ("Correct", "Hallucination", "Omission"):
                shares = [float(one.label == label) for one in by_part[part]]
                figures.append(Figure(f"{part.capitalize()}: {label.lower()}", judged_mean(shares)))
        return figures


def _harmonic(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return None
    return 2 * one * other / (one + other) if one + other else 0.0


def _note(reply: str) -> dict[str, Json]:
    target = str(json_reply(reply).get("covered")).strip().lower() == "true"
    return {"points": _points(reply), "target": target}


def _points(reply: str) -> int:
    """Return 0, 1 or 2. Raises ModelResponseError."""
    text = str(json_reply(reply).get("score")).strip()
    if text not in ("0", "1", "2"):
        raise ModelResponseError(f"the judge's score is not 0, 1 or 2: {text:.100}")
    return int(text)


def _label(reply: str, known: Sequence[str]) -> str:
    said = str(json_reply(reply).get("verdict") or "").strip().lower()
    found = next((label for label in known if label.lower() == said), None)
    if found is None:
        raise ModelResponseError(f"the judge's verdict is none of {', '.join(known)}: {said:.100}")
    return found


def _history(user: dict[str, Json], where: str) -> History:
    id = str(field_of(user, "uuid", where))
    sessions: list[Session] = []
    questions: list[Question] = []
    for number, raw in enumerate(objects(field_of(user, "sessions", where), f"{where}, sessions"), 1):
        place = f"{where}, session {number}"
        turns = objects(field_of(raw, "dialogue", place), f"{place}, dialogue")
        sessions.append(
            Session(
                id=str(number),
                date=str(raw.get("start_time") or (turns[0].get("timestamp") if turns else "") or ""),
                messages=tuple(
                    message(
                        f"{id}/{number}/{turn}",
                        str(said.get("role")),
                        str(said["content"]),
                        created_at=moment_of(str(said.get("timestamp") or "")),
                    )
                    for turn, said in enumerate(turns, 1)
                    if str(said.get("content") or "").strip()
                ),
            )
        )
        if not raw.get("is_generated_qa_session"):  # sessions of filler have nothing to judge
            questions += _questions(raw, id, number, turns, place)
    return History(id=id, sessions=tuple(sessions), questions=tuple(questions))


def _questions(
    raw: dict[str, Json], user: str, number: int, turns: Sequence[dict[str, Json]], where: str
) -> Iterator[Question]:
    points = objects(raw.get("memory_points") or [], f"{where}, memory_points")
    for place, point in enumerate(points, 1):
        type = INTERFERENCE if point.get("memory_source") == INTERFERENCE else str(point.get("memory_type") or "other")
        original = cast("list[Json]", point.get("original_memories") or [])
        changed = str(point.get("is_update")) == "True" and bool(original)
        text = str(field_of(point, "memory_content", f"{where}, memory point {place}"))
        yield Question(
            id=f"{user}-{number}-{'update' if changed else 'memory'}-{place}",
            part=UPDATE if changed else EXTRACTION,
            type=type,
            text=text,
            answer=text,
            after=number,
            asks="context" if changed else "notes",
            session=str(number),
            data={"importance": float(point.get("importance") or 0.0), "original": original},
        )
    dialogue = "\n".join(f"[{said.get('timestamp')}] {said.get('role')}: {said.get('content')}" for said in turns)
    golden = [str(point["memory_content"]) for point in points if point.get("memory_source") != INTERFERENCE]
    if points:
        yield Question(
            id=f"{user}-{number}-accuracy",
            part=ACCURACY,
            type="memories of a session",
            text=f"Memories of session {number}",
            answer="\n".join(golden),
            after=number,
            asks="notes",
            session=str(number),
            data={"dialogue": dialogue},
        )
    for place, qa in enumerate(objects(raw.get("questions") or [], f"{where}, questions"), 1):
        evidence = objects(qa.get("evidence") or [], f"{where}, question {place}, evidence")
        yield Question(
            id=f"{user}-{number}-question-{place}",
            part=ANSWERS,
            type=str(qa.get("question_type") or "other"),
            text=str(field_of(qa, "question", f"{where}, question {place}")),
            answer=str(qa.get("answer")),
            after=number,
            session=str(number),
            evidence=tuple(str(one.get("memory_content")) for one in evidence),
            data={"difficulty": qa.get("difficulty")},
        )


def moment_of(date: str) -> datetime | None:
    """Return the time of ``Dec 15, 2025, 06:11:23``, in UTC as in the published code; None for another form.

    Does not use strptime, which expects month names of the locale.
    """
    match = _DATE.fullmatch(date.strip())
    if match is None or match[1] not in _MONTHS:
        return None
    day, year, hour, minute, second = map(int, match.groups()[1:])
    return moment_or_none(year, _MONTHS.index(match[1]) + 1, day, hour, minute, second)
