"""LongMemEval (Wu et al., 2024, arXiv:2410.10813): formats, prompts and metric of the published code.

Sources: README.md, ``src/generation/run_generation.py``, ``src/evaluation/evaluate_qa.py`` and
``print_qa_metrics.py`` of the repository xiaowu0162/LongMemEval (MIT License).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from diarist.evals.datasets.base import (
    Ask,
    Dataset,
    Figure,
    Grade,
    Judged,
    field_of,
    judged_mean,
    load_items,
    message,
    moment_or_none,
    objects,
    required,
)
from diarist.evals.items import History, Question, Session
from diarist.exceptions import InputError, ModelResponseError
from diarist.messages import Json

TYPES = (
    "single-session-user",
    "single-session-preference",
    "single-session-assistant",
    "multi-session",
    "temporal-reasoning",
    "knowledge-update",
)
_JUDGE_PROMPTS = {
    "single-session-user": "judge",
    "single-session-assistant": "judge",
    "multi-session": "judge",
    "temporal-reasoning": "judge-temporal-reasoning",
    "knowledge-update": "judge-knowledge-update",
    "single-session-preference": "judge-single-session-preference",
}
_DATE = re.compile(r"(\d{4})/(\d{2})/(\d{2}) \([A-Za-z]{3}\) (\d{2}):(\d{2})")


class LongMemEval(Dataset):
    """500 questions of six types, each with a history of its own; 30 of them cannot be answered.

    ``reading="con"`` asks the reader to extract what is relevant first and to reason then (800 tokens), as the paper
    recommends; ``"direct"`` asks for the answer (500 tokens).
    """

    name = "longmemeval"
    title = "LongMemEval"
    paper = "Wu et al. 2024, LongMemEval: Benchmarking Chat Assistants on Long-Term Interactive Memory"
    source = "the links in the README of the GitHub repository xiaowu0162/LongMemEval (longmemeval_s.json)"
    metric = "accuracy, judged by a model with a prompt for each question type"
    exact_prompts = True
    judge_tokens = 10

    def __init__(self, path: Path, *, reading: str = "con", prompts: Path | None = None) -> None:
        super().__init__(path, reading=reading, prompts=prompts)
        self.reader_tokens = 800 if reading == "con" else 500

    def read(self) -> Iterator[History]:
        for number, item in enumerate(load_items(self.path), 1):
            yield _history(item, f"{self.path}, item {number}")

    def reader_prompt(self, question: Question, context: str) -> str:
        return self.fill(f"reader-{self.reading}", context=context, date=question.date, question=question.text)

    def sessions_text(self, sessions: Sequence[Session]) -> str:
        """Return sessions in the published JSON form, numbered by date."""
        text = ""
        for number, session in enumerate(sorted(sessions, key=lambda session: session.date), 1):
            turns = [{"role": message.role, "content": message.text} for message in session.messages]
            content = "\n" + json.dumps(turns)
            text += f"\n### Session {number}:\nSession Date: {session.date}\nSession Content:\n{content}\n"
        return text

    async def grade(self, question: Question, response: str, ask: Ask | None) -> Grade:
        prompt = "judge-abstention" if question.data["abstention"] else _JUDGE_PROMPTS[question.type]
        text = self.fill(prompt, question=question.text, answer=question.answer, response=response)
        reply = await required(ask)(text, _stripped) or ""
        correct = "yes" in reply.lower()
        return Grade(score=float(correct), correct=correct, label=reply)

    @classmethod
    def summary(cls, judged: Sequence[Judged]) -> list[Figure]:
        abstaining = [one.score for one in judged if one.question["data"]["abstention"]]
        return [Figure("Accuracy on abstention questions", judged_mean(abstaining))]


def _stripped(reply: str) -> str:
    if not reply.strip():
        raise ModelResponseError("the judge's reply is empty; a model that thinks first needs more --judge-tokens")
    return reply.strip()


def _history(item: dict[str, Json], where: str) -> History:
    id = str(field_of(item, "question_id", where))
    type = str(field_of(item, "question_type", where))
    if type not in TYPES:
        raise InputError(f"{where}: unknown question_type {type!r}; known: {', '.join(TYPES)}")
    dates, names, talks = (
        cast("list[Any]", field_of(item, name, where))
        for name in ("haystack_dates", "haystack_session_ids", "haystack_sessions")
    )
    if not len(dates) == len(names) == len(talks):
        raise InputError(f"{where}: haystack_dates, haystack_session_ids and haystack_sessions differ in length")
    found: list[Session] = []
    for place, (date, name, talk) in enumerate(zip(dates, names, talks, strict=True), 1):
        moment = _moment(str(date), f"{where}, session {place}, haystack_dates")
        turns = objects(talk, f"{where}, session {place}")
        found.append(
            Session(
                id=f"{place}-{name}",  # ids repeat within a few histories
                date=str(date),
                messages=tuple(
                    message(f"{id}/{place}/{turn}", str(said.get("role")), text, created_at=moment)
                    for turn, said in enumerate(turns, 1)
                    if (text := str(field_of(said, "content", f"{where}, session {place}, turn {turn}"))).strip()
                ),
            )
        )
    found.sort(key=lambda session: session.date)
    date = str(item.get("question_date") or "")
    question = Question(
        id=id,
        type=type,
        text=str(field_of(item, "question", where)),
        answer=str(field_of(item, "answer", where)),
        date=date,
        asked_at=_moment(date, f"{where}, question_date") if date else None,
        after=len(found),
        evidence=tuple(map(str, cast("list[Json]", item.get("answer_session_ids") or []))),
        data={"abstention": "_abs" in id},
    )
    return History(id=id, sessions=tuple(found), questions=(question,))


def _moment(date: str, where: str) -> datetime:
    """Return the time of ``2023/05/20 (Sat) 02:21``. The data set names no time zone. Raises InputError."""
    match = _DATE.fullmatch(date.strip())
    found = moment_or_none(*map(int, match.groups())) if match else None
    if found is None:
        raise InputError(f"{where}: {date!r} is not a date such as 2023/05/20 (Sat) 02:21")
    return found
