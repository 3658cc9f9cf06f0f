"""``diarist eval`` runs the other data sets end to end, with their own metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from diarist.cli.app import app
from diarist.models.base import ModelRequest
from diarist.testing import ScriptedModel
from tests.evals import samples, scripted
from tests.loopback.openai_server import OpenAIServer
from tests.loopback.server import Answer, Recorded

ANY = "tests.evals.scripted:anything"


def evaluate(name: str, data: Path, out: Path, *more: str, judge: bool = True) -> list[str]:
    """The lines that a run prints, with single spaces."""
    words = ["eval", name, "--data", str(data), "--out", str(out), "--reader", ANY, "--message-tokens", "5", *more]
    result = CliRunner().invoke(app, words + (["--judge", ANY] if judge else []))
    assert result.exit_code == 0, result.stderr
    return re.sub(r" +", " ", result.stdout).splitlines()


def lines(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def context(out: Path, question: str, system: str = "om") -> str:
    """The text that the reader got."""
    (name,) = (
        line["context"]
        for line in lines(out, "answers.jsonl")
        if (line["system"], line["question"]) == (system, question)
    )
    return (out / name).read_text()


def test_locomo_without_and_with_a_judge(tmp_path: Path) -> None:
    data = samples.written(tmp_path / "locomo10.json", samples.locomo())
    plain = evaluate("locomo", data, tmp_path / "a", judge=False)
    assert plain[0] == "F1 of stemmed words"
    assert "judged correct" not in plain
    with_judge = evaluate("locomo", data, tmp_path / "b", "--system", "om", "--system", "full")
    assert with_judge[5] == "judged correct"
    report = (tmp_path / "b" / "report.md").read_text()
    assert "| F1 without adversarial questions | 25.00 | 25.00 |" in report
    assert "| Judged correct without adversarial questions | 100.00 | 100.00 |" in report
    assert "## Paired comparisons: F1 of stemmed words\n" in report
    assert "## Paired comparisons: judged correct\n" in report


def test_a_run_without_a_judge_is_compared_by_the_metric_that_both_have(tmp_path: Path) -> None:
    data = samples.written(tmp_path / "locomo10.json", samples.locomo())
    evaluate("locomo", data, tmp_path / "a", judge=False)
    evaluate("locomo", data, tmp_path / "b")
    assert CliRunner().invoke(app, ["eval", "report", str(tmp_path / "b"), str(tmp_path / "a")]).exit_code == 0
    compared = (tmp_path / "b" / "report.md").read_text().partition("## Beside ")[2]
    assert "By F1 of stemmed words, on the same questions." in compared
    assert "| om, run 1 | 5 | +0.0 |" in re.sub(r"\| \S+: ", "| ", compared)


def test_scores_between_right_and_wrong_have_a_p_value_too(tmp_path: Path) -> None:
    data = samples.written(tmp_path / "locomo10.json", samples.locomo())
    evaluate("locomo", data, tmp_path / "a", "--reader", "tests.evals.scripted:swimmer", judge=False)
    evaluate("locomo", data, tmp_path / "b", judge=False)
    for name, other in (("a", "b"), ("b", "a")):  # the scores of "b" alone are 0 and 1
        assert CliRunner().invoke(app, ["eval", "report", str(tmp_path / name), str(tmp_path / other)]).exit_code == 0
        compared = (tmp_path / name / "report.md").read_text().partition("## Beside ")[2]
        assert "p is the paired randomization test, two-sided." in compared
        assert re.search(r"\| Bonett-Price \| (0|1)\.\d{4} \|", compared)


def test_without_a_judge_a_failed_item_is_no_verdict(tmp_path: Path) -> None:
    data = samples.written(tmp_path / "locomo10.json", samples.locomo())
    shown = evaluate("locomo", data, tmp_path / "a", "--reader", "tests.evals.scripted:broken", judge=False)
    assert "F1 of stemmed words" in shown
    assert "judged correct" not in shown


def test_a_run_that_has_just_begun_is_reported_beside_a_whole_one(tmp_path: Path) -> None:
    data, out = samples.written(tmp_path / "locomo10.json", samples.locomo()), tmp_path / "a"
    evaluate("locomo", data, out, "--runs", "2")
    judged = lines(out, "judgements.jsonl")
    left = [line for line in judged if line["run"] == 1 or line["question"] == "conv-1-5"]  # an adversarial question
    (out / "judgements.jsonl").write_text("".join(json.dumps(line) + "\n" for line in left))
    assert CliRunner().invoke(app, ["eval", "report", str(out)]).exit_code == 0
    report = (out / "report.md").read_text()
    assert "| Judged correct without adversarial questions | 100.00 |" in report
    assert "om, run 2: 4 questions are not judged yet" in report


def test_a_run_whose_judgements_all_failed_counts_as_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = samples.written(tmp_path / "locomo10.json", samples.locomo()), tmp_path / "a"
    words = ("--judge", "tests.evals.scripted:judge")
    monkeypatch.setattr(scripted, "judge", ScriptedModel(lambda _: '{"verdict": "correct"}', name="judge"))
    evaluate("locomo", data, out, *words, judge=False)
    monkeypatch.setattr(scripted, "judge", ScriptedModel(lambda _: "I cannot tell.", name="judge"))
    evaluate("locomo", data, out, *words, "--runs", "2", judge=False)
    assert "| Judged correct without adversarial questions | 50.00 |" in (out / "report.md").read_text()


def test_questions_can_be_limited(tmp_path: Path) -> None:
    two = [*samples.locomo(), {**samples.locomo()[0], "sample_id": "conv-2"}]
    data = samples.written(tmp_path / "locomo10.json", two)
    evaluate("locomo", data, tmp_path / "a", "--items", "1", "--questions", "2", judge=False)
    assert [line["question"] for line in lines(tmp_path / "a", "judgements.jsonl")] == ["conv-1-1", "conv-1-5"]


def test_a_data_set_with_an_id_twice_is_refused(tmp_path: Path) -> None:
    data = samples.written(tmp_path / "locomo10.json", samples.locomo() * 2)
    words = ["eval", "locomo", "--data", str(data), "--out", str(tmp_path / "a"), "--reader", ANY]
    assert "two histories of the data set have the id 'conv-1'" in CliRunner().invoke(app, words).stderr


class LocalServer(OpenAIServer):
    """Notes one fact, answers with a date, and judges everything correct."""

    def events(self, request: Recorded, answer: Answer) -> Iterator[str]:
        diary = "<diary>\nDate: 2023-05-08\n- 🔴 User stated that she paints. [#1]\n</diary>"
        text = diary if "<transcript>" in json.dumps(request.body) else '{"verdict": "correct"} 7 May 2023'
        return super().events(request, Answer(text=[text]))


def test_locomo_over_a_server_of_ones_own(tmp_path: Path) -> None:
    """Observer, reader and judge speak to an OpenAI-compatible address, where no price is known."""
    data = samples.written(tmp_path / "locomo10.json", samples.locomo())
    roles = [word for role in ("observer", "reader", "judge") for word in (f"--{role}", "openai/local")]
    words = ["eval", "locomo", "--data", str(data), "--out", str(tmp_path / "a"), "--message-tokens", "5", *roles]
    words += ["--observer-tokens", "600"]
    server = LocalServer()
    try:
        result = CliRunner().invoke(app, [*words, "--base-url", server.base_url], env={"OPENAI_API_KEY": "none"})
    finally:
        server.stop()
    assert result.exit_code == 0, result.stderr
    assert "she paints" in context(tmp_path / "a", "conv-1-1")
    limits = {request.body["max_tokens"] for request in server.requests if "transcript" in str(request.body)}
    assert limits == {600}
    assert "Spent $0.0000; unknown price: openai/local" in result.stderr


def test_personamem_asks_in_the_middle_of_a_history(tmp_path: Path) -> None:
    shown = evaluate("personamem", samples.personamem(tmp_path / "data"), tmp_path / "a", "--system", "om", judge=False)
    assert shown[0] == "accuracy of the chosen option"
    assert shown[1].startswith(" om micro 50.00 %")
    contexts = [context(tmp_path / "a", id) for id in ("q1", "q2")]
    assert "rock" not in contexts[0]
    assert "rock" in contexts[1]
    assert "Rome" in contexts[1]


def test_the_recall_tool_is_refused_in_the_middle_of_a_history(tmp_path: Path) -> None:
    data = samples.personamem(tmp_path / "data")
    words = ["eval", "personamem", "--data", str(data), "--out", str(tmp_path / "a"), "--reader", ANY]
    result = CliRunner().invoke(app, [*words, "--system", "om-recall"])
    assert result.exit_code == 2
    assert "leave out --system om-recall" in result.stderr


def test_halumem_scores_its_parts_apart(tmp_path: Path) -> None:
    data = samples.written(tmp_path / "HaluMem-Medium.jsonl", samples.halumem())
    out = tmp_path / "a"
    shown = evaluate("halumem", data, out, "--system", "om", "--system", "full")
    parts = [line.partition(":")[0] for line in shown if "share judged right" in line]
    assert parts == ["extraction", "accuracy", "update", "answers"]
    judged = {(line["system"], line["question"]) for line in lines(out, "judgements.jsonl")}
    assert {question for system, question in judged if system == "full"} == {"u1-2-update-1", "u1-2-question-1"}
    assert len([one for one in judged if one[0] == "om"]) == 7
    notes = context(out, "u1-1-accuracy")
    assert "I have a dog" in notes
    assert "school" not in notes
    report = (out / "report.md").read_text()
    assert "| Update: correct | 100.00 | 100.00 |" in report
    page = (out / "report.html").read_text()
    assert "<dt>Original</dt><dd>Martin works at a bank.</dd>" in page
    assert "<dt>Dialogue</dt><dd>[Sep 04, 2025, 18:41:23] user: I work at a bank, and I have a dog.\n" in page
    assert "are not judged yet" not in report


def test_folders_are_compared_part_by_part(tmp_path: Path) -> None:
    data = samples.written(tmp_path / "HaluMem-Medium.jsonl", samples.halumem())
    for name in ("a", "b"):
        evaluate("halumem", data, tmp_path / name)
    assert CliRunner().invoke(app, ["eval", "report", str(tmp_path / "a"), str(tmp_path / "b")]).exit_code == 0
    report = (tmp_path / "a" / "report.md").read_text()
    for part in ("extraction", "accuracy", "update", "answers"):
        assert report.count(f"## {part}: Beside {tmp_path / 'b'}\n") == 1


def test_beam_reports_the_order_of_events(tmp_path: Path) -> None:
    shown = evaluate("beam", samples.beam(tmp_path), tmp_path / "a", "--system", "full")
    assert shown[0] == "mean points of the rubric"
    assert "| Event ordering: Kendall's tau-b, from 0 to 1 |" in (tmp_path / "a" / "report.md").read_text()


def test_own_prompts_replace_those_of_the_data_set(tmp_path: Path) -> None:
    data = samples.written(tmp_path / "longmemeval.json", samples.longmemeval())
    prompts = samples.written(tmp_path / "prompts.json", {"judge": 'Is {response} right? "verdict"'})
    evaluate("longmemeval", data, tmp_path / "a", "--prompts", str(prompts))
    assert "| Judge's prompts | our own wording (see prompts.json) |" in (tmp_path / "a" / "report.md").read_text()
    for own, error in (
        ({"jugde": "…"}, "no prompt is called 'jugde'"),
        (
            {"judge": "Is {respnse} right?"},
            "prompt 'judge' has no slot {respnse}; it has {answer}, {question}, {response}",
        ),
    ):
        wrong = samples.written(tmp_path / "wrong.json", own)
        words = ["eval", "longmemeval", "--data", str(data), "--out", str(tmp_path / "b"), "--prompts", str(wrong)]
        result = CliRunner().invoke(app, words)
        assert error in " ".join(result.stderr.split())


def test_the_replies_beside_a_failed_one_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(request: ModelRequest) -> str:
        return "garbage" if "login" in request.text else "YES" if "YES or NO" in request.text else '{"score": 1}'

    monkeypatch.setattr(scripted, "judge", ScriptedModel(judge, name="judge"))
    out = tmp_path / "a"
    evaluate("beam", samples.beam(tmp_path), out, "--judge", "tests.evals.scripted:judge", judge=False)
    judged = next(line for line in lines(out, "judgements.jsonl") if "event_ordering" in line["question"])
    assert judged["score"] == pytest.approx(2 / 3)
    assert [(reply["about"], reply["reply"]) for reply in judged["replies"]][:3] == [
        ("tracker", '{"score": 1}'),
        ("login", "garbage"),
        ("deployment", '{"score": 1}'),
    ]
    page = (out / "report.html").read_text()
    assert "<dt>Rubric</dt><dd>tracker\nlogin\ndeployment</dd>" in page
    assert '<li><span class="about">login</span>\ngarbage\n<span class="error">ModelResponseError: the' in page
    assert judged["error"].startswith("1 of 4 judgements failed: ModelResponseError: the judge's reply is no JSON")
