"""LoCoMo (Maharana et al., 2024, arXiv:2402.17753): formats and metric of the published code.

Sources: ``task_eval/evaluation.py``, ``evaluate_gpts.py`` and ``evaluation_stats.py`` of the repository
snap-research/locomo. Data and code are under CC BY-NC 4.0, so the prompts here use our own words.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby
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
    objects,
)
from diarist.evals.datasets.porter import stem
from diarist.evals.items import History, Question, Session
from diarist.exceptions import ModelResponseError
from diarist.integrations.conversations import read_conversations
from diarist.messages import Json, Message

TYPES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
_NOT_MENTIONED = "Not mentioned in the conversation"
_PROSE = re.compile(r"(?:^|\bis|\bverdict)\W*(not correct|incorrect|wrong|correct)\b(?! answer)")
_UNKNOWN = ("no information available", "not mentioned")


class LoCoMo(Dataset):
    """Ten conversations of two people, with about 200 questions each.

    An adversarial question (category 5) has no answer in the conversation. As published, the reader chooses between
    "not mentioned" and a wrong answer; here their order depends on the question, instead of on chance.
    """

    name = "locomo"
    title = "LoCoMo"
    paper = "Maharana et al. 2024, Evaluating Very Long-Term Conversational Memory of LLM Agents"
    source = "the GitHub repository snap-research/locomo (data/locomo10.json; CC BY-NC 4.0)"
    metric = "F1 of stemmed words"
    judge = "optional"
    judge_tokens = 300
    reader_tokens = 32

    def read(self) -> Iterator[History]:
        samples = load_items(self.path)
        chats = read_conversations(self.path, format="locomo")
        for chat in chats:
            sample = samples[chat.number - 1]
            yield _history(sample, str(sample.get("sample_id") or f"conv-{chat.number}"), chat.messages)

    def sessions_text(self, sessions: Sequence[Session]) -> str:
        """Return sessions in the published form: the date, then one line for each turn."""
        blocks = [
            f"DATE: {session.date}\nCONVERSATION:\n"
            + "\n".join(f'{one.metadata.get("name")} said, "{one.text}"' for one in session.messages)
            for session in sessions
        ]
        return "\n\n".join(blocks)

    def reader_prompt(self, question: Question, context: str) -> str:
        prompt = {"temporal": "reader-temporal", "adversarial": "reader-adversarial"}.get(question.type, "reader")
        options = _options(question) if question.type == "adversarial" else ("", "")
        return self.fill(prompt, context=context, question=question.text, a=options[0], b=options[1])

    async def grade(self, question: Question, response: str, ask: Ask | None) -> Grade:
        if question.type == "adversarial":
            said = _chosen(response, _options(question)).lower()
            right = any(phrase in said for phrase in _UNKNOWN)
            return Grade(score=float(right), correct=right if ask else None, label=said)
        score = f1_of(question.type, response, question.answer)
        if ask is None:
            return Grade(score=score)
        prompt = self.fill("judge", question=question.text, answer=question.answer, response=response)
        verdict = await ask(prompt, _verdict)
        return Grade(score=score, correct=verdict == "correct", label=verdict or "")

    @classmethod
    def summary(cls, judged: Sequence[Judged]) -> list[Figure]:
        real = [one for one in judged if one.type != "adversarial"]
        found = [Figure("F1 without adversarial questions", judged_mean([one.score for one in real]))]
        if any(one.correct is not None for one in real):
            verdicts = [float(one.correct is True) for one in real]
            found.append(Figure("Judged correct without adversarial questions", judged_mean(verdicts)))
        return found


def _history(sample: dict[str, Json], id: str, messages: Sequence[Message]) -> History:
    talk = cast("dict[str, Json]", sample.get("conversation") or sample)
    sessions = [
        Session(id=name, messages=tuple(found), date=str(talk.get(f"session_{name[1:]}_date_time") or ""))
        for name, found in groupby(messages, key=lambda one: str(one.metadata.get("dia_id") or "").partition(":")[0])
    ]
    questions: list[Question] = []
    for number, item in enumerate(objects(sample.get("qa") or [], f"{id}, qa"), 1):
        where = f"{id}, qa, item {number}"
        type = TYPES.get(cast(Any, item.get("category")), str(item.get("category")))
        wrong = str(item.get("adversarial_answer") or item.get("answer") or "")
        questions.append(
            Question(
                id=f"{id}-{number}",
                type=type,
                text=str(field_of(item, "question", where)),
                answer=_NOT_MENTIONED if type == "adversarial" else str(field_of(item, "answer", where)),
                after=len(sessions),
                evidence=tuple(map(str, cast("list[Json]", item.get("evidence") or []))),
                data={"wrong": wrong} if type == "adversarial" else {},
            )
        )
    return History(id=id, sessions=tuple(sessions), questions=tuple(questions))


def _options(question: Question) -> tuple[str, str]:
    """Return the options (a) and (b) of an adversarial question."""
    wrong = str(question.data["wrong"])
    first = sha256(question.id.encode()).digest()[0] % 2
    return (_NOT_MENTIONED, wrong) if first else (wrong, _NOT_MENTIONED)


def _chosen(response: str, options: tuple[str, str]) -> str:
    """Return the option that a short response names by its letter; otherwise the response."""
    short = response.strip().lower()
    if len(short) == 1:
        return options[0] if short == "a" else options[1]
    if len(short) == 3:
        return options[0] if "(a)" in short else options[1]
    return response


def _verdict(reply: str) -> str:
    """Return ``correct`` or ``wrong``: its JSON object says so, or a sentence such as "It is wrong."."""
    try:
        said = {str(json_reply(reply).get("verdict") or "").strip().lower()}
    except ModelResponseError:
        words = _PROSE.findall(reply.lower())
        said = {"correct" if word == "correct" else "wrong" for word in words}
    if said not in ({"correct"}, {"wrong"}):
        raise ModelResponseError(f"the judge says neither correct nor wrong: {reply:.200}")
    return said.pop()


def f1_of(type: str, response: str, answer: str) -> float:
    """Return the published score of an answer to a question that is not adversarial."""
    if type == "open-domain":
        answer = answer.split(";")[0].strip()
    if type == "multi-hop":  # several answers, separated by commas
        given = [part.strip() for part in response.split(",")]
        wanted = [part.strip() for part in answer.split(",")]
        return sum(max(_f1(one, other) for one in given) for other in wanted) / len(wanted)
    return _f1(response, answer)


def _f1(response: str, answer: str) -> float:
    given, wanted = _stems(response), _stems(answer)
    same = sum((Counter(given) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(given), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _stems(text: str) -> list[str]:
    """Return the stems of the words, without punctuation and without articles and "and"."""
    plain = "".join(char for char in text.lower() if char not in string.punctuation)
    return [stem(word) for word in re.sub(r"\b(a|an|the|and)\b", " ", plain).split()]
