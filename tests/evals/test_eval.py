"""``diarist eval`` end to end with scripted models: a golden run, resuming, budgets, failures, and the report."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from diarist.cli.app import app
from tests.evals import samples, scripted
from tests.evals.scripted import PRICES

TIMES = ("seconds", "paid_by_this_run")
EFFORT = ("calls", "input_tokens", "cached_tokens", "output_tokens", "cost")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return samples.written(tmp_path / "longmemeval_s.json", samples.longmemeval())


def command(data: Path, out: Path, *more: str, **roles: str) -> list[str]:
    """A command with scripted models; an option that is given again replaces the first."""
    names = {"observer": "extractive", "reader": "reader", "judge": "judge"} | roles
    words = ["eval", "longmemeval", "--data", str(data), "--out", str(out), "--message-tokens", "10"]
    for role, name in names.items():
        words += [f"--{role}", name if name == "extractive" else f"tests.evals.scripted:{name}"]
    for price in PRICES:
        words += ["--price", price]
    return [*words, *more]


def run(words: list[str], status: int = 0) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == status, result.stderr
    return result


def records(out: Path, name: str, *without: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Records by key, without what differs between equal runs, and without some fields."""
    lines = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
    keys = ("system", "run", "question", "history", "session")
    return {
        tuple(line.get(key) for key in keys): {
            key: value for key, value in line.items() if key not in (*TIMES, *without)
        }
        for line in lines
    }


def context(out: Path, system: str, question: str, number: int = 1) -> Path:
    """The file with the context that the reader got."""
    return out / str(records(out, "answers")[system, number, question, None, None]["context"])


def everything(out: Path, *without: str) -> dict[str, Any]:
    return {name: records(out, name, *without) for name in ("ingest", "answers", "judgements")}


class TestGoldenRun:
    def test_it_gives_the_same_numbers(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        words = command(data, out, "--system", "om", "--system", "last", "--system", "full", observer="observer")
        shown = run([*words, "--last-messages", "2", "--runs", "2"]).stdout
        assert re.sub(r" +", " ", shown).splitlines() == [
            "accuracy, judged by a model with a prompt for each question type",
            " om micro 100.00 % (51.01 to 100.00), 4 questions, 2 runs",
            " om macro 100.00 % (60.33 to 100.00), 4 questions, 2 runs",
            " last micro 25.00 % (4.56 to 69.94), 4 questions, 2 runs",
            " last macro 25.00 % (5.16 to 59.36), 4 questions, 2 runs",
            " full micro 100.00 % (51.01 to 100.00), 4 questions, 2 runs",
            " full macro 100.00 % (60.33 to 100.00), 4 questions, 2 runs",
            "Cost of om: ingest $0.0080, answer $0.0016, judge $0.0005",
            "Cost of last: ingest $0.0000, answer $0.0016, judge $0.0005",
            "Cost of full: ingest $0.0000, answer $0.0016, judge $0.0005",
        ]

    def test_the_records_tell_how_each_answer_came_about(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, observer="observer"))
        answer = records(out, "answers")["om", 1, "q2", None, None]
        assert "third cat" in context(out, "om", "q2").read_text()
        assert answer["hypothesis"] == "You have 3 cats."
        assert (answer["model"], answer["calls"], answer["input_tokens"]) == ("scripted/reader", 1, 100)
        assert answer["cost"] == pytest.approx(0.0002)
        judgement = records(out, "judgements")["om", 1, "q2", None, None]
        assert (judgement["correct"], judgement["label"]) == (True, "yes")
        assert judgement["replies"][0]["reply"] == "yes"
        hypotheses = [json.loads(line) for line in (out / "hypotheses" / "om-run1.jsonl").read_text().splitlines()]
        assert {"question_id": "q2", "hypothesis": "You have 3 cats."} in hypotheses

    def test_sessions_are_ingested_with_their_own_times(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out))
        assert "Date: 2023-05-21" in context(out, "om", "q2").read_text()


