"""What notes keep, invent, credit and cost: ``evaluate_retention`` on small conversations with evidence."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from diarist.chunks import Usage
from diarist.evals.evidence import read_evidence
from diarist.evals.keyless import evaluate_retention
from diarist.evals.retention import Retention, measure
from diarist.evals.updates import CASES, measure_updates
from diarist.exceptions import InputError, RoleError
from diarist.memory.observational.roles.base import Observed
from diarist.memory.observational.roles.extractive.observer import ExtractiveObserver
from diarist.memory.observational.roles.extractive.reflector import ExtractiveReflector
from diarist.messages import Message
from diarist.storage.records import Observation
from diarist.testing import ScriptedModel

SMALL = Path(__file__).parent / "small_talk.json"
LOCOMO = "DIARIST_LOCOMO"
"""Environment variable with the path of locomo10.json, which is not part of the project."""


class FakeObserver:
    """Notes what ``write`` returns for the messages; cites nothing."""

    def __init__(self, *texts: str, unnoted: int = 0) -> None:
        self._texts = list(texts)
        self._unnoted = unnoted
        self.seen: list[tuple[list[str], int]] = []

    async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
        self.seen.append(([message.text for message in messages], len(earlier)))
        left = [message.id for message in messages[len(messages) - self._unnoted :]]
        self._unnoted = 0
        text = self._texts.pop(0) if self._texts else "Date: 2026-03-02\n- Nothing."
        if text == "fail":
            raise RoleError("the answer is empty")
        usage = Usage(input_tokens=100, output_tokens=20, cached_tokens=50)
        return Observed(text=text, usage=usage, model="fake", unnoted=tuple(left))


def locomo(tmp_path: Path, *turns: tuple[str, str], questions: Sequence[tuple[str, str, int]] = ()) -> Path:
    """Write one session; a question is its answer, the number of its turn, its category."""
    session = [{"speaker": who, "dia_id": f"D1:{n}", "text": text} for n, (who, text) in enumerate(turns, 1)]
    talk = {
        "speaker_a": "Mira",
        "speaker_b": "Tom",
        "session_1": session,
        "session_1_date_time": "1:00 pm on 2 March, 2026",
    }
    qa = [{"question": "?", "answer": a, "evidence": [turn], "category": kind} for a, turn, kind in questions]
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"sample_id": "s", "conversation": talk, "qa": qa}]))
    return path


async def measured(path: Path, observer: FakeObserver, *, batch_tokens: int = 6_000, window: int = 0) -> Retention:
    return await measure(read_evidence(path), observer, batch_tokens=batch_tokens, window_tokens=window)


async def test_a_question_is_kept_if_all_its_evidence_is_in_the_notes(tmp_path: Path) -> None:
    turns = [("Mira", "I bought a red kettle and two cups in Oslo."), ("Tom", "Nice!")]
    path = locomo(tmp_path, *turns, questions=[("a red kettle", "D1:1", 4), ("two cups", "D1:1", 4)])
    result = await measured(path, FakeObserver("Date: 2026-03-02\n- 🟡 Mira owns a red kettle and cups."))
    assert result.asked == {"one fact": 2}
    assert result.share("notes", "one fact") == result.share("notes") == 0.5


async def test_a_date_counts_in_the_words_that_were_said_and_written_out(tmp_path: Path) -> None:
    path = locomo(tmp_path, ("Mira", "I moved last Friday."), questions=[("The Friday before 2 March 2026", "D1:1", 2)])
    for note, kept, written_out in (
        ("- Mira moved last Friday.", 1, 0),
        ("- Mira moved on 27 February 2026.", 1, 1),
        ("- Mira moved.", 0, 0),
        ("- Mira moved on 2 March 2026.", 0, 0),
    ):
        result = await measured(path, FakeObserver(f"Date: 2026-03-02\n{note}"))
        assert (result.kept["notes"].questions["when"], result.kept["notes"].dates) == (kept, written_out), note


async def test_baselines_have_the_size_of_the_notes() -> None:
    result = await measure(read_evidence(SMALL), ExtractiveObserver())
    notes = result.kept["notes"].tokens
    for name, kept in result.kept.items():
        assert 0.9 * notes <= kept.tokens <= 1.02 * notes, name
    assert list(result.kept) == [
        *("notes", "raw tail", "head and tail", "random messages", "first sentences", "longest sentences")
    ]


async def test_messages_of_the_window_are_not_observed_and_are_kept(tmp_path: Path) -> None:
    turns = [("Mira", "I bought a red kettle."), ("Tom", "I sold my boat.")]
    path = locomo(tmp_path, *turns, questions=[("kettle", "D1:1", 4), ("boat", "D1:2", 4)])
    observer = FakeObserver()
    result = await measured(path, observer, window=8)
    assert observer.seen == [(["I bought a red kettle."], 0)]
    assert result.kept["notes"].questions == {"one fact": 1}


async def test_a_batch_ends_at_its_size_and_sees_the_earlier_notes(tmp_path: Path) -> None:
    path = locomo(tmp_path, ("Mira", "word " * 50), ("Tom", "word " * 50), ("Mira", "bye"))
    observer = FakeObserver()
    await measured(path, observer, batch_tokens=80)
    assert [(len(texts), earlier) for texts, earlier in observer.seen] == [(1, 0), (2, 1)]


async def test_invented_anchors_are_found(tmp_path: Path) -> None:
    path = locomo(tmp_path, ("Mira", "I pay 2,5k for the flat in Lund, since last Friday."))
    notes = [
        "- 🔴 13:00 Mira pays 2500 for a flat in Lund since 27 February 2026.",
        "- 🔴 13:00 Mira pays 2600.",
        "- Mira lives in Malmö.",
    ]
    result = await measured(path, FakeObserver("\n".join(["Date: 2026-03-02", *notes])))
    assert result.lines == 3
    assert [anchors for _, anchors in result.invented] == [["2600"], ["Malmö"]]


@pytest.mark.parametrize(
    ("said", "noted"),
    [
        ("The exam is on March 12.", "2026-03-12"),
        ("I will be in Lund on the 12th of March.", "12 March 2026"),
        ("I fly to Lund on Friday.", "6 March 2026"),
        ("I fly to Lund in two weeks.", "16 March 2026"),
    ],
)
async def test_dates_that_follow_from_what_was_said_are_not_invented(tmp_path: Path, said: str, noted: str) -> None:
    path = locomo(tmp_path, ("Mira", said))
    assert (await measured(path, FakeObserver(f"Date: 2026-03-02\n- It is on {noted}."))).invented == []
    assert len((await measured(path, FakeObserver("Date: 2026-03-02\n- It is on 9 April 2026."))).invented) == 1


async def test_the_wrong_speaker_is_found(tmp_path: Path) -> None:
    path = locomo(tmp_path, ("Mira", "I bought a red kettle."), ("Tom", "I sold my old boat, Mira."))
    notes = [
        "- Mira bought a red kettle.",
        "- Mira sold her old boat.",
        "- Tom sold his old boat to Mira.",
        "- It rained.",
    ]
    result = await measured(path, FakeObserver("\n".join(["Date: 2026-03-02", *notes])))
    assert result.credited == 3
    assert result.miscredited == ["Mira sold her old boat."]


async def test_messages_that_the_notes_do_not_cover_are_observed_again(tmp_path: Path) -> None:
    path = locomo(tmp_path, ("Mira", "one"), ("Tom", "two"))
    observer = FakeObserver(unnoted=1)
    result = await measured(path, observer)
    assert [texts for texts, _ in observer.seen] == [["one", "two"], ["two"]]
    assert (result.calls, result.usage.input_tokens, result.usage.cached_tokens) == (2, 200, 100)


async def test_a_failed_batch_has_no_notes_and_is_counted(tmp_path: Path) -> None:
    path = locomo(tmp_path, ("Mira", "I bought a kettle."), questions=[("kettle", "D1:1", 4)])
    result = await measured(path, FakeObserver("fail"))
    assert result.failed == ["the answer is empty"]
    assert result.share("notes") == 0


async def test_runs_of_tau_bench_ask_for_the_arguments_of_the_expected_calls(tmp_path: Path) -> None:
    actions = [{"name": "cancel", "kwargs": {"reservation_id": "QX72LM", "reason": "never said"}}]
    traj = [{"role": "user", "content": "Please cancel QX72LM."}, {"role": "assistant", "content": "Done."}]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps([{"task_id": 0, "traj": traj, "info": {"task": {"actions": actions}}}]))
    result = await measured(path, FakeObserver("Date: unknown\n- User asked to cancel qx72lm."))
    assert (result.asked.total(), result.share("notes")) == (1, 1.0)


def beam(tmp_path: Path) -> Path:
    """Write one chat of two days."""

    def turn(id: int, text: str) -> list[dict[str, object]]:
        said = {"role": "user", "id": id, "content": text}
        return [said, {"role": "assistant", "id": id + 1, "content": "Ok."}]

    first = [turn(0, "My talk is on May 4."), turn(2, "I prefer tea.")]
    first[0][0]["time_anchor"] = "March-02-2026"
    second = [turn(4, "My talk moved to May 9.")]
    second[0][0]["time_anchor"] = "March-09-2026"
    items = ["LLM response should contain: the talk", "LLM response should contain: tea"]
    sources = {"original_info": [0], "updated_info": [4]}
    questions = {
        "abstention": [{"question": "?", "ideal_response": "Not said: talk.", "rubric": ["-"]}],
        "knowledge_update": [{"question": "?", "answer": "May 9", "source_chat_ids": sources, "rubric": ["May 9"]}],
        "preference_following": [
            {"question": "?", "preference_being_tested": "I prefer tea.", "source_chat_ids": [2], "rubric": ["talk"]}
        ],
        "summarization": [{"question": "?", "ideal_summary": "All", "source_chat_ids": [0, 2], "rubric": items}],
    }
    chat = [{"batch_number": number, "turns": turns} for number, turns in enumerate((first, second), 1)]
    folder = tmp_path / "100K" / "7"
    (folder / "probing_questions").mkdir(parents=True)
    (folder / "chat.json").write_text(json.dumps(chat))
    (folder / "probing_questions" / "probing_questions.json").write_text(json.dumps(questions))
    rows = [{"conversation_id": "7", "chat": [turns for turns in (first, second)], "probing_questions": str(questions)}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    return tmp_path


@pytest.mark.parametrize("data", ["100K", "100K/7", "rows.json"])
async def test_beam_asks_for_the_words_of_the_answer_in_its_messages(tmp_path: Path, data: str) -> None:
    observer = FakeObserver("- The talk is on May 4.", "- The talk is on May 9.")
    result = await measured(beam(tmp_path) / data, observer)
    assert [len(texts) for texts, _ in observer.seen] == [4, 2]  # a batch for each day
    assert result.asked == {"updates": 1, "preferences": 1, "summaries": 2}
    assert result.kept["notes"].questions == {"updates": 1, "preferences": 0, "summaries": 1}


def test_a_broken_folder_of_beam_is_refused_with_its_place(tmp_path: Path) -> None:
    folder = beam(tmp_path) / "100K" / "7"
    (folder / "probing_questions" / "probing_questions.json").unlink()
    with pytest.raises(InputError, match=r"probing_questions\.json cannot be read"):
        read_evidence(tmp_path / "100K")
    (folder / "chat.json").unlink()
    with pytest.raises(InputError, match=r"7 has no chat\.json; --data is a folder of chats"):
        read_evidence(tmp_path / "100K")


async def test_a_stale_value_is_found() -> None:
    class Echo(FakeObserver):
        async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
            said = [message.text for message in messages if message.role == "user"]
            return Observed(text="\n".join(f"- {text}" for text in said), usage=Usage(), model="fake")

    class Forgetful(Echo):
        async def observe(self, messages: Sequence[Message], *, earlier: Sequence[Observation]) -> Observed:
            return await super().observe([] if earlier else messages, earlier=earlier)

    assert (await measure_updates(Echo())).stale == []
    stale = (await measure_updates(Forgetful())).stale
    assert len(stale) == len(CASES)
    assert stale[0] == "Bergen instead of Turku"


async def test_a_model_is_measured_like_the_extractive_observer() -> None:
    notes = iter(["Mira adopted a grey cat from Lund.", "Mira's brother Jonas lives in Oslo.", "Tom moved to Ystad."])
    model = ScriptedModel(lambda request: f"Date: 2024-05-06\n* 🔴 (10:15) {next(notes, 'Nothing.')} [#3]")
    report = await evaluate_retention(SMALL, observer=model, conversations=1)
    assert report.retention.calls == 3
    assert report.retention.usage.input_tokens > 0
    assert "scripted" in report.observer or report.observer in report.text()
    assert json.loads(report.json())["calls"] == 3


async def test_the_report_has_each_measure() -> None:
    report = await evaluate_retention(SMALL)
    text = report.text()
    for word in ("extractive notes", "raw tail", "one fact", "dates with year", "Invention", "Attribution", "Update"):
        assert word in text
    assert text.startswith("Read: 2 conversations, 50 messages, 1,404 tokens.")
    assert "all (61)  when (14)  one fact (41)" in text
    assert "a built-in test of 20 corrections" in text
    assert "anchor" not in text
    figures = json.loads(report.json())
    assert figures["kept"]["notes"]["questions"]["one fact"] > 0
    assert figures["questions"] == {"when": 14, "one fact": 41, "several facts": 6}


async def test_a_file_without_conversations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text("[]")
    with pytest.raises(InputError):
        await evaluate_retention(path)


HELD_SMALL = {"when": 85.7, "one fact": 51.2, "several facts": 16.7}
HELD_LOCOMO = {"when": 95.5, "one fact": 59.2, "several facts": 63.4, "conclusions": 63.6}
"""The last figures of the extractive Observer, in percent.

The test allows one point less; raise them when they rise.
"""


async def test_the_extractive_observer_keeps_its_figures() -> None:
    result = await measure(read_evidence(SMALL), ExtractiveObserver())
    hold(result, HELD_SMALL, least_ratio=2.2)
    updates = await measure_updates(ExtractiveObserver(), ExtractiveReflector())
    assert len(updates.stale) == 0


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(LOCOMO), reason=f"{LOCOMO} does not name a file")
async def test_the_extractive_observer_keeps_its_figures_on_locomo() -> None:
    result = await measure(read_evidence(Path(os.environ[LOCOMO])), ExtractiveObserver())
    hold(result, HELD_LOCOMO, least_ratio=2.5)


def hold(result: Retention, held: dict[str, float], *, least_ratio: float) -> None:
    assert result.tokens / result.kept["notes"].tokens >= least_ratio
    assert not result.miscredited
    assert len(result.invented) <= result.lines / 100
    for kind, share in held.items():
        assert 100 * result.share("notes", kind) >= share - 1, kind
