"""Each data set's reader takes the published format, and its metric gives what the paper's code gives."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from diarist.evals.datasets import dataset
from diarist.evals.datasets.base import Dataset
from diarist.exceptions import InputError, ModelResponseError
from tests.evals import samples


async def judged(data: Dataset, number: int, reply: str, response: str = "an answer") -> tuple[float, str]:
    """The score that a judge's reply gives for the question of a history, and the prompt that the judge saw."""
    prompts: list[str] = []

    async def ask(prompt: str) -> str:
        prompts.append(prompt)
        return reply

    grade = await data.grade(data.histories[number].questions[0], response, ask)
    return grade.score, prompts[0]


@pytest.fixture
def longmemeval(tmp_path: Path) -> Dataset:
    return dataset("longmemeval", samples.written(tmp_path / "longmemeval_s.json", samples.longmemeval()))


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
        with pytest.raises(ModelResponseError, match="--judge-tokens"):
            await judged(longmemeval, 0, "")

    def test_a_broken_item_is_named(self, tmp_path: Path) -> None:
        items = samples.longmemeval()
        del items[2]["haystack_dates"]
        path = samples.written(tmp_path / "data.json", items)
        with pytest.raises(InputError, match=r"item 3: the field 'haystack_dates' is missing"):
            _ = dataset("longmemeval", path).histories


def test_a_missing_file_says_where_to_get_the_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="xiaowu0162/LongMemEval"):
        dataset("longmemeval", tmp_path / "longmemeval_s.json")
