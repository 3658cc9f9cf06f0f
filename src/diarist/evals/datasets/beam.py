"""BEAM (Tavakoli et al., 2025, arXiv:2510.27246): formats and metrics of the published code.

Sources: ``README.md``, ``download_dataset.py``, ``evaluation.py``, ``run_evaluation.py``,
``src/answer_probing_questions/answer_generation.py`` and files in ``chats/`` of the repository
mohammadtavakoli78/BEAM. Its license file could not be read, so the prompts here use our own
words.
"""

from __future__ import annotations

import ast
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
    json_reply,
    judged_mean,
    load_items,
    load_json,
    message,
    moment_or_none,
    objects,
    required,
)
from diarist.evals.items import History, Question, Session
from diarist.evals.statistics import kendall_tau_b
from diarist.exceptions import InputError, ModelResponseError
from diarist.messages import Json

ORDERING = "event_ordering"
_ANSWERS = ("answer", "ideal_response", "ideal_answer", "ideal_summary", "expected_compliance")
_DATA = ("rubric", "source_chat_ids", "preference_being_tested")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ANCHOR = re.compile(r"([A-Za-z]+)-(\d{1,2})-(\d{4})")


class BEAM(Dataset):
    """Conversations of 100,000 to ten million tokens, with two questions for each of ten abilities.

    The path is a folder of chats (``chats/100K``), one chat's folder, or a JSON or JSON lines file of the published
    rows. A batch of a chat is a session; its time anchor is its date.

    Each item of a question's rubric gets 1, 0.5 or 0 points; their mean is the score. For questions about an order, the
    judge also aligns the answer's lines with the rubric, for Kendall's tau-b and F1 as published.
    """

    name = "beam"
    title = "BEAM"
    paper = "Tavakoli et al. 2025, Beyond a Million Tokens: Benchmarking and Enhancing Long-Term Memory in LLMs"
    source = "the folder chats of the GitHub repository mohammadtavakoli78/BEAM"
    metric = "mean points of the rubric"
    reader_tokens = 2_000

    def read(self) -> Iterator[History]:
        if self.path.is_dir():
            inner = sorted((each for each in self.path.iterdir() if each.is_dir()), key=_number)
            for folder in [self.path] if _chat_of(self.path) else inner:
                if (file := _chat_of(folder)) is None:
                    raise InputError(f"{folder} has no chat.json; --data is a folder of chats, such as chats/100K")
                asked = load_json(folder / "probing_questions" / "probing_questions.json")
                yield _history(folder.name, load_json(file), asked, str(folder))
            return
        for number, row in enumerate(load_items(self.path), 1):
            where = f"{self.path}, item {number}"
            yield _history(
                str(row.get("conversation_id") or number), row.get("chat"), row.get("probing_questions"), where
            )

    def reader_prompt(self, question: Question, context: str) -> str:
        return self.fill("reader", context=context, question=question.text)

    async def grade(self, question: Question, response: str, ask: Ask | None) -> Grade:
        ask = required(ask)
        rubric = [str(item) for item in question.data["rubric"]]
        points = [
            await ask(self.fill("judge", question=question.text, item=item, response=response), _points, about=item)
            or 0.0
            for item in rubric
        ]
        details: dict[str, Json] = {"points": cast(Json, points)}
        if question.type == ORDERING:
            details |= await self._order(rubric, response, ask)
        return Grade(score=sum(points) / len(points), details=details)

    async def _order(self, rubric: Sequence[str], response: str, ask: Ask) -> dict[str, Json]:
        """Replace each line of the answer by the first unused item that it speaks about, and compare the orders."""
        free = list(range(len(rubric)))
        said: list[str] = []
        for line in response.split("\n"):
            found = None
            for index in free if line.strip() else ():
                prompt = self.fill("judge-same", first=rubric[index], second=line)
                if await ask(prompt, _says_yes, about=f"Is this line about “{rubric[index]}”? {line}"):
                    found = index
                    break
            if found is None:
                said.append(line)
            else:
                free.remove(found)
                said.append(rubric[found])
        return order_of(rubric, said)

    @classmethod
    def summary(cls, judged: Sequence[Judged]) -> list[Figure]:
        found = [one for one in judged if one.type == ORDERING]
        taus, f1s = ([float(one.detail(name) or 0.0) for one in found] for name in ("tau", "f1"))
        both = [tau * f1 for tau, f1 in zip(taus, f1s, strict=True)]
        return [
            Figure("Event ordering: Kendall's tau-b, from 0 to 1", judged_mean(taus)),
            Figure("Event ordering: F1", judged_mean(f1s)),
            Figure("Event ordering: tau-b × F1", judged_mean(both)),
        ]


