"""PersonaMem (Jiang et al., 2025, arXiv:2504.14225), first version: formats and metric of the published code.

Source: ``README.md`` and ``inference_standalone_openai.py`` of the repository bowen-upenn/PersonaMem. No license was
found there, so the instruction to the reader uses our own words.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import cast

from diarist.evals.datasets.base import Ask, Dataset, Grade, load_items, message, objects
from diarist.evals.items import History, Question, Session
from diarist.exceptions import InputError
from diarist.messages import Json

_COLUMNS = (
    "question_id",
    "question_type",
    "user_question_or_message",
    "correct_answer",
    "all_options",
    "shared_context_id",
    "end_index_in_shared_context",
)
_IN_PARENTHESES, _ALONE = re.compile(r"\(([a-d])\)"), re.compile(r"\b([a-d])\b")


class PersonaMem(Dataset):
    """Multiple-choice questions at different places of long chats with a user whose preferences change.

    The path is ``questions_*.csv``, with ``shared_contexts_*.jsonl`` beside it, or a folder with one such pair. The
    file has no sessions and no times: a session ends where a system message follows, and where a question is asked.
    System messages, which describe the user, count as said by a speaker called System.
    """

    name = "personamem"
    title = "PersonaMem"
    paper = "Jiang et al. 2025, Know Me, Respond to Me: Benchmarking LLMs for Dynamic User Profiling"
    source = (
        "the links in the README of the GitHub repository bowen-upenn/PersonaMem (questions_32k.csv and its contexts)"
    )
    metric = "accuracy of the chosen option"
    judge = "none"
    interleaved = True
    reader_tokens = 1_000

    def read(self) -> Iterator[History]:
        questions_path, contexts_path = _pair(self.path)
        rows = _rows(questions_path)
        contexts: dict[str, Json] = {}
        for line in load_items(contexts_path):
            contexts |= line
        by_context: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            by_context.setdefault(row["shared_context_id"], []).append(row)
        for id, asked in by_context.items():
            if id not in contexts:
                raise InputError(f"{contexts_path} has no context {id!r}, which {questions_path} names")
            yield _history(id, objects(contexts[id], f"{contexts_path}, {id}"), asked)

    def reader_prompt(self, question: Question, context: str) -> str:
        return self.fill("reader", context=context, question=question.text, options=str(question.data["options"]))

    async def grade(self, question: Question, response: str, ask: Ask | None) -> Grade:
        wanted = {question.answer.lower().strip("() ")}
        final = response.rpartition("<final_answer>")[2].replace("</final_answer>", "")
        right = _letters(final) == wanted or _letters(response) == wanted
        return Grade(score=float(right), correct=right, label=final.strip()[:80])


def _letters(text: str) -> set[str]:
    """Return the options that a text names: in parentheses, or, if there are none, standing alone."""
    text = text.lower()
    return set(_IN_PARENTHESES.findall(text)) or set(_ALONE.findall(text))


def _pair(path: Path) -> tuple[Path, Path]:
    if path.is_dir():
        found = sorted(path.glob("questions*.csv"))
        if len(found) != 1:
            raise InputError(f"{path} holds {len(found)} files questions*.csv; name one of them")
        path = found[0]
    contexts = path.with_name(path.name.replace("questions", "shared_contexts", 1)).with_suffix(".jsonl")
    if contexts == path or not contexts.is_file():
        raise InputError(f"{path}: the file of its contexts, {contexts.name}, is not beside it")
    return path, contexts


def _rows(path: Path) -> list[dict[str, str]]:
    csv.field_size_limit(2**31 - 1)  # the default of 128 kB may be too small for all options of a question
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: the column {missing[0]!r} is missing")
        return list(reader)


def _history(id: str, said: list[dict[str, Json]], asked: list[dict[str, str]]) -> History:
    ends = {min(int(row["end_index_in_shared_context"]), len(said)) for row in asked}
    starts = {place for place, one in enumerate(said) if one.get("role") == "system"}
    cuts = sorted({0, len(said)} | ends | starts)
    sessions: list[Session] = []
    after = {0: 0}
    for first, end in pairwise(cuts):
        messages = tuple(
            message(
                f"{id}/{place}",
                "user" if said[place].get("role") == "system" else str(said[place].get("role")),
                str(said[place]["content"]),
                metadata={"name": "System"} if said[place].get("role") == "system" else {},
            )
            for place in range(first, end)
            if str(said[place].get("content") or "").strip()
        )
        sessions.append(Session(id=str(len(sessions) + 1), messages=messages))
        after[end] = len(sessions)
    questions = tuple(
        Question(
            id=row["question_id"],
            type=row["question_type"],
            text=row["user_question_or_message"],
            answer=row["correct_answer"],
            after=after[min(int(row["end_index_in_shared_context"]), len(said))],
            data={"options": cast(Json, row["all_options"])},
        )
        for row in asked
    )
    return History(id=id, sessions=tuple(sessions), questions=questions)
