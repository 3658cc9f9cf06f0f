"""Each data set's reader takes the published format, and its metric gives what the paper's code gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from diarist.evals.datasets import DATASETS
from diarist.evals.datasets.base import Dataset, Judged
from diarist.evals.datasets.beam import order_of
from diarist.evals.datasets.locomo import f1_of
from diarist.evals.datasets.porter import stem
from diarist.evals.items import Question
from diarist.exceptions import InputError, ModelResponseError
from tests.evals import samples

T = TypeVar("T")


class Judge:
    """Replies in order; the last reply is repeated."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.prompts, self.errors = list(replies), list[str](), list[str]()

    async def __call__(self, prompt: str, read: Callable[[str], T], *, about: str = "") -> T | None:
        self.prompts.append(prompt)
        try:
            return read(self.replies.pop(0) if len(self.replies) > 1 else self.replies[0])
        except ModelResponseError as error:
            self.errors.append(str(error))
            return None


async def judged(data: Dataset, number: int, reply: str, response: str = "an answer") -> tuple[float, str]:
    """The score that a judge's reply gives for the question of a history, and the prompt that the judge saw."""
    judge = Judge(reply)
    grade = await data.grade(data.histories[number].questions[0], response, judge)
    return grade.score, judge.prompts[0]


def asked(data: Dataset, part: str) -> Question:
    """The question whose id contains a word."""
    return next(one for history in data.histories for one in history.questions if part in one.id)


def item_of(question: Question, judgement: dict[str, Any]) -> Judged:
    """The item of a question that was judged like this."""
    fields = {"type": question.type, "part": question.part, "data": question.data}
    return Judged(question=fields, answer={}, judgement=judgement)


@pytest.fixture
def longmemeval(tmp_path: Path) -> Dataset:
    return DATASETS["longmemeval"](samples.written(tmp_path / "longmemeval_s.json", samples.longmemeval()))


class TestLongMemEval:
    def test_sessions_come_by_date_with_their_times(self, longmemeval: Dataset) -> None:
        history = longmemeval.histories[1]
        assert [session.id for session in history.sessions] == ["1-q2-0", "2-q2-1", "3-q2-2"]
        assert history.sessions[0].messages[0].created_at == datetime(2023, 5, 20, 2, 20, tzinfo=UTC)
        assert history.questions[0].evidence == ("q2-0",)

    def test_raw_sessions_stand_in_the_published_form(self, longmemeval: Dataset) -> None:
        text = longmemeval.sessions_text(longmemeval.histories[0].sessions[:1])
        assert text == (
            "\n### Session 1:\nSession Date: 2023/05/20 (Sat) 02:20\nSession Content:\n\n"
            '[{"role": "user", "content": "My sister Bea lives in Trieste."}, '
            '{"role": "assistant", "content": "I see."}]\n'
        )

    async def test_each_type_has_the_published_prompt(self, longmemeval: Dataset) -> None:
        _, user = await judged(longmemeval, 0, "yes", "In {answer}")
        assert user.startswith("I will give you a question, a correct answer, and a response from a model. ")
        assert user.endswith(
            "answer no. \n\nQuestion: Where does Bea live?\n\nCorrect Answer: Trieste\n\nModel Response: In {answer}"
            "\n\nIs the model response correct? Answer yes or no only."
        )
        _, update = await judged(longmemeval, 2, "no")
        assert "as long as the updated answer is the required answer.\n\nQuestion:" in update
        _, abstention = await judged(longmemeval, 3, "yes")
        assert "\n\nExplanation: Oslo was never mentioned.\n\n" in abstention

    @pytest.mark.parametrize(("reply", "score"), [("Yes.", 1), ("no", 0), ("  YES, it is", 1)])
    async def test_yes_is_correct(self, longmemeval: Dataset, reply: str, score: float) -> None:
        assert (await judged(longmemeval, 0, reply))[0] == score

    async def test_an_empty_reply_is_no_judgement(self, longmemeval: Dataset) -> None:
        judge = Judge("")
        grade = await longmemeval.grade(longmemeval.histories[0].questions[0], "an answer", judge)
        assert (grade.score, grade.correct) == (0, False)
        assert "--judge-tokens" in judge.errors[0]

    def test_a_broken_item_is_named(self, tmp_path: Path) -> None:
        items = samples.longmemeval()
        del items[2]["haystack_dates"]
        path = samples.written(tmp_path / "data.json", items)
        with pytest.raises(InputError, match=r"item 3: the field 'haystack_dates' is missing"):
            _ = DATASETS["longmemeval"](path).histories

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("2023/05/20 (Sat)", "2023/02/30 (Sat)", "session 1, haystack_dates: '2023/02/30 (Sat) 02:20' is not a d"),
            ("2023/06/01 (Thu) 09:00", "soon", "question_date: 'soon' is not a date such as 2023/05/20 (Sat) 02:21"),
            ('"content": "I see."', '"text": "I see."', "session 1, turn 2: the field 'content' is missing"),
        ],
    )
    def test_a_broken_session_is_named(self, tmp_path: Path, old: str, new: str, says: str) -> None:
        path = tmp_path / "data.json"
        path.write_text(json.dumps(samples.longmemeval()).replace(old, new))
        with pytest.raises(InputError, match=re.escape(f"{path}, item 1, {says}")):
            _ = DATASETS["longmemeval"](path).histories