class TestResuming:
    def test_a_second_call_does_nothing_again(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        words = command(data, out, observer="observer")
        run(words)
        before, calls = everything(out), len(scripted.reader.requests)
        run(words)
        assert everything(out) == before
        assert len(scripted.reader.requests) == calls

    @pytest.mark.parametrize(
        ("stage", "sent"),
        [
            ("answers", signal.SIGKILL),
            ("sessions", signal.SIGINT),
            pytest.param("sessions", signal.SIGKILL, marks=pytest.mark.slow),  # the dead process's lease must expire
        ],
    )
    def test_an_interrupted_run_continues_to_the_same_records(
        self, stage: str, sent: signal.Signals, data: Path, tmp_path: Path
    ) -> None:
        whole, out = tmp_path / "one" / "a", tmp_path / "other" / "a"
        run(command(data, whole, "--runs", "2", observer="observer"))
        program = "import sys; sys.path.insert(0, '.'); from diarist.cli import main; main()"
        same = command(data, out, "--runs", "2", "--concurrency", "1", observer="observer")
        words = [sys.executable, "-c", program, *same]
        with subprocess.Popen(words, env=os.environ | {"PYTHONPATH": "src"}, stderr=subprocess.DEVNULL) as process:
            for _ in range(6000):
                found = [*out.parent.rglob(f"{stage}.jsonl")]
                if found and found[0].read_bytes().count(b"\n") >= 2:
                    break
                time.sleep(0.005)
            process.send_signal(sent)
        run(command(data, out, "--runs", "2", observer="observer"))
        assert everything(out, *EFFORT) == everything(whole, *EFFORT)

    def test_a_line_that_was_cut_off_is_done_again(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        words = command(data, out)
        run(words)
        before = everything(out)
        path = out / "judgements.jsonl"
        path.write_bytes(path.read_bytes()[:-30])
        run(words)
        assert everything(out) == before

    def test_a_judgement_belongs_to_its_answer(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "a"
        words = command(data, out, "--concurrency", "1")
        run(words)
        path = out / "answers.jsonl"
        path.write_bytes(path.read_bytes()[:-30])
        monkeypatch.setattr(scripted, "reader", scripted.forgetful)
        assert "75.00 %" in run(words).stdout
        assert records(out, "judgements")["om", 1, "q4_abs", None, None]["correct"] is False

    def test_an_answer_that_was_tried_again_is_judged_again(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out, healthy = tmp_path / "a", scripted.reader
        monkeypatch.setattr(scripted, "reader", scripted.ScriptedModel(scripted.broken._replies[0], name="reader"))
        words = command(data, out, "--concurrency", "1")
        run(words)
        monkeypatch.setattr(scripted, "reader", healthy)
        run([*words, "--retry-failed", "--budget", "0.0001"], status=3)  # it has answered, but not judged
        assert "om, run 1: 1 question" in (out / "report.md").read_text()
        run([*words, "--budget", "1"])
        assert records(out, "judgements")["om", 1, "q1", None, None]["correct"] is True

    def test_other_settings_need_another_folder(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out))
        result = run(command(data, out, "--reading", "direct"), status=2)
        assert "holds a run with reading = 'con', not 'direct'; use another --out" in result.stderr

    @pytest.mark.parametrize(("field", "name"), [("question", "text"), ("answer", "answer"), ("question_date", "date")])
    def test_a_question_that_has_changed_needs_another_folder(self, field: str, name: str, tmp_path: Path) -> None:
        items, out = samples.longmemeval(), tmp_path / "a"
        run(command(samples.written(tmp_path / "data.json", items), out))
        before, old = everything(out), items[1][field]
        items[1][field] = new = "2023/06/02 (Fri) 09:00" if name == "date" else "corrected"
        words = command(samples.written(tmp_path / "data.json", items), out, "--runs", "2")
        error = f"Error: {out} holds the question 'q2' with {name} = {old!r}, not {new!r}; use another --out\n"
        assert run(words, status=2).stderr == error
        assert everything(out) == before

    def test_a_refused_command_leaves_no_folder(self, data: Path, tmp_path: Path) -> None:
        words = ["eval", "longmemeval", "--data", str(data), "--out", str(tmp_path / "a")]
        judge = ["--judge", "tests.evals.scripted:judge"]
        assert "needs --reader" in run([*words, *judge], status=2).stderr
        assert "nobody/x" in run([*words, *judge, "--reader", "nobody/x"], status=2).stderr
        assert not (tmp_path / "a").exists()
        run(command(data, tmp_path / "a"))

    def test_one_process_at_a_time_works_on_a_folder(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "a"
        program = (
            "import sys, time, pathlib; from diarist.evals.lock import locked\n"
            "with locked(pathlib.Path(sys.argv[1])): print('locked', flush=True); time.sleep(600)"
        )
        words = [sys.executable, "-c", program, str(out)]
        with subprocess.Popen(words, env=os.environ | {"PYTHONPATH": "src"}, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            error = run(command(data, out), status=2).stderr
            process.kill()
        assert f"Error: {out} is in use by process {process.pid}; wait for its end, or use another --out" in error
        run(command(data, out))

    def test_more_systems_runs_and_questions_can_be_added(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--items", "2"))
        run(command(data, out, "--system", "full", "--runs", "2"))
        assert {key[:2] for key in records(out, "judgements")} == {("om", 1), ("full", 1), ("full", 2)}
        unfinished = "om, run 1: 2 questions are not judged yet; om, run 2: nothing is judged yet."
        assert f"**Not finished.** {unfinished}\n" in (out / "report.md").read_text()

    def test_a_system_brings_its_own_options(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "a"
        run(command(data, out, "--system", "last", "--last-messages", "2"))
        diary = command(data, out, "--message-tokens", "20", observer="observer")
        run(diary)
        run(command(data, out, "--system", "full", "--message-tokens", "30"))
        error = run(
            command(data, out, "--system", "om", "--message-tokens", "30", observer="observer"), status=2
        ).stderr
        assert "holds a run with message_tokens = 20, not 30; use another --out" in error
        settings = json.loads((out / "run.json").read_text())["settings"]
        assert (settings["last_messages"], settings["message_tokens"]) == (2, 20)
        assert settings["observer"] == "tests.evals.scripted:observer"

    def test_a_refused_option_of_a_system_does_not_bind(self, data: Path, tmp_path: Path) -> None:
        words = command(data, tmp_path / "a", "--system", "semantic", "--embedder")
        assert "wordlama" in run([*words, "wordlama"], status=2).stderr
        run([*words, "wordllama"])

    def test_a_run_is_bound_to_its_servers(self, data: Path, tmp_path: Path) -> None:
        out, url = tmp_path / "a", "http://ann:secret@127.0.0.1:9/v1?key=secret"
        words = [
            "eval",
            "longmemeval",
            "--data",
            str(data),
            "--out",
            str(out),
            "--items",
            "1",
            "--message-tokens",
            "10",
        ]
        for role in ("observer", "reader", "judge"):
            words += [f"--{role}", "openai/local"]
        run([*words, "--base-url", url], status=1)
        assert not any("secret" in path.read_text() for path in out.iterdir())
        error = run([*words, "--base-url", "http://127.0.0.1:8/v1"], status=2).stderr
        assert "observer_url = 'http://127.0.0.1:9/v1', not 'http://127.0.0.1:8/v1'" in error
        before = {path.parent for path in (tmp_path / "memories").rglob("memory.db")}
        run([*words, "--base-url", "http://127.0.0.1:8/v1", "--out", str(tmp_path / "b")], status=1)
        assert len({path.parent for path in (tmp_path / "memories").rglob("memory.db")} - before) == 1

    def test_a_folder_is_needed(self, data: Path, tmp_path: Path) -> None:
        error = run(command(data, data), status=2).stderr
        assert error == f"Error: {data} is a file; --out names a folder\n"

    def test_memories_serve_other_readers(self, data: Path, tmp_path: Path) -> None:
        run(command(data, tmp_path / "runs" / "a", observer="observer"))
        calls = len(scripted.observer.requests)
        run(command(data, tmp_path / "runs" / "b", observer="observer", reader="judge"))
        assert len(scripted.observer.requests) == calls
        shared = json.loads((tmp_path / "runs" / "b" / "ingest.jsonl").read_text().splitlines()[0])
        assert shared["paid_by_this_run"] is False

    def test_a_context_belongs_to_its_question(self, tmp_path: Path) -> None:
        item = samples.longmemeval_item(
            "q1", "multi-session", "How many cats?", "3", "Mog is my cat.", "My car is a Fiat."
        )
        search = ["--system", "semantic", "--embedder", "wordllama", "--top-k", "1"]
        run(command(samples.written(tmp_path / "data.json", [item]), tmp_path / "a", *search))
        item["question"] = "Which car is mine? Which car?"
        run(command(samples.written(tmp_path / "data.json", [item]), tmp_path / "b", *search))
        assert "Mog" in context(tmp_path / "a", "semantic", "q1").read_text()
        assert "Fiat" in context(tmp_path / "b", "semantic", "q1").read_text()

    def test_each_file_is_what_the_reader_got(self, data: Path, tmp_path: Path) -> None:
        out, system = tmp_path / "a", "tests.evals.scripted:Numbered"
        run(command(data, out, "--system", system))
        shutil.rmtree(tmp_path / "memories")  # as the docs say for a changed system
        run(command(data, out, "--system", system, "--runs", "2"))
        sent = [request.text for request in scripted.reader.requests[-8:]]
        for number in (1, 2):
            for question in ("q1", "q2"):
                text = context(out, system, question, number).read_bytes().decode()
                assert any(text in prompt for prompt in sent)
        assert context(out, system, "q1", 1).read_bytes() != context(out, system, "q1", 2).read_bytes()


class TestBudget:
    def test_it_stops_and_continues(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        words = command(data, out, "--concurrency", "1", observer="observer")
        result = run([*words, "--budget", "0.0085"], status=3)
        assert "Stopped at the budget" in result.stderr
        judged = len(records(out, "judgements"))
        assert 0 < judged < 4
        assert not any("error" in record for record in records(out, "judgements").values())
        assert "Spent $0.0090" in run([*words, "--budget", "1"]).stderr
        assert len(records(out, "judgements")) == 4

    def test_it_can_stop_the_ingestion(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        words = command(data, out, "--concurrency", "1", observer="observer")
        run([*words, "--budget", "0.0010"], status=3)
        assert not (out / "answers.jsonl").exists()
        whole = tmp_path / "whole" / "a"
        run(words)
        run(command(data, whole, observer="observer"))
        assert everything(out, *EFFORT) == everything(whole, *EFFORT)

    def test_an_unknown_price_is_refused(self, data: Path, tmp_path: Path) -> None:
        words = command(data, tmp_path / "runs" / "a", "--budget", "1", reader="broken")
        result = run(words, status=2)
        assert "no price is known for scripted/broken, so --budget cannot hold" in result.stderr

    def test_without_a_budget_an_unknown_price_is_named(self, data: Path, tmp_path: Path) -> None:
        words = [word for word in command(data, tmp_path / "runs" / "a") if word not in ("--price", *PRICES)]
        result = run(words)
        assert "unknown price: scripted/judge; unknown price: scripted/reader" in result.stderr
        assert "answer unknown price, judge unknown price" in result.stdout

    def test_failed_attempts_count_as_well(self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        empty = scripted.ScriptedModel(scripted.silent, name="judge")
        monkeypatch.setattr(scripted, "judge", empty)
        words = command(data, tmp_path / "a")
        assert "judge $0.0002" in run(words).stdout
        assert "judge $0.0005" in run([*words, "--retry-failed"]).stdout
        assert "Spent $0.0013" in run(words).stderr

    def test_it_counts_the_systems_that_a_call_leaves_out(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, observer="observer"))
        more = command(data, out, "--system", "full", "--budget", "0.009", observer="observer")
        assert "Spent $0.0090" in run(more, status=3).stderr


class TestFailures:
    def test_a_failed_item_counts_as_wrong_and_is_listed(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        result = run(command(data, out, reader="broken"))
        assert "0.00 %" in result.stdout
        assert (
            "Items with errors, which count as wrong: 4; the report lists them.\n"
            "The first failed with: no answer: ModelResponseError: the server answers with nonsense\n"
        ) in result.stderr
        hypotheses = [json.loads(line) for line in (out / "hypotheses" / "om-run1.jsonl").read_text().splitlines()]
        assert hypotheses == [{"question_id": id, "hypothesis": ""} for id in ("q1", "q2", "q3", "q4_abs")]
        report = (out / "report.md").read_text()
        assert "| om | 1 | q1 | no answer: ModelResponseError: the server answers with nonsense |" in report

    def test_failed_items_are_tried_again_if_asked(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "runs" / "a"
        words = command(data, out, reader="broken")
        run(words)
        monkeypatch.setattr(scripted, "broken", scripted.ScriptedModel(scripted.reader._replies[0], name="broken"))
        run(words)
        assert all("error" in record for record in records(out, "answers").values())
        assert "100.00 %" in run([*words, "--retry-failed"]).stdout

    def test_an_outage_stops_the_run_instead_of_counting_as_failures(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        result = run(command(data, out, reader="offline"), status=1)
        assert result.stderr.endswith("Error: question q1 (om, run 1): connection refused\n")
        assert "om, run 1: nothing is judged yet" in (out / "report.md").read_text()
        assert not (out / "answers.jsonl").exists()
        run(command(data, tmp_path / "runs" / "b", observer="offline"), status=1)
        assert not any('"error"' in path.read_text() for path in tmp_path.rglob("sessions.jsonl"))

    def test_the_last_item_left_fails_instead_of_stopping_each_run(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "a"
        monkeypatch.setattr(scripted, "reader", scripted.failing("How many cats"))
        run(command(data, out))
        for words in (command(data, out), command(data, out, "--retry-failed")):
            for name in ("answers", "judgements"):
                path = out / f"{name}.jsonl"
                lines = path.read_text().splitlines(keepends=True)
                path.write_text("".join(line for line in lines if '"q2"' not in line))
            assert "Items with errors, which count as wrong: 1;" in run(words).stderr

    def test_an_outage_in_the_middle_stops_after_a_few_items(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = samples.written(tmp_path / "data.json", samples.many(12))
        out, healthy = tmp_path / "a", scripted.reader
        monkeypatch.setattr(scripted, "reader", scripted.failing(*(f"[{number}]" for number in range(3, 12))))
        result = run(command(data, out, "--concurrency", "1"), status=1)
        assert result.stderr.endswith("Error: question q3 (om, run 1): connection refused\n")
        assert "om, run 1: 9 questions are not judged yet" in (out / "report.md").read_text()
        monkeypatch.setattr(scripted, "reader", healthy)
        assert "100.00 %" in run(command(data, out)).stdout

    def test_questions_that_no_model_takes_fail_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        data = samples.written(tmp_path / "data.json", samples.many(20))
        bad = [f"[{number}]" for number in (*range(3, 10), 19)]
        monkeypatch.setattr(scripted, "reader", scripted.failing(*bad))
        run(command(data, tmp_path / "a", "--concurrency", "1"))
        judged = records(tmp_path / "a", "judgements")
        failed = {key[2]: one["error"] for key, one in judged.items() if "error" in one}
        names = [f"q{part[1:-1]}" for part in bad]
        assert failed == dict.fromkeys(names, "no answer: ModelConnectionError: connection refused")
        assert len(judged) == 20

    def test_a_model_that_the_server_does_not_have_stops_the_run(self, data: Path, tmp_path: Path) -> None:
        result = run(command(data, tmp_path / "runs" / "a", judge="unknown"), status=1)
        assert result.stderr.endswith("Error: question q1 (om, run 1): the model does not exist\n")
        assert not (tmp_path / "runs" / "a" / "judgements.jsonl").exists()

    def test_a_history_that_cannot_be_ingested_fails_its_questions_only(self, tmp_path: Path) -> None:
        items = samples.longmemeval()
        data = samples.written(tmp_path / "data.json", items)
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--system", "om", "--system", "full", observer="broken"))
        judged = records(out, "judgements")
        assert "ingest: session 1-q1-0" in judged["om", 1, "q1", None, None]["error"]
        assert judged["full", 1, "q1", None, None]["correct"] is True

    def test_a_new_run_ingests_again_what_has_failed(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(command(data, tmp_path / "a", observer="broken"))
        monkeypatch.setattr(scripted, "broken", scripted.ScriptedModel(scripted.observer._replies[0], name="broken"))
        assert "  0.00 %" in run(command(data, tmp_path / "a", observer="broken")).stdout
        assert "100.00 %" in run(command(data, tmp_path / "b", observer="broken")).stdout


class TestSystems:
    def test_all_are_compared_under_one_reader(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        names = ["om", "om-recall", "summary", "last", "full", "tests.evals.scripted:UserMessages"]
        systems = [word for name in names for word in ("--system", name)]
        run(command(data, out, *systems, observer="observer"))
        judged = records(out, "judgements")
        assert {key[0] for key in judged} == set(names)
        right = {name: sum(judged[key]["score"] for key in judged if key[0] == name) for name in names}
        assert right["tests.evals.scripted:UserMessages"] == right["om"] == right["full"] == 4
        assert 'id="' in context(out, "om-recall", "q1").read_text()

    def test_a_summary_is_as_long_as_the_diary(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--system", "om", "--system", "summary", observer="observer"))
        asked = [request.text for request in scripted.observer.requests if "You keep a summary" in request.text]
        sizes = {int(found[1]) for text in asked if (found := re.search(r"at most (\d+) words", text))}
        assert sizes
        assert max(sizes) < 100  # of the diary, not the default of 3,000 words

    def test_semantic_recall_alone(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--system", "semantic", "--embedder", "wordllama", "--top-k", "1"))
        found = context(out, "semantic", "q1").read_text()
        assert "Trieste" in found
        assert "tea" not in found

    def test_memories_of_each_run(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--runs", "2", "--memory-per-run"))
        assert len([*(tmp_path / "runs" / "memories").rglob("memory.db")]) == 2
        assert context(out, "om", "q1", 2).parent == out / "contexts" / "om-run2"

    def test_the_reader_may_look_things_up(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--system", "om", "--system", "om-recall", reader="searching"))
        answers = records(out, "answers")
        assert "tool_calls" not in answers["om", 1, "q1", None, None]
        (call,) = answers["om-recall", 1, "q1", None, None]["tool_calls"]
        assert call.startswith("recall(mode='search', query='Trieste') -> ")
        assert "My sister Bea lives in Trieste" in call
        assert "My sister" not in answers["om-recall", 1, "q2", None, None]["tool_calls"][0]  # of another history

    def test_the_diary_is_written_once_for_om_and_om_recall(self, data: Path, tmp_path: Path) -> None:
        run(command(data, tmp_path / "runs" / "a", "--system", "om", "--system", "om-recall"))
        assert len([*(tmp_path / "runs" / "memories").rglob("memory.db")]) == 1

    def test_an_object_that_is_no_system_is_refused(self, data: Path, tmp_path: Path) -> None:
        result = run(command(data, tmp_path / "a", "--system", "tests.evals.scripted:PRICES"), status=2)
        assert "is neither a system nor a function that returns one" in result.stderr

    def test_a_system_that_cannot_be_made_fails_no_session(self, data: Path, tmp_path: Path) -> None:
        name = "tests.evals.scripted:NoFolder"
        result = run(command(data, tmp_path / "a", "--system", name), status=2)
        assert f"Error: {name} cannot be made with a folder: TypeError: NoFolder() takes no arg" in result.stderr
        assert not [*tmp_path.rglob("sessions.jsonl")]

    def test_a_name_is_printed_as_it_is(self, data: Path, tmp_path: Path) -> None:
        result = run(command(data, tmp_path / "a", "--system", "tests.evals.scripted:book"))
        assert "Cost of tests.evals.scripted:book: ingest" in result.stdout

    def test_an_unknown_name_is_refused(self, data: Path, tmp_path: Path) -> None:
        assert "unknown system 'rag'" in run(command(data, tmp_path / "a", "--system", "rag"), status=2).stderr


class TestReport:
    def test_two_runs_without_a_common_question(self, data: Path, tmp_path: Path) -> None:
        item = samples.longmemeval_item("q9", "multi-session", "How many cats?", "3", "I adopted a third cat.")
        run(command(data, tmp_path / "a"))
        run(command(samples.written(tmp_path / "other.json", [item]), tmp_path / "b"))
        run(["eval", "report", str(tmp_path / "a"), str(tmp_path / "b")])
        report = (tmp_path / "a" / "report.md").read_text()
        section = report.partition(f"## Beside {tmp_path / 'b'}\n")[2]
        assert section.startswith("\n**The two runs differ in** data.")
        assert "The two runs have no judged question in common." in section

    def test_the_page_stands_alone_and_shows_every_answer(self, data: Path, tmp_path: Path) -> None:
        items = samples.longmemeval()
        items[0]["haystack_sessions"][0][0]["content"] += " <script>alert(1)</script>"
        data = samples.written(tmp_path / "data.json", items)
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--system", "om", "--system", "last", "--last-messages", "2"))
        page = (out / "report.html").read_text()
        assert "<svg" in page
        assert not re.search(r'(src|href)="(https?:)?//', page)
        assert "<script>alert" not in page
        assert page.count("<details") == 8
        for text in ("You have 3 cats.", "I do not know.", str(context(out, "om", "q2").relative_to(out))):
            assert text in page

    def test_tables_lead_to_their_answers(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--system", "om", "--system", "last", "--last-messages", "2", judge="broken"))
        page = (out / "report.html").read_text()
        assert '<a href="#system=last&amp;type=multi-session">multi-session</a>' in page
        assert '<a href="#system=last">micro</a>' in page
        assert page.count('data-system="last" data-run="1" data-part="" data-type="multi-session"') == 1
        failed = re.findall(r'<a href="#(answer-\d+)">q2</a>', page)
        assert len(failed) == 2
        assert all(f'<details id="{id}" class="failed"' in page for id in failed)

    def test_many_answers_have_pages_of_their_own(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("diarist.evals.answer_pages.MOST_ON_ONE_PAGE", 7)
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--system", "om", "--system", "last", "--last-messages", "2"))
        page = (out / "report.html").read_text()
        assert "<details" not in page
        links = re.findall(r'href="(answers/[^"]*)"', page)
        assert {"answers/om-run1.html", "answers/om-run1.html#type=multi-session"} <= set(links)
        for link in links:
            assert (out / link.partition("#")[0]).read_text().count("<details") == 4
        target = re.search(r'href="([^"]*)">contexts/om', (out / "answers" / "om-run1.html").read_text())
        assert target is not None
        assert (out / "answers" / target[1]).is_file()

    def test_it_tells_what_the_run_was(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "a"
        more = ("--reading", "direct", "--items", "2", "--system", "last", "--last-messages", "7", "--runs", "2")
        run(command(data, out, *more, "--context-tokens", "4000"))
        rows = (out / "report.md").read_text()
        for row in (
            *("Histories | 2 of 4", "Questions | 2", "reading | direct", "last_messages | 7", "context_tokens | 4,000"),
            *("reader_tokens | 500", "judge_tokens | 10", "Runs | 2", f"Begun | {datetime.now(UTC):%Y-}"),
        ):
            assert f"| {row}" in rows

    def test_systems_are_tested_in_pairs(self, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "runs" / "a"
        run(command(data, out, "--system", "om", "--system", "last", "--last-messages", "2"))
        text = (out / "report.md").read_text()
        assert "| om, run 1 | last, run 1 | 4 | +75.0 | -11.1 to +100.0 | Bonett-Price | 3 / 0 | 0.2500 |" in text

    def test_it_compares_folders(self, data: Path, tmp_path: Path) -> None:
        run(command(data, tmp_path / "a"))
        run(command(data, tmp_path / "b", "--system", "last", "--last-messages", "2"))
        run(["eval", "report", str(tmp_path / "a"), str(tmp_path / "b")])
        row = f"| {tmp_path / 'a'}: om, run 1 | {tmp_path / 'b'}: last, run 1 | 4 | +75.0 |"
        assert row in (tmp_path / "a" / "report.md").read_text()

    def test_a_tiny_p_value_is_not_zero(self, tmp_path: Path) -> None:
        first = samples.longmemeval()[0]
        data = samples.written(tmp_path / "data.json", [first | {"question_id": f"q{number}"} for number in range(15)])
        run(command(data, tmp_path / "a", "--system", "full", "--system", "last", "--last-messages", "2"))
        assert "| 15 / 0 | < 0.0001 |" in (tmp_path / "a" / "report.md").read_text()

    def test_it_says_in_what_two_runs_differ(self, data: Path, tmp_path: Path) -> None:
        run(command(data, tmp_path / "a"))
        run(command(data, tmp_path / "b", "--reading", "direct", "--reader-tokens", "90", judge="broken"))
        run(["eval", "report", str(tmp_path / "a"), str(tmp_path / "b")])
        judges = "judge (tests.evals.scripted:judge and tests.evals.scripted:broken)"
        others = "reading (con and direct), reader_tokens (none and 90)"
        says = f"**The two runs differ in** {judges}, {others}. A difference may come from that."
        assert says in (tmp_path / "a" / "report.md").read_text()

    @pytest.mark.parametrize("left", ['{"settings": {"data', "", "[]"])
    def test_a_damaged_run_is_refused(self, data: Path, tmp_path: Path, left: str) -> None:
        out = tmp_path / "a"
        run(command(data, out))
        (out / "run.json").write_text(left)
        for words in (["eval", "report", str(out)], command(data, out)):
            assert f"Error: {out / 'run.json'} is damaged: " in run(words, status=2).stderr

    @pytest.mark.parametrize("left", ["{}", '{"settings": {"dataset": "x"}}'])
    def test_a_run_of_no_known_data_set_is_refused(self, tmp_path: Path, left: str) -> None:
        (tmp_path / "run.json").write_text(left)
        error = run(["eval", "report", str(tmp_path)], status=2).stderr
        assert f"Error: {tmp_path / 'run.json'} is damaged: it names none of the data sets longmemeval" in error

    @pytest.mark.parametrize(
        ("name", "field", "value"),
        [("judgements.jsonl", "score", None), ("questions.jsonl", "part", None), ("run.json", "systems", {})],
    )
    def test_a_damaged_file_is_named(self, name: str, field: str, value: Any, data: Path, tmp_path: Path) -> None:
        out = tmp_path / "a"
        run(command(data, out))
        first, _, rest = (out / name).read_text().partition("\n") if name != "run.json" else ("", "", "")
        damaged = json.loads(first or (out / name).read_text()) | {field: value}
        (out / name).write_text(json.dumps(damaged) + "\n" + rest)
        for words in (["eval", "report", str(out)], command(data, out)):
            error = run(words, status=2).stderr
            assert error.startswith(f"Error: {out / name}")
            assert error.endswith(f"the field '{field}' is missing or has a wrong type\n")

    def test_a_run_without_judgements_of_a_part_has_no_average_of_it(self, tmp_path: Path) -> None:
        data, out = samples.written(tmp_path / "data.jsonl", samples.halumem()), tmp_path / "out"
        run(["eval", "halumem", *command(data, out, "--runs", "2")[2:]])
        lines = (out / "judgements.jsonl").read_text().splitlines(keepends=True)
        second = [line for line in lines if json.loads(line)["run"] == 2]
        (out / "judgements.jsonl").write_text("".join(line for line in lines if line not in second[1:]))
        run(["eval", "report", str(out)])
        macros = [row for row in (out / "report.md").read_text().splitlines() if "| macro |" in row]
        assert ["·" in row for row in macros] == [True, *[False] * (len(macros) - 1)]

    def test_a_folder_without_a_run_is_refused(self, tmp_path: Path) -> None:
        assert "holds no run of diarist eval" in run(["eval", "report", str(tmp_path)], status=2).stderr