def order_of(reference: Sequence[str], said: Sequence[str]) -> dict[str, Json]:
    """Return F1 and Kendall's tau-b, scaled to 0 to 1, of aligned lines, as the published ``event_ordering_score``."""
    hits = len(set(reference) & set(said))
    wrong = sum(line not in reference for line in said)
    missed = sum(item not in said for item in reference)
    precision = hits / (hits + wrong) if hits + wrong else 0.0
    recall = hits / (hits + missed) if hits + missed else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    union = list(dict.fromkeys([*reference, *said]))

    def ranks(lines: Sequence[str]) -> list[float]:
        places = {line: place for place, line in enumerate(lines, 1)}
        return [places.get(line, len(union) + 1) for line in union]

    tau = kendall_tau_b(ranks(reference), ranks(said))
    return {"tau": 0.0 if tau is None else (tau + 1) / 2, "f1": f1}


def _points(reply: str) -> float:
    try:
        found = float(cast(Any, json_reply(reply).get("score")))
    except (TypeError, ValueError):
        found = -1.0
    if found not in (0.0, 0.5, 1.0):
        raise ModelResponseError(f"the judge's score is not 0, 0.5 or 1: {reply:.100}")
    return found


def _says_yes(reply: str) -> bool:
    return "yes" in reply.lower()


def _history(id: str, chat: Json, asked: Json, where: str) -> History:
    sessions = [
        session for number, batch in enumerate(_batches(chat), 1) if (session := _session(id, number, batch)).messages
    ]
    if isinstance(asked, str):  # the published rows hold a Python literal
        try:
            asked = ast.literal_eval(asked)
        except (ValueError, SyntaxError) as error:
            raise InputError(f"{where}: probing_questions cannot be read: {error}") from error
    if not isinstance(asked, dict):
        raise InputError(f"{where}: probing_questions must be an object of lists by ability")
    questions: list[Question] = []
    for type, each in cast("dict[str, Json]", asked).items():
        for number, item in enumerate(objects(each, f"{where}, {type}"), 1):
            rubric = item.get("rubric")
            if not isinstance(rubric, list) or not rubric:
                raise InputError(f"{where}, {type}, item {number}: there is no rubric")
            answer = next((str(item[name]) for name in _ANSWERS if item.get(name)), "")
            questions.append(
                Question(
                    id=f"{id}-{type}-{number}",
                    type=type,
                    text=str(item.get("question")),
                    answer=answer or "\n".join(map(str, cast("list[Json]", rubric))),
                    after=len(sessions),
                    evidence=tuple(map(str, flat(item.get("source_chat_ids")))),
                    data={name: item[name] for name in _DATA if name in item},
                )
            )
    return History(id=id, sessions=tuple(sessions), questions=tuple(questions))


def _batches(chat: Json) -> Iterator[Json]:
    """Yield the batches of a chat; the plans of a chat of ten million tokens hold batches each."""
    for element in cast("list[Json]", chat if isinstance(chat, list) else [chat]):
        if isinstance(element, dict) and "turns" not in element and "role" not in element:
            for plan in cast("dict[str, Json]", element).values():
                yield from _batches(plan)
        else:
            yield element


def _session(chat: str, number: int, batch: Json) -> Session:
    said = [one for one in _messages(batch) if str(one.get("content") or "").strip()]
    anchor = next((str(one["time_anchor"]) for one in said if one.get("time_anchor")), "")
    moment = _moment(anchor)
    return Session(
        id=str(number),
        date=anchor,
        messages=tuple(
            message(
                f"{chat}/{number}/{place}",
                str(one.get("role")),
                str(one["content"]),
                created_at=moment,
                metadata={"chat_id": str(one.get("id"))},
            )
            for place, one in enumerate(said, 1)
        ),
    )


def _messages(value: Json) -> Iterator[dict[str, Json]]:
    if isinstance(value, list):
        for element in cast("list[Json]", value):
            yield from _messages(element)
    elif isinstance(value, dict):
        found = cast("dict[str, Json]", value)
        if "role" in found and "content" in found:
            yield found
        else:
            yield from _messages(found.get("turns"))


def flat(value: Json) -> Iterator[Json]:
    """Yield the values in lists and objects, however deep."""
    if isinstance(value, dict):
        value = list(cast("dict[str, Json]", value).values())
    if isinstance(value, list):
        for element in cast("list[Json]", value):
            yield from flat(element)
    elif value is not None:
        yield value


def _moment(anchor: str) -> datetime | None:
    """Return the day of ``March-15-2024``; None for another form."""
    match = _ANCHOR.fullmatch(anchor.strip())
    if match is None or (month := match[1][:3].lower()) not in _MONTHS:
        return None
    return moment_or_none(int(match[3]), _MONTHS.index(month) + 1, int(match[2]))


def _chat_of(folder: Path) -> Path | None:
    """Return the file of a chat; the truncated one where there is one, as the published code prefers it."""
    files = folder / "chat_trunecated.json", folder / "chat.json"
    return next((file for file in files if file.is_file()), None)


def _number(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdigit() else 0, path.name)