@pytest.mark.parametrize(
    ("name", "data", "field", "day"),
    [
        ("halumem", samples.halumem(), "Sep 04, 2025", "Sep 31, 2025"),
        (
            "beam",
            [{"chat": [{"role": "user", "content": "Hi", "time_anchor": "March-15-2024"}], "probing_questions": {}}],
            "March-15-2024",
            "February-30-2024",
        ),
    ],
)
def test_a_day_that_does_not_exist_leaves_its_messages_undated(
    tmp_path: Path, name: str, data: Any, field: str, day: str
) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(data).replace(field, day))
    assert DATASETS[name](path).histories[0].sessions[0].messages[0].created_at is None


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("longmemeval", {"haystack_dates": 1}, "data.json is not in the format of LongMemEval: TypeError: "),
        ("locomo", {"qa": [{"category": 4, "question": "?"}]}, "conv-1, qa, item 1: the field 'answer' is missing"),
        ("longmemeval", {"answer": None}, "data.json, item 1: the field 'answer' is missing"),
        ("locomo", {"qa": [{"category": [1]}]}, "data.json is not in the format of LoCoMo: TypeError: "),
        ("halumem", {"sessions": [{"dialogue": [], "memory_points": [{"memory_content": "x", "importance": "high"}]}]},
         "data.json is not in the format of HaluMem: ValueError: could not convert string to float: 'high'"),
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_named(tmp_path: Path, name: str, change: dict[str, Any], says: str) -> None:
    sample: Any = {"longmemeval": samples.longmemeval, "locomo": samples.locomo, "halumem": samples.halumem}[name]()
    item = sample if isinstance(sample, dict) else sample[0]
    with pytest.raises(InputError, match=re.escape(says)):
        _ = DATASETS[name](samples.written(tmp_path / "data.json", [item | change])).histories


def test_a_missing_file_says_where_to_get_the_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="xiaowu0162/LongMemEval"):
        DATASETS["longmemeval"](tmp_path / "longmemeval_s.json")


@pytest.fixture
def locomo(tmp_path: Path) -> Dataset:
    return DATASETS["locomo"](samples.written(tmp_path / "locomo10.json", samples.locomo()))


class TestLoCoMo:
    def test_sessions_and_categories(self, locomo: Dataset) -> None:
        (history,) = locomo.histories
        assert [(session.id, session.date) for session in history.sessions] == [
            ("D1", "1:56 pm on 8 May, 2023"),
            ("D2", "9:00 am on 20 May, 2023"),
        ]
        types = ["multi-hop", "temporal", "open-domain", "single-hop", "adversarial"]
        assert [question.type for question in history.questions] == types
        assert history.questions[1].evidence == ("D1:1",)

    def test_raw_sessions_name_speakers_dates_and_images(self, locomo: Dataset) -> None:
        assert locomo.sessions_text(locomo.histories[0].sessions[:1]) == (
            "DATE: 1:56 pm on 8 May, 2023\nCONVERSATION:\n"
            'Ann said, "I went to the support group yesterday."\n'
            'Ben said, "Good!\n[image: a photo of two dogs]"'
        )

    @pytest.mark.parametrize(
        ("type", "response", "answer", "f1"),
        [
            ("single-hop", "The dogs, and a cat!", "dog cat", 1.0),  # articles, "and", commas, plurals
            ("single-hop", "2", "2", 1.0),
            ("temporal", "7 May", "7 May 2023", 0.8),  # precision 1, recall 2/3
            ("open-domain", "yes", "Yes; she swims", 1.0),  # only what stands before the semicolon
            ("multi-hop", "swimming, reading", "painting, swimming", 0.5),  # the best answer for each reference
            ("multi-hop", "painting and swimming", "painting, swimming", 2 / 3),
            ("single-hop", "", "dog", 0.0),
        ],
    )
    def test_the_published_f1(self, type: str, response: str, answer: str, f1: float) -> None:
        assert f1_of(type, response, answer) == pytest.approx(f1)

    async def test_an_adversarial_question_offers_two_options(self, locomo: Dataset) -> None:
        question = asked(locomo, "conv-1-5")
        prompt = locomo.reader_prompt(question, "…")
        right = "a" if "(a) Not mentioned in the conversation (b) for fun" in prompt else "b"
        wrong = "b" if right == "a" else "a"
        for response, score in ((right, 1), (f"({right})", 1), (wrong, 0), (f"({wrong})", 0), ("Not mentioned.", 1)):
            assert (await locomo.grade(question, response, None)).score == score

    async def test_a_judge_is_optional(self, locomo: Dataset) -> None:
        question = asked(locomo, "conv-1-4")
        alone = await locomo.grade(question, "two dogs", None)
        assert (alone.score, alone.correct) == (0, None)
        both = await locomo.grade(question, "two dogs", Judge('{"verdict": "correct"}'))
        assert (both.score, both.correct) == (0, True)
        unclear = Judge('{"verdict": "maybe"}')
        failed = await locomo.grade(question, "2", unclear)
        assert (failed.score, failed.correct) == (1, False)  # F1 needs no judge
        assert "neither correct nor wrong" in unclear.errors[0]

    @pytest.mark.parametrize(
        ("reply", "correct"),
        [
            ("Correct.", True),
            ('{"verdict": correct}', True),
            ("The answer names the same dogs, so it is correct.", True),
            ("The verdict: wrong", False),
            ("That is not correct. The correct answer is: one cat.", False),
            ("**Incorrect**", False),
        ],
    )
    async def test_a_judge_may_answer_in_prose(self, locomo: Dataset, reply: str, correct: bool) -> None:
        assert (await locomo.grade(asked(locomo, "conv-1-4"), "two dogs", Judge(reply))).correct is correct

    @pytest.mark.parametrize("reply", ["", "The correct answer is two dogs.", "It is correct. No, it is wrong."])
    async def test_prose_without_a_verdict_fails(self, locomo: Dataset, reply: str) -> None:
        judge = Judge(reply)
        assert (await locomo.grade(asked(locomo, "conv-1-4"), "two dogs", judge)).correct is False
        assert "neither correct nor wrong" in judge.errors[0]


@pytest.mark.parametrize(
    ("word", "expected"),
    [  # the examples of Porter (1980), after all steps
        ("caresses", "caress"), ("ponies", "poni"), ("cats", "cat"), ("agreed", "agre"), ("plastered", "plaster"),
        ("bled", "bled"), ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"), ("troubled", "troubl"),
        ("hopping", "hop"), ("falling", "fall"), ("filing", "file"), ("happy", "happi"), ("relational", "relat"),
        ("conditional", "condit"), ("digitizer", "digit"), ("vietnamization", "vietnam"), ("operator", "oper"),
        ("decisiveness", "decis"), ("hopefulness", "hope"), ("triplicate", "triplic"), ("electrical", "electr"),
        ("revival", "reviv"), ("allowance", "allow"), ("replacement", "replac"), ("adoption", "adopt"),
        ("probate", "probat"), ("rate", "rate"), ("cease", "ceas"), ("controll", "control"), ("roll", "roll"),
        ("generalizations", "gener"), ("oscillators", "oscil"),
        # NLTK's changes
        ("dying", "die"), ("skies", "sky"), ("news", "news"), ("flies", "fli"), ("ties", "tie"), ("tied", "tie"),
        ("spied", "spi"), ("enjoy", "enjoy"), ("technology", "technolog"), ("carefully", "care"), ("as", "as"),
    ],
)  # fmt: skip
def test_stems(word: str, expected: str) -> None:
    assert stem(word) == expected


class TestPersonaMem:
    @pytest.fixture
    def personamem(self, tmp_path: Path) -> Dataset:
        return DATASETS["personamem"](samples.personamem(tmp_path))

    def test_a_question_sees_what_precedes_it(self, personamem: Dataset) -> None:
        (history,) = personamem.histories
        assert [len(session.messages) for session in history.sessions] == [3, 2, 2]
        assert [question.after for question in history.questions] == [1, 3]
        assert history.sessions[0].messages[0].metadata == {"name": "System"}

    @pytest.mark.parametrize(
        ("response", "score"),
        [
            ("I think <final_answer>(a)</final_answer>", 1),
            ("<final_answer> a", 1),
            ("(a)", 1),
            ("(a) or (b)? <final_answer>(a)", 1),
            ("<final_answer>(a) and (b)", 0),
            ("<final_answer>(b)", 0),
            ("jazz", 0),
        ],
    )
    async def test_the_published_rule_for_the_chosen_option(
        self, personamem: Dataset, response: str, score: float
    ) -> None:
        assert (await personamem.grade(asked(personamem, "q1"), response, None)).score == score

    def test_a_folder_and_a_missing_file(self, personamem: Dataset, tmp_path: Path) -> None:
        assert DATASETS["personamem"](tmp_path).histories[0].id == "c1"
        (tmp_path / "shared_contexts_32k.jsonl").unlink()
        with pytest.raises(InputError, match=r"shared_contexts_32k\.jsonl, is not beside it"):
            _ = DATASETS["personamem"](tmp_path).histories


class TestHaluMem:
    @pytest.fixture
    def halumem(self, tmp_path: Path) -> Dataset:
        return DATASETS["halumem"](samples.written(tmp_path / "HaluMem-Medium.jsonl", samples.halumem()))

    def test_what_is_judged_and_when(self, halumem: Dataset) -> None:
        (history,) = halumem.histories
        assert history.sessions[0].messages[0].created_at == datetime(2025, 9, 4, 18, 41, 23, tzinfo=UTC)
        assert [(question.part, question.type, question.asks, question.after) for question in history.questions] == [
            ("extraction", "Persona Memory", "notes", 1),
            ("extraction", "Persona Memory", "notes", 1),
            ("extraction", "interference", "notes", 1),
            ("accuracy", "memories of a session", "notes", 1),
            ("update", "Persona Memory", "context", 2),
            ("accuracy", "memories of a session", "notes", 2),
            ("answers", "Basic Fact Recall", "answer", 2),
        ]

    async def test_the_published_figures(self, halumem: Dataset) -> None:
        """Recall 1/2, weighted (1·1 + ½·½)/1.5, precision of the target memories (2+1)/4, accuracy (2+1+0)/6."""
        scripts = {
            "memory-1": ['{"score": 2}'],
            "memory-2": ['{"score": "1"}'],
            "memory-3": ['{"score": 0}'],
            "1-accuracy": [
                '{"score": 2, "covered": true}',
                '{"score": 1, "covered": "true"}',
                '{"score": 0, "covered": false}',
            ],
            "update": ['```json\n{"verdict": "Omission"}\n```'],
            "question": ['{"verdict": "correct"}'],
        }
        done: list[Judged] = []
        for part, replies in scripts.items():
            response = "one\ntwo\n\nthree" if "accuracy" in part else "notes"
            grade = await halumem.grade(asked(halumem, part), response, Judge(*replies))
            done.append(item_of(asked(halumem, part), asdict(grade)))
        found = {figure.name: figure.value for figure in halumem.summary(done)}
        assert found == {
            "Extraction: recall": 0.5,
            "Extraction: weighted recall": pytest.approx(1.25 / 1.5),
            "Extraction: target precision": 0.75,
            "Extraction: F1 of recall and target precision": pytest.approx(0.6),
            "Extraction: accuracy of all memories": 0.5,
            "Extraction: memories judged": 3,
            "Extraction: false memories resisted": 1,
            "Update: correct": 0,
            "Update: hallucination": 0,
            "Update: omission": 1,
            "Answers: correct": 1,
            "Answers: hallucination": 0,
            "Answers: omission": 0,
        }

    async def test_without_memories_nothing_is_covered_and_nobody_is_asked(self, halumem: Dataset) -> None:
        judge = Judge("never")
        assert (await halumem.grade(asked(halumem, "memory-1"), "", judge)).score == 0
        assert (await halumem.grade(asked(halumem, "memory-3"), "", judge)).score == 1
        assert judge.prompts == []

    async def test_a_memory_whose_judgement_failed_is_counted(self, halumem: Dataset) -> None:
        question = asked(halumem, "1-accuracy")
        grade = await halumem.grade(question, "one\ntwo", Judge('{"score": 2, "covered": true}', "garbage"))
        assert grade.score == 0.5
        found = {figure.name: figure.value for figure in halumem.summary([item_of(question, asdict(grade))])}
        assert found["Extraction: accuracy of all memories"] == 0.5
        assert found["Extraction: target precision"] == 1
        assert found["Extraction: memories judged"] == 2

    @pytest.mark.parametrize("id", ["memory-1", "memory-3"])
    async def test_a_failed_judgement_of_a_memory_is_wrong(self, halumem: Dataset, id: str) -> None:
        assert (await halumem.grade(asked(halumem, id), "notes", Judge("garbage"))).score == 0

    async def test_a_failed_item_counts_as_wrong(self, halumem: Dataset) -> None:
        failure = {"score": 0.0, "correct": False, "error": "no answer"}
        failed = [item_of(asked(halumem, part), failure) for part in ("memory-1", "memory-3", "question")]
        found = {figure.name: figure.value for figure in halumem.summary(failed)}
        assert found["Extraction: recall"] == found["Extraction: false memories resisted"] == 0
        assert found["Answers: correct"] == 0


class TestBEAM:
    @pytest.fixture
    def beam(self, tmp_path: Path) -> Dataset:
        return DATASETS["beam"](samples.beam(tmp_path))

    def test_batches_are_sessions(self, beam: Dataset) -> None:
        (history,) = beam.histories
        assert [(session.date, len(session.messages)) for session in history.sessions] == [
            ("March-15-2024", 4),
            ("April-02-2024", 2),
        ]
        assert history.sessions[1].messages[0].created_at == datetime(2024, 4, 2, tzinfo=UTC)
        assert asked(beam, "knowledge_update").evidence == ("4",)

    def test_a_folder_without_a_chat_is_named(self, beam: Dataset, tmp_path: Path) -> None:
        (beam.path / "2" / "probing_questions").mkdir(parents=True)
        for path, folder in ((beam.path, beam.path / "2"), (tmp_path, beam.path)):
            with pytest.raises(InputError, match=re.escape(f"{folder} has no chat.json")):
                _ = DATASETS["beam"](path).histories

    def test_published_rows_and_chats_of_plans(self, beam: Dataset, tmp_path: Path) -> None:
        chat = json.loads((tmp_path / "100K" / "1" / "chat.json").read_text())
        questions = json.loads((tmp_path / "100K" / "1" / "probing_questions" / "probing_questions.json").read_text())
        rows = [
            {"conversation_id": "1", "chat": [batch["turns"] for batch in chat], "probing_questions": repr(questions)},
            {"conversation_id": "2", "chat": [{"plan-1": chat}], "probing_questions": repr(questions)},
        ]
        other = DATASETS["beam"](samples.written(tmp_path / "rows.json", rows))
        expected = [session.messages[0].text for session in beam.histories[0].sessions]
        for history in other.histories:
            assert [session.messages[0].text for session in history.sessions] == expected

    async def test_the_score_is_the_mean_of_the_rubric(self, beam: Dataset) -> None:
        judge = Judge('{"score": 0.5, "reason": "…"}', '{"score": 1.0}')
        assert (await beam.grade(asked(beam, "knowledge_update"), "yes", judge)).score == 0.75

    async def test_a_failed_judgement_counts_as_no_points_for_its_line_of_the_rubric(self, beam: Dataset) -> None:
        judge = Judge('{"score": 3}', '{"score": 1}')
        assert (await beam.grade(asked(beam, "knowledge_update"), "yes", judge)).score == 0.5
        assert "not 0, 0.5 or 1" in judge.errors[0]

    async def test_an_order_is_aligned_and_compared(self, beam: Dataset) -> None:
        points = ['{"score": 1}'] * 3
        same = [
            "YES",
            "NO",
            "YES",
            "NO",
        ]  # line 1 is the tracker; line 2 not the login, but the deployment; line 3 nothing
        grade = await beam.grade(asked(beam, "event_ordering"), "tracker\ndeployed\nlunch", Judge(*points, *same))
        assert grade.details["f1"] == pytest.approx(2 / 3)
        assert grade.details == {"points": [1, 1, 1], **order_of(
            ["tracker", "login", "deployment"], ["tracker", "deployment", "lunch"]
        )}  # fmt: skip

    @pytest.mark.parametrize(
        ("said", "tau", "f1"),
        [
            (["a", "b", "c"], 1.0, 1.0),
            (["c", "b", "a"], 0.0, 1.0),
            (["a", "c", "b"], 2 / 3, 1.0),  # two pairs agree, one does not: (1/3 + 1) / 2
            (["x", "y"], (-4 / 8 + 1) / 2, 0.0),
        ],
    )
    def test_hand_made_orders(self, said: list[str], tau: float, f1: float) -> None:
        found = order_of(["a", "b", "c"], said)
        assert found["f1"] == f1
        if f1:
            assert found["tau"] == pytest.approx(tau)
